package bench

import (
	"slices"
	"testing"
)

// ledgerOf plays the events of one message into a ledger of its own.
func ledgerOf(events ...func(*Ledger, uint64)) Verdict {
	var l Ledger
	l.Reserve(3) // so that the number is not the first
	n := l.Reserve(1)
	for _, e := range events {
		e(&l, n)
	}
	v := l.Verdict()
	v.Unknown -= 3
	return v
}

func acknowledged(l *Ledger, n uint64) { l.Acknowledged(n) }
func refused(l *Ledger, n uint64)      { l.Refused(n) }
func delivered(token uint64) func(*Ledger, uint64) {
	return func(l *Ledger, n uint64) { l.Delivered(n, token) }
}
func acked(token uint64) func(*Ledger, uint64) {
	return func(l *Ledger, n uint64) { l.Acked(n, token) }
}
func ackUnknown(token uint64) func(*Ledger, uint64) {
	return func(l *Ledger, n uint64) { l.AckUnknown(n, token) }
}

func TestLedger(t *testing.T) {
	type event = func(*Ledger, uint64)
	for _, c := range []struct {
		name   string
		events []event
		want   Verdict
		broken bool
	}{
		{"sent, delivered, acked", []event{acknowledged, delivered(1), acked(1)},
			Verdict{Acknowledged: 1, Delivered: 1, Acked: 1}, false},
		{"given out again after its lease ended, then acked", []event{acknowledged, delivered(1), delivered(2), acked(2)},
			Verdict{Acknowledged: 1, Delivered: 1, Again: 1, Acked: 1}, false},
		{"no answer and not stored", nil, Verdict{Unknown: 1}, false},
		{"no answer and stored", []event{delivered(1), acked(1)},
			Verdict{Unknown: 1, UnknownKept: 1, Delivered: 1, Acked: 1}, false},
		{"refused and not stored", []event{refused}, Verdict{Refused: 1}, false},
		{"the answer of the send is told after the delivery", []event{delivered(1), acked(1), acknowledged},
			Verdict{Acknowledged: 1, Delivered: 1, Acked: 1}, false},
		{"the first holder tells of its delivery after the second one's ack", []event{acknowledged, delivered(2), acked(2), delivered(1)},
			Verdict{Acknowledged: 1, Delivered: 1, Again: 1, Acked: 1}, false},

		{"an ack without an answer that was the last of it", []event{acknowledged, delivered(1), ackUnknown(1)},
			Verdict{Acknowledged: 1, Delivered: 1, UnknownAcks: 1, UnknownTaken: 1}, false},
		{"an ack without an answer that did nothing", []event{acknowledged, delivered(1), ackUnknown(1), delivered(2), acked(2)},
			Verdict{Acknowledged: 1, Delivered: 1, Again: 1, Acked: 1, UnknownAcks: 1}, false},

		{"lost: an ack without an answer, then another delivery, and gone", []event{acknowledged, delivered(1), ackUnknown(1), delivered(2)},
			Verdict{Acknowledged: 1, Delivered: 1, Again: 1, UnknownAcks: 1, Lost: 1}, true},
		{"lost: never delivered", []event{acknowledged}, Verdict{Acknowledged: 1, Lost: 1}, true},
		{"lost: delivered once and gone before its ack", []event{acknowledged, delivered(1)},
			Verdict{Acknowledged: 1, Delivered: 1, Lost: 1}, true},
		{"back after its ack", []event{acknowledged, delivered(1), acked(1), delivered(2)},
			Verdict{Acknowledged: 1, Delivered: 1, Acked: 1, AfterAck: 1}, true},
		{"back after its ack, acked once more", []event{acknowledged, delivered(1), acked(1), delivered(2), acked(2)},
			Verdict{Acknowledged: 1, Delivered: 1, Acked: 1, AfterAck: 1}, true},
		{"back after its ack, and the ack is told last", []event{acknowledged, delivered(1), delivered(2), acked(1)},
			Verdict{Acknowledged: 1, Delivered: 1, Acked: 1, AfterAck: 1}, true},
		{"an unknown one back after its ack", []event{delivered(1), acked(1), delivered(2)},
			Verdict{Unknown: 1, UnknownKept: 1, Delivered: 1, Acked: 1, AfterAck: 1}, true},
		{"one lease given out twice", []event{acknowledged, delivered(1), delivered(1), acked(1)},
			Verdict{Acknowledged: 1, Delivered: 1, Again: 1, Acked: 1, TwiceGranted: 1}, true},
		{"refused and stored", []event{refused, delivered(1), acked(1)},
			Verdict{Refused: 1, Delivered: 1, Acked: 1, Phantoms: 1}, true},
	} {
		got := ledgerOf(c.events...)
		if got != c.want {
			t.Errorf("%s:\n got %+v\nwant %+v", c.name, got, c.want)
		}
		if got.Broken() != c.broken {
			t.Errorf("%s: broken is %v", c.name, got.Broken())
		}
	}
}

func TestLedgerNoticesWhatWasNeverSent(t *testing.T) {
	var l Ledger
	l.Reserve(2)
	if l.Delivered(2, 1) {
		t.Error("a number that was never given counts as a first delivery")
	}
	l.Acked(2, 1)
	l.Damaged()
	if v := l.Verdict(); v.Damaged != 2 || !v.Broken() {
		t.Errorf("got %+v", v)
	}
}

// One loss and one duplicate among many messages are found, whichever they are.
func TestLedgerFindsOneAmongMany(t *testing.T) {
	const n = 1000
	for _, at := range []uint64{0, 1, n / 2, n - 1} {
		var l Ledger
		first := l.Reserve(n)
		for i := range uint64(n) {
			l.Acknowledged(first + i)
			if i == at {
				continue
			}
			l.Delivered(first+i, 7)
			l.Acked(first+i, 7)
		}
		if v := l.Verdict(); v.Lost != 1 || v.AfterAck != 0 {
			t.Errorf("without message %d: %+v", at, v)
		}
		l.Delivered(first+at, 8)
		l.Acked(first+at, 8)
		if v := l.Verdict(); v.Broken() {
			t.Errorf("after message %d came: %+v", at, v)
		}
		l.Delivered(first+at, 9)
		if v := l.Verdict(); v.AfterAck != 1 || v.Lost != 0 || !v.Broken() {
			t.Errorf("after message %d came again: %+v", at, v)
		}
	}
}

func TestDemoBodyIsCheckedWhole(t *testing.T) {
	const size = 64
	body := appendCrashBody(nil, size, 41, 1234)
	number, sentAt, ok := parseCrashBody(body, size)
	if !ok || number != 41 || sentAt != 1234 {
		t.Fatalf("got %d, %d, %v", number, sentAt, ok)
	}
	for i := range body {
		for bit := range 8 {
			bad := slices.Clone(body)
			bad[i] ^= 1 << bit
			if _, _, ok := parseCrashBody(bad, size); ok {
				t.Errorf("bit %d of byte %d flipped: not noticed", bit, i)
			}
		}
	}
	for _, bad := range [][]byte{nil, body[:size-1], append(slices.Clone(body), 0)} {
		if _, _, ok := parseCrashBody(bad, size); ok {
			t.Errorf("%d bytes of %d: not noticed", len(bad), size)
		}
	}
}
