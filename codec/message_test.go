package codec

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"
)

// randomMessage is a message that is within every limit, as Append and View.Message agree on it.
func randomMessage(r *rand.Rand) Message {
	m := Message{
		Tag: string(oddBytes(r, maxShort)), Key: string(oddBytes(r, maxShort)),
		OrderKey: string(oddBytes(r, maxShort)), UniqueKey: string(oddBytes(r, maxShort)),
		Delayed: r.IntN(2) == 0, Body: oddBytes(r, 300),
	}
	if m.Delayed {
		m.DeliverAt, m.Calendar = oddUint(r), r.IntN(2) == 0
	}
	if m.ProducerID = oddUint(r); m.ProducerID != 0 {
		m.Sequence = oddUint(r)
	}
	for range r.IntN(MaxProperties + 1) {
		if r.IntN(20) == 0 {
			break
		}
		m.Properties = append(m.Properties, Property{"n" + string(oddBytes(r, 50)), string(oddBytes(r, 100))})
	}
	if m.Compression = Compression(r.IntN(3)); m.Compression == None {
		m.RawBytes = uint32(len(m.Body))
	} else {
		m.RawBytes = uint32(r.IntN(MaxDecompressed + 1))
	}
	if len(m.Body) == 0 {
		m.Body = nil
	}
	return m
}

func mustAppend(t testing.TB, m *Message) []byte {
	t.Helper()
	b, err := m.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func mustParse(t testing.TB, payload []byte) View {
	t.Helper()
	var v View
	if err := v.Parse(payload); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestMessageRoundTrip(t *testing.T) {
	r := newRand(t)
	for range 2000 {
		want := randomMessage(r)
		before := oddBytes(r, 20)
		b, err := want.Append(bytes.Clone(before))
		if err != nil || !bytes.HasPrefix(b, before) {
			t.Fatal(err)
		}
		v := mustParse(t, b[len(before):])
		if got := v.Message(); !reflect.DeepEqual(got, want) {
			t.Fatalf("%+v came back as %+v", want, got)
		}
	}
}

// TestViewPointsIntoThePayload: the broker looks at a message and stores it as it came, without a copy; a Message
// has nothing in common with it.
func TestViewPointsIntoThePayload(t *testing.T) {
	m := Message{Tag: "tag", Body: []byte("body"), Properties: []Property{{"name", "value"}}}
	b := mustAppend(t, &m)
	v := mustParse(t, b)
	copied := v.Message()
	for i := range b {
		b[i] = 'x'
	}
	if string(v.Tag) != "xxx" || string(v.Body) != "xxxx" {
		t.Fatal("the view is a copy")
	}
	if copied.Tag != "tag" || string(copied.Body) != "body" || copied.Properties[0] != (Property{"name", "value"}) {
		t.Fatalf("the message changed with the payload: %+v", copied)
	}
}

func TestEmptyMessageIsLegal(t *testing.T) {
	b := mustAppend(t, &Message{})
	if want := make([]byte, 16); !bytes.Equal(b, want) {
		t.Fatalf("%x", b)
	}
	v := mustParse(t, b)
	if body, err := v.messageBody(); err != nil || len(body) != 0 {
		t.Fatalf("body %q, %v", body, err)
	}
}

func (v *View) messageBody() ([]byte, error) {
	m := v.Message()
	return m.Decompress()
}

// TestMessageLimits: what is at a limit is written and read again, what is over it is refused by the writer with
// the same two errors.
func TestMessageLimits(t *testing.T) {
	text := func(n int) string { return strings.Repeat("x", n) }
	properties := func(n, bytes int) []Property { // n of them, bytes in all
		list := make([]Property, n)
		for i := range list {
			list[i] = Property{"n", ""}
			bytes -= 4
		}
		list[0].Value = text(bytes)
		return list
	}
	for _, test := range []struct {
		name     string
		legal    Message
		over     Message
		tooLarge bool
	}{
		{"tag", Message{Tag: text(255)}, Message{Tag: text(256)}, true},
		{"key", Message{Key: text(255)}, Message{Key: text(256)}, true},
		{"order key", Message{OrderKey: text(255)}, Message{OrderKey: text(256)}, true},
		{"unique key", Message{UniqueKey: text(255)}, Message{UniqueKey: text(256)}, true},
		{"properties", Message{Properties: properties(64, 1000)}, Message{Properties: properties(65, 1000)}, true},
		{"property bytes", Message{Properties: properties(3, 16<<10)}, Message{Properties: properties(3, 16<<10+1)}, true},
		{"longest property name", Message{Properties: []Property{{text(255), ""}}}, Message{Properties: []Property{{text(256), ""}}}, false},
		{"shortest property name", Message{Properties: []Property{{"n", "v"}}}, Message{Properties: []Property{{"", "v"}}}, false},
		{"body", Message{Body: make([]byte, 4<<20)}, Message{Body: make([]byte, 4<<20+1)}, true},
		{"decompressed body", Message{Compression: Zstd, RawBytes: 16 << 20}, Message{Compression: S2, RawBytes: 16<<20 + 1}, true},
		{"compression", Message{Compression: S2}, Message{Compression: S2 + 1}, false},
		{"calendar time", Message{Delayed: true, Calendar: true}, Message{Calendar: true}, false},
		{"everything at once", Message{
			Tag: text(255), Key: text(255), OrderKey: text(255), UniqueKey: text(255), Properties: properties(64, 16<<10),
			Delayed: true, DeliverAt: 1, ProducerID: 1, Body: make([]byte, 4<<20),
		}, Message{Body: make([]byte, 4<<20+1)}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			v := mustParse(t, mustAppend(t, &test.legal))
			if again := v.Message(); len(again.Properties) != len(test.legal.Properties) {
				t.Errorf("%d properties of %d", len(again.Properties), len(test.legal.Properties))
			}
			dst := []byte("before")
			b, err := test.over.Append(dst)
			if !errors.Is(err, ErrMessage) || errors.Is(err, ErrTooLarge) != test.tooLarge {
				t.Errorf("over the limit: %v", err)
			}
			if string(b) != "before" {
				t.Errorf("a refused message left %q", b)
			}
		})
	}
}

// hostile is a payload with nothing but a fixed part, and some bytes behind.
func hostile(change func(fixed []byte), behind int) []byte {
	b := make([]byte, messageFixedBytes+behind)
	change(b)
	return b
}

// hostilePayloads claim what they do not have, or what they may not have.
func hostilePayloads() map[string][]byte {
	u16 := func(at int, v uint16) func([]byte) {
		return func(b []byte) { binary.LittleEndian.PutUint16(b[at:], v) }
	}
	u32s := func(body, raw uint32) func([]byte) {
		return func(b []byte) {
			binary.LittleEndian.PutUint32(b[8:], body)
			binary.LittleEndian.PutUint32(b[12:], raw)
		}
	}
	u8 := func(at int, v byte) func([]byte) { return func(b []byte) { b[at] = v } }
	properties := func(bytes ...byte) []byte {
		b := hostile(u16(6, uint16(len(bytes))), 0)
		return append(b, bytes...)
	}
	many := []byte{}
	for range MaxProperties + 1 {
		many = append(many, 1, 0, 0, 'n')
	}
	long := make([]byte, MaxPropertyBytes+1) // one that is whole, but for its size
	long[0] = 1
	binary.LittleEndian.PutUint16(long[1:], MaxPropertyBytes+1-4)
	return map[string][]byte{
		"nothing":                          nil,
		"a cut fixed part":                 make([]byte, 15),
		"an unknown compression":           hostile(u8(0, 3), 0),
		"an unknown flag":                  hostile(u8(1, 8), 0),
		"a calendar time without a delay":  hostile(u8(1, flagCalendar), 0),
		"a delay that is not there":        hostile(u8(1, flagDeliverAt), 7),
		"a producer that is not there":     hostile(u8(1, flagProducer), 15),
		"producer id zero":                 hostile(u8(1, flagProducer), 16),
		"a tag that is not there":          hostile(u8(2, 255), 254),
		"a key that is not there":          hostile(u8(3, 1), 0),
		"an order key that is not there":   hostile(u8(4, 1), 0),
		"a unique key that is not there":   hostile(u8(5, 1), 0),
		"properties that are not there":    hostile(u16(6, 16<<10), 16<<10-1),
		"too many bytes of properties":     properties(long...),
		"the most bytes of properties":     hostile(u16(6, 65535), 0),
		"a body that is not there":         hostile(u32s(100, 100), 99),
		"bytes behind the body":            hostile(u32s(100, 100), 101),
		"the largest body":                 hostile(u32s(^uint32(0), ^uint32(0)), 0),
		"a body over the limit":            hostile(u32s(MaxBody+1, MaxBody+1), MaxBody+1),
		"a raw length that is not its own": hostile(u32s(100, 101), 100),
		"a decompressed length over the limit": hostile(func(b []byte) {
			b[0] = byte(Zstd)
			u32s(0, MaxDecompressed+1)(b)
		}, 0),
		"a property without a name":     properties(0, 1, 0, 'v'),
		"a property cut in its lengths": properties(1, 0),
		"a property cut in its name":    properties(2, 0, 0, 'n'),
		"a property cut in its value":   properties(1, 2, 0, 'n', 'v'),
		"a property of 64 KiB":          properties(255, 255, 255, 'n'),
		"bytes behind the properties":   properties(1, 0, 0, 'n', 1),
		"too many properties":           properties(many...),
	}
}

func TestParseRefuses(t *testing.T) {
	for name, payload := range hostilePayloads() {
		t.Run(name, func(t *testing.T) {
			var v View
			if err := v.Parse(payload); !errors.Is(err, ErrMessage) {
				t.Fatalf("%v", err)
			}
			// The words of the refusal are all that a hostile sender can make us allocate.
			if n := leastAllocs(func() { _ = v.Parse(payload) }); n > 10 {
				t.Errorf("%v allocations", n)
			}
			if bytes := allocated(func() { _ = v.Parse(payload) }); bytes > 4096 {
				t.Errorf("%d bytes allocated", bytes)
			}
		})
	}
}

func TestEveryTruncatedMessageIsRefused(t *testing.T) {
	r := newRand(t)
	for range 20 {
		m := randomMessage(r)
		b := mustAppend(t, &m)
		for n := range b {
			var v View
			if err := v.Parse(b[:n]); !errors.Is(err, ErrMessage) {
				t.Fatalf("%d of %d bytes of %+v: %v", n, len(b), m, err)
			}
		}
	}
}

func TestParseDoesNotAllocate(t *testing.T) {
	m := Message{
		Tag: "tag", Key: "key", OrderKey: "order", UniqueKey: "unique", Delayed: true, DeliverAt: 1000, ProducerID: 1,
		Properties: []Property{{"a", "1"}, {"b", "2"}}, Body: make([]byte, 1000),
	}
	b := mustAppend(t, &m)
	var sum uint64
	if n := testing.AllocsPerRun(100, func() {
		var v View
		if err := v.Parse(b); err != nil {
			t.Fatal(err)
		}
		hash, _ := v.RouteHash()
		sum += hash + TagHash(v.Tag)
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

// TestRouteHash: by order key, else by key, else none. The hash is xxhash64, which every client can compute.
func TestRouteHash(t *testing.T) {
	for _, test := range []struct {
		m    Message
		hash uint64
		ok   bool
	}{
		{Message{Tag: "t", UniqueKey: "u"}, 0, false},
		{Message{Key: "k"}, xxhash.Sum64String("k"), true},
		{Message{OrderKey: "o"}, xxhash.Sum64String("o"), true},
		{Message{Key: "k", OrderKey: "o"}, xxhash.Sum64String("o"), true},
	} {
		v := mustParse(t, mustAppend(t, &test.m))
		if hash, ok := v.RouteHash(); hash != test.hash || ok != test.ok {
			t.Errorf("%+v: %x %t", test.m, hash, ok)
		}
	}
}

// TestTagHash: zero stands for no tag, and only for that.
func TestTagHash(t *testing.T) {
	if TagHash("") != 0 || TagHash([]byte(nil)) != 0 {
		t.Error("no tag has a hash")
	}
	if TagHash("red") != xxhash.Sum64String("red") || TagHash([]byte("red")) != TagHash("red") {
		t.Error("the hash of a tag is not xxhash64")
	}
	const hashesToZero = "\x73\x85\x80\x7d\x8f\x0b\x53\x39"
	if xxhash.Sum64String(hashesToZero) != 0 || TagHash(hashesToZero) != 1 {
		t.Errorf("a tag whose hash is zero: %x, stored as %x", xxhash.Sum64String(hashesToZero), TagHash(hashesToZero))
	}
	long := strings.Repeat("x", 255)
	if TagHash([]byte(long)) != xxhash.Sum64String(long) {
		t.Error("the hash of a long tag is not xxhash64")
	}
	slice := []byte(long)
	if n := testing.AllocsPerRun(100, func() { _ = TagHash(slice) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkParse(b *testing.B) {
	m := Message{Tag: "tag", Key: "key", Properties: []Property{{"a", "1"}, {"b", "2"}}, Body: make([]byte, 1000)}
	payload := mustAppend(b, &m)
	b.ReportAllocs()
	for b.Loop() {
		var v View
		if err := v.Parse(payload); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppend1K(b *testing.B) {
	m := Message{Tag: "tag", Key: "key", Properties: []Property{{"a", "1"}, {"b", "2"}}, Body: make([]byte, 1000)}
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		buf, _ = m.Append(buf[:0])
	}
}
