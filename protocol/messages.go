package protocol

// Bodies. Every type has
//
//	func (m *T) Append(dst []byte) []byte // encodes m behind dst
//	func (m *T) Decode(b []byte) error    // decodes b, which must be used up exactly
//
// Decode reuses the slices that m already has and keeps byte slices that point into b (they are valid as
// long as b is). A string field that already holds the decoded value is left alone, so that decoding the
// same kind of request into the same variable allocates nothing. Durations are milliseconds.

// HelloRequest is the first frame of every connection.
type HelloRequest struct {
	MinVersion, MaxVersion uint8
	Features               uint64 // none defined yet
	Auth                   []byte // empty: none; anything else answers UNSUPPORTED
	ClientInfo             string
}

// HelloAnswer tells what the connection may do.
type HelloAnswer struct {
	Version       uint8
	Features      uint64
	BrokerID      string
	Epoch         uint32 // grows with every start of the broker
	CreditBytes   uint32 // request bytes (headers included) that may be unanswered; one frame always may
	MaxFrameBytes uint32
	MaxBodyBytes  uint32
}

// RegisterRequest opens a session. The frame flag CREATE makes the group when it is missing.
type RegisterRequest struct {
	Group      string
	ConsumerID string // names the consumer; a later registration of it fences the earlier one
	ClientInfo string
	Nonce      [NonceBytes]byte // the retry of a lost answer carries the same nonce and gets the same session
	// Previous is the session that this one comes after, which has ended; 0: none. Should another
	// registration of the consumer id live by now, it is not fenced: the answer is SESSION_FENCED.
	Previous uint64
	// Receipts name leases of sessions that have ended. Those messages that nobody was granted since are leased
	// to the new session, for ReclaimMs (0: the group's default).
	Receipts  [][]byte
	ReclaimMs uint32
}

// RegisterAnswer tells the session.
type RegisterAnswer struct {
	Session      uint64
	Generation   uint64 // strictly grows with every registration of one consumer id
	HeartbeatMs  uint32 // send a heartbeat this often
	TimeoutMs    uint32 // silence this long ends the session
	GroupVersion uint64 // grows with every session that comes or goes
	InvisibleMs  uint32 // the group's default
	// MaxInvisibleMs is the most that a pop or a renewal may ask for.
	MaxInvisibleMs uint32
	Reclaimed      []Reclaimed // a result for each receipt presented, in order
}

// Reclaimed is what became of one receipt presented with REGISTER. With status OK the message is leased to the
// new session, and Receipt, Token and what follows are those of the new lease.
type Reclaimed struct {
	Status       Status
	Reason       Reason
	Token        uint64 // with any other status the newest fencing token known; 0: unknown
	AgoMs        uint64 // how long ago what Reason names happened; 0: unknown
	Attempt      uint32
	RemainingMs  uint32
	RenewalsLeft uint16
	BudgetMs     uint32
	Receipt      []byte
}

// HeartbeatRequest keeps a session alive.
type HeartbeatRequest struct {
	Session      uint64
	GroupVersion uint64 // newest seen
	Held         uint32 // messages held
	ProgressMs   uint32 // age of the newest progress of any held message; 0 when none is held
	Timestamp    uint64 // client's own, echoed
}

// HeartbeatAnswer is the broker's word on the session. A status other than OK has no body of this type.
type HeartbeatAnswer struct {
	GroupVersion uint64
	LeasesLost   uint32 // leases of this session that ended by expiry since it began, or since the broker started
	Draining     bool   // the broker is stopping in order
	Timestamp    uint64
}

// UnregisterRequest ends a session and releases what it holds.
type UnregisterRequest struct {
	Session uint64
}

// SendRequest carries messages of one topic, each as codec.Message encodes it. The frame flag CREATE
// makes the topic when it is missing.
type SendRequest struct {
	Topic      string
	Queue      int32  // AnyQueue: by order key or key, else the whole batch to the next queue in rotation
	ProducerID uint64 // 0: none; else the messages are stored once under it and their sequences
	Sequence   uint64 // of the first message
	Messages   [][]byte
}

// AnyQueue in SendRequest.Queue leaves the choice to the broker.
const AnyQueue int32 = -1

// SendResult is the outcome of one message.
type SendResult struct {
	Status    Status
	Queue     uint16
	Offset    uint64
	MessageID [16]byte // u32 epoch, u32 zero, u64 position, at birth
	Handle    uint64   // for RECALL; 0: not delayed
}

// SendAnswer has a result for each message, in order.
type SendAnswer struct {
	Results []SendResult
}

// Where a new subscription starts. A subscription is made by the first POP of a group on a topic.
const (
	StartEarliest uint8 = 0
	StartLatest   uint8 = 1
	StartTime     uint8 = 2 // at PopRequest.StartTimeMs; answers UNSUPPORTED
)

// PopRequest takes messages under leases. The frame flag CREATE makes the topic when it is missing.
type PopRequest struct {
	Session      uint64
	Topic        string
	FilterTags   []string // deliver only these tags; none: everything. Fixed by the first pop
	Max          uint16   // messages, 1 to MaxPopMessages
	MaxBytes     uint32   // of message records; 0: MaxPopBytes
	InvisibleMs  uint32   // 0: the group's default
	AwaitMs      uint32
	Slot         uint8 // 0 to MaxPopSlot
	PreviousLost bool
	Sequence     uint64 // from 1 in each slot; 0: no pop id
	Start        uint8
	StartTimeMs  uint64
	GroupVersion uint64
}

// LeaseRow is one message of a POP answer.
type LeaseRow struct {
	RecordOffset  uint32 // of the log record (codec.Record) in PopAnswer.Records
	RecordLength  uint32
	Token         uint64 // fencing token
	Attempt       uint32 // 1: first
	RemainingMs   uint32 // of the lease
	RenewalsLeft  uint16 // UnlimitedRenewals: no limit
	Failures      uint8
	Expiries      uint8
	SessionLosses uint8
	BudgetMs      uint32 // time by which this grant may still be extended in all
	Receipt       []byte // ReceiptBytes long
	Checkpoint    []byte
}

// UnlimitedRenewals in a RenewalsLeft field.
const UnlimitedRenewals uint16 = 0xffff

// UnlimitedBudget in a BudgetMs field: nothing but the length of each single renewal is limited (or the
// field cannot say as much as is left).
const UnlimitedBudget uint32 = 1<<32 - 1

// PopAnswer has the leases and the log's bytes. Status EMPTY has no rows.
type PopAnswer struct {
	Leased  uint64 // messages of this topic that the group holds under leases, these included
	Waiting uint64 // messages that wait for a back-off or a postponement
	Rows    []LeaseRow
	Records []byte
}

// AckEntry settles one message.
type AckEntry struct {
	Receipt   []byte
	Duplicate bool // the handler found the work already done; counted
}

// AckRequest settles messages.
type AckRequest struct {
	Session uint64
	Entries []AckEntry
}

// SettleResult is the outcome of one entry of ACK or CHANGE_INVISIBLE.
type SettleResult struct {
	Status       Status
	Reason       Reason
	RenewalsLeft uint16
	RemainingMs  uint32 // of the lease, or until a released message is visible
	BudgetMs     uint32
	AgoMs        uint64 // how long ago what Reason names happened; 0: unknown
	Token        uint64 // the newest fencing token known; 0: unknown
}

// AckAnswer has a result for each entry, in order.
type AckAnswer struct {
	Results []SettleResult
}

// Cause of a change of the invisible time.
type Cause uint8

const (
	CauseRenew     Cause = 0 // extend (or shorten) the lease
	CauseFailed    Cause = 1 // release: the attempt failed; counted, backed off by the group's rule
	CausePostponed Cause = 2 // release: not now; counted nowhere, visible after InvisibleMs
)

// ChangeEntry changes the invisible time of one lease. A renewal with InvisibleMs 0 releases the message, visible now.
type ChangeEntry struct {
	Receipt     []byte
	Ordinal     uint32 // 1 for the first change of a grant, then 2 ...; a repetition repeats it
	Cause       Cause
	InvisibleMs uint32 // from now. For CauseFailed 0 takes the group's back-off, more replaces it
	Checkpoint  []byte // not empty: UNSUPPORTED
	Reason      string
}

// ChangeInvisibleRequest extends or gives back messages.
type ChangeInvisibleRequest struct {
	Session uint64
	Entries []ChangeEntry
}

// ChangeInvisibleAnswer has a result for each entry, in order.
type ChangeInvisibleAnswer struct {
	Results []SettleResult
}

// PeekRequest reads messages without leases.
type PeekRequest struct {
	Topic  string
	Queue  uint16
	Offset uint64 // below the first one kept: the first one kept
	Max    uint16 // 1 to MaxPeekMessages
}

// RecordRange is one log record in PeekAnswer.Records.
type RecordRange struct {
	Offset, Length uint32
}

// PeekAnswer has the log's bytes and where the queue begins and ends.
type PeekAnswer struct {
	Begin, End uint64 // queue offsets: first kept, next to come
	Rows       []RecordRange
	Records    []byte
}

// CreateTopicRequest makes a topic.
type CreateTopicRequest struct {
	Name        string
	Queues      uint16
	UniqueKeyMs uint32 // for how long a unique key deduplicates; 0: DefaultUniqueKeyMs
}

// UpdateTopicRequest adds queues, there are never fewer, and sets for how long unique keys deduplicate. Zero fields leave what
// there is.
type UpdateTopicRequest struct {
	Name        string
	Queues      uint16
	UniqueKeyMs uint32 // for messages that are sent from now on
}

// NameRequest is the body of DELETE_TOPIC, PURGE_TOPIC, DELETE_GROUP and SHOW_GROUP.
type NameRequest struct {
	Name string
}

// TopicInfo is one topic.
type TopicInfo struct {
	Name        string
	ID          uint32
	Queues      uint16
	Messages    uint64 // that are there
	Sent        uint64 // ever
	UniqueKeyMs uint32
}

// ListTopicsAnswer is sorted by name.
type ListTopicsAnswer struct {
	Topics []TopicInfo
}

// BackOff is a group's rule for the wait after a failed attempt.
type BackOff uint8

const (
	BackOffExponential BackOff = 0 // BackOffMinMs doubling to BackOffMaxMs, with jitter
	BackOffNone        BackOff = 1
	BackOffFixed       BackOff = 2 // BackOffMinMs
	BackOffLevels      BackOff = 3 // 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h

	// BackOffExponentialAgain asks for BackOffExponential in UPDATE_GROUP, where 0 means: what it was.
	// The rules of a group never hold it.
	BackOffExponentialAgain BackOff = 4
)

// GroupRules are the settings of a group. In CREATE_GROUP and UPDATE_GROUP a zero field means: the
// default, or what it was.
type GroupRules struct {
	InvisibleMs      uint32 // default lease: 30 s
	MaxInvisibleMs   uint32 // most per grant or renewal: 6 h
	MaxRenewals      uint16 // 3; UnlimitedRenewals: no limit
	MaxTotalMs       uint64 // cap on one grant with all its renewals; by default none. UnlimitedTotal takes it away
	HeartbeatMs      uint32 // 3 s
	SessionTimeoutMs uint32 // 10 s
	BackOff          BackOff
	BackOffMinMs     uint32 // 1 s
	BackOffMaxMs     uint32 // 5 min
	MaxFailures      uint8  // 16
	MaxExpiries      uint8  // 5
	MaxSessionLosses uint8  // 3
	MaxInFlight      uint32 // leases per queue: 10,000
	HoldMs           uint64 // how long the group holds data after its last session has ended: 7 days. HoldForever: always
	Ordered          bool   // UNSUPPORTED
	Assigned         bool   // UNSUPPORTED
}

// HoldForever in HoldMs: what the group has not settled stays however long it has no session.
const HoldForever uint64 = 1<<64 - 1

// UnlimitedTotal in MaxTotalMs asks for no cap in UPDATE_GROUP, where 0 means: what it was. The rules of
// a group never hold it.
const UnlimitedTotal uint64 = 1<<64 - 1

// GroupRequest is the body of CREATE_GROUP and UPDATE_GROUP.
type GroupRequest struct {
	Name  string
	Rules GroupRules
}

// ListGroupsAnswer is sorted by name.
type ListGroupsAnswer struct {
	Groups []GroupSummary
}

// GroupSummary is one group in a list.
type GroupSummary struct {
	Name     string
	ID       uint32
	Sessions uint32
	Leased   uint64
	Waiting  uint64
}

// SessionInfo is one live session.
type SessionInfo struct {
	Session    uint64
	ConsumerID string
	ClientInfo string
	Leases     uint32
	SilentMs   uint32 // since the newest sign of life
}

// CursorInfo is a group's position on one queue.
type CursorInfo struct {
	Topic   string
	Queue   uint16
	Next    uint64 // first offset never granted
	End     uint64 // of the queue
	Leased  uint64
	Waiting uint64 // released or expired, not granted again
	Settled uint64
	Skipped uint64 // by the tag filter
	Dropped uint64 // let go by retention before the group had settled them
}

// ShowGroupAnswer is one group, whole.
type ShowGroupAnswer struct {
	Name     string
	ID       uint32
	Version  uint64
	IdleMs   uint64 // for how long it has had no session
	Rules    GroupRules
	Sessions []SessionInfo
	Cursors  []CursorInfo

	SessionsLeftOff, CursorsLeftOff uint32 // how many the answer has no room for
}

// Stat is one figure of the broker.
type Stat struct {
	Name  string
	Value uint64
}

// StatsAnswer lists the figures, sorted by name.
type StatsAnswer struct {
	Stats []Stat
}

// ErrorBody is the body of every answer with a status other than OK and EMPTY, and of GOODBYE.
type ErrorBody struct {
	Message string // for people
	Reason  Reason
	Detail  uint64 // the limit or the expected number that Message speaks of, if any
}

// SessionEnded is the body of the SESSION_ENDED push.
type SessionEnded struct {
	Session uint64
	Reason  Reason
}
