package netserver

import (
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/leasemq/leasemq/broker"
	"github.com/leasemq/leasemq/protocol"
)

func TestWakesBeforeTheRunAreOne(t *testing.T) {
	inFrame, proceed := make(chan struct{}), make(chan struct{})
	f := &fake{}
	f.frame = func(_ broker.Peer, h protocol.Header, _ []byte) bool {
		if h.Opcode == protocol.OpPop {
			inFrame <- struct{}{}
			<-proceed
		}
		return true
	}
	fx := start(t, Options{}, f)
	c := fx.greeted()
	c.send(request(protocol.OpPop, 2, nil))
	<-inFrame
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				f.wake()
			}
		})
	}
	wg.Wait()
	proceed <- struct{}{}
	c.expect(2, nil)
	waitFor(t, "the wake ran", func() bool { return f.wakes.Load() > 0 })
	fx.settle()
	if n := f.wakes.Load(); n != 1 {
		t.Errorf("8,000 calls while the loop was busy led to %d runs", n)
	}
}

// What was stored before a wake is seen by a run after it, also if the call came while Wake ran.
func TestNoWakeIsLost(t *testing.T) {
	var stored, seen atomic.Int64
	f := &fake{}
	f.onWake = func() { seen.Store(stored.Load()) }
	fx := start(t, Options{}, f)
	fx.greeted()
	for i := int64(1); i <= 20_000; i++ {
		stored.Store(i)
		f.wake()
		if i%100 == 0 {
			waitFor(t, "the wake saw it", func() bool { return seen.Load() == i })
		}
	}
}

func TestAWakeDuringAWakeRunsOnceMore(t *testing.T) {
	inWake, proceed := make(chan struct{}), make(chan struct{})
	f := &fake{}
	f.onWake = func() {
		inWake <- struct{}{}
		<-proceed
	}
	fx := start(t, Options{}, f)
	fx.greeted()
	f.wake()
	<-inWake
	for range 100 {
		f.wake()
	}
	proceed <- struct{}{}
	<-inWake // once more, without any traffic
	proceed <- struct{}{}
	fx.settle()
	if n := f.wakes.Load(); n != 2 {
		t.Errorf("%d runs, want 2", n)
	}
}

// storm calls wake without end from one goroutine.
type storm struct {
	stop  atomic.Bool
	ended sync.WaitGroup
}

func newStorm(f *fake) *storm {
	s := &storm{}
	s.ended.Go(func() {
		for !s.stop.Load() {
			f.wake()
			runtime.Gosched() // the loop is to be kept busy, not off the processor
		}
	})
	return s
}

func (s *storm) end() {
	s.stop.Store(true)
	s.ended.Wait()
}

// gnet runs its tasks until there are none, and only then looks at sockets. Given wakes without end, and a Wake that
// always finds that another came, then requests are served all the same.
func TestWakesDoNotStarveIO(t *testing.T) {
	f := &fake{}
	f.onWake = func() { f.wake() } // the worst case: every run finds another wake
	fx := start(t, Options{}, f)
	c := fx.greeted()
	storm := newStorm(f)
	defer storm.end()
	for id := uint64(2); id < 200; id++ {
		c.send(request(protocol.OpAck, id, nil))
		c.expect(id, nil)
	}
	storm.end()
	if f.wakes.Load() < 100 {
		t.Errorf("only %d wakes ran", f.wakes.Load())
	}
	fx.onLoop(func(*loop) { f.onWake = nil })
}

// The wake that is put off must not wait for the ticker while there is traffic.
func TestAWakePutOffRunsWithTheNextTraffic(t *testing.T) {
	f := &fake{}
	again := false
	f.frame = func(broker.Peer, protocol.Header, []byte) bool { return true }
	fx := start(t, Options{}, f)
	c := fx.greeted()
	fx.onLoop(func(l *loop) {
		// As runWake leaves it when another wake came during the run.
		l.wake.state.Store(wakeQueued)
		l.wake.deferred = true
		f.onWake = func() { again = true }
	})
	c.send(request(protocol.OpAck, 2, nil))
	c.expect(2, nil)
	fx.onLoop(func(l *loop) {
		if !again || l.wake.state.Load() != wakeIdle {
			t.Error("the wake did not run with the traffic")
		}
	})
}

// gnet's Execute writes 8 bytes to the loop's event descriptor, also after the engine has closed it. Given wakes
// from several goroutines before, while and after the server stops, then no file that reuses a number gets them.
func TestAWakeAfterTheStopIsHarmless(t *testing.T) {
	f := &fake{}
	fx := start(t, Options{}, f)
	fx.greeted()
	storm := newStorm(f)
	defer storm.end()
	_ = fx.Close()
	dir := t.TempDir()
	content := []byte("MAGIC000 and the rest of a segment")
	for i := range 50 {
		file, err := os.Create(filepath.Join(dir, string(rune('a'+i))))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = file.Close() }()
		_, _ = file.Write(content)
		_, _ = file.Seek(0, 0)
	}
	// As if the latest wake had been taken: this one goes all the way down.
	fx.allLoops()[0].wake.state.Store(wakeIdle)
	ran := f.wakes.Load()
	f.wake()
	storm.end()
	for i := range 50 {
		got, err := os.ReadFile(filepath.Join(dir, string(rune('a'+i))))
		if err != nil || string(got) != string(content) {
			t.Fatalf("file %d is %q, %v", i, got, err)
		}
	}
	if f.wakes.Load() != ran {
		t.Error("a wake ran after the stop")
	}
}

// OnShutdown comes before gnet closes anything: from there on nothing is put into a queue of its.
func TestNothingIsExecutedOnceTheStopBegan(t *testing.T) {
	fx := start(t, Options{}, &fake{})
	fx.greeted()
	fx.engine.OnShutdown(fx.engine.gnet)
	ran := make(chan struct{}, 1)
	fx.allLoops()[0].execute(func() { ran <- struct{}{} })
	_ = fx.Close()
	select {
	case <-ran:
		t.Error("it ran")
	default:
	}
}
