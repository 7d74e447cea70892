package heartbeat

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/leasemq/leasemq/codec"
)

func TestGroups(t *testing.T) {
	s := newStory(t)
	id := s.group("audit")
	if id != 2 || s.registry.NextGroupID() != 3 {
		t.Errorf("id %d, next %d", id, s.registry.NextGroupID())
	}
	byName, ok := s.registry.GroupNamed("audit")
	byID, ok2 := s.registry.GroupByID(id)
	if !ok || !ok2 || byName != byID || byName.ID != id || byName.Live != 0 || byName.Version != 0 || byName.Rules.SessionTimeoutMs != uint32(timeoutMs) {
		t.Errorf("%+v, %+v", byName, byID)
	}
	if !slices.Equal(s.registry.Groups(), []uint32{2, 1}) { // audit, billing
		t.Errorf("groups %d", s.registry.Groups())
	}
	if s.registry.GroupName(id) != "audit" || s.registry.GroupName(99) != "" {
		t.Errorf("names %q, %q", s.registry.GroupName(id), s.registry.GroupName(99))
	}
	if _, ok := s.registry.GroupNamed("none"); ok {
		t.Error("found by name what is not there")
	}
	if _, ok := s.registry.GroupByID(99); ok {
		t.Error("found by id what is not there")
	}

	s.append(&codec.Group{Op: codec.OpUpdate, ID: id, Rules: codec.Rules{SessionTimeoutMs: 77}})
	if g, _ := s.registry.GroupByID(id); g.Rules.SessionTimeoutMs != 77 || s.registry.GroupName(id) != "audit" {
		t.Errorf("%+v", g.Rules)
	}
	s.append(&codec.Group{Op: codec.OpDelete, ID: id})
	if _, ok := s.registry.GroupByID(id); ok {
		t.Error("a deleted group is there")
	}
	// Its name can be used again, its id never.
	if again := s.group("audit"); again != 3 {
		t.Errorf("id %d", again)
	}
}

func TestLongestNames(t *testing.T) {
	s := newStory(t)
	long := strings.Repeat("x", 255)
	g := s.group(long)
	if s.registry.GroupName(g) != long {
		t.Error("the name of the group was cut")
	}
	l := s.start(g, long)
	if consumer, _ := s.registry.Names(l.Slot); consumer != long {
		t.Error("the consumer id was cut")
	}
}

func TestGroupPreconditions(t *testing.T) {
	s := newStory(t)
	l := s.start(1, "a")
	for name, rec := range map[string]*codec.Group{
		"a name that is taken":        {Op: codec.OpCreate, ID: 2, Name: []byte("billing")},
		"an id that was used":         {Op: codec.OpCreate, ID: 1, Name: []byte("x")},
		"an id that is not the next":  {Op: codec.OpCreate, ID: 3, Name: []byte("x")},
		"update of none":              {Op: codec.OpUpdate, ID: 2},
		"deletion of none":            {Op: codec.OpDelete, ID: 2},
		"deletion with live sessions": {Op: codec.OpDelete, ID: 1},
		"no operation":                {Op: 9, ID: 1},
	} {
		s.refuse(name, rec)
	}
	s.end(l.ID, codec.EndLeft)
	s.append(&codec.Group{Op: codec.OpDelete, ID: 1})
}

func TestSessionBegins(t *testing.T) {
	// Given a group, when a consumer registers,
	s := newStory(t)
	nonce := [16]byte{1, 2, 3, 15: 16}
	id := s.registry.NextSessionID(epoch)
	s.append(&codec.SessionStart{Session: id, Group: 1, Nonce: nonce, ConsumerID: []byte("host-1"), ClientInfo: []byte("shop/1.4")})
	// then it has a session, which is found by its id, its slot and its consumer id, with the nonce that it gave.
	if id != epoch<<32|1 {
		t.Errorf("id %x", id)
	}
	byID, ok := s.registry.Session(id)
	ofConsumer, ok2 := s.registry.OfConsumer(1, "host-1")
	want := Session{ID: id, Slot: byID.Slot, Group: 1, Nonce: nonce, TimeoutMs: uint32(timeoutMs)}
	if !ok || !ok2 || byID != want || ofConsumer != want || s.registry.SessionAt(byID.Slot) != want {
		t.Errorf("%+v, %+v", byID, ofConsumer)
	}
	if consumer, info := s.registry.Names(byID.Slot); consumer != "host-1" || info != "shop/1.4" {
		t.Errorf("%q, %q", consumer, info)
	}
	l, ok := s.registry.Live(id)
	if !ok || l.ID != id || l.Group != 1 || l.Slot != byID.Slot {
		t.Errorf("%+v", l)
	}
	if seen, ok := l.Seen(); !ok || seen != s.nowMs {
		t.Errorf("seen at %d %t", seen, ok)
	}
	if g, _ := s.registry.GroupByID(1); g.Live != 1 || g.Version != 1 || l.GroupVersion() != 1 {
		t.Errorf("%+v, version %d", g, l.GroupVersion())
	}
	if s.registry.Sessions() != 1 || !slices.Equal(s.registry.LiveOf(1), []uint64{id}) || !slices.Equal(s.registry.LiveOf(0), []uint64{id}) {
		t.Errorf("%d sessions, %d", s.registry.Sessions(), s.registry.LiveOf(0))
	}
	// What is not there is not found.
	_, a := s.registry.OfConsumer(1, "host-2")
	_, b := s.registry.OfConsumer(2, "host-1")
	_, c := s.registry.Session(id + 1)
	_, d := s.registry.Live(id + 1)
	if a || b || c || d || len(s.registry.LiveOf(2)) != 0 {
		t.Error("found what is not there")
	}
}

// TestSessionIDsGrow: over epochs too, and also when an epoch's number has not.
func TestSessionIDsGrow(t *testing.T) {
	s := newStory(t)
	last := uint64(0)
	for _, epoch := range []uint32{5, 5, 6, 6, 6, 100} {
		id := s.registry.NextSessionID(epoch)
		if id <= last || uint32(id>>32) != epoch {
			t.Fatalf("%x after %x in epoch %d", id, last, epoch)
		}
		last = id
		s.append(&codec.SessionStart{Session: id, Group: 1, ConsumerID: fmt.Append(nil, id)})
	}
	if id := s.registry.NextSessionID(6); id != last+1 {
		t.Errorf("%x after %x", id, last)
	}
}

// TestFencing: a newer generation begins only after the older one has ended, as fenced; then the older is no more.
func TestFencing(t *testing.T) {
	s := newStory(t)
	old := s.start(1, "host-1")
	id := s.registry.NextSessionID(epoch)
	s.refuse("two generations at once", &codec.SessionStart{Session: id, Group: 1, ConsumerID: []byte("host-1")})
	s.nowMs += second
	s.end(old.ID, codec.EndFenced)
	newer := s.start(1, "host-1")
	if newer.ID <= old.ID {
		t.Errorf("generation %x after %x", newer.ID, old.ID)
	}
	of, _ := s.registry.OfConsumer(1, "host-1")
	if of.ID != newer.ID {
		t.Errorf("the session of the consumer is %x", of.ID)
	}
	ended, ok := s.registry.Session(old.ID)
	if !ok || !ended.Ended || ended.Cause != codec.EndFenced || ended.EndedMs != s.nowMs {
		t.Errorf("%+v %t", ended, ok)
	}
	if old.Refresh(s.nowMs + second) {
		t.Error("the older one gives signs of life")
	}
	if _, ok := s.registry.Live(old.ID); ok {
		t.Error("the older one lives")
	}
	if !newer.Refresh(s.nowMs + second) {
		t.Error("the newer one gives none")
	}
	// The same consumer id in another group is another consumer.
	s.start(s.group("audit"), "host-1")
	if s.registry.Sessions() != 2 {
		t.Errorf("%d sessions", s.registry.Sessions())
	}
}

func TestSessionPreconditions(t *testing.T) {
	s := newStory(t)
	l := s.start(1, "a")
	next := s.registry.NextSessionID(epoch)
	for name, rec := range map[string]any{
		"a group that is not":        &codec.SessionStart{Session: next, Group: 9, ConsumerID: []byte("b")},
		"an id that was used":        &codec.SessionStart{Session: l.ID, Group: 1, ConsumerID: []byte("b")},
		"an id of an older epoch":    &codec.SessionStart{Session: 1<<32 | 1, Group: 1, ConsumerID: []byte("b")},
		"the end of one that is not": &codec.SessionEnd{Session: next, Cause: codec.EndLeft},
	} {
		s.refuse(name, rec)
	}
	s.end(l.ID, codec.EndLeft)
	s.refuse("the end of one that has ended", &codec.SessionEnd{Session: l.ID, Cause: codec.EndExpired})
	if ended, _ := s.registry.Session(l.ID); ended.Cause != codec.EndLeft {
		t.Errorf("%+v", ended)
	}
}

// TestEndSessionTellsTheSlot: where the lease table finds what it held.
func TestEndSessionTellsTheSlot(t *testing.T) {
	r := New()
	r.Group(&codec.Group{Op: codec.OpCreate, ID: 1, Name: []byte("g")}, 0)
	for i := range 3 {
		r.StartSession(&codec.SessionStart{Session: uint64(i + 1), Group: 1, ConsumerID: fmt.Append(nil, i)}, 0)
	}
	s, _ := r.Session(2)
	if slot, ok := r.EndSession(&codec.SessionEnd{Session: 2, Cause: codec.EndLeft}, 0, 0); !ok || slot != s.Slot {
		t.Errorf("slot %d %t, want %d", slot, ok, s.Slot)
	}
	if _, ok := r.EndSession(&codec.SessionEnd{Session: 2, Cause: codec.EndLeft}, 0, 0); ok {
		t.Error("it ended twice")
	}
}

// TestGroupVersionGrows with every session that comes or goes, and every session of the group sees it without a lock.
func TestGroupVersionGrows(t *testing.T) {
	s := newStory(t)
	other := s.group("audit")
	watcher, bystander := s.start(1, "watcher"), s.start(other, "bystander")
	last := watcher.GroupVersion()
	for i := range 5 {
		l := s.start(1, fmt.Sprint("c", i))
		if v := watcher.GroupVersion(); v != last+1 || l.GroupVersion() != v {
			t.Fatalf("version %d after %d", v, last)
		}
		s.end(l.ID, codec.EndLeft)
		if v := watcher.GroupVersion(); v != last+2 {
			t.Fatalf("version %d after %d", v, last)
		}
		last += 2
	}
	if g, _ := s.registry.GroupByID(1); g.Version != last || g.Live != 1 {
		t.Errorf("%+v", g)
	}
	if v := bystander.GroupVersion(); v != 1 {
		t.Errorf("the other group has version %d", v)
	}
}

// TestEndedSessionsAreRemembered: the newest of them, so that a caller learns why; the oldest go, in order.
func TestEndedSessionsAreRemembered(t *testing.T) {
	r := New()
	r.OnViolation = func(what string) { t.Fatal(what) }
	r.Group(&codec.Group{Op: codec.OpCreate, ID: 1, Name: []byte("g")}, 0)
	const more = 100
	for id := uint64(1); id <= endedMemory+more; id++ {
		r.StartSession(&codec.SessionStart{Session: id, Group: 1, ConsumerID: []byte("c")}, int64(id))
		r.EndSession(&codec.SessionEnd{Session: id, Cause: codec.EndFenced}, int64(id), int64(id))
		if id%4096 == 0 {
			if err := r.Audit(); err != nil {
				t.Fatal(err)
			}
		}
	}
	for id := uint64(1); id <= endedMemory+more; id++ {
		s, ok := r.Session(id)
		if ok != (id > more) {
			t.Fatalf("session %d of %d: remembered %t", id, endedMemory+more, ok)
		}
		if ok && (!s.Ended || s.Cause != codec.EndFenced || s.EndedMs != int64(id)) {
			t.Fatalf("%+v", s)
		}
	}
	if n := r.sessions.Len(); n != endedMemory {
		t.Errorf("%d sessions in memory", n)
	}
	if err := r.Audit(); err != nil {
		t.Error(err)
	}
}

// TestDeletedGroupTakesItsEndedSessions with it: they name its slot. Those of other groups stay, in order.
func TestDeletedGroupTakesItsEndedSessions(t *testing.T) {
	s := newStory(t)
	other := s.group("audit")
	var mine, others []uint64
	for i := range 10 {
		a, b := s.start(1, fmt.Sprint("a", i)), s.start(other, fmt.Sprint("b", i))
		s.nowMs++
		s.end(b.ID, codec.EndLeft)
		s.end(a.ID, codec.EndExpired)
		mine, others = append(mine, a.ID), append(others, b.ID)
	}
	s.append(&codec.Group{Op: codec.OpDelete, ID: 1})
	for _, id := range mine {
		if _, ok := s.registry.Session(id); ok {
			t.Errorf("session %x of the deleted group is remembered", id)
		}
	}
	for _, id := range others {
		if e, ok := s.registry.Session(id); !ok || e.Group != other || e.Cause != codec.EndLeft {
			t.Errorf("%+v %t", e, ok)
		}
	}
	// The memory goes on: what ends next is behind what was there.
	l := s.start(other, "last")
	s.nowMs++
	s.end(l.ID, codec.EndLeft)
	s.append(&codec.Group{Op: codec.OpDelete, ID: other})
	if s.registry.sessions.Len() != 0 || s.registry.endedCount != 0 {
		t.Errorf("%d sessions, %d ended", s.registry.sessions.Len(), s.registry.endedCount)
	}
	g := s.group("anew")
	s.end(s.start(g, "x").ID, codec.EndLeft)
}
