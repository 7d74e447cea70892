package codec

// The records that change state. Each type has
//
//	func (r *T) Append(dst []byte) []byte // the payload of its record
//	func (r *T) Decode(b []byte) error    // the reverse; slices point into b where they are []byte
//
// They carry outcomes (tokens, deadlines, next visible times), never what an outcome was computed from,
// so that applying them needs no clock, no configuration and no chance. Times are lease-clock
// milliseconds. Their layouts are part of the on-disk format: fields in the order of the struct,
// u32 counts before lists, a u8 length before short strings.

// Op says what a TOPIC or GROUP record does.
type Op uint8

const (
	OpCreate Op = 1
	OpUpdate Op = 2
	OpDelete Op = 3
	// OpPurge, of a topic: every message that it has is gone, and what groups knew of it begins anew at its end.
	OpPurge Op = 4
)

// Topic makes, changes, empties or deletes a topic. Ids are never reused. UniqueKeyMs is for how long a unique key
// stands for the message that came with it.
type Topic struct {
	Op          Op
	ID          uint32
	Queues      uint16
	UniqueKeyMs uint32
	Name        []byte
}

func (r *Topic) Append(dst []byte) []byte {
	dst = append(dst, byte(r.Op))
	dst = le.AppendUint32(dst, r.ID)
	dst = le.AppendUint16(dst, r.Queues)
	dst = le.AppendUint32(dst, r.UniqueKeyMs)
	return appendShort(dst, r.Name)
}

func (r *Topic) Decode(b []byte) error {
	f := fields{b: b}
	r.Op, r.ID, r.Queues, r.UniqueKeyMs, r.Name = Op(f.u8()), f.u32(), f.u16(), f.u32(), f.short()
	return f.end()
}

// QueueBegin says from which offset on a queue still has its messages.
type QueueBegin struct {
	Topic uint32
	Queue uint16
	Begin uint64
}

// Retain lets go of old messages: those of each queue below its new beginning, but for copies of them that lie above
// LogStart. What a group had not settled of them is dropped. Behind it nothing below LogStart is needed any more.
type Retain struct {
	LogStart uint64
	Queues   []QueueBegin
}

func (r *Retain) Append(dst []byte) []byte {
	dst = le.AppendUint64(dst, r.LogStart)
	dst = le.AppendUint32(dst, uint32(len(r.Queues)))
	for _, q := range r.Queues {
		dst = le.AppendUint32(dst, q.Topic)
		dst = le.AppendUint16(dst, q.Queue)
		dst = le.AppendUint64(dst, q.Begin)
	}
	return dst
}

func (r *Retain) Decode(b []byte) error {
	f := fields{b: b}
	r.LogStart = f.u64()
	r.Queues = r.Queues[:0]
	for n := f.count(14); n > 0; n-- {
		r.Queues = append(r.Queues, QueueBegin{f.u32(), f.u16(), f.u64()})
	}
	return f.end()
}

// Rules are the settings of a group as stored; protocol.GroupRules explains them.
type Rules struct {
	InvisibleMs      uint32
	MaxInvisibleMs   uint32
	MaxRenewals      uint16
	MaxTotalMs       uint64
	HeartbeatMs      uint32
	SessionTimeoutMs uint32
	BackOff          uint8
	BackOffMinMs     uint32
	BackOffMaxMs     uint32
	MaxFailures      uint8
	MaxExpiries      uint8
	MaxSessionLosses uint8
	MaxInFlight      uint32
	HoldMs           uint64
}

func (u *Rules) append(dst []byte) []byte {
	dst = le.AppendUint32(dst, u.InvisibleMs)
	dst = le.AppendUint32(dst, u.MaxInvisibleMs)
	dst = le.AppendUint16(dst, u.MaxRenewals)
	dst = le.AppendUint64(dst, u.MaxTotalMs)
	dst = le.AppendUint32(dst, u.HeartbeatMs)
	dst = le.AppendUint32(dst, u.SessionTimeoutMs)
	dst = append(dst, u.BackOff)
	dst = le.AppendUint32(dst, u.BackOffMinMs)
	dst = le.AppendUint32(dst, u.BackOffMaxMs)
	dst = append(dst, u.MaxFailures, u.MaxExpiries, u.MaxSessionLosses)
	dst = le.AppendUint32(dst, u.MaxInFlight)
	return le.AppendUint64(dst, u.HoldMs)
}

func (f *fields) rules() Rules {
	return Rules{
		InvisibleMs: f.u32(), MaxInvisibleMs: f.u32(), MaxRenewals: f.u16(), MaxTotalMs: f.u64(),
		HeartbeatMs: f.u32(), SessionTimeoutMs: f.u32(),
		BackOff: f.u8(), BackOffMinMs: f.u32(), BackOffMaxMs: f.u32(),
		MaxFailures: f.u8(), MaxExpiries: f.u8(), MaxSessionLosses: f.u8(), MaxInFlight: f.u32(), HoldMs: f.u64(),
	}
}

// Group makes, changes or deletes a group. Ids are never reused.
type Group struct {
	Op    Op
	ID    uint32
	Rules Rules
	Name  []byte
}

func (r *Group) Append(dst []byte) []byte {
	dst = append(dst, byte(r.Op))
	dst = le.AppendUint32(dst, r.ID)
	dst = r.Rules.append(dst)
	return appendShort(dst, r.Name)
}

func (r *Group) Decode(b []byte) error {
	f := fields{b: b}
	r.Op, r.ID = Op(f.u8()), f.u32()
	r.Rules = f.rules()
	r.Name = f.short()
	return f.end()
}

// MaxFilterTags is the most tags of a subscription's filter.
const MaxFilterTags = 16

// Subscribe begins a group's reading of a topic. Sub is the incarnation: a number never reused.
type Subscribe struct {
	Sub    uint32
	Group  uint32
	Topic  uint32
	Filter []uint64 // tag hashes, sorted; none: everything
	Starts []uint64 // start offset of each queue
}

func (r *Subscribe) Append(dst []byte) []byte {
	dst = le.AppendUint32(dst, r.Sub)
	dst = le.AppendUint32(dst, r.Group)
	dst = le.AppendUint32(dst, r.Topic)
	for _, list := range [...][]uint64{r.Filter, r.Starts} {
		dst = le.AppendUint32(dst, uint32(len(list)))
		for _, v := range list {
			dst = le.AppendUint64(dst, v)
		}
	}
	return dst
}

func (r *Subscribe) Decode(b []byte) error {
	f := fields{b: b}
	r.Sub, r.Group, r.Topic = f.u32(), f.u32(), f.u32()
	r.Filter, r.Starts = r.Filter[:0], r.Starts[:0]
	for n := f.count(8); n > 0; n-- {
		r.Filter = append(r.Filter, f.u64())
	}
	for n := f.count(8); n > 0; n-- {
		r.Starts = append(r.Starts, f.u64())
	}
	if len(r.Filter) > MaxFilterTags {
		f.bad = true
	}
	return f.end()
}

// RunKind says what a GRANT does with a run of offsets.
type RunKind uint8

const (
	RunNew     RunKind = 0 // first grants; the cursor passes them
	RunAgain   RunKind = 1 // grants of messages that came back
	RunSkipped RunKind = 2 // the filter says no; the cursor passes them
	RunKnown   RunKind = 3 // in the table already, by a receipt of a grant lost in a crash; the cursor passes them

	// RunReclaimed grants messages back to who held them in a session that has ended, wait or no wait.
	RunReclaimed RunKind = 4
)

// Passes tells whether the cursor passes the offsets of the run, so that it must begin at the cursor.
func (k RunKind) Passes() bool { return k == RunNew || k == RunSkipped || k == RunKnown }

// GrantRun is Count offsets of one queue from Offset on.
type GrantRun struct {
	Queue  uint16
	Kind   RunKind
	Count  uint32
	Offset uint64
}

// Grant gives leases to a session and moves cursors. Its messages share the fencing token, which is the
// record's epoch << 32 | Number.
type Grant struct {
	Sub         uint32
	Number      uint32
	Session     uint64
	DeadlineMs  int64
	PopSequence uint64
	PopSlot     uint8
	Lost        bool // the pop said that its predecessor's answer was lost
	Runs        []GrantRun
}

func (r *Grant) Append(dst []byte) []byte {
	dst = le.AppendUint32(dst, r.Sub)
	dst = le.AppendUint32(dst, r.Number)
	dst = le.AppendUint64(dst, r.Session)
	dst = le.AppendUint64(dst, uint64(r.DeadlineMs))
	dst = le.AppendUint64(dst, r.PopSequence)
	dst = append(dst, r.PopSlot, boolByte(r.Lost))
	dst = le.AppendUint32(dst, uint32(len(r.Runs)))
	for i := range r.Runs {
		run := &r.Runs[i]
		dst = le.AppendUint16(dst, run.Queue)
		dst = append(dst, byte(run.Kind))
		dst = le.AppendUint32(dst, run.Count)
		dst = le.AppendUint64(dst, run.Offset)
	}
	return dst
}

func (r *Grant) Decode(b []byte) error {
	f := fields{b: b}
	r.Sub, r.Number, r.Session, r.DeadlineMs = f.u32(), f.u32(), f.u64(), f.i64()
	r.PopSequence, r.PopSlot, r.Lost = f.u64(), f.u8(), f.bool()
	r.Runs = r.Runs[:0]
	for n := f.count(15); n > 0; n-- {
		r.Runs = append(r.Runs, GrantRun{Queue: f.u16(), Kind: RunKind(f.u8()), Count: f.u32(), Offset: f.u64()})
	}
	return f.end()
}

// SettleRun is Count offsets of one queue from Offset on, settled by receipts of one token. Lost: the
// grant behind the token was lost in a crash, and the record stands for it too.
type SettleRun struct {
	Queue  uint16
	Lost   bool
	Count  uint32
	Offset uint64
	Token  uint64
}

// Settle ends messages for a group.
type Settle struct {
	Sub     uint32
	Session uint64
	Runs    []SettleRun
}

func (r *Settle) Append(dst []byte) []byte {
	dst = le.AppendUint32(dst, r.Sub)
	dst = le.AppendUint64(dst, r.Session)
	dst = le.AppendUint32(dst, uint32(len(r.Runs)))
	for i := range r.Runs {
		run := &r.Runs[i]
		dst = le.AppendUint16(dst, run.Queue)
		dst = append(dst, boolByte(run.Lost))
		dst = le.AppendUint32(dst, run.Count)
		dst = le.AppendUint64(dst, run.Offset)
		dst = le.AppendUint64(dst, run.Token)
	}
	return dst
}

func (r *Settle) Decode(b []byte) error {
	f := fields{b: b}
	r.Sub, r.Session = f.u32(), f.u64()
	r.Runs = r.Runs[:0]
	for n := f.count(23); n > 0; n-- {
		r.Runs = append(r.Runs, SettleRun{Queue: f.u16(), Lost: f.bool(), Count: f.u32(), Offset: f.u64(), Token: f.u64()})
	}
	return f.end()
}

// ChangeKind says what became of a lease by a CHANGE record.
type ChangeKind uint8

const (
	ChangeRenewed   ChangeKind = 0 // a later deadline; counts as a renewal
	ChangeShortened ChangeKind = 1 // an earlier one, or the same
	ChangeReleased  ChangeKind = 2 // given back, visible at AtMs; counts nowhere
	ChangeFailed    ChangeKind = 3 // given back as failed
	ChangePostponed ChangeKind = 4 // given back, not now
	// ChangeTaken is the broker's own: it takes a lease back of which the holder has not heard. It has no ordinal.
	ChangeTaken ChangeKind = 5
)

// ChangeEntry is one lease that was changed. AtMs is its new end, or when the message is visible again.
type ChangeEntry struct {
	Queue   uint16
	Kind    ChangeKind
	Lost    bool
	Ordinal uint32
	Offset  uint64
	Token   uint64
	AtMs    int64
}

// Change renews and gives back leases of one session.
type Change struct {
	Sub     uint32
	Session uint64
	Entries []ChangeEntry
}

func (r *Change) Append(dst []byte) []byte {
	dst = le.AppendUint32(dst, r.Sub)
	dst = le.AppendUint64(dst, r.Session)
	dst = le.AppendUint32(dst, uint32(len(r.Entries)))
	for i := range r.Entries {
		e := &r.Entries[i]
		dst = le.AppendUint16(dst, e.Queue)
		dst = append(dst, byte(e.Kind), boolByte(e.Lost))
		dst = le.AppendUint32(dst, e.Ordinal)
		dst = le.AppendUint64(dst, e.Offset)
		dst = le.AppendUint64(dst, e.Token)
		dst = le.AppendUint64(dst, uint64(e.AtMs))
	}
	return dst
}

func (r *Change) Decode(b []byte) error {
	f := fields{b: b}
	r.Sub, r.Session = f.u32(), f.u64()
	r.Entries = r.Entries[:0]
	for n := f.count(32); n > 0; n-- {
		r.Entries = append(r.Entries, ChangeEntry{
			Queue: f.u16(), Kind: ChangeKind(f.u8()), Lost: f.bool(), Ordinal: f.u32(),
			Offset: f.u64(), Token: f.u64(), AtMs: f.i64(),
		})
	}
	return f.end()
}

// ReleaseEntry is one lease that ends without its holder's word; the message is visible again at AtMs.
type ReleaseEntry struct {
	Sub    uint32
	Queue  uint16
	Offset uint64
	Token  uint64
	AtMs   int64
}

func appendReleases(dst []byte, list []ReleaseEntry) []byte {
	dst = le.AppendUint32(dst, uint32(len(list)))
	for i := range list {
		e := &list[i]
		dst = le.AppendUint32(dst, e.Sub)
		dst = le.AppendUint16(dst, e.Queue)
		dst = le.AppendUint64(dst, e.Offset)
		dst = le.AppendUint64(dst, e.Token)
		dst = le.AppendUint64(dst, uint64(e.AtMs))
	}
	return dst
}

func decodeReleases(f *fields, list []ReleaseEntry) []ReleaseEntry {
	list = list[:0]
	for n := f.count(30); n > 0; n-- {
		list = append(list, ReleaseEntry{Sub: f.u32(), Queue: f.u16(), Offset: f.u64(), Token: f.u64(), AtMs: f.i64()})
	}
	return list
}

// Expire ends leases whose time is over.
type Expire struct {
	Entries []ReleaseEntry
}

func (r *Expire) Append(dst []byte) []byte { return appendReleases(dst, r.Entries) }

func (r *Expire) Decode(b []byte) error {
	f := fields{b: b}
	r.Entries = decodeReleases(&f, r.Entries)
	return f.end()
}

// Unreadable passes messages whose stored bytes are damaged: a lease on them ends uncounted.
type Unreadable struct {
	Sub    uint32
	Queue  uint16
	Offset uint64
	Token  uint64
}

func (r *Unreadable) Append(dst []byte) []byte {
	dst = le.AppendUint32(dst, r.Sub)
	dst = le.AppendUint16(dst, r.Queue)
	dst = le.AppendUint64(dst, r.Offset)
	return le.AppendUint64(dst, r.Token)
}

func (r *Unreadable) Decode(b []byte) error {
	f := fields{b: b}
	r.Sub, r.Queue, r.Offset, r.Token = f.u32(), f.u16(), f.u64(), f.u64()
	return f.end()
}

// SessionStart begins a session. Session is its id and its generation: epoch << 32 | a counter.
type SessionStart struct {
	Session    uint64
	Group      uint32
	Nonce      [16]byte
	ConsumerID []byte
	ClientInfo []byte
}

func (r *SessionStart) Append(dst []byte) []byte {
	dst = le.AppendUint64(dst, r.Session)
	dst = le.AppendUint32(dst, r.Group)
	dst = append(dst, r.Nonce[:]...)
	dst = appendShort(dst, r.ConsumerID)
	return appendShort(dst, r.ClientInfo)
}

func (r *SessionStart) Decode(b []byte) error {
	f := fields{b: b}
	r.Session, r.Group = f.u64(), f.u32()
	copy(r.Nonce[:], f.take(16))
	r.ConsumerID, r.ClientInfo = f.short(), f.short()
	return f.end()
}

// EndCause says why a session ended. The numbers are those of protocol.Reason.
type EndCause uint8

const (
	EndExpired EndCause = 5
	EndFenced  EndCause = 6
	EndLeft    EndCause = 7
)

// SessionEnd ends a session and releases everything it holds, at once.
type SessionEnd struct {
	Session  uint64
	Cause    EndCause
	Releases []ReleaseEntry
}

func (r *SessionEnd) Append(dst []byte) []byte {
	dst = le.AppendUint64(dst, r.Session)
	dst = append(dst, byte(r.Cause))
	return appendReleases(dst, r.Releases)
}

func (r *SessionEnd) Decode(b []byte) error {
	f := fields{b: b}
	r.Session, r.Cause = f.u64(), EndCause(f.u8())
	r.Releases = decodeReleases(&f, r.Releases)
	return f.end()
}

func boolByte(b bool) byte {
	if b {
		return 1
	}
	return 0
}
