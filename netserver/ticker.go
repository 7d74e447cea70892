package netserver

import "time"

// runTicker is the goroutine of a Server that puts work onto loops when nothing else would: ticks onto those that
// watch peers, and wakes that were deferred. It sleeps while there is neither.
func (s *Server) runTicker() {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	defer timer.Stop()
	armed := paceNone
	for {
		want := s.fastestPace()
		if s.opts.Ticks == nil && want > armed {
			timer.Reset(paceInterval[want])
			armed = want
		}
		select {
		case <-s.stopTicker:
			return
		case <-s.kicked:
			s.handWakesOn()
		case <-timer.C:
			armed = paceNone
			s.tick()
		case <-s.opts.Ticks:
			s.tick()
		}
	}
}

// kick makes the ticker look at what the loops want.
func (s *Server) kick() {
	select {
	case s.kicked <- struct{}{}:
	default: // it is going to look anyway
	}
}

func (s *Server) fastestPace() pace {
	fastest := paceNone
	for _, l := range s.allLoops() {
		fastest = max(fastest, pace(l.wanted.Load()))
	}
	return fastest
}

// tick puts one tick onto every loop that watches something and has not got one that it did not run yet.
func (s *Server) tick() {
	for _, l := range s.allLoops() {
		if l.wanted.Load() != int32(paceNone) && l.tickQueued.CompareAndSwap(false, true) {
			l.execute(l.entries.tick)
		}
	}
}

func (s *Server) handWakesOn() {
	for _, l := range s.allLoops() {
		if l.wake.handOn.Swap(false) {
			l.execute(l.entries.wake)
		}
	}
}
