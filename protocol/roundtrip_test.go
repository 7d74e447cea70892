package protocol

import (
	"bytes"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"
)

// bodies has one value of every type with a layout.
func bodies() []Body {
	return []Body{
		&HelloRequest{}, &HelloAnswer{}, &RegisterRequest{}, &RegisterAnswer{}, &HeartbeatRequest{}, &HeartbeatAnswer{},
		&UnregisterRequest{}, &SendRequest{}, &SendAnswer{}, &PopRequest{}, &PopAnswer{}, &AckRequest{}, &AckAnswer{},
		&ChangeInvisibleRequest{}, &ChangeInvisibleAnswer{}, &PeekRequest{}, &PeekAnswer{}, &CreateTopicRequest{},
		&UpdateTopicRequest{}, &NameRequest{}, &ListTopicsAnswer{}, &GroupRules{}, &GroupRequest{}, &ListGroupsAnswer{},
		&ShowGroupAnswer{}, &StatsAnswer{}, &ErrorBody{}, &SessionEnded{},
	}
}

// randomise fills v with values that its type may have; name is the field's.
func randomise(rng *rand.Rand, v reflect.Value, name string) {
	if b, ok := v.Addr().Interface().(*[]byte); ok {
		limit := 300
		switch name {
		case "Receipt", "Receipts":
			limit = MaxFieldBytes
		case "Checkpoint":
			limit = MaxCheckpointBytes
		}
		*b = randomBytes(rng, limit)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			randomise(rng, v.Field(i), v.Type().Field(i).Name)
		}
		randomiseRecords(rng, v.Addr().Interface())
	case reflect.Slice:
		if n := rng.IntN(MaxFilterTags + 1); n > 0 {
			v.Set(reflect.MakeSlice(v.Type(), n, n))
		}
		for i := range v.Len() {
			randomise(rng, v.Index(i), name)
		}
	case reflect.Array:
		for i := range v.Len() {
			randomise(rng, v.Index(i), name)
		}
	case reflect.String:
		limit := MaxFieldBytes
		switch name {
		case "Topic", "Group", "Name":
			limit = MaxWireNameBytes
		case "Message":
			limit = 4000
		}
		v.SetString(string(randomBytes(rng, limit)))
	case reflect.Bool:
		v.SetBool(rng.IntN(2) == 1)
	default:
		if v.CanInt() {
			v.SetInt(int64(int32(rng.Uint32())))
			return
		}
		v.SetUint(rng.Uint64() >> (64 - v.Type().Bits()) >> rng.IntN(v.Type().Bits()))
	}
}

// randomiseRecords makes answers with records consistent: rows lie in the records.
func randomiseRecords(rng *rand.Rand, m any) {
	place := func(records []byte) (offset, length uint32) {
		if len(records) == 0 {
			return 0, 0
		}
		offset = uint32(rng.IntN(len(records)))
		return offset, uint32(rng.IntN(len(records) - int(offset) + 1))
	}
	switch m := m.(type) {
	case *LeaseRow:
		m.Receipt = countingBytes(byte(rng.Uint32()), ReceiptBytes)
	case *PopAnswer:
		for i := range m.Rows {
			m.Rows[i].RecordOffset, m.Rows[i].RecordLength = place(m.Records)
		}
	case *PeekAnswer:
		for i := range m.Rows {
			m.Rows[i].Offset, m.Rows[i].Length = place(m.Records)
		}
	}
}

// randomBytes are nil, short, or of any length up to limit; often as long as can be.
func randomBytes(rng *rand.Rand, limit int) []byte {
	n := rng.IntN(limit + 1)
	switch rng.IntN(4) {
	case 0:
		return nil
	case 1:
		n = rng.IntN(4)
	case 2:
		n = limit
	}
	if n == 0 {
		return nil
	}
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

func newSeed(t *testing.T) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 0))
}

// TestRoundTrips: what was encoded decodes to the same, into a fresh variable as into a used one.
func TestRoundTrips(t *testing.T) {
	rng := newSeed(t)
	for _, empty := range bodies() {
		used := newBody(empty)
		for range 200 {
			want := newBody(empty)
			randomise(rng, reflect.ValueOf(want).Elem(), "")
			encoded := want.Append([]byte("before"))
			if !bytes.HasPrefix(encoded, []byte("before")) {
				t.Fatalf("%T: Append overwrites what is there", want)
			}
			encoded = encoded[len("before"):]
			fresh := newBody(empty)
			if err := fresh.Decode(encoded); err != nil {
				t.Fatalf("%T: %v\n%+v", want, err, want)
			}
			if !reflect.DeepEqual(fresh, want) {
				t.Fatalf("%T:\ngot  %+v\nwant %+v", want, fresh, want)
			}
			if err := used.Decode(encoded); err != nil {
				t.Fatalf("%T, used: %v", want, err)
			}
			if again := used.Append(nil); !bytes.Equal(again, encoded) {
				t.Fatalf("%T, used:\ngot  %x\nwant %x", want, again, encoded)
			}
		}
	}
}

// TestAnswersBuiltInPlace: what a broker builds piece by piece is what Append makes of the whole.
func TestAnswersBuiltInPlace(t *testing.T) {
	rng := newSeed(t)
	for range 100 {
		var pop PopAnswer
		randomise(rng, reflect.ValueOf(&pop).Elem(), "")
		checkpoints := 0
		for i := range pop.Rows {
			checkpoints += len(pop.Rows[i].Checkpoint)
		}
		head := PopAnswerHeadBytes(len(pop.Rows), checkpoints)
		body := bytes.Repeat([]byte{0xff}, head+len(pop.Records)) // a buffer that was used before
		PutPopAnswerHead(body, pop.Leased, pop.Waiting, len(pop.Rows), checkpoints, uint32(len(pop.Records)))
		at := PopCheckpointsAt(len(pop.Rows))
		for i := range pop.Rows {
			row := pop.Rows[i]
			copy(LeaseRowReceipt(body, i), row.Receipt)
			row.Receipt = LeaseRowReceipt(body, i)
			PutLeaseRow(body, i, &row)
			at += copy(body[at:], row.Checkpoint)
		}
		copy(body[head:], pop.Records)
		if want := pop.Append(nil); !bytes.Equal(body, want) {
			t.Fatalf("POP:\ngot  %x\nwant %x", body, want)
		}

		var peek PeekAnswer
		randomise(rng, reflect.ValueOf(&peek).Elem(), "")
		head = PeekAnswerHeadBytes(len(peek.Rows))
		body = bytes.Repeat([]byte{0xff}, head+len(peek.Records))
		PutPeekAnswerHead(body, peek.Begin, peek.End, peek.Rows, uint32(len(peek.Records)))
		copy(body[head:], peek.Records)
		if want := peek.Append(nil); !bytes.Equal(body, want) {
			t.Fatalf("PEEK:\ngot  %x\nwant %x", body, want)
		}

		var ack AckAnswer
		randomise(rng, reflect.ValueOf(&ack).Elem(), "")
		body = AppendSettleAnswerHead(nil, len(ack.Results))
		for i := range ack.Results {
			body = AppendSettleResult(body, &ack.Results[i])
		}
		if want := ack.Append(nil); !bytes.Equal(body, want) {
			t.Fatalf("ACK:\ngot  %x\nwant %x", body, want)
		}
	}
}

// TestRecordsOfAnswers: a row's record is the bytes that the row names.
func TestRecordsOfAnswers(t *testing.T) {
	pop := PopAnswer{Rows: []LeaseRow{{RecordOffset: 1, RecordLength: 2}}, Records: []byte("abcd")}
	peek := PeekAnswer{Rows: []RecordRange{{1, 2}}, Records: []byte("abcd")}
	if got := pop.Record(0); string(got) != "bc" || cap(got) != 2 {
		t.Errorf("POP: %q", got)
	}
	if got := peek.Record(0); string(got) != "bc" || cap(got) != 2 {
		t.Errorf("PEEK: %q", got)
	}
}

// TestTextIsCut: what only people read is cut to its length byte, between characters; a name is not.
func TestTextIsCut(t *testing.T) {
	long := string(bytes.Repeat([]byte("ä"), 128)) // 256 bytes
	var got HelloRequest
	if err := got.Decode((&HelloRequest{ClientInfo: long}).Append(nil)); err != nil || got.ClientInfo != long[:254] {
		t.Errorf("client info: %d bytes, %v", len(got.ClientInfo), err)
	}
	defer func() {
		if recover() == nil {
			t.Error("a consumer id that does not fit was encoded")
		}
	}()
	(&RegisterRequest{ConsumerID: long}).Append(nil)
}
