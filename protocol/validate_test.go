package protocol

import (
	"errors"
	"testing"
)

type validator interface{ Validate() error }

func wantRefusal(t *testing.T, what string, v validator, status Status, detail uint64) {
	t.Helper()
	err := v.Validate()
	var requestError *RequestError
	if !errors.As(err, &requestError) || requestError.Status != status || requestError.Detail != detail || requestError.Message == "" {
		t.Errorf("%s: %v (%+v), want %s with detail %d", what, err, requestError, status, detail)
	}
}

func wantValid(t *testing.T, what string, v validator) {
	t.Helper()
	if err := v.Validate(); err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

func TestValidateHello(t *testing.T) {
	wantValid(t, "hello", &HelloRequest{MinVersion: 1, MaxVersion: 9})
	wantRefusal(t, "versions turned round", &HelloRequest{MinVersion: 2, MaxVersion: 1}, Invalid, 0)
	wantRefusal(t, "too new", &HelloRequest{MinVersion: 2, MaxVersion: 3}, Unsupported, 1)
	wantRefusal(t, "too old", &HelloRequest{}, Unsupported, 1)
	wantRefusal(t, "auth", &HelloRequest{MinVersion: 1, MaxVersion: 1, Auth: []byte("x")}, Unsupported, 0)
}

func TestValidateRegister(t *testing.T) {
	wantValid(t, "register", &RegisterRequest{Group: "g", ConsumerID: "any bytes at all"})
	wantRefusal(t, "no group", &RegisterRequest{ConsumerID: "c"}, Invalid, 0)
	wantRefusal(t, "no consumer id", &RegisterRequest{Group: "g"}, Invalid, 0)
	wantValid(t, "a receipt of any kind: it is its own entry's matter", &RegisterRequest{Group: "g", ConsumerID: "c", Receipts: [][]byte{nil}})
	wantValid(t, "reclaimed for 6 h", &RegisterRequest{Group: "g", ConsumerID: "c", ReclaimMs: MaxInvisibleMs})
	wantRefusal(t, "reclaimed too long", &RegisterRequest{Group: "g", ConsumerID: "c", ReclaimMs: MaxInvisibleMs + 1}, Invalid, MaxInvisibleMs)
	wantRefusal(t, "reclaimed too short", &RegisterRequest{Group: "g", ConsumerID: "c", ReclaimMs: MinInvisibleMs - 1}, Invalid, MinInvisibleMs)
}

func TestValidateSend(t *testing.T) {
	valid := func(change func(*SendRequest)) *SendRequest {
		m := &SendRequest{Topic: "t", Queue: AnyQueue, Messages: [][]byte{nil}}
		change(m)
		return m
	}
	wantValid(t, "any queue", valid(func(m *SendRequest) {}))
	wantValid(t, "last queue", valid(func(m *SendRequest) { m.Queue = MaxQueuesPerTopic - 1 }))
	wantRefusal(t, "queue", valid(func(m *SendRequest) { m.Queue = MaxQueuesPerTopic }), Invalid, MaxQueuesPerTopic-1)
	wantRefusal(t, "queue", valid(func(m *SendRequest) { m.Queue = -2 }), Invalid, MaxQueuesPerTopic-1)
	wantRefusal(t, "producer", valid(func(m *SendRequest) { m.ProducerID = 1 }), Unsupported, 0)
	wantRefusal(t, "nothing to send", valid(func(m *SendRequest) { m.Messages = nil }), Invalid, 0)
	wantRefusal(t, "too many", valid(func(m *SendRequest) { m.Messages = make([][]byte, MaxSendEntries+1) }), TooLarge, MaxSendEntries)
	wantRefusal(t, "no topic", valid(func(m *SendRequest) { m.Topic = "" }), Invalid, 0)
}

func TestValidatePop(t *testing.T) {
	valid := func(change func(*PopRequest)) *PopRequest {
		m := &PopRequest{Topic: "t", Max: 1}
		change(m)
		return m
	}
	wantValid(t, "least", valid(func(m *PopRequest) {}))
	wantValid(t, "most", &PopRequest{
		Topic: "%DLQ%g", Max: MaxPopMessages, MaxBytes: MaxPopBytes, InvisibleMs: MaxInvisibleMs, AwaitMs: MaxAwaitMs,
		Slot: MaxPopSlot, Sequence: 1, PreviousLost: true, Start: StartLatest, FilterTags: sixteen("tag"),
	})
	wantValid(t, "shortest lease", valid(func(m *PopRequest) { m.InvisibleMs = MinInvisibleMs }))
	wantRefusal(t, "max 0", valid(func(m *PopRequest) { m.Max = 0 }), Invalid, MaxPopMessages)
	wantRefusal(t, "max", valid(func(m *PopRequest) { m.Max = MaxPopMessages + 1 }), Invalid, MaxPopMessages)
	wantRefusal(t, "bytes", valid(func(m *PopRequest) { m.MaxBytes = MaxPopBytes + 1 }), Invalid, MaxPopBytes)
	wantRefusal(t, "short lease", valid(func(m *PopRequest) { m.InvisibleMs = MinInvisibleMs - 1 }), Invalid, MinInvisibleMs)
	wantRefusal(t, "long lease", valid(func(m *PopRequest) { m.InvisibleMs = MaxInvisibleMs + 1 }), Invalid, MaxInvisibleMs)
	wantRefusal(t, "await", valid(func(m *PopRequest) { m.AwaitMs = MaxAwaitMs + 1 }), Invalid, MaxAwaitMs)
	wantRefusal(t, "slot", valid(func(m *PopRequest) { m.Slot = MaxPopSlot + 1 }), Invalid, MaxPopSlot)
	wantValid(t, "highest sequence", valid(func(m *PopRequest) { m.Sequence = MaxPopSequence }))
	wantRefusal(t, "sequence", valid(func(m *PopRequest) { m.Sequence = MaxPopSequence + 1 }), Invalid, MaxPopSequence)
	wantRefusal(t, "lost what", valid(func(m *PopRequest) { m.PreviousLost = true }), Invalid, 0)
	wantRefusal(t, "start", valid(func(m *PopRequest) { m.Start = 3 }), Invalid, 2)
	wantRefusal(t, "start at a time", valid(func(m *PopRequest) { m.Start = StartTime }), Unsupported, 0)
	wantRefusal(t, "empty tag", valid(func(m *PopRequest) { m.FilterTags = []string{"a", ""} }), Invalid, 0)
	wantRefusal(t, "too many tags", valid(func(m *PopRequest) { m.FilterTags = append(sixteen("tag"), "tag") }), Invalid, MaxFilterTags)
	wantRefusal(t, "topic", valid(func(m *PopRequest) { m.Topic = "%SYS%" }), Invalid, 0)
}

func sixteen(s string) []string {
	list := make([]string, MaxFilterTags)
	for i := range list {
		list[i] = s
	}
	return list
}

func TestValidateSettling(t *testing.T) {
	wantValid(t, "ack", &AckRequest{Entries: make([]AckEntry, MaxAckEntries)})
	wantRefusal(t, "no acks", &AckRequest{}, Invalid, 0)
	wantRefusal(t, "acks", &AckRequest{Entries: make([]AckEntry, MaxAckEntries+1)}, TooLarge, MaxAckEntries)
	wantValid(t, "change", &ChangeInvisibleRequest{Entries: make([]ChangeEntry, 1)})
	wantRefusal(t, "no changes", &ChangeInvisibleRequest{}, Invalid, 0)

	wantValid(t, "release", &ChangeEntry{Ordinal: 1})
	wantValid(t, "postpone", &ChangeEntry{Ordinal: 9, Cause: CausePostponed, InvisibleMs: MaxInvisibleMs})
	wantRefusal(t, "ordinal", &ChangeEntry{}, Invalid, 1)
	wantRefusal(t, "cause", &ChangeEntry{Ordinal: 1, Cause: 3}, Invalid, 2)
	wantRefusal(t, "long", &ChangeEntry{Ordinal: 1, InvisibleMs: MaxInvisibleMs + 1}, Invalid, MaxInvisibleMs)
	wantRefusal(t, "short", &ChangeEntry{Ordinal: 1, InvisibleMs: 1}, Invalid, MinInvisibleMs)
	wantRefusal(t, "checkpoint", &ChangeEntry{Ordinal: 1, Checkpoint: []byte("x")}, Unsupported, 0)
	wantRefusal(t, "long checkpoint", &ChangeEntry{Ordinal: 1, Checkpoint: make([]byte, MaxCheckpointBytes+1)}, TooLarge, MaxCheckpointBytes)
}

func TestValidateAdmin(t *testing.T) {
	wantValid(t, "topic", &CreateTopicRequest{Name: "t", Queues: MaxQueuesPerTopic})
	wantRefusal(t, "no queues", &CreateTopicRequest{Name: "t"}, Invalid, MaxQueuesPerTopic)
	wantRefusal(t, "unique keys for longer than a day", &CreateTopicRequest{Name: "t", Queues: 1, UniqueKeyMs: MaxUniqueKeyMs + 1}, Invalid, MaxUniqueKeyMs)
	wantValid(t, "a change of the unique key time alone", &UpdateTopicRequest{Name: "t", UniqueKeyMs: 1})
	wantRefusal(t, "no change", &UpdateTopicRequest{Name: "t"}, Invalid, MaxQueuesPerTopic)
	wantRefusal(t, "queues", &UpdateTopicRequest{Name: "t", Queues: MaxQueuesPerTopic + 1}, Invalid, MaxQueuesPerTopic)
	wantRefusal(t, "reserved", &CreateTopicRequest{Name: "%DLQ%g", Queues: 1}, Invalid, 0)
	wantValid(t, "more queues for a dead-letter topic", &UpdateTopicRequest{Name: "%DLQ%g", Queues: 2})
	wantValid(t, "peek", &PeekRequest{Topic: "t", Max: MaxPeekMessages})
	wantRefusal(t, "peek", &PeekRequest{Topic: "t"}, Invalid, MaxPeekMessages)
	wantRefusal(t, "peek", &PeekRequest{Topic: "t", Max: MaxPeekMessages + 1}, Invalid, MaxPeekMessages)
	wantRefusal(t, "reserved group", &GroupRequest{Name: "%DLQ%g"}, Invalid, 0)
	wantRefusal(t, "rules", &GroupRequest{Name: "g", Rules: GroupRules{HeartbeatMs: 1}}, Invalid, MinHeartbeatMs)
}
