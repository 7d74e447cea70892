package codec

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write testdata/records.txt")

const goldenFile = "testdata/records.txt"

const goldenHead = `# Golden vectors of the on-disk format: bytes that this version wrote once and every later one must read, and must
# write the same. Changing one is changing the format. After the name, lines that begin with # list the values.
`

// vector is something stored, with its bytes.
type vector struct {
	name  string
	value any
	bytes []byte
	// read checks that bytes which were stored once mean value.
	read func(t *testing.T, b []byte)
	// loose: bytes that mean the same may be written differently by another version (compression).
	loose bool
}

func goldenMessage() Message {
	return Message{
		RawBytes: 4, DeliverAt: 0x0102030405060708, Delayed: true, Calendar: true,
		ProducerID: 0x1112131415161718, Sequence: 0x2122232425262728,
		Tag: "tag", Key: "the key", OrderKey: "order-9", UniqueKey: "unique",
		Properties: []Property{{"trace", "00-ab"}, {"empty", ""}}, Body: []byte("body"),
	}
}

func recordVector(name string, h Header, assigned, payload []byte) vector {
	b := sealed(&h, assigned, payload)
	return vector{name: name, value: h, bytes: b, read: func(t *testing.T, b []byte) {
		got, gotAssigned, gotPayload, err := ReadRecord(b)
		if err != nil || got != h || !bytes.Equal(gotAssigned, assigned) || !bytes.Equal(gotPayload, payload) {
			t.Errorf("it means %+v, %x, %x, %v", got, gotAssigned, gotPayload, err)
		}
	}}
}

func messageVector(name string, m Message) vector {
	b, err := m.Append(nil)
	if err != nil {
		panic(err)
	}
	return vector{name: name, value: m, bytes: b, read: func(t *testing.T, b []byte) {
		var v View
		if err := v.Parse(b); err != nil {
			t.Fatal(err)
		}
		if got := v.Message(); !reflect.DeepEqual(got, m) {
			t.Errorf("it means %+v", got)
		}
	}}
}

func bodyVector(name string, c Compression) vector {
	body := repetitive(300)
	m := Message{Body: body}
	if err := m.Compress(c); err != nil || m.Compression != c {
		panic(name)
	}
	return vector{name: name, value: string(body), bytes: m.Body, loose: true, read: func(t *testing.T, b []byte) {
		m := Message{Compression: c, RawBytes: uint32(len(body)), Body: b}
		if got, err := m.Decompress(); err != nil || !bytes.Equal(got, body) {
			t.Errorf("it means %q, %v", got, err)
		}
	}}
}

func stateVector(name string, m stateRecord) vector {
	return vector{name: name, value: m, bytes: m.Append(nil), read: func(t *testing.T, b []byte) {
		got := like(m)
		if err := got.Decode(b); err != nil || !same(got, m) {
			t.Errorf("it means %+v, %v", got, err)
		}
	}}
}

// vectors is every layout of the format, with values that show where each field lies.
func vectors() []vector {
	m := goldenMessage()
	payload, err := m.Append(nil)
	if err != nil {
		panic(err)
	}
	place := MessagePlace{
		Topic: 0x01020304, Queue: 0x0506, Offset: 0x08090a0b0c0d0e0f, TagHash: TagHash(m.Tag),
		ID: NewMessageID(0x11121314, 0x18191a1b1c1d1e1f),
	}
	assigned := make([]byte, MessageAssignedBytes)
	place.Put(assigned)
	header := Header{
		Type: TypeMessage, Epoch: 0x21222324, Position: 0x28292a2b2c2d2e20,
		LeaseMs: 0x3132333435363738, WallMs: 0x4142434445464748, Synced: 0x5152535455565758,
	}
	moved := header
	moved.Type, moved.WallMs, moved.BornMs = TypeCopy, header.WallMs+1, header.WallMs
	epoch := header
	epoch.Type = TypeEpoch
	release := []ReleaseEntry{
		{Sub: 0x01020304, Queue: 0x0506, Offset: 0x0708090a0b0c0d0e, Token: 0x1112131415161718, AtMs: 0x2122232425262728},
		{Sub: 1, Queue: 2, Offset: 3, Token: 4, AtMs: 5},
	}
	return []vector{
		recordVector("record without a payload", epoch, nil, nil),
		recordVector("record of a message", header, assigned, payload),
		recordVector("record of a message that was copied forward", moved, assigned, payload),
		{name: "assigned fields of a message", value: place, bytes: assigned, read: func(t *testing.T, b []byte) {
			if got := ParseMessagePlace(b); got != place {
				t.Errorf("it means %+v", got)
			}
		}},
		messageVector("message with everything", m),
		messageVector("message with nothing", Message{}),
		messageVector("message of a producer", Message{ProducerID: 7, Sequence: 8, RawBytes: 1, Body: []byte("b")}),
		messageVector("message that says it is compressed", Message{Compression: Zstd, RawBytes: 0x00010203, Body: []byte{0xfe, 0xff}}),
		bodyVector("body compressed by zstd", Zstd),
		bodyVector("body compressed by s2", S2),
		stateVector("TOPIC", &Topic{Op: OpUpdate, ID: 0x01020304, Queues: 0x0506, UniqueKeyMs: 0x11121314, Name: []byte("orders")}),
		stateVector("RETAIN", &Retain{LogStart: 0x0102030405060708, Queues: []QueueBegin{
			{Topic: 0x11121314, Queue: 0x1516, Begin: 0x2122232425262728}, {Topic: 1, Queue: 2, Begin: 3},
		}}),
		stateVector("GROUP", &Group{Op: OpCreate, ID: 0x01020304, Name: []byte("billing"), Rules: Rules{
			InvisibleMs: 0x11121314, MaxInvisibleMs: 0x21222324, MaxRenewals: 0x3132, MaxTotalMs: 0x4142434445464748,
			HeartbeatMs: 0x51525354, SessionTimeoutMs: 0x61626364, BackOff: 0x71, BackOffMinMs: 0x81828384,
			BackOffMaxMs: 0x91929394, MaxFailures: 0xa1, MaxExpiries: 0xb1, MaxSessionLosses: 0xc1, MaxInFlight: 0xd1d2d3d4, HoldMs: 0xe1e2e3e4e5e6e7e8,
		}}),
		stateVector("SUBSCRIBE", &Subscribe{
			Sub: 0x01020304, Group: 0x11121314, Topic: 0x21222324,
			Filter: []uint64{0x3132333435363738}, Starts: []uint64{0x4142434445464748, 0},
		}),
		stateVector("GRANT", &Grant{
			Sub: 0x01020304, Number: 0x11121314, Session: 0x2122232425262728, DeadlineMs: 0x3132333435363738,
			PopSequence: 0x4142434445464748, PopSlot: 0x0f, Lost: true, Runs: []GrantRun{
				{Queue: 0x5152, Kind: RunNew, Count: 0x61626364, Offset: 0x7172737475767778},
				{Kind: RunAgain, Count: 1, Offset: 2},
				{Kind: RunSkipped, Count: 3, Offset: 4},
				{Kind: RunKnown, Count: 5, Offset: 6},
				{Kind: RunReclaimed, Count: 7, Offset: 8},
			},
		}),
		stateVector("SETTLE", &Settle{Sub: 0x01020304, Session: 0x1112131415161718, Runs: []SettleRun{
			{Queue: 0x2122, Lost: true, Count: 0x31323334, Offset: 0x4142434445464748, Token: 0x5152535455565758},
			{Queue: 1, Count: 2, Offset: 3, Token: 4},
		}}),
		stateVector("CHANGE", &Change{Sub: 0x01020304, Session: 0x1112131415161718, Entries: []ChangeEntry{
			{Queue: 0x2122, Kind: ChangeRenewed, Lost: true, Ordinal: 0x31323334, Offset: 0x4142434445464748, Token: 0x5152535455565758, AtMs: 0x6162636465666768},
			{Kind: ChangeShortened, Ordinal: 1}, {Kind: ChangeReleased, Ordinal: 2}, {Kind: ChangeFailed, Ordinal: 3}, {Kind: ChangePostponed, Ordinal: 4}, {Kind: ChangeTaken},
		}}),
		stateVector("EXPIRE", &Expire{Entries: release}),
		stateVector("UNREADABLE", &Unreadable{Sub: 0x01020304, Queue: 0x0506, Offset: 0x0708090a0b0c0d0e, Token: 0x1112131415161718}),
		stateVector("SESSION_START", &SessionStart{
			Session: 0x0102030405060708, Group: 0x11121314, Nonce: [16]byte{0xf0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0xff},
			ConsumerID: []byte("host-3"), ClientInfo: []byte("shop/1.4"),
		}),
		stateVector("SESSION_END", &SessionEnd{Session: 0x0102030405060708, Cause: EndFenced, Releases: release}),
		stateVector("row STATE", &StateRow{
			LogStart: 0x0102030405060708, NextTopic: 0x11121314, NextGroup: 0x21222324, NextSub: 0x31323334, LastSession: 0x4142434445464748,
		}),
		stateVector("row EPOCH", &EpochRow{Epoch: 0x01020304, Number: 0x11121314, Start: 0x2122232425262728}),
		stateVector("row TOPIC", &TopicRow{
			ID: 0x01020304, UniqueKeyMs: 0x11121314, Name: []byte("orders"), Queues: []QueueRange{{0x2122232425262728, 0x3132333435363738}, {0, 1}},
		}),
		stateVector("row COPY", &CopyRow{
			Topic: 0x01020304, Queue: 0x0506, Offset: 0x1112131415161718, Position: 0x2122232425262728, Size: 0x31323334,
			TagHash: 0x4142434445464748, OrderHash: 0x5152535455565758,
		}),
		stateVector("row GROUP", &GroupRow{
			ID: 0x01020304, Version: 0x1112131415161718, IdleMs: 0x2122232425262728, Name: []byte("billing"), Rules: Rules{
				InvisibleMs: 0x31323334, HoldMs: 0x4142434445464748,
			},
		}),
		stateVector("row SESSION", &SessionRow{
			ID: 0x0102030405060708, Group: 0x11121314, Ended: true, Cause: EndLeft, EndedMs: 0x2122232425262728,
			Nonce: [16]byte{0xf0, 15: 0xff}, HeartbeatMs: 0x31323334, TimeoutMs: 0x41424344,
			ConsumerID: []byte("host-3"), ClientInfo: []byte("shop/1.4"),
		}),
		stateVector("row SUBSCRIPTION", &SubscriptionRow{
			Sub: 0x01020304, Group: 0x11121314, Topic: 0x21222324, HorizonMs: 0x3132333435363738, Filter: []uint64{0x4142434445464748},
		}),
		stateVector("row CURSOR", &CursorRow{
			Queue: 0x0102, Start: 0x1112131415161718, Next: 0x2122232425262728, Settled: 0x3132333435363738,
			Skipped: 0x4142434445464748, Unreadable: 0x5152535455565758, Dropped: 0x6162636465666768,
		}),
		stateVector("row MESSAGE", &MessageRow{
			Offset: 0x0102030405060708, Token: 0x1112131415161718, AtMs: 0x2122232425262728, SinceMs: 0x3132333435363738,
			Session: 0x4142434445464748, Attempts: 0x5152, Ordinal: 0x6162, Renewals: 0x7172,
			Failures: 0x81, Expiries: 0x82, Losses: 0x83, State: 0x84, Ending: 0x85,
		}),
		stateVector("row MEMORY", &MemoryRow{Messages: []QueueOffset{{0x0102, 0x1112131415161718}, {1, 2}}}),
		stateVector("row PRODUCER", &ProducerRow{ID: 0x0102030405060708, Floor: 0x1112131415161718, Highest: 0x2122232425262728, LastMs: 0x3132333435363738}),
		stateVector("row SEQUENCES", &SequencesRow{
			Producer: 0x0102030405060708, First: 0x1112131415161710, NewestMs: 0x2122232425262728, QueuedMs: 0x3132333435363738, Known: 0x8002,
			Places: [16]StoredPlace{
				1:  {Queue: 0x4142, Epoch: 0x51525354, Offset: 0x6162636465666768, Position: 0x7172737475767778},
				15: {Queue: 1, Epoch: 2, Offset: 3, Position: 4},
			},
		}),
		stateVector("row UNIQUE_KEY", &UniqueKeyRow{
			Topic: 0x01020304, Hash: [2]uint64{0x1112131415161718, 0x2122232425262728}, ExpiresMs: 0x3132333435363738,
			Place: StoredPlace{Queue: 0x4142, Epoch: 0x51525354, Offset: 0x6162636465666768, Position: 0x7172737475767778},
		}),
		stateVector("row POP_MARK", &PopMarkRow{
			Session: 0x0102030405060708, Slot: 0x0f, Sequence: 0x1112131415161718, Token: 0x2122232425262728, Sub: 0x31323334,
		}),
	}
}

// text is the vector as it stands in the file.
func (v vector) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\nname %s\n", v.name)
	describe(&b, "", reflect.ValueOf(v.value))
	for rest := v.bytes; len(rest) > 0; {
		n := min(32, len(rest))
		fmt.Fprintf(&b, "hex %x\n", rest[:n])
		rest = rest[n:]
	}
	return b.String()
}

func describe(b *strings.Builder, name string, v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		describe(b, name, v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			describe(b, strings.TrimPrefix(name+"."+v.Type().Field(i).Name, "."), v.Field(i))
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			fmt.Fprintf(b, "# %s = %q\n", name, v.Bytes())
			return
		}
		for i := range v.Len() {
			describe(b, fmt.Sprintf("%s[%d]", name, i), v.Index(i))
		}
	case reflect.Array:
		if v.Type().Elem().Kind() != reflect.Uint8 {
			for i := range v.Len() {
				if !v.Index(i).IsZero() {
					describe(b, fmt.Sprintf("%s[%d]", name, i), v.Index(i))
				}
			}
			return
		}
		fmt.Fprintf(b, "# %s = bytes 0x", name)
		for i := range v.Len() {
			fmt.Fprintf(b, "%02x", v.Index(i).Uint())
		}
		b.WriteByte('\n')
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		fmt.Fprintf(b, "# %s = %#x\n", name, v.Uint())
	case reflect.Int64:
		fmt.Fprintf(b, "# %s = %#x\n", name, v.Int())
	case reflect.String:
		fmt.Fprintf(b, "# %s = %q\n", cmp.Or(name, "decompressed"), v.String())
	default:
		fmt.Fprintf(b, "# %s = %v\n", name, v)
	}
}

// readGolden is the file: the bytes of each name.
func readGolden(t testing.TB) map[string][]byte {
	t.Helper()
	text, err := os.ReadFile(goldenFile)
	if err != nil {
		t.Fatal(err)
	}
	golden := map[string][]byte{}
	name := ""
	for line := range strings.Lines(string(text)) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch word {
		case "name":
			name = rest
			golden[name] = []byte{}
		case "hex":
			b, err := hex.DecodeString(rest)
			if err != nil {
				t.Fatal(err)
			}
			golden[name] = append(golden[name], b...)
		}
	}
	return golden
}

func TestGoldenVectors(t *testing.T) {
	all := vectors()
	if *update {
		text := goldenHead
		for _, v := range all {
			text += v.text()
		}
		if err := os.WriteFile(goldenFile, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	golden := readGolden(t)
	for _, v := range all {
		t.Run(v.name, func(t *testing.T) {
			stored, ok := golden[v.name]
			if !ok {
				t.Fatal("it is not in the file; -update writes it")
			}
			v.read(t, stored)
			if !v.loose && !bytes.Equal(stored, v.bytes) {
				t.Errorf("it was written\n%x, is written\n%x", stored, v.bytes)
			}
		})
	}
	if len(golden) != len(all) {
		t.Errorf("%d vectors in the file, %d here", len(golden), len(all))
	}
}

// TestEveryStateRecordHasAVector: a layout without one could change unseen.
func TestEveryStateRecordHasAVector(t *testing.T) {
	have := map[reflect.Type]bool{}
	for _, v := range vectors() {
		have[reflect.TypeOf(v.value)] = true
	}
	for _, m := range stateRecords() {
		if !have[reflect.TypeOf(m)] {
			t.Errorf("%s has none", typeName(m))
		}
	}
}
