package protocol

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"flag"
	"fmt"
	"hash/crc32"
	"os"
	"reflect"
	"strings"
	"testing"
	"unicode"
)

var update = flag.Bool("update", false, "write testdata/vectors.txt and the copy of it in docs/PROTOCOL.md")

const (
	vectorsFile  = "testdata/vectors.txt"
	documentFile = "../docs/PROTOCOL.md"
)

// vector is one frame with its canonical bytes. A nil body is an empty one.
type vector struct {
	name   string
	header Header
	body   Body
}

func request(name string, op Opcode, body Body) vector {
	return vector{name + " request", Header{Version: Version, Opcode: op, RequestID: 7}, body}
}

func answer(name string, op Opcode, body Body) vector {
	return vector{name + " answer", Header{Version: Version, Opcode: op, Flags: FlagAnswer, RequestID: 7}, body}
}

func push(name string, op Opcode, body Body) vector {
	return vector{name + " push", Header{Version: Version, Opcode: op, Flags: FlagPush}, body}
}

func (v vector) with(flags Flags, status Status) vector {
	v.header.Flags |= flags
	v.header.Status = status
	return v
}

func (v vector) encodeBody() []byte {
	if v.body == nil {
		return nil
	}
	return v.body.Append(nil)
}

func (v vector) encode() []byte {
	frame := BeginFrame(nil, v.header)
	frame = append(frame, v.encodeBody()...)
	EndFrame(frame, 0)
	return frame
}

// text is the vector as it stands in the file: the name, the fields as comments, header and body.
func (v vector) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "name %s\n", v.name)
	fmt.Fprintf(&b, "# opcode %d %s, flags %d, status %d %s, request id %d\n",
		v.header.Opcode, v.header.Opcode, v.header.Flags, v.header.Status, v.header.Status, v.header.RequestID)
	if v.body != nil {
		describe(&b, "", reflect.ValueOf(v.body).Elem())
	}
	for rest, n := v.encode(), HeaderBytes; len(rest) > 0; n = min(32, len(rest)) {
		fmt.Fprintf(&b, "hex  %x\n", rest[:n])
		rest = rest[n:]
	}
	b.WriteString("end\n")
	return b.String()
}

// words turns a field's name into those of the document: "MinVersion" into "min version".
func words(name string) string {
	var b strings.Builder
	runes := []rune(name)
	for i, c := range runes {
		if i > 0 && unicode.IsUpper(c) && !unicode.IsUpper(runes[i-1]) {
			b.WriteByte(' ')
		}
		b.WriteRune(unicode.ToLower(c))
	}
	return strings.Replace(b.String(), "back off", "back-off", 1)
}

func describe(b *strings.Builder, name string, v reflect.Value) {
	if bytes, ok := v.Interface().([]byte); ok {
		fmt.Fprintf(b, "# %s = bytes 0x%x\n", name, bytes)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			field := words(v.Type().Field(i).Name)
			if name != "" {
				field = name + " " + field
			}
			describe(b, field, v.Field(i))
		}
	case reflect.Slice:
		fmt.Fprintf(b, "# %s: %d\n", name, v.Len())
		for i := range v.Len() {
			describe(b, fmt.Sprintf("%s[%d]", name, i), v.Index(i))
		}
	case reflect.Array:
		fmt.Fprintf(b, "# %s = bytes 0x%x\n", name, v.Interface())
	case reflect.String:
		fmt.Fprintf(b, "# %s = %q\n", name, v.String())
	default:
		if s, ok := v.Interface().(fmt.Stringer); ok {
			fmt.Fprintf(b, "# %s = %d %s\n", name, v.Interface(), s)
			return
		}
		fmt.Fprintf(b, "# %s = %v\n", name, v.Interface())
	}
}

// countingBytes are n bytes that tell where in a field they lie.
func countingBytes(from byte, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = from + byte(i)
	}
	return b
}

// messagePayload is a message written down by the table of the document, not by the package that makes
// messages, so that the vectors prove the table.
func messagePayload(tag, key, property, value, body string) []byte {
	b := []byte{0, 0, byte(len(tag)), byte(len(key)), 0, 0}
	b = binary.LittleEndian.AppendUint16(b, uint16(3+len(property)+len(value)))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(body)))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(body)))
	b = append(append(b, tag...), key...)
	b = append(b, byte(len(property)))
	b = binary.LittleEndian.AppendUint16(b, uint16(len(value)))
	return append(append(append(b, property...), value...), body...)
}

const (
	vectorEpoch    = 0x6553f100
	vectorPosition = 0x1000
	vectorTagHash  = 0x9cf71314683dc6c2 // xxhash64 of "paid"
)

func vectorPayload() []byte { return messagePayload("paid", "order-17", "trace", "abc", "hello") }

func vectorMessageID() (id [16]byte) {
	binary.LittleEndian.PutUint32(id[0:], vectorEpoch)
	binary.LittleEndian.PutUint64(id[8:], vectorPosition)
	return id
}

// messageRecord is the record of vectorPayload, likewise by the table.
func messageRecord() []byte {
	payload := vectorPayload()
	assigned := binary.LittleEndian.AppendUint32(nil, 3)
	assigned = binary.LittleEndian.AppendUint32(assigned, 5)
	assigned = binary.LittleEndian.AppendUint64(assigned, 41)
	assigned = binary.LittleEndian.AppendUint64(assigned, vectorTagHash)
	id := vectorMessageID()
	assigned = append(assigned, id[:]...)
	head := binary.LittleEndian.AppendUint32(nil, uint32(64+len(assigned)+len(payload)))
	head = binary.LittleEndian.AppendUint32(head, 0)
	head = binary.LittleEndian.AppendUint16(head, 16)
	head = binary.LittleEndian.AppendUint16(head, 0)
	head = binary.LittleEndian.AppendUint32(head, vectorEpoch)
	for _, v := range []uint64{vectorPosition, 250_000, 1_700_000_000_000, 0xf80, 0, 0} {
		head = binary.LittleEndian.AppendUint64(head, v)
	}
	table := crc32.MakeTable(crc32.Castagnoli)
	crc := crc32.Update(crc32.Update(crc32.Update(0, table, payload), table, assigned), table, head)
	binary.LittleEndian.PutUint32(head[4:], crc)
	return append(append(head, assigned...), payload...)
}

func vectors() []vector {
	const session = 0x6553f10000000009
	receipt := countingBytes(0x80, ReceiptBytes)
	record := messageRecord()
	rules := GroupRules{
		InvisibleMs: 30_000, MaxInvisibleMs: 21_600_000, MaxRenewals: 3, MaxTotalMs: 0x123456789a,
		HeartbeatMs: 3000, SessionTimeoutMs: 10_000, BackOff: BackOffFixed, BackOffMinMs: 1000, BackOffMaxMs: 300_000,
		MaxFailures: 16, MaxExpiries: 5, MaxSessionLosses: 4, MaxInFlight: 10_000, HoldMs: 604_800_000,
	}
	update := rules
	update.BackOff, update.Ordered, update.Assigned = BackOffExponentialAgain, true, true
	update.MaxTotalMs, update.MaxRenewals = UnlimitedTotal, UnlimitedRenewals
	settled := []SettleResult{
		{Status: OK, RenewalsLeft: 2, RemainingMs: 240_000, BudgetMs: 21_000_000},
		{Status: Stale, Reason: ReasonRegranted, AgoMs: 4100, Token: vectorEpoch<<32 | 12},
	}
	return []vector{
		request("HELLO", OpHello, &HelloRequest{MinVersion: 1, MaxVersion: 2, Features: 0x0102030405060708, Auth: []byte{0xde, 0xad}, ClientInfo: "shop/1.4"}),
		answer("HELLO", OpHello, &HelloAnswer{Version: 1, Features: 0x10, BrokerID: "broker-a", Epoch: vectorEpoch, CreditBytes: 4 << 20, MaxFrameBytes: MaxFrameBytes, MaxBodyBytes: MaxBodyBytes}),
		request("REGISTER", OpRegister, &RegisterRequest{Group: "billing", ConsumerID: "host-3:9921", ClientInfo: "shop/1.4", Nonce: [16]byte(countingBytes(0x10, 16)), Previous: session - 3, ReclaimMs: 60_000, Receipts: [][]byte{{1, 2, 3}, receipt[:5]}}).with(FlagCreate, 0),
		answer("REGISTER", OpRegister, &RegisterAnswer{Session: session, Generation: 4, HeartbeatMs: 3000, TimeoutMs: 10_000, GroupVersion: 12, InvisibleMs: 30_000, MaxInvisibleMs: 21_600_000, Reclaimed: []Reclaimed{
			{Status: OK, Token: vectorEpoch<<32 | 12, Attempt: 3, RemainingMs: 60_000, RenewalsLeft: 3, BudgetMs: 64_800_000, Receipt: receipt},
			{Status: Stale, Reason: ReasonRegranted, Token: vectorEpoch<<32 | 11, AgoMs: 4100},
		}}),
		request("HEARTBEAT", OpHeartbeat, &HeartbeatRequest{Session: session, GroupVersion: 12, Held: 2, ProgressMs: 1500, Timestamp: 0x1122334455667788}),
		answer("HEARTBEAT", OpHeartbeat, &HeartbeatAnswer{GroupVersion: 13, LeasesLost: 1, Draining: true, Timestamp: 0x1122334455667788}),
		request("UNREGISTER", OpUnregister, &UnregisterRequest{Session: session}),
		answer("UNREGISTER", OpUnregister, nil),
		request("SEND", OpSend, &SendRequest{Topic: "orders", Queue: AnyQueue, ProducerID: 77, Sequence: 1001, Messages: [][]byte{vectorPayload(), messagePayload("", "", "p", "", "")}}).with(FlagCreate, 0),
		answer("SEND", OpSend, &SendAnswer{Results: []SendResult{{Status: OK, Queue: 5, Offset: 41, MessageID: vectorMessageID(), Handle: 0x0807060504030201}, {Status: TooLarge}}}),
		request("POP", OpPop, &PopRequest{
			Session: session, Topic: "orders", FilterTags: []string{"paid", "refund"}, Max: 32, MaxBytes: 1 << 19, InvisibleMs: 30_000, AwaitMs: 20_000,
			Slot: 3, PreviousLost: true, Sequence: 9, Start: StartLatest, StartTimeMs: 1_700_000_000_000, GroupVersion: 12,
		}).with(FlagCreate, 0),
		answer("POP", OpPop, &PopAnswer{Leased: 3, Waiting: 4, Rows: []LeaseRow{
			{RecordOffset: 0, RecordLength: uint32(len(record)), Token: vectorEpoch<<32 | 11, Attempt: 2, RemainingMs: 29_990, RenewalsLeft: 3, Failures: 1, Expiries: 2, SessionLosses: 3, BudgetMs: 21_570_000, Receipt: receipt, Checkpoint: []byte("row 512")},
			{RecordOffset: 0, RecordLength: uint32(len(record)), Token: vectorEpoch<<32 | 11, Attempt: 1, RemainingMs: 29_990, RenewalsLeft: UnlimitedRenewals, Receipt: countingBytes(0x20, ReceiptBytes)},
		}, Records: record}),
		answer("POP empty", OpPop, &PopAnswer{Leased: 0, Waiting: 4}).with(0, Empty),
		answer("POP refused", OpPop, &ErrorBody{Message: "a pop of 300 messages, 1 to 256 are legal", Detail: 256}).with(0, Invalid),
		request("ACK", OpAck, &AckRequest{Session: session, Entries: []AckEntry{{Receipt: receipt}, {Receipt: receipt[:3], Duplicate: true}}}),
		answer("ACK", OpAck, &AckAnswer{Results: settled}),
		request("CHANGE_INVISIBLE", OpChangeInvisible, &ChangeInvisibleRequest{Session: session, Entries: []ChangeEntry{
			{Receipt: receipt, Ordinal: 1, Cause: CauseRenew, InvisibleMs: 240_000, Checkpoint: []byte("row 512")},
			{Receipt: receipt[:3], Ordinal: 2, Cause: CauseFailed, Reason: "card service: timeout"},
		}}),
		answer("CHANGE_INVISIBLE", OpChangeInvisible, &ChangeInvisibleAnswer{Results: settled}),
		answer("RECALL", OpRecall, &ErrorBody{Message: "RECALL: not served by this broker"}).with(0, Unsupported),
		request("PEEK", OpPeek, &PeekRequest{Topic: "%DLQ%billing", Queue: 5, Offset: 40, Max: 10}),
		answer("PEEK", OpPeek, &PeekAnswer{Begin: 40, End: 42, Rows: []RecordRange{{0, uint32(len(record))}}, Records: record}),
		request("CREATE_TOPIC", OpCreateTopic, &CreateTopicRequest{Name: "orders", Queues: 8, UniqueKeyMs: 3_600_000}),
		answer("CREATE_TOPIC", OpCreateTopic, nil),
		request("UPDATE_TOPIC", OpUpdateTopic, &UpdateTopicRequest{Name: "orders", Queues: 16, UniqueKeyMs: 60_000}),
		answer("UPDATE_TOPIC", OpUpdateTopic, nil),
		request("DELETE_TOPIC", OpDeleteTopic, &NameRequest{Name: "orders"}),
		answer("DELETE_TOPIC", OpDeleteTopic, nil),
		request("PURGE_TOPIC", OpPurgeTopic, &NameRequest{Name: "orders"}),
		answer("PURGE_TOPIC", OpPurgeTopic, nil),
		request("LIST_TOPICS", OpListTopics, nil),
		answer("LIST_TOPICS", OpListTopics, &ListTopicsAnswer{Topics: []TopicInfo{{Name: "invoices", ID: 2, Queues: 8, Messages: 17, Sent: 18, UniqueKeyMs: 600_000}, {Name: "orders", ID: 3, Queues: 16, Messages: 1 << 39, Sent: 1 << 40, UniqueKeyMs: 60_000}}}),
		request("CREATE_GROUP", OpCreateGroup, &GroupRequest{Name: "billing", Rules: rules}),
		answer("CREATE_GROUP", OpCreateGroup, nil),
		request("UPDATE_GROUP", OpUpdateGroup, &GroupRequest{Name: "billing", Rules: update}),
		answer("UPDATE_GROUP", OpUpdateGroup, nil),
		request("DELETE_GROUP", OpDeleteGroup, &NameRequest{Name: "billing"}),
		answer("DELETE_GROUP", OpDeleteGroup, nil),
		request("LIST_GROUPS", OpListGroups, nil),
		answer("LIST_GROUPS", OpListGroups, &ListGroupsAnswer{Groups: []GroupSummary{{Name: "billing", ID: 4, Sessions: 2, Leased: 31, Waiting: 1}}}),
		request("SHOW_GROUP", OpShowGroup, &NameRequest{Name: "billing"}),
		answer("SHOW_GROUP", OpShowGroup, &ShowGroupAnswer{
			Name: "billing", ID: 4, Version: 12, IdleMs: 77, Rules: rules,
			Sessions: []SessionInfo{{Session: session, ConsumerID: "host-3:9921", ClientInfo: "shop/1.4", Leases: 2, SilentMs: 812}},
			Cursors:  []CursorInfo{{Topic: "orders", Queue: 5, Next: 41, End: 42, Leased: 2, Waiting: 1, Settled: 36, Skipped: 3, Dropped: 4}}, SessionsLeftOff: 1, CursorsLeftOff: 15,
		}),
		request("STATS", OpStats, nil),
		answer("STATS", OpStats, &StatsAnswer{Stats: []Stat{{Name: "acks", Value: 1}, {Name: "messages_sent", Value: 1 << 33}}}),
		push("SESSION_ENDED", OpSessionEnded, &SessionEnded{Session: session, Reason: ReasonSessionFenced}),
		push("DRAIN", OpDrain, nil),
		push("GOODBYE", OpGoodbye, &ErrorBody{Message: "the frame begins with 47 45, not with 'L' 'Q'"}).with(0, BadFrame),
	}
}

func vectorsText() string {
	var b strings.Builder
	for i, v := range vectors() {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(v.text())
	}
	return b.String()
}

// readVectors reads the hex of every vector of the file, knowing nothing of how it was made.
func readVectors(t testing.TB) map[string][]byte {
	t.Helper()
	text, err := os.ReadFile(vectorsFile)
	if err != nil {
		t.Fatal(err)
	}
	frames := map[string][]byte{}
	name := ""
	for line := range strings.Lines(string(text)) {
		kind, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch kind {
		case "name":
			name = rest
			frames[name] = nil
		case "hex":
			b, err := hex.DecodeString(strings.TrimSpace(rest))
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			frames[name] = append(frames[name], b...)
		}
	}
	return frames
}

func newBody(b Body) Body { return reflect.New(reflect.TypeOf(b).Elem()).Interface().(Body) }

// TestGoldenVectors: every vector of the file encodes to its bytes and its bytes decode to it.
func TestGoldenVectors(t *testing.T) {
	if *update {
		if err := os.WriteFile(vectorsFile, []byte(vectorsText()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	frames := readVectors(t)
	for _, v := range vectors() {
		frame, ok := frames[v.name]
		if !ok {
			t.Errorf("%s: not in %s", v.name, vectorsFile)
			continue
		}
		delete(frames, v.name)
		if encoded := v.encode(); !bytes.Equal(encoded, frame) {
			t.Errorf("%s:\nencodes to %x\nwant       %x", v.name, encoded, frame)
			continue
		}
		h, err := ParseHeader(frame)
		if err != nil {
			t.Errorf("%s: header: %v", v.name, err)
			continue
		}
		want := v.header
		want.BodyLen = uint32(len(frame) - HeaderBytes)
		if h != want {
			t.Errorf("%s: header is %+v, want %+v", v.name, h, want)
		}
		if v.body == nil {
			continue
		}
		got := newBody(v.body)
		if err := got.Decode(frame[HeaderBytes:]); err != nil {
			t.Errorf("%s: %v", v.name, err)
		} else if !reflect.DeepEqual(got, v.body) {
			t.Errorf("%s:\ndecodes to %+v\nwant       %+v", v.name, got, v.body)
		}
	}
	for name := range frames {
		t.Errorf("%s: in %s, but nobody checks it", name, vectorsFile)
	}
	text, err := os.ReadFile(vectorsFile)
	if err != nil || string(text) != vectorsText() {
		t.Errorf("%s is not what -update would write (%v)", vectorsFile, err)
	}
}

// TestEveryOpcodeHasVectors: each opcode has a request and an answer, or a push. Those that are not
// served yet have no layout of their own; RECALL shows the answer they get.
func TestEveryOpcodeHasVectors(t *testing.T) {
	notServed := map[Opcode]bool{OpReject: true, OpPull: true, OpCommitOffset: true, OpQueryOffset: true, OpRecall: true}
	type direction struct {
		op     Opcode
		answer bool
	}
	have := map[direction]bool{}
	for _, v := range vectors() {
		have[direction{v.header.Opcode, v.header.Flags&(FlagAnswer|FlagPush) != 0}] = true
	}
	for _, op := range Opcodes() {
		if notServed[op] {
			continue
		}
		if !have[direction{op, true}] || (op < 0x80 && !have[direction{op, false}]) {
			t.Errorf("%s: vectors are missing", op)
		}
	}
}
