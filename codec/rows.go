package codec

// The rows of a snapshot: the broker's state below one position of the log, as docs/FORMAT.md describes the file around
// them. Like the records that change state (state.go) each has Append and Decode, fields in the order of the struct,
// u32 counts before lists, a u8 length before short strings. A row is at most MaxRowBytes long.
//
// Slots of memory and list links are not stored: a snapshot outlives the program that wrote it. What refers to a
// session, a topic or a subscription does so by its id.

// RowKind says what a row is. The numbers are part of the on-disk format and are never reused.
type RowKind uint8

const (
	RowState        RowKind = 1 // the counters of the whole state: one, the first
	RowEpoch        RowKind = 2 // oldest first
	RowTopic        RowKind = 3
	RowCopy         RowKind = 4 // a message that was moved forward in the log
	RowGroup        RowKind = 5
	RowSession      RowKind = 6 // ended ones first, in the order in which they ended
	RowSubscription RowKind = 7
	RowCursor       RowKind = 8  // of the subscription before, in the order of queues
	RowMessage      RowKind = 9  // of the cursor before, in the order of offsets
	RowMemory       RowKind = 10 // of the subscription before: the order in which what is settled is forgotten
	RowPopMark      RowKind = 11
	RowReady        RowKind = 12 // of the cursor before: messages that were given back without a wait, in the order in which they came

	// What is known of sends that were stored, in the order in which it is written (rows_dedup.go).
	RowProducer  RowKind = 32
	RowSequences RowKind = 33
	RowUniqueKey RowKind = 34
)

// MaxRowBytes is the longest row.
const MaxRowBytes = 1<<16 - 1

// StateRow is what the state counts as a whole.
type StateRow struct {
	LogStart    uint64 // what lies below may be gone
	NextTopic   uint32
	NextGroup   uint32
	NextSub     uint32
	LastSession uint64
}

func (r *StateRow) Append(dst []byte) []byte {
	dst = le.AppendUint64(dst, r.LogStart)
	dst = le.AppendUint32(dst, r.NextTopic)
	dst = le.AppendUint32(dst, r.NextGroup)
	dst = le.AppendUint32(dst, r.NextSub)
	return le.AppendUint64(dst, r.LastSession)
}

func (r *StateRow) Decode(b []byte) error {
	f := fields{b: b}
	r.LogStart, r.NextTopic, r.NextGroup, r.NextSub, r.LastSession = f.u64(), f.u32(), f.u32(), f.u32(), f.u64()
	return f.end()
}

// EpochRow is one broker start: the position of its EPOCH record, and the highest GRANT number that is known of it.
type EpochRow struct {
	Epoch  uint32
	Number uint32
	Start  uint64
}

func (r *EpochRow) Append(dst []byte) []byte {
	dst = le.AppendUint32(dst, r.Epoch)
	dst = le.AppendUint32(dst, r.Number)
	return le.AppendUint64(dst, r.Start)
}

func (r *EpochRow) Decode(b []byte) error {
	f := fields{b: b}
	r.Epoch, r.Number, r.Start = f.u32(), f.u32(), f.u64()
	return f.end()
}

// QueueRange is what there is of a queue: offsets from Begin to below Next.
type QueueRange struct{ Begin, Next uint64 }

// TopicRow is one topic.
type TopicRow struct {
	ID          uint32
	UniqueKeyMs uint32
	Name        []byte
	Queues      []QueueRange
}

func (r *TopicRow) Append(dst []byte) []byte {
	dst = le.AppendUint32(dst, r.ID)
	dst = le.AppendUint32(dst, r.UniqueKeyMs)
	dst = appendShort(dst, r.Name)
	dst = le.AppendUint32(dst, uint32(len(r.Queues)))
	for _, q := range r.Queues {
		dst = le.AppendUint64(dst, q.Begin)
		dst = le.AppendUint64(dst, q.Next)
	}
	return dst
}

func (r *TopicRow) Decode(b []byte) error {
	f := fields{b: b}
	r.ID, r.UniqueKeyMs, r.Name = f.u32(), f.u32(), f.short()
	r.Queues = r.Queues[:0]
	for n := f.count(16); n > 0; n-- {
		r.Queues = append(r.Queues, QueueRange{f.u64(), f.u64()})
	}
	return f.end()
}

// CopyRow is where the newest copy of a moved message lies.
type CopyRow struct {
	Topic     uint32
	Queue     uint16
	Offset    uint64
	Position  uint64
	Size      uint32
	TagHash   uint64
	OrderHash uint64
}

func (r *CopyRow) Append(dst []byte) []byte {
	dst = le.AppendUint32(dst, r.Topic)
	dst = le.AppendUint16(dst, r.Queue)
	dst = le.AppendUint64(dst, r.Offset)
	dst = le.AppendUint64(dst, r.Position)
	dst = le.AppendUint32(dst, r.Size)
	dst = le.AppendUint64(dst, r.TagHash)
	return le.AppendUint64(dst, r.OrderHash)
}

func (r *CopyRow) Decode(b []byte) error {
	f := fields{b: b}
	r.Topic, r.Queue, r.Offset, r.Position, r.Size = f.u32(), f.u16(), f.u64(), f.u64(), f.u32()
	r.TagHash, r.OrderHash = f.u64(), f.u64()
	return f.end()
}

// GroupRow is one group. IdleMs is the wall clock at which its last session ended, or at which it was made; 0 while it has
// a session.
type GroupRow struct {
	ID      uint32
	Version uint64
	IdleMs  int64
	Rules   Rules
	Name    []byte
}

func (r *GroupRow) Append(dst []byte) []byte {
	dst = le.AppendUint32(dst, r.ID)
	dst = le.AppendUint64(dst, r.Version)
	dst = le.AppendUint64(dst, uint64(r.IdleMs))
	dst = r.Rules.append(dst)
	return appendShort(dst, r.Name)
}

func (r *GroupRow) Decode(b []byte) error {
	f := fields{b: b}
	r.ID, r.Version, r.IdleMs = f.u32(), f.u64(), f.i64()
	r.Rules = f.rules()
	r.Name = f.short()
	return f.end()
}

// SessionRow is one session, live or remembered.
type SessionRow struct {
	ID          uint64
	Group       uint32
	Ended       bool
	Cause       EndCause
	EndedMs     int64
	Nonce       [16]byte
	HeartbeatMs uint32
	TimeoutMs   uint32
	ConsumerID  []byte
	ClientInfo  []byte
}

func (r *SessionRow) Append(dst []byte) []byte {
	dst = le.AppendUint64(dst, r.ID)
	dst = le.AppendUint32(dst, r.Group)
	dst = append(dst, boolByte(r.Ended), byte(r.Cause))
	dst = le.AppendUint64(dst, uint64(r.EndedMs))
	dst = append(dst, r.Nonce[:]...)
	dst = le.AppendUint32(dst, r.HeartbeatMs)
	dst = le.AppendUint32(dst, r.TimeoutMs)
	dst = appendShort(dst, r.ConsumerID)
	return appendShort(dst, r.ClientInfo)
}

func (r *SessionRow) Decode(b []byte) error {
	f := fields{b: b}
	r.ID, r.Group, r.Ended, r.Cause, r.EndedMs = f.u64(), f.u32(), f.bool(), EndCause(f.u8()), f.i64()
	copy(r.Nonce[:], f.take(16))
	r.HeartbeatMs, r.TimeoutMs = f.u32(), f.u32()
	r.ConsumerID, r.ClientInfo = f.short(), f.short()
	return f.end()
}

// SubscriptionRow is one subscription. HorizonMs is the newest settle time that was forgotten, -1 if none.
type SubscriptionRow struct {
	Sub       uint32
	Group     uint32
	Topic     uint32
	HorizonMs int64
	Filter    []uint64
}

func (r *SubscriptionRow) Append(dst []byte) []byte {
	dst = le.AppendUint32(dst, r.Sub)
	dst = le.AppendUint32(dst, r.Group)
	dst = le.AppendUint32(dst, r.Topic)
	dst = le.AppendUint64(dst, uint64(r.HorizonMs))
	dst = le.AppendUint32(dst, uint32(len(r.Filter)))
	for _, v := range r.Filter {
		dst = le.AppendUint64(dst, v)
	}
	return dst
}

func (r *SubscriptionRow) Decode(b []byte) error {
	f := fields{b: b}
	r.Sub, r.Group, r.Topic, r.HorizonMs = f.u32(), f.u32(), f.u32(), f.i64()
	r.Filter = r.Filter[:0]
	for n := f.count(8); n > 0; n-- {
		r.Filter = append(r.Filter, f.u64())
	}
	if len(r.Filter) > MaxFilterTags {
		f.bad = true
	}
	return f.end()
}

// CursorRow is the position of a subscription on one queue, and what became of the offsets that it has passed.
type CursorRow struct {
	Queue      uint16
	Start      uint64
	Next       uint64
	Settled    uint64
	Skipped    uint64
	Unreadable uint64
	Dropped    uint64
}

func (r *CursorRow) Append(dst []byte) []byte {
	dst = le.AppendUint16(dst, r.Queue)
	for _, v := range [...]uint64{r.Start, r.Next, r.Settled, r.Skipped, r.Unreadable, r.Dropped} {
		dst = le.AppendUint64(dst, v)
	}
	return dst
}

func (r *CursorRow) Decode(b []byte) error {
	f := fields{b: b}
	r.Queue = f.u16()
	r.Start, r.Next, r.Settled, r.Skipped, r.Unreadable, r.Dropped = f.u64(), f.u64(), f.u64(), f.u64(), f.u64(), f.u64()
	return f.end()
}

// MessageRow is one message that a subscription knows. State and Ending are those of the lease room; Session is who
// holds it, 0 if nobody does.
type MessageRow struct {
	Offset   uint64
	Token    uint64
	AtMs     int64
	SinceMs  int64
	Session  uint64
	Attempts uint16
	Ordinal  uint16
	Renewals uint16
	Failures uint8
	Expiries uint8
	Losses   uint8
	State    uint8
	Ending   uint8
}

func (r *MessageRow) Append(dst []byte) []byte {
	dst = le.AppendUint64(dst, r.Offset)
	dst = le.AppendUint64(dst, r.Token)
	dst = le.AppendUint64(dst, uint64(r.AtMs))
	dst = le.AppendUint64(dst, uint64(r.SinceMs))
	dst = le.AppendUint64(dst, r.Session)
	dst = le.AppendUint16(dst, r.Attempts)
	dst = le.AppendUint16(dst, r.Ordinal)
	dst = le.AppendUint16(dst, r.Renewals)
	return append(dst, r.Failures, r.Expiries, r.Losses, r.State, r.Ending)
}

func (r *MessageRow) Decode(b []byte) error {
	f := fields{b: b}
	r.Offset, r.Token, r.AtMs, r.SinceMs, r.Session = f.u64(), f.u64(), f.i64(), f.i64(), f.u64()
	r.Attempts, r.Ordinal, r.Renewals = f.u16(), f.u16(), f.u16()
	r.Failures, r.Expiries, r.Losses, r.State, r.Ending = f.u8(), f.u8(), f.u8(), f.u8(), f.u8()
	return f.end()
}

// QueueOffset names a message of a topic.
type QueueOffset struct {
	Queue  uint16
	Offset uint64
}

// MaxMemoryRow is the most messages of one MemoryRow.
const MaxMemoryRow = 4096

// MemoryRow goes on with the list of settled messages that are remembered, oldest first. A row of kind RowReady has
// the same layout.
type MemoryRow struct {
	Messages []QueueOffset
}

func (r *MemoryRow) Append(dst []byte) []byte {
	dst = le.AppendUint32(dst, uint32(len(r.Messages)))
	for _, m := range r.Messages {
		dst = le.AppendUint16(dst, m.Queue)
		dst = le.AppendUint64(dst, m.Offset)
	}
	return dst
}

func (r *MemoryRow) Decode(b []byte) error {
	f := fields{b: b}
	r.Messages = r.Messages[:0]
	for n := f.count(10); n > 0; n-- {
		r.Messages = append(r.Messages, QueueOffset{f.u16(), f.u64()})
	}
	return f.end()
}

// PopMarkRow is the newest pop of a session's slot that was granted something.
type PopMarkRow struct {
	Session  uint64
	Slot     uint8
	Sequence uint64
	Token    uint64
	Sub      uint32
}

func (r *PopMarkRow) Append(dst []byte) []byte {
	dst = le.AppendUint64(dst, r.Session)
	dst = append(dst, r.Slot)
	dst = le.AppendUint64(dst, r.Sequence)
	dst = le.AppendUint64(dst, r.Token)
	return le.AppendUint32(dst, r.Sub)
}

func (r *PopMarkRow) Decode(b []byte) error {
	f := fields{b: b}
	r.Session, r.Slot, r.Sequence, r.Token, r.Sub = f.u64(), f.u8(), f.u64(), f.u64(), f.u32()
	return f.end()
}
