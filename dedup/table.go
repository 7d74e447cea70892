// Package dedup knows which sends were stored already, so that a send that is repeated gets the answer of the first.
//
// The Table is a fold: its Apply methods, DropTopic and Age change it by records and by nothing else, the same way when
// the broker runs and when it recovers. Its Check methods read it to decide whether a message becomes a record. There
// is no clock: wallMs is the wall time of the record that is applied, or would be. The limits decide what is evicted,
// so a replay needs those of the run.
//
// Sequences (sequences.go). A message may carry a producer id and a sequence, which grows by one from message to
// message and may arrive out of order. A duplicate is a sequence that is known, never one that is "smaller than the
// last". What is known of a producer lies above its floor:
//
//  1. A sequence above the floor is known, or was not stored since the producer is remembered.
//  2. The floor only rises, and a sequence at or below it is TooOld, never Fresh and never Duplicate.
//  3. The floor is at most 65,536 below the highest sequence, and rises to what is evicted.
//  4. Sequences are kept and evicted in chunks of 16 neighbours: when the newest of a chunk is 15 minutes old, or when
//     there are too many of them or of chunks. All chunks are in one queue, by when they were begun, became full,
//     or were found too young; where a chunk is due, its producer gives up its lowest one. So nothing is forgotten that
//     is younger than 15 minutes while the limits hold, and a chunk with gaps may stay for twice that.
//  5. A producer without sequences keeps its floor, which is its highest sequence, for 24 hours after its last message.
//     When there are too many producers, the one that is without sequences for longest is forgotten.
//
// Keys (keys.go). A message may carry a unique key; for how long it is known its topic says. A key is found by topic
// and siphash-128; it expires at the stamp of its record plus the window, and is not forgotten before.
//
// The work of one record is bounded: it adds one chunk at most and evicts up to four of each kind. What a leap of the
// sequences or DropTopic leaves behind is out of sight at once and freed in such steps.
//
// Memory: 25 bytes a sequence in a full chunk, 80 bytes a key, 110 bytes a producer. There are at most a quarter as
// many chunks as sequences, so sequences that lie far apart take 4 times as much as neighbours, not 16 times.
//
// Nothing here is safe for concurrent use; the broker's sequencing section owns it. Another goroutine may write out a
// View while the table goes on (snapshot.go).
package dedup

import (
	"fmt"
	"math"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/slab"
)

// Verdict is what a Check says of a message.
type Verdict uint8

const (
	// Fresh: not stored as far as is known; its record may be applied.
	Fresh Verdict = 0
	// Duplicate: stored before, at the place that comes with the verdict.
	Duplicate Verdict = 1
	// TooOld: below what is known of its producer. Whether it was stored is unknown.
	TooOld Verdict = 2
	// Full: there is no room to remember it, so it must not be stored.
	Full Verdict = 3
)

func (v Verdict) String() string {
	switch v {
	case Fresh:
		return "fresh"
	case Duplicate:
		return "duplicate"
	case TooOld:
		return "too old"
	case Full:
		return "full"
	}
	return fmt.Sprintf("verdict %d", uint8(v))
}

// Place is where a message was stored, and its id.
type Place struct {
	Queue  uint16
	Offset uint64
	ID     codec.MessageID
}

// Limits is how much a table remembers. Zero stands for the default.
type Limits struct {
	Sequences int // of all producers
	Producers int
	Keys      int // of all topics
}

const (
	defaultSequences = 4 << 20
	defaultProducers = 1 << 20
	defaultKeys      = 4 << 20

	// window is how many sequences of a producer are known at most: the highest and those just below it.
	window = 1 << 16
	// keepMs is for how long a sequence is known, idleMs for how long a producer is after its last message.
	keepMs = 15 * 60 * 1000
	idleMs = 24 * 60 * 60 * 1000

	// evictPerRecord bounds the work of one record, for each kind of thing. A record adds one of a kind at most.
	evictPerRecord = 4
)

// Table is what is known of all sends.
type Table struct {
	limits    Limits
	maxChunks int

	// Sequences.
	producers *slab.Slab[producer]
	chunks    *slab.Slab[chunk]
	queue     list // all chunks, by queuedMs
	idle      list // producers without chunks, by when they lost the last one
	sequences int  // bits of all chunks
	// Derived.
	firstMs int64 // queuedMs of the first chunk of the queue, which every record asks for; without one the end of time
	forest  forest
	byID    map[uint64]uint32 // producer id to slot
	// The producer that was looked up last, because messages of one come in a row. Slot 0: none.
	lastID   uint64
	lastSlot uint32

	// Keys.
	topics *slab.Slab[topicKeys]
	keys   *slab.Slab[key]
	live   int // keys of topics that were not dropped
	// Derived.
	index   index
	expiry  []oldest          // heap.go
	byTopic map[uint32]uint32 // topic id to slot
	// dropped is the first topic whose keys are still to be freed. Nothing of those can be seen from outside.
	dropped   uint32
	lastTopic uint32 // looked up last
	topicSlot uint32 // of lastTopic; 0: none

	loading codec.RowKind // of the newest row; 0: nothing is being loaded

	// OnViolation is told of a record whose precondition did not hold; the record then does nothing. It is
	// counted in any case. May be nil.
	OnViolation func(what string)
	violations  uint64
}

// New makes an empty table.
func New(l Limits) *Table {
	if l.Sequences <= 0 {
		l.Sequences = defaultSequences
	}
	if l.Producers <= 0 {
		l.Producers = defaultProducers
	}
	if l.Keys <= 0 {
		l.Keys = defaultKeys
	}
	return &Table{
		limits:    l,
		maxChunks: max(1, l.Sequences/4),
		producers: slab.New[producer](),
		chunks:    slab.New[chunk](),
		firstMs:   math.MaxInt64,
		forest:    newForest(),
		byID:      map[uint64]uint32{},
		topics:    slab.New[topicKeys](),
		keys:      slab.New[key](),
		index:     newIndex(),
		byTopic:   map[uint32]uint32{},
	}
}

// Age applies a record that has neither sequence nor key: time has passed all the same. Without it nothing grows old
// while all that comes is refused for want of room.
func (t *Table) Age(wallMs int64) {
	t.evictChunks(wallMs)
	t.evictProducers(wallMs)
	t.evictKeys(wallMs)
	t.sweep()
}

// Sequences is the number of sequences in memory. Those at or below the floor of their producer count until their
// chunk is freed.
func (t *Table) Sequences() int { return t.sequences }

// Producers is the number of producers that are remembered, with sequences or without.
func (t *Table) Producers() int { return t.producers.Len() }

// Keys is the number of unique keys of all topics that were not dropped, those included that have expired and are yet
// to be evicted.
func (t *Table) Keys() int { return t.live }

// Violations counts records whose precondition did not hold.
func (t *Table) Violations() uint64 { return t.violations }

func (t *Table) violate(format string, args ...any) {
	t.violations++
	if t.OnViolation != nil {
		t.OnViolation(fmt.Sprintf(format, args...))
	}
}
