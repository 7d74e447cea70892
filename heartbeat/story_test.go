package heartbeat

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/leasemq/leasemq/codec"
)

var seedFlag = flag.Uint64("seed", 0, "seed of the random tests, as a failed run has printed it")

func newRand(t testing.TB) *rand.Rand {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

const (
	second    = int64(1000)
	timeoutMs = 10 * second
	epoch     = 5
)

// story drives a registry by records, on a clock that the test moves. A shadow gets every record through its bytes and
// never a tick or a heartbeat: after each record both must have the same hash, no violation and a clean audit.
type story struct {
	t        testing.TB
	registry *Registry
	shadow   *Registry
	nowMs    int64
}

func newStory(t testing.TB) *story {
	s := &story{t: t, registry: New(), shadow: New(), nowMs: 1_000_000}
	s.watch(s.registry)
	s.watch(s.shadow)
	s.group("billing")
	return s
}

func (s *story) watch(r *Registry) {
	r.OnViolation = func(what string) {
		s.t.Helper()
		s.t.Fatalf("violation: %s", what)
	}
}

// append applies a record to both.
func (s *story) append(rec any) {
	s.t.Helper()
	apply(s.t, s.registry, rec, s.nowMs)
	apply(s.t, s.shadow, decoded(s.t, rec), s.nowMs)
	s.check()
}

func apply(t testing.TB, r *Registry, rec any, stampMs int64) {
	t.Helper()
	switch rec := rec.(type) {
	case *codec.Group:
		r.Group(rec, stampMs)
	case *codec.SessionStart:
		r.StartSession(rec, stampMs)
	case *codec.SessionEnd:
		r.EndSession(rec, stampMs, stampMs)
	default:
		t.Fatalf("%T", rec)
	}
}

// decoded is rec as it is read from a log.
func decoded(t testing.TB, rec any) any {
	t.Helper()
	var again any
	var err error
	switch rec := rec.(type) {
	case *codec.Group:
		b := new(codec.Group)
		again, err = b, b.Decode(rec.Append(nil))
	case *codec.SessionStart:
		b := new(codec.SessionStart)
		again, err = b, b.Decode(rec.Append(nil))
	case *codec.SessionEnd:
		b := new(codec.SessionEnd)
		again, err = b, b.Decode(rec.Append(nil))
	}
	if err != nil {
		t.Fatal(err)
	}
	return again
}

func (s *story) check() {
	s.t.Helper()
	if err := compare(s.registry, s.shadow); err != nil {
		s.t.Fatal(err)
	}
}

func compare(a, b *Registry) error {
	for name, r := range map[string]*Registry{"registry": a, "shadow": b} {
		if err := r.Audit(); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if a.Hash() != b.Hash() {
		return fmt.Errorf("the shadow is another")
	}
	if a.Violations() != b.Violations() {
		return fmt.Errorf("%d violations, the shadow has %d", a.Violations(), b.Violations())
	}
	return nil
}

func (s *story) group(name string) uint32 {
	s.t.Helper()
	id := s.registry.NextGroupID()
	s.append(&codec.Group{Op: codec.OpCreate, ID: id, Name: []byte(name), Rules: codec.Rules{SessionTimeoutMs: uint32(timeoutMs)}})
	return id
}

// start begins a session of a consumer id in a group.
func (s *story) start(group uint32, consumer string) *Live {
	s.t.Helper()
	id := s.registry.NextSessionID(epoch)
	info := "info of " + consumer
	s.append(&codec.SessionStart{
		Session: id, Group: group, Nonce: [16]byte{byte(id)}, ConsumerID: []byte(consumer), ClientInfo: []byte(info[:min(len(info), 255)]),
	})
	l, ok := s.registry.Live(id)
	if !ok {
		s.t.Fatalf("session %d does not live", id)
	}
	return l
}

func (s *story) end(id uint64, cause codec.EndCause) {
	s.t.Helper()
	s.append(&codec.SessionEnd{Session: id, Cause: cause})
}

// silent moves the clock and gives the sessions whose timeout is over.
func (s *story) silent(ms int64) []uint64 {
	s.t.Helper()
	s.nowMs += ms
	ids, more := s.registry.Advance(s.nowMs, math.MaxInt, nil)
	if more {
		s.t.Fatal("more is due without a limit")
	}
	s.check()
	return ids
}

// refuse appends a record that does not fit: it must be counted, and change nothing.
func (s *story) refuse(what string, rec any) {
	s.t.Helper()
	told := 0
	for _, r := range []*Registry{s.registry, s.shadow} {
		r.OnViolation = func(string) { told++ }
	}
	hash, count := s.registry.Hash(), s.registry.Violations()
	s.append(rec)
	if s.registry.Violations() != count+1 || told != 2 {
		s.t.Errorf("%s: %d violations, told of %d", what, s.registry.Violations()-count, told)
	}
	if s.registry.Hash() != hash {
		s.t.Errorf("%s: the state has changed", what)
	}
	s.watch(s.registry)
	s.watch(s.shadow)
}
