package codec

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

// sealed is a whole record: h's length and checksum are set.
func sealed(h *Header, assigned, payload []byte) []byte {
	b := make([]byte, HeaderBytes, HeaderBytes+len(assigned)+len(payload))
	b = append(append(b, assigned...), payload...)
	Seal(b, h, len(assigned), Checksum(0, payload))
	return b
}

// recordTypes is every type of the format.
var recordTypes = [...]Type{
	TypeEpoch, TypeSegmentEnd, TypeCleanStop, TypeClock, TypeMessage, TypeCopy, TypeTopic, TypeGroup, TypeSubscribe,
	TypeGrant, TypeSettle, TypeChange, TypeExpire, TypeUnreadable, TypeSessionStart, TypeSessionEnd,
}

func randomHeader(r *rand.Rand) Header {
	return Header{
		Type: recordTypes[r.IntN(len(recordTypes))], Flags: uint16(oddUint(r)), Epoch: uint32(oddUint(r)),
		Position: oddUint(r), LeaseMs: int64(oddUint(r)), WallMs: int64(oddUint(r)), Synced: oddUint(r), Term: oddUint(r),
		BornMs: int64(oddUint(r)),
	}
}

func TestRecordRoundTrip(t *testing.T) {
	r := newRand(t)
	for range 2000 {
		// Given a record of any type with any fields,
		h := randomHeader(r)
		assigned := make([]byte, h.Type.AssignedBytes())
		copy(assigned, oddBytes(r, len(assigned)))
		payload := oddBytes(r, 1000)
		b := sealed(&h, assigned, payload)
		// when it is read where others may follow,
		got, gotAssigned, gotPayload, err := ReadRecord(append(bytes.Clone(b), oddBytes(r, 100)...))
		// then every field is what it was, and the record ends where it ended.
		if err != nil || got != h || !bytes.Equal(gotAssigned, assigned) || !bytes.Equal(gotPayload, payload) {
			t.Fatalf("%+v came back as %+v, %v", h, got, err)
		}
		if int(got.Length) != HeaderBytes+len(assigned)+len(payload) {
			t.Fatalf("length %d", got.Length)
		}
	}
}

// TestHeaderLayout holds the header against the table in the package comment, field by field.
func TestHeaderLayout(t *testing.T) {
	h := Header{
		Type: TypeMessage, Flags: 0x0203, Epoch: 0x04050607, Position: 0x08090a0b0c0d0e0f,
		LeaseMs: 0x1011121314151617, WallMs: 0x18191a1b1c1d1e1f, Synced: 0x2021222324252627, Term: 0x28292a2b2c2d2e2f,
		BornMs: 0x3031323334353637,
	}
	assigned := bytes.Repeat([]byte{0xaa}, MessageAssignedBytes)
	payload := []byte("payload")
	b := sealed(&h, assigned, payload)

	want := make([]byte, 64)
	binary.LittleEndian.PutUint32(want[0:], 64+40+7)
	binary.LittleEndian.PutUint16(want[8:], 16)
	binary.LittleEndian.PutUint16(want[10:], 0x0203)
	binary.LittleEndian.PutUint32(want[12:], 0x04050607)
	binary.LittleEndian.PutUint64(want[16:], 0x08090a0b0c0d0e0f)
	binary.LittleEndian.PutUint64(want[24:], 0x1011121314151617)
	binary.LittleEndian.PutUint64(want[32:], 0x18191a1b1c1d1e1f)
	binary.LittleEndian.PutUint64(want[40:], 0x2021222324252627)
	binary.LittleEndian.PutUint64(want[48:], 0x28292a2b2c2d2e2f)
	binary.LittleEndian.PutUint64(want[56:], 0x3031323334353637)
	// The checksum runs over payload, assigned fields, header with the field zero.
	sum := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	for _, part := range [][]byte{payload, assigned, want} {
		sum.Write(part)
	}
	binary.LittleEndian.PutUint32(want[4:], sum.Sum32())
	if !bytes.Equal(b[:64], want) {
		t.Fatalf("the header is\n%x, not\n%x", b[:64], want)
	}
}

// TestChecksumIsCRC32C: the check value that the field's catalogues give for CRC-32C.
func TestChecksumIsCRC32C(t *testing.T) {
	if sum := Checksum(Checksum(0, []byte("12345")), []byte("6789")); sum != 0xe3069283 {
		t.Fatalf("%08x", sum)
	}
}

func TestEveryFlippedBitIsRefused(t *testing.T) {
	r := newRand(t)
	for _, typ := range [...]Type{TypeMessage, TypeGrant, TypeClock} {
		h := randomHeader(r)
		h.Type = typ
		payload := oddBytes(r, 60)
		if typ == TypeClock {
			payload = nil
		}
		// Given a good record with others behind it,
		b := append(sealed(&h, make([]byte, typ.AssignedBytes()), payload), bytes.Repeat([]byte{0x5a}, 64)...)
		for bit := range 8 * int(h.Length) {
			// when any one bit of header, assigned fields or payload is flipped,
			b[bit/8] ^= 1 << (bit % 8)
			// then it is no record.
			if _, _, _, err := ReadRecord(b); !errors.Is(err, ErrNoRecord) {
				t.Fatalf("type %d: bit %d of byte %d is flipped: %v", typ, bit%8, bit/8, err)
			}
			b[bit/8] ^= 1 << (bit % 8)
		}
		if _, _, _, err := ReadRecord(b); err != nil {
			t.Fatal(err)
		}
	}
}

func TestEveryTruncatedRecordIsRefused(t *testing.T) {
	r := newRand(t)
	h := Header{Type: TypeMessage, Position: 4096}
	b := sealed(&h, make([]byte, MessageAssignedBytes), oddBytes(r, 200))
	for n := range b {
		if _, _, _, err := ReadRecord(b[:n]); !errors.Is(err, ErrNoRecord) {
			t.Fatalf("%d of %d bytes: %v", n, len(b), err)
		}
	}
}

// TestZeroesAreNoRecord: in a fresh segment they are the end of the data.
func TestZeroesAreNoRecord(t *testing.T) {
	for _, n := range [...]int{0, 1, HeaderBytes - 1, HeaderBytes, 4096} {
		if _, _, _, err := ReadRecord(make([]byte, n)); !errors.Is(err, ErrNoRecord) {
			t.Fatalf("%d zero bytes: %v", n, err)
		}
	}
}

// TestLengthThatLeavesNoRoom: a length with a good checksum that does not even hold the header and the assigned
// fields of its type is refused.
func TestLengthThatLeavesNoRoom(t *testing.T) {
	for _, test := range []struct {
		typ    Type
		length uint32
	}{
		{TypeClock, 0}, {TypeClock, HeaderBytes - 1}, {TypeClock, ^uint32(0)},
		{TypeMessage, HeaderBytes}, {TypeMessage, HeaderBytes + MessageAssignedBytes - 1},
	} {
		b := make([]byte, 256)
		h := Header{Type: test.typ, Length: test.length}
		h.Put(b)
		n := min(max(int64(test.length)-HeaderBytes, 0), 192)
		h.CRC = Checksum(Checksum(0, b[HeaderBytes:HeaderBytes+n]), b[:HeaderBytes])
		h.Put(b)
		if _, _, _, err := ReadRecord(b); !errors.Is(err, ErrNoRecord) {
			t.Errorf("type %d of %d bytes: %v", test.typ, test.length, err)
		}
	}
}

// TestSameBytesElsewhereOrFromBefore: position and epoch are inside the checksum, so a record that is copied over
// another one, with only those two corrected, does not pass.
func TestSameBytesElsewhereOrFromBefore(t *testing.T) {
	h := Header{Type: TypeClock, Epoch: 7, Position: 64}
	b := sealed(&h, nil, nil)
	for _, change := range []func(b []byte){
		func(b []byte) { binary.LittleEndian.PutUint32(b[12:], 8) },
		func(b []byte) { binary.LittleEndian.PutUint64(b[16:], 128) },
	} {
		moved := bytes.Clone(b)
		change(moved)
		if _, _, _, err := ReadRecord(moved); !errors.Is(err, ErrNoRecord) {
			t.Fatal(err)
		}
	}
}

func TestReadRecordDoesNotAllocate(t *testing.T) {
	h := Header{Type: TypeMessage}
	b := sealed(&h, make([]byte, MessageAssignedBytes), make([]byte, 500))
	if n := testing.AllocsPerRun(100, func() {
		if _, _, _, err := ReadRecord(b); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

func TestPadded(t *testing.T) {
	for n := range 100 {
		got := Padded(n)
		if got%Align != 0 || got < n || got >= n+Align {
			t.Fatalf("Padded(%d) = %d", n, got)
		}
	}
}

// TestOnlyMessagesHaveAssignedFields: the broker encodes every other payload inside the section.
func TestOnlyMessagesHaveAssignedFields(t *testing.T) {
	for _, typ := range recordTypes {
		want := 0
		if typ == TypeMessage || typ == TypeCopy {
			want = 40
		}
		if n := typ.AssignedBytes(); n != want {
			t.Errorf("type %d has %d bytes of assigned fields", typ, n)
		}
	}
}

func TestMessagePlaceRoundTrip(t *testing.T) {
	r := newRand(t)
	for range 1000 {
		want := MessagePlace{
			Topic: uint32(oddUint(r)), Queue: uint16(oddUint(r)), Offset: oddUint(r), TagHash: oddUint(r),
			ID: NewMessageID(uint32(oddUint(r)), oddUint(r)),
		}
		b := bytes.Repeat([]byte{0xff}, MessageAssignedBytes)
		want.Put(b)
		if got := ParseMessagePlace(b); got != want {
			t.Fatalf("%+v came back as %+v", want, got)
		}
		if b[6]|b[7]|b[28]|b[29]|b[30]|b[31] != 0 {
			t.Fatalf("what must be zero is not: %x", b)
		}
	}
}

func TestMessageID(t *testing.T) {
	id := NewMessageID(0x01020304, 0x05060708090a0b0c)
	if epoch, position := id.Birth(); epoch != 0x01020304 || position != 0x05060708090a0b0c {
		t.Fatalf("born in %x at %x", epoch, position)
	}
	if id.String() != "01020304-05060708090a0b0c" {
		t.Fatal(id)
	}
}

func BenchmarkReadRecord1K(b *testing.B) {
	h := Header{Type: TypeMessage}
	record := sealed(&h, make([]byte, MessageAssignedBytes), make([]byte, 1024))
	b.SetBytes(int64(len(record)))
	for b.Loop() {
		if _, _, _, err := ReadRecord(record); err != nil {
			b.Fatal(err)
		}
	}
}

func TestBorn(t *testing.T) {
	for what, c := range map[string]struct {
		header Header
		want   int64
	}{
		"a message":                      {Header{Type: TypeMessage, WallMs: 5}, 5},
		"a copy":                         {Header{Type: TypeCopy, WallMs: 9, BornMs: 5}, 5},
		"a copy that does not say so":    {Header{Type: TypeCopy, WallMs: 9}, 9},
		"a message with the word in use": {Header{Type: TypeMessage, WallMs: 5, BornMs: 3}, 5},
	} {
		if got := c.header.Born(); got != c.want {
			t.Errorf("%s is born at %d, want %d", what, got, c.want)
		}
	}
}
