package broker

import (
	"cmp"
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/leasemq/leasemq/mmaplog/crashfs"
	"github.com/leasemq/leasemq/protocol"
)

// TestNthFailure runs a short history with a fault of the disk in the nth operation, for every n until none is left. The
// broker goes on, or fails and answers nothing any more but STORE_FAILED, or does not even start. Then the process dies, or the
// power fails - after a failed flush the disk does not have what reads well - and on a sound disk everything that was
// told is there (crashmodel_test.go).
func TestNthFailure(t *testing.T) {
	seed := cmp.Or(*seedFlag, uint64(time.Now().UnixNano()))
	faults := []error{syscall.EIO, syscall.ENOSPC, &crashfs.ShortWrite{Err: syscall.EIO}}
	var met metTrials
	t.Run("modes", func(t *testing.T) {
		for i, mode := range trialModes {
			next := func(n int) int { return n + 1 }
			if testing.Short() || raceDetector || i%3 > 0 { // every operation where stores and policies are unlike, else some
				next = nextPrime
			}
			t.Run(fmt.Sprint(mode.io, " ", mode.fsync), func(t *testing.T) {
				t.Parallel()
				for n, i, hit := 1, int(seed%3), true; hit; n, i = next(n), i+1 {
					runTrial(t, seed, func(t *testing.T, seed uint64) {
						x := newTrial(t, seed, mode.io, mode.fsync)
						hit = x.lifeWithFault(n, faults[i%len(faults)])
						if x.faulty = false; x.rnd.IntN(2) == 0 { // what a kill has left must be durable when it is served
							x.life(2)
						}
						x.lastLife()
						met.add(x)
					})
				}
			})
		}
	})
	met.log(t)
}

func nextPrime(n int) int {
	for n++; ; n++ {
		prime := true
		for d := 2; d*d <= n && prime; d++ {
			prime = n%d != 0
		}
		if prime {
			return n
		}
	}
}

// lifeWithFault is two lives of a broker, the process dies between them, in which the nth operation of the disk fails, once. It
// tells whether there were so many.
func (t *trial) lifeWithFault(n int, fault error) (hit bool) {
	t.t.Helper()
	t.faulty = true
	var ops atomic.Int64
	var what atomic.Value
	t.disk.SetFault(func(op, name string) error {
		if ops.Add(1) != int64(n) {
			return nil
		}
		what.Store(op)
		return fault
	})
	for range 2 {
		if err := t.begin(); err != nil {
			if what.Load() == nil {
				t.t.Fatalf("start: %v", err)
			}
			t.met["a start that failed"]++
			break
		}
		t.checkStart()
		if !t.stop {
			t.found()
		}
		for range 12 {
			if t.stop {
				break
			}
			t.step()
		}
		if _, err := t.e.Snapshot(); err != nil && what.Load() == nil {
			t.t.Fatal(err)
		}
		failed := t.e.Err()
		if failed != nil && what.Load() == nil {
			t.t.Fatal(failed)
		}
		if failed != nil {
			t.checkNothingIsTold()
			t.met["a broker that failed"]++
			t.end()
			break
		}
		t.end()
		t.disk = t.disk.Kill()
	}
	t.disk.SetFault(nil)
	hit = what.Load() != nil
	if hit {
		t.met[fmt.Sprintf("%s: %v", what.Load(), fault)]++
	}
	t.crash()
	return hit
}

// checkNothingIsTold sees that a broker that has failed answers nothing but that.
func (t *trial) checkNothingIsTold() {
	t.t.Helper()
	requests := map[protocol.Opcode]interface{ Append([]byte) []byte }{
		protocol.OpSend:       &protocol.SendRequest{Topic: "t0", Queue: protocol.AnyQueue, Messages: [][]byte{encoded(t.t, "never told")}},
		protocol.OpListTopics: nil,
		protocol.OpRegister:   &protocol.RegisterRequest{Group: "g0", ConsumerID: "late", Nonce: [16]byte{1}},
	}
	for _, s := range t.sessions {
		requests[protocol.OpPop] = popRequest(s.id, "t0", 1)
		requests[protocol.OpHeartbeat] = &protocol.HeartbeatRequest{Session: s.id}
	}
	for code, request := range requests {
		if a, ok := t.ask(code, protocol.FlagCreate, request); ok {
			t.t.Fatalf("%s of a broker that has failed: %s", code, a.Status)
		}
	}
}
