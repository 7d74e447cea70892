package codec

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
)

// stateRecord is what every record of state can do.
type stateRecord interface {
	Append(dst []byte) []byte
	Decode(b []byte) error
}

var (
	_ stateRecord = (*Topic)(nil)
	_ stateRecord = (*Group)(nil)
	_ stateRecord = (*Subscribe)(nil)
	_ stateRecord = (*Grant)(nil)
	_ stateRecord = (*Settle)(nil)
	_ stateRecord = (*Change)(nil)
	_ stateRecord = (*Expire)(nil)
	_ stateRecord = (*Unreadable)(nil)
	_ stateRecord = (*SessionStart)(nil)
	_ stateRecord = (*SessionEnd)(nil)
	_ stateRecord = (*Retain)(nil)
	_ stateRecord = (*StateRow)(nil)
	_ stateRecord = (*EpochRow)(nil)
	_ stateRecord = (*TopicRow)(nil)
	_ stateRecord = (*CopyRow)(nil)
	_ stateRecord = (*GroupRow)(nil)
	_ stateRecord = (*SessionRow)(nil)
	_ stateRecord = (*SubscriptionRow)(nil)
	_ stateRecord = (*CursorRow)(nil)
	_ stateRecord = (*MessageRow)(nil)
	_ stateRecord = (*MemoryRow)(nil)
	_ stateRecord = (*PopMarkRow)(nil)
)

// stateRecords is an empty one of each type.
func stateRecords() []stateRecord {
	return []stateRecord{
		new(Topic), new(Group), new(Subscribe), new(Grant), new(Settle), new(Change), new(Expire), new(Unreadable),
		new(SessionStart), new(SessionEnd), new(Retain),
		new(StateRow), new(EpochRow), new(TopicRow), new(CopyRow), new(GroupRow), new(SessionRow), new(SubscriptionRow),
		new(CursorRow), new(MessageRow), new(MemoryRow), new(PopMarkRow),
	}
}

func typeName(m stateRecord) string { return reflect.TypeOf(m).Elem().Name() }

// like is a new record of the type of m.
func like(m stateRecord) stateRecord {
	return reflect.New(reflect.TypeOf(m).Elem()).Interface().(stateRecord)
}

// randomState sets m to legal random values.
func randomState(r *rand.Rand, m stateRecord) {
	fill(r, reflect.ValueOf(m).Elem())
	if s, ok := m.(*Subscribe); ok {
		s.Filter = s.Filter[:min(len(s.Filter), MaxFilterTags)]
	}
	if s, ok := m.(*SubscriptionRow); ok {
		s.Filter = s.Filter[:min(len(s.Filter), MaxFilterTags)]
	}
}

// same tells whether two records say the same; a list that is nil is one that is empty.
func same(a, b stateRecord) bool { return fmt.Sprintf("%+v", a) == fmt.Sprintf("%+v", b) }

func TestStateRoundTrip(t *testing.T) {
	r := newRand(t)
	for _, kind := range stateRecords() {
		t.Run(typeName(kind), func(t *testing.T) {
			reused := like(kind)
			for range 200 {
				want := like(kind)
				randomState(r, want)
				b := want.Append([]byte("before"))
				if !bytes.HasPrefix(b, []byte("before")) {
					t.Fatal("what was before was overwritten")
				}
				// A record that is reused must not keep anything of what it was.
				for _, got := range [...]stateRecord{like(kind), reused} {
					if err := got.Decode(b[len("before"):]); err != nil {
						t.Fatalf("%+v: %v", want, err)
					}
					if !same(got, want) {
						t.Fatalf("%+v came back as %+v", want, got)
					}
				}
			}
		})
	}
}

func TestEveryTruncatedStateIsRefused(t *testing.T) {
	r := newRand(t)
	for _, kind := range stateRecords() {
		t.Run(typeName(kind), func(t *testing.T) {
			for range 10 {
				m := like(kind)
				randomState(r, m)
				b := m.Append(nil)
				for n := range b {
					if err := like(kind).Decode(b[:n]); !errors.Is(err, ErrFields) {
						t.Fatalf("%d of %d bytes of %+v: %v", n, len(b), m, err)
					}
				}
				if err := like(kind).Decode(append(b, 0)); !errors.Is(err, ErrFields) {
					t.Fatalf("a byte too many: %v", err)
				}
			}
		})
	}
}

// TestCountsThatClaimTooMuch: each count is followed by one byte less than its entries need, or by none at all.
func TestCountsThatClaimTooMuch(t *testing.T) {
	for _, test := range []struct {
		m     stateRecord
		count int // where the u32 lies in an empty record
		entry int
	}{
		{new(Subscribe), 12, 8},
		{new(Subscribe), 16, 8},
		{new(Grant), 34, 15},
		{new(Settle), 12, 23},
		{new(Change), 12, 32},
		{new(Expire), 0, 30},
		{new(SessionEnd), 9, 30},
	} {
		empty := test.m.Append(nil)
		if err := like(test.m).Decode(empty); err != nil {
			t.Fatalf("%s: the empty record: %v", typeName(test.m), err)
		}
		for _, claim := range [...]uint32{1, 2, 1000, 1 << 16, 1 << 31, ^uint32(0)} {
			behind := min(int(claim)*test.entry-1, 1<<20)
			for _, behind := range [...]int{0, behind} {
				b := bytes.Clone(empty[:test.count+4])
				binary.LittleEndian.PutUint32(b[test.count:], claim)
				b = append(b, make([]byte, behind)...)
				m := like(test.m)
				var err error
				bytes := allocated(func() { err = m.Decode(b) })
				if !errors.Is(err, ErrFields) || bytes > 4096 {
					t.Errorf("%s claims %d entries, has %d bytes: %v, %d bytes allocated", typeName(test.m), claim, behind, err, bytes)
				}
			}
		}
	}
}

// TestFlagsAreZeroOrOne: every record has one encoding, so that a replica's log is the same to the byte.
func TestFlagsAreZeroOrOne(t *testing.T) {
	for _, test := range []struct {
		m    stateRecord
		flag int
	}{
		{&Grant{}, 33},
		{&Settle{Runs: make([]SettleRun, 1)}, 18},
		{&Change{Entries: make([]ChangeEntry, 1)}, 19},
	} {
		for _, v := range [...]byte{0, 1, 2, 128, 255} {
			b := test.m.Append(nil)
			b[test.flag] = v
			if err := like(test.m).Decode(b); (err == nil) != (v <= 1) {
				t.Errorf("%s with a flag of %d: %v", typeName(test.m), v, err)
			}
		}
	}
}

func TestFilterIsLimited(t *testing.T) {
	for n := range 20 {
		m := Subscribe{Filter: make([]uint64, n)}
		if err := new(Subscribe).Decode(m.Append(nil)); (err == nil) != (n <= MaxFilterTags) {
			t.Errorf("%d tags: %v", n, err)
		}
	}
}

// TestShortFieldsAreLimited: a record with a longer one could be written and never be read again.
func TestShortFieldsAreLimited(t *testing.T) {
	for _, n := range [...]int{255, 256} {
		name := make([]byte, n)
		for _, m := range [...]stateRecord{
			&Topic{Name: name}, &Group{Name: name}, &SessionStart{ConsumerID: name}, &SessionStart{ClientInfo: name},
		} {
			func() {
				defer func() {
					if refused := recover() != nil; refused != (n > 255) {
						t.Errorf("%s with %d bytes: refused %t", typeName(m), n, refused)
					}
				}()
				m.Append(nil)
			}()
		}
	}
}

// TestStateDoesNotAllocate: neither direction, once the lists have grown.
func TestStateDoesNotAllocate(t *testing.T) {
	r := newRand(t)
	for _, m := range stateRecords() {
		randomState(r, m)
		got := like(m)
		buf := m.Append(nil)
		if n := testing.AllocsPerRun(20, func() {
			buf = m.Append(buf[:0])
			if err := got.Decode(buf); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", typeName(m), n)
		}
	}
}

func BenchmarkGrantOf256(b *testing.B) {
	m := Grant{Sub: 1, Number: 1, Session: 1, Runs: make([]GrantRun, 256)}
	var got Grant
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		buf = m.Append(buf[:0])
		if err := got.Decode(buf); err != nil {
			b.Fatal(err)
		}
	}
}
