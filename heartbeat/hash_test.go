package heartbeat

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/leasemq/leasemq/codec"
)

// plot is a story with two groups, live sessions and ended ones.
func plot(t *testing.T) *story {
	s := newStory(t)
	other := s.group("audit")
	s.start(1, "a")
	s.start(other, "a")
	for i := range 3 {
		l := s.start(1, fmt.Sprint("gone", i))
		s.nowMs += second
		s.end(l.ID, codec.EndFenced)
	}
	return s
}

// TestSignsOfLifeAreNoState: neither heartbeats nor ticks show.
func TestSignsOfLifeAreNoState(t *testing.T) {
	s := plot(t)
	hash := s.registry.Hash()
	for _, id := range s.registry.LiveOf(0) {
		l, _ := s.registry.Live(id)
		l.Refresh(1 << 40)
	}
	s.registry.Advance(1<<39, 1000, nil)
	if s.registry.Hash() != hash || hash == New().Hash() || hash != plot(t).registry.Hash() {
		t.Error("the hash is another")
	}
}

func TestHashOfDifferentStates(t *testing.T) {
	sessionOf := func(r *Registry, k int) *session {
		for id, i := range r.slots {
			if int(uint32(id)) == k {
				return r.sessions.Mut(i)
			}
		}
		panic("no such session")
	}
	hashes := map[uint64]string{}
	for name, change := range map[string]func(*Registry){
		"nothing":            func(*Registry) {},
		"the next group":     func(r *Registry) { r.nextGroup++ },
		"the last session":   func(r *Registry) { r.lastID++ },
		"a group's id":       func(r *Registry) { r.groups.Mut(1).id += 10 },
		"a group's sessions": func(r *Registry) { r.groups.Mut(1).live++ },
		"a version":          func(r *Registry) { r.groups.Mut(2).version++ },
		"a rule":             func(r *Registry) { r.groups.Mut(2).rules.MaxInFlight++ },
		"a group's name":     func(r *Registry) { r.groups.Mut(2).name = newText("other") },
		"a session's id":     func(r *Registry) { sessionOf(r, 1).id++ },
		"a session's group":  func(r *Registry) { sessionOf(r, 1).group = 2 },
		"an end":             func(r *Registry) { sessionOf(r, 1).ended = true },
		"a cause":            func(r *Registry) { sessionOf(r, 3).cause = codec.EndLeft },
		"the time of an end": func(r *Registry) { sessionOf(r, 3).endedMs++ },
		"a nonce":            func(r *Registry) { sessionOf(r, 1).nonce[15]++ },
		"a consumer id":      func(r *Registry) { sessionOf(r, 1).consumer = newText("b") },
		"a client info":      func(r *Registry) { sessionOf(r, 1).info = newText("b") },
		"where one text ends": func(r *Registry) {
			s := sessionOf(r, 1)
			both := s.consumer.String() + s.info.String()
			s.consumer, s.info = newText(both[:3]), newText(both[3:])
		},
		"the order of the ended": func(r *Registry) {
			a := r.endedHead
			b := r.sessions.At(a).next
			c := r.sessions.At(b).next
			r.endedHead, r.sessions.Mut(b).next, r.sessions.Mut(a).next = b, a, c
		},
	} {
		r := plot(t).registry
		change(r)
		h := r.Hash()
		if other, ok := hashes[h]; ok {
			t.Errorf("%s and %s look the same", name, other)
		}
		hashes[h] = name
	}
}

// TestAuditFinds: whatever is out of order.
func TestAuditFinds(t *testing.T) {
	live := func(r *Registry) uint64 { return r.LiveOf(1)[0] }
	for name, spoil := range map[string]func(*Registry){
		"a count of a group":        func(r *Registry) { r.groups.Mut(1).live++ },
		"a count of the ended":      func(r *Registry) { r.endedCount-- },
		"an id":                     func(r *Registry) { r.sessions.Mut(r.slots[live(r)]).id++ },
		"a consumer":                func(r *Registry) { delete(r.consumers, consumerKey{1, "a"}) },
		"a consumer's newest":       func(r *Registry) { r.consumers[consumerKey{1, "a"}] = 99 },
		"a consumer that is none":   func(r *Registry) { r.consumers[consumerKey{1, "z"}] = 1 },
		"a word":                    func(r *Registry) { r.live.Delete(live(r)) },
		"a word of nobody":          func(r *Registry) { r.live.Store(uint64(99), &Live{}) },
		"a timer":                   func(r *Registry) { r.wheel.Cancel(r.slots[live(r)]) },
		"a timer of an ended one":   func(r *Registry) { r.wheel.Schedule(r.endedHead, 1<<40) },
		"a session without a name":  func(r *Registry) { r.sessions.Alloc() },
		"a live one that has ended": func(r *Registry) { r.sessions.Mut(r.slots[live(r)]).ended = true },
		"an ended one that lives":   func(r *Registry) { r.sessions.Mut(r.endedHead).ended = false },
		"the last of the ended":     func(r *Registry) { r.endedTail = r.endedHead },
		"the first of the ended":    func(r *Registry) { r.endedHead = r.sessions.At(r.endedHead).next },
		"the order of the ended":    func(r *Registry) { r.sessions.Mut(r.endedHead).endedMs = 1 << 40 },
	} {
		r := plot(t).registry
		if err := r.Audit(); err != nil {
			t.Fatal(err)
		}
		spoil(r)
		if err := r.Audit(); err == nil {
			t.Errorf("%s: not found", name)
		}
	}
}

// TestLockstep: random records, legal ones and others, to a registry that runs and to one that recovers.
func TestLockstep(t *testing.T) {
	r := newRand(t)
	for round := range 6 {
		live, replay := New(), New()
		now := int64(1)
		for step := range 600 {
			now += r.Int64N(2000)
			live.Advance(now, 1+r.IntN(10), nil)
			for _, id := range live.LiveOf(0) {
				if l, ok := live.Live(id); ok && r.IntN(3) == 0 {
					l.Refresh(now)
				}
			}
			rec := randomRecord(r, live)
			apply(t, live, rec, now)
			apply(t, replay, decoded(t, rec), now)
			if step%8 != 0 {
				continue
			}
			if err := compare(live, replay); err != nil {
				t.Fatalf("round %d step %d, after %T %+v: %v", round, step, rec, rec, err)
			}
		}
	}
}

func randomRecord(r *rand.Rand, reg *Registry) any {
	anyGroup := 1 + r.Uint32N(max(reg.NextGroupID(), 2))
	anyConsumer := fmt.Append(nil, r.IntN(8))
	switch op := r.IntN(100); {
	case op < 15:
		rec := &codec.Group{Op: codec.Op(r.IntN(5)), ID: anyGroup, Name: fmt.Append(nil, "g", r.IntN(5))}
		rec.Rules.SessionTimeoutMs = 1000 + r.Uint32N(20_000)
		if r.IntN(2) == 0 {
			rec.Op, rec.ID = codec.OpCreate, reg.NextGroupID()
		}
		return rec
	case op < 60:
		rec := &codec.SessionStart{Session: reg.NextSessionID(1 + r.Uint32N(3)), Group: anyGroup, ConsumerID: anyConsumer, ClientInfo: anyConsumer}
		rec.Nonce[r.IntN(16)] = byte(r.Uint32())
		if r.IntN(10) == 0 {
			rec.Session -= uint64(r.IntN(5))
		}
		return rec
	default:
		rec := &codec.SessionEnd{Session: reg.NextSessionID(1) - uint64(r.IntN(10)), Cause: codec.EndCause(r.IntN(8))}
		if ids := reg.LiveOf(0); len(ids) > 0 && r.IntN(3) > 0 {
			rec.Session = ids[r.IntN(len(ids))]
		}
		return rec
	}
}
