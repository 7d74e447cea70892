package lease

import (
	"math/rand/v2"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
)

// Grants that a crash took from the log while their receipts were out. A pop of first grants may be answered before
// its GRANT record is on disk, and with a lazy fsync policy a power loss may take more than that. Such a receipt is
// authentic, and its token tells: it is above the newest number that was recovered of its epoch. While nobody else
// was granted the message since, its holder may settle or change it, and that record stands for the grant too.

// lostToken tells whether a token, which was given out, is of a GRANT that the log does not have: its number
// is above the highest one recovered of its epoch. The running epoch has lost nothing.
func (t *Table) lostToken(token uint64) bool {
	epoch, number := uint32(token>>32), uint32(token)
	for i := len(t.epochs) - 2; i >= 0 && t.epochs[i].epoch >= epoch; i-- {
		if t.epochs[i].epoch == epoch {
			return number > t.epochs[i].number
		}
	}
	return false
}

// alive tells whether the message that r names lies in the log: a log cut short by a crash goes on in a
// newer epoch, which begins at the cut.
func (t *Table) alive(r *Receipt) bool {
	birth, position := r.ID.Birth()
	for i := len(t.epochs) - 1; i >= 0 && t.epochs[i].epoch >= birth; i-- {
		if span := t.epochs[i]; span.epoch == birth {
			return position >= span.start && (i+1 == len(t.epochs) || position < t.epochs[i+1].start)
		}
	}
	return false
}

// decideLostChange decides a change of a lease whose grant was lost in a crash, and with it how many changes
// it had: the one at hand is the next.
func decideLostChange(r *Receipt, failures uint8, x Change, rules *codec.Rules, nowMs int64, rnd *rand.Rand) Changed {
	e := entry{token: r.Token, state: leased, atMs: nowMs, sinceMs: nowMs, failures: failures, ordinal: uint16(x.Ordinal - 1)}
	return decideChange(r, &e, x, rules, nowMs, rnd, Verdict{Status: protocol.OK, Lost: true, Token: r.Token})
}

// settleLost settles a message by a grant that was lost in a crash.
func (t *Table) settleLost(ci uint32, offset, token uint64, stampMs int64) {
	c := t.cursors.Mut(ci)
	if i := t.takeLost(ci, c, offset, token); i != 0 {
		e := t.entries.Mut(i)
		e.token = token
		bump16(&e.attempts)
		t.remember(c, i, stampMs)
	}
}

// takeLost gives the entry, on no list and without a timer, of a message whose newest grant, by token, was
// lost in a crash. Either the table knows nothing of the message, which the cursor has not passed, or it
// knows an older grant of it. It is zero when the record does not fit.
func (t *Table) takeLost(ci uint32, c *cursor, offset, token uint64) (i uint32) {
	i = t.index.get(ci, &c.tree, offset)
	switch {
	case !t.lostToken(token):
		t.violate("token %d of offset %d was not lost", token, offset)
		return 0
	case i == 0 && offset < c.next:
		t.violate("lost grant of offset %d, which is settled", offset)
		return 0
	case i == 0:
		i = t.entries.Alloc()
		*t.entries.Mut(i) = entry{offset: offset, cursor: ci}
		t.index.set(ci, &c.tree, offset, i)
		c.ahead++
		return i
	}
	switch e := t.entries.At(i); {
	case e.state == settled || e.token >= token:
		t.violate("lost grant %d of offset %d: state %d, token %d", token, offset, e.state, e.token)
		return 0
	case e.state == leased:
		t.leaveLeased(c, i)
	default:
		t.leaveWaiting(c, i)
	}
	return i
}

// lendLost makes the lease that a change speaks of when its grant was lost in a crash. How many changes it
// had is lost with it: the one at hand counts as the next.
func (t *Table) lendLost(ci uint32, c *cursor, x *codec.ChangeEntry, stampMs int64, holder uint32) bool {
	ordinal := uint16(x.Ordinal - 1)
	if probe := (entry{ordinal: ordinal, atMs: stampMs}); !probe.fits(x) {
		t.violate("change %d of kind %d of offset %d, a lost grant, to %d", x.Ordinal, x.Kind, x.Offset, x.AtMs)
		return false
	}
	i := t.takeLost(ci, c, x.Offset, x.Token)
	if i == 0 {
		return false
	}
	t.fitHolders(holder)
	t.lend(&granting{x.Token, stampMs, stampMs, holder, 0}, c, i)
	t.entries.Mut(i).ordinal = ordinal
	return true
}
