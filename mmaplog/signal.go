package mmaplog

import "sync/atomic"

// signal wakes one goroutine that re-checks its conditions when it wakes. Raising it again before it was
// seen changes nothing; raising never blocks.
type signal chan struct{}

func newSignal() signal { return make(signal, 1) }

func (s signal) raise() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// raise lifts a to at least v.
func raise(a *atomic.Uint64, v uint64) {
	for {
		old := a.Load()
		if old >= v || a.CompareAndSwap(old, v) {
			return
		}
	}
}
