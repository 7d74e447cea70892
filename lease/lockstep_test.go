package lease

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/leasemq/leasemq/codec"
)

// lockstep gives two tables the same records, legal ones and others: one directly, with ticks in between, as a broker
// that runs; the other through their bytes, without ticks, as a broker that recovers.
type lockstep struct {
	r        *rand.Rand
	live     *Table
	replay   *Table
	nowMs    int64
	epoch    uint32
	position uint64
	last     string // violation of live
	lastToo  string // of replay
}

func newLockstep(r *rand.Rand) *lockstep {
	l := &lockstep{r: r, live: New(), replay: New(), nowMs: 1}
	l.live.OnViolation = func(what string) { l.last = what }
	l.replay.OnViolation = func(what string) { l.lastToo = what }
	return l
}

const (
	lockstepHolders = 4
	lockstepTopics  = 3
)

func (l *lockstep) one(n int) bool { return l.r.IntN(n) == 0 }

// sub is the id of a subscription, mostly of one that is there.
func (l *lockstep) sub() uint32 {
	if slots := l.live.Subs(); len(slots) > 0 && !l.one(30) {
		return l.live.At(slots[l.r.IntN(len(slots))]).ID
	}
	return l.r.Uint32N(l.live.NextID() + 2)
}

// entry is a message of a subscription, mostly one that the table knows to be in a state, and its token, mostly the
// newest.
func (l *lockstep) entry(sub uint32, in state) (queue uint16, offset, token uint64) {
	queue, offset = uint16(l.r.IntN(3)), uint64(l.r.IntN(40))
	slot, ok := l.live.SlotOf(sub)
	if ok && l.live.Queues(slot) > 0 && !l.one(25) {
		queue = uint16(l.r.IntN(l.live.Queues(slot)))
		c := l.live.cursors.At(l.live.queues[slot][queue])
		skip := l.r.IntN(12)
		l.live.index.walk(&c.tree, func(at uint64, i uint32) bool {
			if e := l.live.entries.At(i); e.state == in {
				offset, token = at, e.token
				skip--
			}
			return skip >= 0
		})
	}
	if l.one(25) {
		token = l.token()
	}
	return queue, offset, token
}

// unknown is a message that the cursor has not passed, for a receipt of a lost grant.
func (l *lockstep) unknown(sub uint32) (queue uint16, offset, token uint64) {
	queue, offset, _ = l.entry(sub, waiting)
	if slot, ok := l.live.SlotOf(sub); ok && int(queue) < l.live.Queues(slot) && !l.one(4) {
		offset = l.live.Position(slot, queue).Next + uint64(l.r.IntN(4))
	}
	return queue, offset, l.token()
}

// anyState is one, leased more often than not.
func (l *lockstep) anyState() state {
	return []state{leased, leased, leased, leased, leased, leased, waiting, settled}[l.r.IntN(8)]
}

// token is one that was given out, or could have been, before a crash.
func (l *lockstep) token() uint64 {
	epoch, number := l.r.Uint32N(l.epoch+2), l.r.Uint32N(20)
	if n := len(l.live.epochs); n > 0 && !l.one(10) {
		span := l.live.epochs[max(n-1-l.r.IntN(4), 0)]
		epoch, number = span.epoch, span.number+l.r.Uint32N(10)
	}
	return uint64(epoch)<<32 | uint64(number)
}

func (l *lockstep) atMs() int64 { return l.nowMs + l.r.Int64N(20_000) - 1000 }

func (l *lockstep) grant() *codec.Grant {
	_, number := l.live.Number()
	g := &codec.Grant{Sub: l.sub(), Number: number + 1, DeadlineMs: l.atMs()}
	if l.one(30) {
		g.Number += l.r.Uint32N(3) - 1
	}
	slot, ok := l.live.SlotOf(g.Sub)
	passed := map[uint16]uint64{}
	for range 1 + l.r.IntN(3) {
		run := codec.GrantRun{Queue: uint16(l.r.IntN(3)), Kind: codec.RunKind(l.r.IntN(3)), Count: uint32(l.r.IntN(5))}
		if ok && l.live.Queues(slot) > 0 && !l.one(40) {
			run.Queue = uint16(l.r.IntN(l.live.Queues(slot)))
			l.aim(&run, slot, passed)
		}
		if l.one(60) {
			run.Kind = codec.RunKind(l.r.IntN(256))
		}
		if l.one(40) {
			run.Offset += uint64(l.r.IntN(5)) - 2
		}
		g.Runs = append(g.Runs, run)
	}
	return g
}

// aim makes run, of a queue that is there, one that mostly fits behind the runs before it.
func (l *lockstep) aim(run *codec.GrantRun, slot uint32, passed map[uint16]uint64) {
	next := l.live.Position(slot, run.Queue).Next + passed[run.Queue]
	if run.Kind == codec.RunAgain {
		run.Count = 0
		l.live.EachReady(slot, run.Queue, func(offset uint64) bool {
			run.Offset, run.Count = offset, 1
			return l.one(2)
		})
		return
	}
	run.Offset = next
	if l.live.Known(slot, run.Queue, next) {
		run.Kind, run.Count = codec.RunKnown, 1
	} else if !l.one(10) {
		for n := range run.Count {
			if l.live.Known(slot, run.Queue, next+uint64(n)) {
				run.Count = n
				break
			}
		}
	}
	passed[run.Queue] += uint64(run.Count)
}

func (l *lockstep) settle() *codec.Settle {
	s := &codec.Settle{Sub: l.sub()}
	for range 1 + l.r.IntN(3) {
		run := codec.SettleRun{Count: 1, Lost: l.one(5)}
		run.Queue, run.Offset, run.Token = l.entry(s.Sub, l.anyState())
		if run.Lost {
			run.Queue, run.Offset, run.Token = l.unknown(s.Sub)
		}
		if l.one(6) {
			run.Count = uint32(l.r.IntN(4))
		}
		s.Runs = append(s.Runs, run)
	}
	return s
}

func (l *lockstep) change() (*codec.Change, uint32) {
	c := &codec.Change{Sub: l.sub()}
	by := uint32(1 + l.r.IntN(lockstepHolders))
	for range 1 + l.r.IntN(2) {
		x := codec.ChangeEntry{Kind: codec.ChangeKind(l.r.IntN(5)), Lost: l.one(5), Ordinal: 1, AtMs: l.atMs()}
		x.Queue, x.Offset, x.Token = l.entry(c.Sub, l.anyState())
		if x.Lost {
			x.Queue, x.Offset, x.Token = l.unknown(c.Sub)
		} else if slot, ok := l.live.SlotOf(c.Sub); ok {
			if e := l.live.find(slot, x.Queue, x.Offset); e != nil {
				x.Ordinal = uint32(e.ordinal) + 1
				switch {
				case len(c.Entries) == 0 && !l.one(10):
					by = max(e.holder, 1)
				case by != e.holder && !l.one(5):
					continue
				}
				if at := l.atMs(); x.Kind == codec.ChangeRenewed && !l.one(5) {
					x.AtMs = max(at, e.atMs+1)
				} else if x.Kind == codec.ChangeShortened && !l.one(5) {
					x.AtMs = min(at, e.atMs)
				}
			}
		}
		if l.one(20) {
			x.Ordinal = l.r.Uint32() >> l.r.IntN(32)
		}
		if l.one(40) {
			x.Kind = codec.ChangeKind(l.r.IntN(256))
		}
		c.Entries = append(c.Entries, x)
	}
	return c, by
}

func (l *lockstep) releases() (list []codec.ReleaseEntry) {
	for range l.r.IntN(4) {
		x := codec.ReleaseEntry{Sub: l.sub(), AtMs: l.atMs()}
		x.Queue, x.Offset, x.Token = l.entry(x.Sub, l.anyState())
		list = append(list, x)
	}
	return list
}

func (l *lockstep) end() (*codec.SessionEnd, uint32) {
	by := uint32(1 + l.r.IntN(lockstepHolders))
	end := &codec.SessionEnd{Cause: []codec.EndCause{codec.EndExpired, codec.EndFenced, codec.EndLeft}[l.r.IntN(3)]}
	l.live.HeldBy(by, func(sub uint32, queue uint16, offset, token uint64, _, _ uint8) {
		if !l.one(30) {
			end.Releases = append(end.Releases, codec.ReleaseEntry{Sub: sub, Queue: queue, Offset: offset, Token: token, AtMs: l.atMs()})
		}
	})
	if l.one(10) {
		end.Releases = append(end.Releases, l.releases()...)
	}
	return end, by
}

// next is a record, and the slot of the session that it names.
func (l *lockstep) next() (encoder, uint32) {
	by := uint32(1 + l.r.IntN(lockstepHolders))
	switch op := l.r.IntN(1000); {
	case op < 20:
		l.epoch += l.r.Uint32N(3)
		return nil, 0
	case op < 40:
		sub := &codec.Subscribe{Sub: l.live.NextID(), Group: 1 + l.r.Uint32N(3), Topic: 1 + l.r.Uint32N(lockstepTopics)}
		if l.one(10) {
			sub.Sub += l.r.Uint32N(3) - 1
		}
		for range 1 + l.r.IntN(3) {
			sub.Starts = append(sub.Starts, uint64(l.r.IntN(3))*(1<<30))
		}
		return sub, 0
	case op < 43:
		return grown{1 + l.r.Uint32N(lockstepTopics), l.r.IntN(5)}, 0
	case op < 44:
		if l.one(2) {
			return dropped{group: 1 + l.r.Uint32N(3)}, 0
		}
		return dropped{topic: 1 + l.r.Uint32N(lockstepTopics)}, 0
	case op < 400:
		return l.grant(), by
	case op < 650:
		return l.settle(), 0
	case op < 900:
		return l.change()
	case op < 920:
		return &codec.Expire{Entries: l.releases()}, 0
	case op < 930:
		return l.end()
	default:
		u := &codec.Unreadable{Sub: l.sub()}
		u.Queue, u.Offset, u.Token = l.entry(u.Sub, leased)
		return u, 0
	}
}

func (l *lockstep) apply(body encoder, by uint32) {
	r := record{body: body, epoch: l.epoch, position: l.position, stampMs: l.nowMs, holder: by}
	if body != nil {
		r.bytes = body.Append(nil)
	}
	l.position += 64
	r.apply(l.live, body)
	r.apply(l.replay, r.decoded())
}

// tick moves the clock and, of the live table only, the timers.
func (l *lockstep) tick() {
	l.nowMs += l.r.Int64N(1 << l.r.IntN(11))
	if l.one(400) {
		l.nowMs += memoryMs
	}
	if l.one(3) {
		return
	}
	proposals, _ := l.live.Advance(l.nowMs, 1+l.r.IntN(20), nil)
	if len(proposals) > 0 && !l.one(10) {
		l.apply(&codec.Expire{Entries: proposals}, 0)
	}
}

func (l *lockstep) compare() error {
	if a, b := l.live.Violations(), l.replay.Violations(); a != b {
		return fmt.Errorf("%d violations, the last %q, and %d, the last %q", a, l.last, b, l.lastToo)
	}
	if err := auditAll(l.live); err != nil {
		return fmt.Errorf("live: %w", err)
	}
	if err := auditAll(l.replay); err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	if l.live.Hash(bySlot) != l.replay.Hash(bySlot) {
		return fmt.Errorf("the hashes differ; the last violation was %q", l.last)
	}
	return nil
}

// every is how many records lie between two comparisons; 1 finds the record that did it.
var every = flag.Int("every", 8, "records between two comparisons of the lockstep test")

// TestLockstep: whatever the records say, both tables are the same and in order. What does not fit is counted by both
// and leaves nothing behind.
func TestLockstep(t *testing.T) {
	r := newRand(t)
	rounds := 10
	if testing.Short() {
		rounds = 5
	}
	var records, violations uint64
	for round := range rounds {
		l := newLockstep(r)
		for step := range 1500 {
			l.tick()
			before := l.live.Violations()
			body, by := l.next()
			l.apply(body, by)
			records++
			violations += l.live.Violations() - before
			if step%*every != 0 {
				continue
			}
			if err := l.compare(); err != nil {
				t.Fatalf("round %d step %d, after %T %+v: %v", round, step, body, body, err)
			}
		}
	}
	t.Logf("%d records, %d violations", records, violations)
}
