package lease

import (
	"testing"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
)

// leaseOfOne is a story with one message, leased for 30 s.
func leaseOfOne(t *testing.T) (*story, holder, Receipt) {
	s := newStory(t, 1)
	s.send(0, 1)
	worker := s.session()
	return s, worker, s.pop1(worker, 30*second)
}

func (s *story) endMs() int64 {
	s.t.Helper()
	g, ok := s.table.Granted(s.slot(), 0, 0)
	if !ok {
		s.t.Fatal("it is not leased")
	}
	return g.EndMs
}

func TestRenewal(t *testing.T) {
	s, worker, r := leaseOfOne(t)
	s.advance(10 * second)
	// When the lease is renewed for a minute,
	c := s.change(worker, r, Change{Ordinal: 1, InvisibleMs: 60 * second})
	// then it ends a minute from now, one renewal is spent, and the receipt is the same.
	s.expectOK("renewal", c.Verdict)
	if !c.Apply || c.Entry.Kind != codec.ChangeRenewed || c.RemainingMs != 60*second || c.RenewalsLeft != 2 {
		t.Errorf("%+v", c)
	}
	if s.endMs() != s.nowMs+60*second {
		t.Errorf("it ends in %d", s.endMs()-s.nowMs)
	}
	if got := s.advance(60*second - 1); len(got) != 0 {
		t.Errorf("it has ended: %+v", got)
	}
	s.expectOK("ack", s.ack(r))
}

// TestRepeatedChange: the answer was lost, and the same request comes again. Nothing is spent twice.
func TestRepeatedChange(t *testing.T) {
	for name, x := range map[string]Change{
		"renewed":   {InvisibleMs: 60 * second},
		"shortened": {InvisibleMs: 20 * second},
		"released":  {},
		"failed":    {Cause: protocol.CauseFailed},
		"postponed": {Cause: protocol.CausePostponed, InvisibleMs: 40 * second},
	} {
		s, worker, r := leaseOfOne(t)
		x.Ordinal = 1
		first := s.change(worker, r, x)
		s.expectOK(name, first.Verdict)
		if !first.Apply {
			t.Errorf("%s: %+v", name, first)
		}
		for _, later := range []int64{0, second} {
			s.advance(later)
			again := s.change(worker, r, x)
			if again.Apply || again.Verdict.Status != protocol.OK || again.Token != first.Token ||
				again.RenewalsLeft != first.RenewalsLeft || again.BudgetMs != first.BudgetMs ||
				again.RemainingMs != max(first.RemainingMs-later, 0) {
				t.Errorf("%s, repeated after %d ms: %+v, first %+v", name, later, again, first)
			}
		}
	}
}

// TestOrdinals: the next one is applied, one that was done is answered again, any other is refused and named.
func TestOrdinals(t *testing.T) {
	s, worker, r := leaseOfOne(t)
	s.rules.MaxRenewals = 10
	ordinal := func(n uint32) Changed {
		return s.change(worker, r, Change{Ordinal: n, InvisibleMs: int64(n+1) * 60 * second})
	}
	for _, n := range []uint32{0, 2, 3, 1 << 16, 1<<16 + 1, ^uint32(0)} {
		s.expect("before the first", ordinal(n).Verdict, protocol.Stale, protocol.ReasonOrdinal)
	}
	for n := uint32(1); n <= 3; n++ {
		if c := ordinal(n); !c.Apply || c.Status != protocol.OK {
			t.Fatalf("ordinal %d: %+v", n, c)
		}
	}
	for n := uint32(1); n <= 3; n++ {
		c := ordinal(n)
		s.expectOK("one that was done", c.Verdict)
		if c.Apply || c.RemainingMs != 4*60*second || c.RenewalsLeft != 7 {
			t.Errorf("ordinal %d again: %+v", n, c)
		}
	}
	for _, n := range []uint32{0, 5, 1<<16 + 3, 1<<16 + 4} {
		s.expect("after the third", ordinal(n).Verdict, protocol.Stale, protocol.ReasonOrdinal)
	}
	// The next grant begins to count again.
	s.change(worker, r, Change{Ordinal: 4})
	r = s.pop1(worker, 30*second)
	s.expect("of the grant before", ordinal(4).Verdict, protocol.Stale, protocol.ReasonOrdinal)
	if c := ordinal(1); !c.Apply || c.RenewalsLeft != 9 {
		t.Errorf("%+v", c)
	}
}

// TestLastOrdinal: the entry keeps 16 bits; no change is ever taken for an older one.
func TestLastOrdinal(t *testing.T) {
	s, worker, r := leaseOfOne(t)
	for _, table := range []*Table{s.table, s.shadow} {
		i, _ := table.lookup(s.slot(), 0, 0)
		table.entries.Mut(i).ordinal = MaxOrdinal - 1
	}
	shorter := func(n uint32) Changed { return s.change(worker, r, Change{Ordinal: n, InvisibleMs: second}) }
	if c := shorter(MaxOrdinal); !c.Apply {
		t.Fatalf("%+v", c)
	}
	s.expectOK("the last again", shorter(MaxOrdinal).Verdict)
	s.expect("one more", shorter(MaxOrdinal+1).Verdict, protocol.Stale, protocol.ReasonOrdinal)
	s.refuse("one more", &codec.Change{Sub: 1, Session: worker.id, Entries: []codec.ChangeEntry{
		{Kind: codec.ChangeReleased, Ordinal: MaxOrdinal + 1, Token: r.Token},
	}}, worker)
}

// TestRenewLimit: what is refused spends nothing, and the lease goes on to the end it had.
func TestRenewLimit(t *testing.T) {
	s, worker, r := leaseOfOne(t)
	for n := uint32(1); n <= 3; n++ {
		c := s.change(worker, r, Change{Ordinal: n, InvisibleMs: int64(n+1) * 30 * second})
		if c.RenewalsLeft != uint16(3-n) {
			t.Errorf("renewal %d: %+v", n, c)
		}
	}
	end := s.endMs()
	for range 2 {
		c := s.change(worker, r, Change{Ordinal: 4, InvisibleMs: hour})
		s.expect("one renewal more", c.Verdict, protocol.RenewLimit, protocol.ReasonNone)
		if c.Apply || c.RemainingMs != end-s.nowMs || c.RenewalsLeft != 0 || c.BudgetMs != 0 || s.endMs() != end {
			t.Errorf("%+v", c)
		}
	}
	// Making it shorter, or giving it back, is not a renewal; the refused one used up no ordinal.
	s.expectOK("shorter", s.change(worker, r, Change{Ordinal: 4, InvisibleMs: second}).Verdict)
	s.expectOK("released", s.change(worker, r, Change{Ordinal: 5}).Verdict)
}

func TestUnlimitedRenewals(t *testing.T) {
	s, worker, r := leaseOfOne(t)
	s.rules.MaxRenewals = protocol.UnlimitedRenewals
	for n := uint32(1); n <= 20; n++ {
		c := s.change(worker, r, Change{Ordinal: n, InvisibleMs: 60 * second})
		s.expectOK("renewal", c.Verdict)
		if c.RenewalsLeft != protocol.UnlimitedRenewals || c.BudgetMs != int64(^uint32(0)) {
			t.Fatalf("%+v", c)
		}
		s.advance(30 * second)
	}
	if g, _ := s.table.Granted(s.slot(), 0, 0); g.Renewals != 20 {
		t.Errorf("%d renewals", g.Renewals)
	}
}

// TestTotalCap: a lease may be renewed for ever under a cap on the time from its grant to its end.
func TestTotalCap(t *testing.T) {
	s, worker, r := leaseOfOne(t)
	s.rules.MaxRenewals, s.rules.MaxTotalMs = protocol.UnlimitedRenewals, uint64(100*second)
	s.advance(10 * second)
	c := s.change(worker, r, Change{Ordinal: 1, InvisibleMs: 60 * second}) // ends 70 s after the grant
	s.expectOK("within the cap", c.Verdict)
	if c.BudgetMs != 30*second || c.RenewalsLeft != protocol.UnlimitedRenewals {
		t.Errorf("%+v", c)
	}
	c = s.change(worker, r, Change{Ordinal: 2, InvisibleMs: 90*second + 1})
	s.expect("a millisecond over the cap", c.Verdict, protocol.RenewLimit, protocol.ReasonNone)
	if c.RemainingMs != 60*second || c.BudgetMs != 30*second || c.Apply {
		t.Errorf("%+v", c)
	}
	c = s.change(worker, r, Change{Ordinal: 2, InvisibleMs: 90 * second})
	s.expectOK("up to the cap", c.Verdict)
	if c.BudgetMs != 0 || c.RemainingMs != 90*second {
		t.Errorf("%+v", c)
	}
}

func TestBudget(t *testing.T) {
	for _, test := range []struct {
		name     string
		rules    codec.Rules
		renewals uint16
		endMs    int64
		left     uint16
		ms       int64
	}{
		{"none spent", codec.Rules{MaxRenewals: 3, MaxInvisibleMs: 1000}, 0, 500, 3, 3000},
		{"one left", codec.Rules{MaxRenewals: 3, MaxInvisibleMs: 1000}, 2, 500, 1, 1000},
		{"all spent", codec.Rules{MaxRenewals: 3, MaxInvisibleMs: 1000}, 3, 500, 0, 0},
		{"more than all, after the rules have changed", codec.Rules{MaxRenewals: 3, MaxInvisibleMs: 1000}, 9, 500, 0, 0},
		{"more than a u32 holds", codec.Rules{MaxRenewals: 60_000, MaxInvisibleMs: protocol.MaxInvisibleMs}, 0, 500, 60_000, 1<<32 - 1},
		{"unlimited", codec.Rules{MaxRenewals: protocol.UnlimitedRenewals, MaxInvisibleMs: 1000}, 9, 500, protocol.UnlimitedRenewals, 1<<32 - 1},
		{"under a cap", codec.Rules{MaxRenewals: protocol.UnlimitedRenewals, MaxTotalMs: 800}, 9, 500, protocol.UnlimitedRenewals, 400},
		{"at the cap", codec.Rules{MaxRenewals: 3, MaxTotalMs: 400}, 0, 500, 3, 0},
		{"over the cap, after the rules have changed", codec.Rules{MaxRenewals: 3, MaxTotalMs: 100}, 0, 500, 3, 0},
	} {
		if left, ms := Budget(&test.rules, test.renewals, test.endMs, 100); left != test.left || ms != test.ms {
			t.Errorf("%s: %d and %d ms, want %d and %d", test.name, left, ms, test.left, test.ms)
		}
	}
}

// TestShorter: only moving the end later is a renewal. The lease then ends at its new, earlier end.
func TestShorter(t *testing.T) {
	for _, ms := range []int64{second, 30 * second} { // shorter; and just as long
		s, worker, r := leaseOfOne(t)
		c := s.change(worker, r, Change{Ordinal: 1, InvisibleMs: ms})
		s.expectOK("shorter", c.Verdict)
		if !c.Apply || c.Entry.Kind != codec.ChangeShortened || c.RenewalsLeft != 3 || c.RemainingMs != ms {
			t.Errorf("%+v", c)
		}
		if got := s.advance(ms - 1); len(got) != 0 {
			t.Fatalf("it has ended too early: %+v", got)
		}
		if got := s.advance(1); len(got) != 1 {
			t.Fatalf("it has not ended: %+v", got)
		}
	}
}

// TestGivenBack: by each cause, when it is visible again and what is counted.
func TestGivenBack(t *testing.T) {
	for _, test := range []struct {
		name     string
		x        Change
		kind     codec.ChangeKind
		waitMs   int64
		failures uint8
	}{
		{"released", Change{}, codec.ChangeReleased, 0, 0},
		{"failed", Change{Cause: protocol.CauseFailed}, codec.ChangeFailed, 5 * second, 1},
		{"failed, with a time of its own", Change{Cause: protocol.CauseFailed, InvisibleMs: 7 * second}, codec.ChangeFailed, 7 * second, 1},
		{"postponed", Change{Cause: protocol.CausePostponed, InvisibleMs: 9 * second}, codec.ChangePostponed, 9 * second, 0},
		{"postponed by nothing", Change{Cause: protocol.CausePostponed}, codec.ChangePostponed, 0, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, worker, r := leaseOfOne(t)
			test.x.Ordinal = 1
			c := s.change(worker, r, test.x)
			s.expectOK("change", c.Verdict)
			if c.Entry.Kind != test.kind || c.RemainingMs != test.waitMs || c.RenewalsLeft != 0 || c.BudgetMs != 0 {
				t.Errorf("%+v", c)
			}
			if s.table.Held(worker.slot) != 0 {
				t.Error("it is held still")
			}
			if test.waitMs > 0 {
				s.advance(test.waitMs - 1)
				if got := s.pop(worker, 0, 1, second); len(got) != 0 {
					t.Fatal("it was granted too early")
				}
				s.advance(1)
			}
			s.pop1(worker, second)
			g, _ := s.table.Granted(s.slot(), 0, 0)
			if g.Attempts != 2 || g.Failures != test.failures || g.Expiries != 0 || g.Losses != 0 || g.Renewals != 0 {
				t.Errorf("%+v", g)
			}
		})
	}
}

// TestFailuresAddUp: over grants, and each waits as the rule says for its number.
func TestFailuresAddUp(t *testing.T) {
	s, worker, r := leaseOfOne(t)
	s.rules.BackOff = uint8(protocol.BackOffLevels)
	for n := range 4 {
		c := s.change(worker, r, Change{Ordinal: 1, Cause: protocol.CauseFailed})
		if want := levelsMs[n]; c.RemainingMs != want {
			t.Errorf("failure %d waits %d ms, want %d", n+1, c.RemainingMs, want)
		}
		s.advance(c.RemainingMs)
		r = s.pop1(worker, 30*second)
		if g, _ := s.table.Granted(s.slot(), 0, 0); g.Failures != uint8(n+1) {
			t.Errorf("%+v", g)
		}
	}
}

// TestChangeAfterTheEnd: an expired lease is not renewed: the message may be on its way to somebody else.
func TestChangeAfterTheEnd(t *testing.T) {
	s, worker, r := leaseOfOne(t)
	s.expectOK("renewal", s.change(worker, r, Change{Ordinal: 1, InvisibleMs: 40 * second}).Verdict)
	s.advance(40 * second)
	expiredMs := s.nowMs
	for _, n := range []uint32{1, 2} { // also the repetition of one that was done: it would tell of a lease that is none
		c := s.change(worker, r, Change{Ordinal: n, InvisibleMs: 40 * second})
		s.expect("renewal", c.Verdict, protocol.Stale, protocol.ReasonExpired)
		if c.AtMs != expiredMs || c.Apply {
			t.Errorf("%+v", c)
		}
	}
	// Up to the record that ends it, a lease runs: also when its time is over and the tick is late.
	s, worker, r = leaseOfOne(t)
	s.nowMs += 31 * second
	s.expectOK("renewal before the tick", s.change(worker, r, Change{Ordinal: 1, InvisibleMs: 40 * second}).Verdict)
	if got := s.advance(0); len(got) != 0 {
		t.Errorf("it has ended: %+v", got)
	}
}

func TestChangeOfASettledMessage(t *testing.T) {
	// Granted once: nothing is remembered of it,
	s, worker, r := leaseOfOne(t)
	s.ack(r)
	c := s.change(worker, r, Change{Ordinal: 1, InvisibleMs: second})
	s.expect("settled by its only grant", c.Verdict, protocol.AlreadySettled, protocol.ReasonSettled)
	if c.Apply || c.Token != r.Token {
		t.Errorf("%+v", c)
	}
	// or granted twice.
	s, worker, r = leaseOfOne(t)
	s.release(worker, r, 1)
	newer := s.pop1(worker, 30*second)
	s.ack(newer)
	for _, r := range []Receipt{r, newer} {
		c := s.change(worker, r, Change{Ordinal: 1})
		s.expect("settled by one of two", c.Verdict, protocol.AlreadySettled, protocol.ReasonSettled)
		if c.Token != newer.Token || c.AtMs != s.nowMs {
			t.Errorf("%+v", c)
		}
	}
}

// TestChangePreconditions: a CHANGE that does not fit does nothing.
func TestChangePreconditions(t *testing.T) {
	s, worker, r := leaseOfOne(t)
	other := s.session()
	end := s.endMs()
	entry := func(change func(x *codec.ChangeEntry)) *codec.Change {
		x := codec.ChangeEntry{Kind: codec.ChangeRenewed, Ordinal: 1, Token: r.Token, AtMs: end + 1}
		change(&x)
		return &codec.Change{Sub: 1, Session: worker.id, Entries: []codec.ChangeEntry{x}}
	}
	for name, bad := range map[string]*codec.Change{
		"a subscription that is not":   {Sub: 2, Entries: make([]codec.ChangeEntry, 1)},
		"a queue that is not":          entry(func(x *codec.ChangeEntry) { x.Queue = 1 }),
		"a message that is not":        entry(func(x *codec.ChangeEntry) { x.Offset = 1 }),
		"another token":                entry(func(x *codec.ChangeEntry) { x.Token++ }),
		"no kind":                      entry(func(x *codec.ChangeEntry) { x.Kind = 5 }),
		"a renewal to the same end":    entry(func(x *codec.ChangeEntry) { x.AtMs = end }),
		"a shortening to a later end":  entry(func(x *codec.ChangeEntry) { x.Kind = codec.ChangeShortened }),
		"ordinal 0":                    entry(func(x *codec.ChangeEntry) { x.Ordinal = 0 }),
		"an ordinal after the next":    entry(func(x *codec.ChangeEntry) { x.Ordinal = 2 }),
		"an ordinal that does not fit": entry(func(x *codec.ChangeEntry) { x.Ordinal = 1<<16 + 1 }),
		"lost, of the running epoch":   entry(func(x *codec.ChangeEntry) { x.Lost, x.Offset, x.Token = true, 1, r.Token+1 }),
		"lost, with ordinal 0":         entry(func(x *codec.ChangeEntry) { x.Lost, x.Ordinal = true, 0 }),
	} {
		s.refuse(name, bad, worker)
	}
	s.refuse("a session that does not hold it", entry(func(*codec.ChangeEntry) {}), other)
	s.append(entry(func(*codec.ChangeEntry) {}), worker)
	s.refuse("the same twice", entry(func(x *codec.ChangeEntry) { x.AtMs += second }), worker)
	s.release(worker, r, 2)
	s.refuse("a lease that was given back", entry(func(x *codec.ChangeEntry) { x.Ordinal = 3 }), worker)
}
