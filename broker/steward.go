package broker

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

const (
	defaultSnapshotBytes = 256 << 20
	// stewardEveryMs is how often the disk and the oldest segment are looked at.
	stewardEveryMs = 1000
	// stewardPauseMostMs is the longest pause after something failed (a full disk, mostly).
	stewardPauseMostMs = 60_000
)

// steward is the background loop that keeps the log short: it takes snapshots, looks how full the disk is, and lets old
// segments go. Like the ticker each start of it has a run number, checked inside the section.
type steward struct {
	mu     sync.Mutex
	run    atomic.Uint64
	kick   chan struct{}
	stopC  chan struct{}
	done   chan struct{}
	seenMs atomic.Int64 // lease clock when a pass was asked for last

	pass    sync.Mutex   // held by a pass
	pauseMs int64        // how long is waited after a failure; guarded by pass
	retryMs atomic.Int64 // until when on the lease clock that is; written under pass
}

func (s *steward) start(e *Engine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	run := s.run.Add(1)
	s.kick, s.stopC, s.done = make(chan struct{}, 1), make(chan struct{}), make(chan struct{})
	go s.loop(e, run, s.kick, s.stopC, s.done)
}

func (s *steward) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopC == nil {
		return
	}
	s.run.Add(1)
	close(s.stopC)
	<-s.done
	s.stopC = nil
}

// poke has the loop look, if it is time to. The ticker calls it, outside the section.
func (s *steward) poke(e *Engine) {
	nowMs := e.lease.now()
	due := nowMs >= s.retryMs.Load() && e.snapshotDue()
	if nowMs-s.seenMs.Load() < stewardEveryMs && !due {
		return
	}
	s.seenMs.Store(nowMs)
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

func (s *steward) loop(e *Engine, run uint64, kick, stop, done chan struct{}) {
	defer close(done)
	for {
		select {
		case <-stop:
			return
		case <-kick:
			e.stewardPass(run)
		}
	}
}

// snapshotDue tells whether enough log has gathered since the newest snapshot.
func (e *Engine) snapshotDue() bool {
	return e.log.Appended()-e.snapped.Load() >= uint64(e.o.SnapshotBytes)
}

// Steward is a pass by hand, for tests.
func (e *Engine) Steward() { e.stewardPass(e.steward.run.Load()) }

// stewardPass does what there is to do.
func (e *Engine) stewardPass(run uint64) {
	s := &e.steward
	s.pass.Lock()
	defer s.pass.Unlock()
	if healed := e.lookAtDisk(); healed {
		s.retryMs.Store(0)
	}
	nowMs := e.lease.now()
	if e.failed.Load() || s.run.Load() != run || nowMs < s.retryMs.Load() {
		return
	}
	e.mendDue()
	if err := e.keepShort(run); err != nil && e.ctx.Err() == nil {
		s.pauseMs = min(max(2*s.pauseMs, stewardEveryMs), stewardPauseMostMs)
		s.retryMs.Store(nowMs + s.pauseMs)
		e.logger.Error("the log could not be kept short", "error", err, "next try in", time.Duration(s.pauseMs)*time.Millisecond)
		return
	}
	s.pauseMs = 0
	s.retryMs.Store(0)
}

// keepShort takes a snapshot when one is due and lets old segments go.
func (e *Engine) keepShort(run uint64) error {
	var failed error
	if e.snapshotDue() {
		_, failed = e.Snapshot()
	}
	// What older snapshots cover can go all the same, and may make the room that this one lacked.
	return errors.Join(failed, e.retain(run))
}

// lookAtDisk notes how full the disk is, and has looked at again who was refused when there is room. It is true when there
// was too little, and no longer is.
func (e *Engine) lookAtDisk() (healed bool) {
	short := e.reserveShort.Load()
	err := e.disk.look(e.log)
	if unknown := err != nil; unknown != e.diskUnknown.Swap(unknown) && unknown {
		e.logger.Warn("how full the disk is cannot be told: it is taken to be as it was", "error", err)
	}
	lack := func() int64 {
		e.enter()
		defer e.leave()
		return e.reserveLack(sendReserve)
	}()
	e.reserveShort.Store(lack > 0)
	switch {
	case lack > 0 && !short:
		e.logger.Error("the disk is nearly full: sends are refused until there is room", "free", e.disk.free.Load(), "more needed", lack)
	case lack == 0 && short:
		e.logger.Info("the disk has room again: sends are served", "free", e.disk.free.Load())
		e.onLoad() // everybody who waits is looked at
		return true
	}
	return false
}
