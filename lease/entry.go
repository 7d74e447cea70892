package lease

// state of a message that the table keeps. Ready is not a state of its own: a waiting message is ready
// once the lease clock has reached its time, and no record says so.
type state uint8

const (
	leased  state = 1
	waiting state = 2
	settled state = 3 // kept only as memory of who settled it, or ahead of the cursor
)

// ending says how the newest lease of a message ended that has none; it decides what its receipt may still do.
type ending uint8

const (
	endedExpired    ending = 1 // by time: a late ack of its holder still settles
	endedReleased   ending = 2 // by its holder: the receipt is void
	endedSession    ending = 3 // with its session: the receipt is void
	endedTaken      ending = 5 // by the broker, before its holder had heard of it: the receipt is void
	endedUnreadable ending = 4 // its bytes are damaged: the message was passed, and no receipt settled it
	endedDropped    ending = 6 // retention let the message go before anybody settled it
)

// entry is one message between first grant and settling, for one cursor. 64 bytes, no pointers.
type entry struct {
	offset uint64
	token  uint64 // of the newest grant
	// atMs is the end of the lease (leased) or when the message is visible again (waiting).
	atMs int64
	// sinceMs is when the newest grant was made (leased), ended (waiting), or when it was settled.
	sinceMs int64
	cursor  uint32
	// holder is the slot of the session that holds it; meaningful while leased.
	holder uint32
	// next and prev link the list that the entry is on: its holder's (leased), its cursor's ready list
	// (waiting and ready), its subscription's memory (settled and passed).
	next, prev uint32
	attempts   uint16 // grants, saturating
	ordinal    uint16 // of the newest change of the newest grant
	renewals   uint16 // of the newest grant
	failures   uint8  // saturating, like the next two
	expiries   uint8
	losses     uint8
	state      state
	ending     ending
	ready      bool // on the ready list of its cursor; derived
}

// passed tells whether a settled entry is one that no receipt has settled.
func (e *entry) passed() bool { return e.ending == endedUnreadable || e.ending == endedDropped }

// atOnce tells whether a waiting message was given back without a wait.
func (e *entry) atOnce() bool { return e.state == waiting && e.atMs <= e.sinceMs }

func bump8(v *uint8) {
	if *v < 255 {
		*v++
	}
}

func bump16(v *uint16) {
	if *v < 65535 {
		*v++
	}
}

// list is a doubly linked list of entries by index.
type list struct {
	head, tail, count uint32
}

func (t *Table) push(l *list, i uint32) {
	e := t.entries.Mut(i)
	e.prev, e.next = l.tail, 0
	if l.tail != 0 {
		t.entries.Mut(l.tail).next = i
	} else {
		l.head = i
	}
	l.tail = i
	l.count++
}

func (t *Table) unlink(l *list, i uint32) {
	e := t.entries.Mut(i)
	if e.prev != 0 {
		t.entries.Mut(e.prev).next = e.next
	} else {
		l.head = e.next
	}
	if e.next != 0 {
		t.entries.Mut(e.next).prev = e.prev
	} else {
		l.tail = e.prev
	}
	e.prev, e.next = 0, 0
	l.count--
}
