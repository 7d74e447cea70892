package lease

import (
	"testing"

	"github.com/leasemq/leasemq/codec"
)

// TestReclaimThatDoesNotFit: only what waits, or what the table never knew, can be given back to who held it.
func TestReclaimThatDoesNotFit(t *testing.T) {
	// Given offset 0 settled by its only grant, 1 by a grant that was lost, 2 leased, 3 not known,
	s, _, rs := lostGrants(t, 4)
	s.ack(rs[1])
	worker := s.session()
	got := s.pop(worker, 0, 1, 30*second)
	if len(got) != 1 {
		t.Fatalf("%+v", got)
	}
	for _, offset := range []uint64{0, got[0].Offset, rs[1].Offset} {
		_, number := s.table.Number()
		before := s.at(0)
		s.violate("reclaim", &codec.Grant{Sub: 1, Number: number + 1, DeadlineMs: s.nowMs + second, Runs: []codec.GrantRun{
			{Kind: codec.RunReclaimed, Count: 1, Offset: offset},
		}}, worker)
		if s.at(0) != before {
			t.Errorf("offset %d: %+v, then %+v", offset, before, s.at(0))
		}
	}
	// when the last one is reclaimed it is a lease ahead of the cursor.
	last := rs[len(rs)-1].Offset
	before := s.at(0)
	s.grant(worker, second, codec.GrantRun{Kind: codec.RunReclaimed, Count: 1, Offset: last})
	if after := s.at(0); after.Leased != before.Leased+1 || after.Ahead != before.Ahead+1 || after.Next != before.Next {
		t.Errorf("%+v, then %+v", before, after)
	}
	if err := s.table.Audit(); err != nil {
		t.Error(err)
	}
}

// TestPopMarks: the newest number of each slot that was granted something, until the session ends.
func TestPopMarks(t *testing.T) {
	table := New()
	for _, m := range []struct {
		slot uint8
		PopMark
	}{{5, PopMark{1, 11, 1}}, {0, PopMark{7, 12, 2}}, {15, PopMark{2, 13, 1}}, {5, PopMark{2, 14, 1}}} {
		table.mark(3, m.slot, m.PopMark)
	}
	for slot, want := range map[uint8]PopMark{0: {7, 12, 2}, 5: {2, 14, 1}, 15: {2, 13, 1}, 1: {}} {
		if got := table.PopMark(3, slot); got != want {
			t.Errorf("slot %d: %+v, want %+v", slot, got, want)
		}
	}
	if got := table.PopMark(2, 5); got != (PopMark{}) {
		t.Errorf("another session has %+v", got)
	}
	if err := table.Audit(); err != nil {
		t.Error(err)
	}
	before := table.Hash(bySlot)
	table.mark(3, 5, PopMark{3, 15, 1})
	if table.Hash(bySlot) == before {
		t.Error("the hash does not see a mark")
	}
	table.unmark(3)
	table.unmark(3)
	table.unmark(900)
	if table.Marks() != 0 || table.PopMark(3, 5) != (PopMark{}) {
		t.Errorf("%d marks are left", table.Marks())
	}
}
