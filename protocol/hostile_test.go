package protocol

import (
	"bytes"
	"encoding/binary"
	"errors"
	"runtime"
	"strings"
	"testing"
)

// TestTruncatedBodies: no beginning of a body is a body, and neither is one with a byte more.
func TestTruncatedBodies(t *testing.T) {
	for _, v := range vectors() {
		if v.body == nil {
			continue
		}
		whole := v.encodeBody()
		for n := range len(whole) + 1 {
			b := whole[:n:n]
			if n == len(whole) {
				b = append(b, 0)
			}
			err := newBody(v.body).Decode(b)
			var bodyError *BodyError
			if !errors.As(err, &bodyError) {
				t.Fatalf("%s, %d of %d bytes: %v", v.name, n, len(whole), err)
			}
			if bodyError.Body == "" || bodyError.Field == "" || bodyError.Reason == "" || bodyError.Status != Invalid && bodyError.Status != TooLarge {
				t.Fatalf("%s, %d of %d bytes: %#v", v.name, n, len(whole), bodyError)
			}
		}
	}
}

// TestLengthsAreNotTrusted: whatever four bytes of a body claim to be, decoding makes room only for what
// the bytes at hand can hold.
func TestLengthsAreNotTrusted(t *testing.T) {
	allocated := func() uint64 {
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.TotalAlloc
	}
	for _, v := range vectors() {
		if v.body == nil {
			continue
		}
		whole := v.encodeBody()
		for _, claim := range []uint32{0xffffffff, 0x7fffffff, 1 << 24, 1 << 12} {
			for at := 0; at+4 <= len(whole); at++ {
				b := bytes.Clone(whole)
				binary.LittleEndian.PutUint32(b[at:], claim)
				used := ^uint64(0) // the least of several runs: the runtime allocates beside them now and then
				for range 3 {
					m := newBody(v.body)
					before := allocated()
					_ = m.Decode(b) // some claims hit a field that may be anything
					used = min(used, allocated()-before)
				}
				if used > uint64(64*len(b)+8192) {
					t.Fatalf("%s: %d bytes with %#x at %d allocate %d", v.name, len(b), claim, at, used)
				}
			}
		}
	}
}

// TestFailedCount: a refused count costs a used variable nothing but the error.
func TestFailedCount(t *testing.T) {
	b := (&SendRequest{Topic: "orders"}).Append(nil)
	binary.LittleEndian.PutUint32(b[len(b)-4:], 4000)
	var m SendRequest
	if err := m.Decode(b); err == nil || m.Messages != nil {
		t.Errorf("%v, room for %d messages", err, cap(m.Messages))
	}
}

// TestDecodeRefuses: the rules of single fields, and that the error names the field.
func TestDecodeRefuses(t *testing.T) {
	receipt := make([]byte, ReceiptBytes)
	entries := func(n int) []byte { return (&AckRequest{Entries: make([]AckEntry, n)}).Append(nil) }
	change := func(e ChangeEntry) []byte {
		return (&ChangeInvisibleRequest{Entries: []ChangeEntry{{}, e}}).Append(nil)
	}
	set := func(b []byte, at int, v byte) []byte {
		b = bytes.Clone(b)
		b[at] = v
		return b
	}
	row := (&PopAnswer{Rows: []LeaseRow{{Receipt: receipt}}}).Append(nil)
	for _, c := range []struct {
		what   string
		m      Body
		b      []byte
		status Status
		field  string
		detail uint64
	}{
		{"a bool of 2", &AckRequest{}, set(entries(2), 12+2, 2), Invalid, "entries[1] duplicate", 0},
		{"too many acks", &AckRequest{}, entries(MaxAckEntries + 1), TooLarge, "entries", MaxAckEntries},
		{"too many changes", &ChangeInvisibleRequest{}, (&ChangeInvisibleRequest{Entries: make([]ChangeEntry, MaxAckEntries+1)}).Append(nil), TooLarge, "entries", MaxAckEntries},
		{"too many messages", &SendRequest{}, (&SendRequest{Messages: make([][]byte, MaxSendEntries+1)}).Append(nil), TooLarge, "messages", MaxSendEntries},
		{"too many tags", &PopRequest{}, (&PopRequest{FilterTags: make([]string, MaxFilterTags+1)}).Append(nil), TooLarge, "filter tags", MaxFilterTags},
		{"too many receipts", &RegisterRequest{}, (&RegisterRequest{Receipts: make([][]byte, MaxReclaimReceipts+1)}).Append(nil), TooLarge, "receipts", MaxReclaimReceipts},
		{"a long name", &PopRequest{}, (&PopRequest{Topic: strings.Repeat("n", MaxWireNameBytes+1)}).Append(nil), TooLarge, "topic", uint64(MaxWireNameBytes)},
		{"a long checkpoint", &ChangeInvisibleRequest{}, change(ChangeEntry{Checkpoint: make([]byte, MaxCheckpointBytes+1)}), TooLarge, "entries[1] checkpoint", MaxCheckpointBytes},
		{"a reserved byte", &PopAnswer{}, set(row, popHeadBytes+35, 1), Invalid, "rows[0] reserved byte", 0},
		{"a record outside", &PopAnswer{}, set(row, popHeadBytes+4, 1), Invalid, "rows[0] record", 0},
		{"a record outside", &PeekAnswer{}, (&PeekAnswer{Rows: []RecordRange{{1, 4}}, Records: []byte("abcd")}).Append(nil), Invalid, "rows[0] record", 0},
		{"a record so far away that the sum wraps", &PeekAnswer{}, (&PeekAnswer{Rows: []RecordRange{{0xffffffff, 2}}, Records: []byte("abcd")}).Append(nil), Invalid, "rows[0] record", 0},
		{"records cut off", &PopAnswer{}, set(row, len(row)-4, 1), Invalid, "records", 0},
		{"a reserved byte", &AckAnswer{}, set((&AckAnswer{Results: make([]SettleResult, 2)}).Append(nil), 4+14, 1), Invalid, "results[0] reserved bytes", 0},
	} {
		err := c.m.Decode(c.b)
		var bodyError *BodyError
		if !errors.As(err, &bodyError) {
			t.Errorf("%s: %v", c.what, err)
			continue
		}
		if bodyError.Status != c.status || bodyError.Field != c.field || bodyError.Detail != c.detail {
			t.Errorf("%s: %v, field %q, detail %d", c.what, err, bodyError.Field, bodyError.Detail)
		}
	}
}

// TestStrangeReceipts: a receipt of a wrong length is for the broker to refuse, entry by entry.
func TestStrangeReceipts(t *testing.T) {
	for _, n := range []int{0, 1, ReceiptBytes - 1, ReceiptBytes + 1, MaxFieldBytes} {
		want := AckRequest{Entries: []AckEntry{{Receipt: make([]byte, n)}, {Receipt: make([]byte, ReceiptBytes)}}}
		var got AckRequest
		if err := got.Decode(want.Append(nil)); err != nil || len(got.Entries[0].Receipt) != n {
			t.Errorf("receipt of %d bytes: %v", n, err)
		}
	}
}

// TestStringsEndWhereTheyEnd: appending to a decoded string does not reach what lies behind it.
func TestStringsEndWhereTheyEnd(t *testing.T) {
	b := (&SendRequest{Topic: "orders", Messages: [][]byte{[]byte("first"), []byte("second")}}).Append(nil)
	var m SendRequest
	if err := m.Decode(b); err != nil {
		t.Fatal(err)
	}
	_ = append(m.Messages[0], "overwritten"...)
	if string(m.Messages[1]) != "second" {
		t.Errorf("the second message is %q", m.Messages[1])
	}
}

// TestLongestNamesFit: the dead-letter topic of the group with the longest name can be popped.
func TestLongestNamesFit(t *testing.T) {
	group := strings.Repeat("g", MaxNameBytes)
	want := PopRequest{Topic: DeadLetterPrefix + group, Max: 1}
	var got PopRequest
	if err := got.Decode(want.Append(nil)); err != nil || got.Topic != want.Topic {
		t.Fatal(err)
	}
	if err := got.Validate(); err != nil {
		t.Error(err)
	}
}

// TestSteadyStateAllocatesNothing: the same kind of body into the same variable.
func TestSteadyStateAllocatesNothing(t *testing.T) {
	for _, v := range vectors() {
		if v.body == nil {
			continue
		}
		b := v.encodeBody()
		m := newBody(v.body)
		var err error
		if n := testing.AllocsPerRun(100, func() { err = m.Decode(b) }); n != 0 || err != nil {
			t.Errorf("%s: decoding allocates %v times, %v", v.name, n, err)
		}
		buffer := make([]byte, 0, len(b)+HeaderBytes)
		if n := testing.AllocsPerRun(100, func() {
			buffer = BeginFrame(buffer[:0], v.header)
			buffer = m.Append(buffer)
			EndFrame(buffer, 0)
			_, err = ParseHeader(buffer)
		}); n != 0 || err != nil {
			t.Errorf("%s: encoding allocates %v times, %v", v.name, n, err)
		}
	}
}
