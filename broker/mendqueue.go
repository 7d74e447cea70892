package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/consumequeue"
	"github.com/leasemq/leasemq/mmaplog"
)

const (
	// mendBatch is how many entries of a queue are compared at once.
	mendBatch = 1024
	// mostMendBuffered bounds the entries of all queues that are gathered for that.
	mostMendBuffered = 64 << 10
)

// comparison is a scan of the log for some queues. Its index entries are stored again where they differ. One goroutine
// uses it.
type comparison struct {
	e        *Engine
	queues   map[queueName]*queueComparison
	damage   uint64 // the last place at which the log was damaged; 0: none
	buffered int
	have     [mendBatch]consumequeue.Entry
}

// queueComparison is how far it is in one queue.
type queueComparison struct {
	name    queueName
	end     uint64 // offsets below it were committed when the scan began
	next    uint64 // offset of the message that should come next
	last    uint64 // position of the record before; 0: none yet
	from    uint64 // offset of the first of entries
	entries []consumequeue.Entry
	stored  int // entries that differed
	lost    []offsetRange
	err     error
	gone    bool // its topic was deleted
}

// compareWithLog stores the index entries of queues again that differ from what the log says. Queues that there are no more are
// not among what it gives. An error is one of the scan, and concerns all; each queue has its own.
func (e *Engine) compareWithLog(ctx context.Context, names []queueName) (map[queueName]*queueComparison, error) {
	c := &comparison{e: e, queues: map[queueName]*queueComparison{}}
	for some := range slices.Chunk(names, mendSlice) {
		c.begin(some)
	}
	// What was visible is committed.
	scan := logScan{log: e.log, to: e.log.Committed(), fn: c.record}
	scan.damaged = func(position uint64, why error) {
		c.damage = position
		if scan.places <= mostDamageLines {
			e.logger.Error("the log is damaged where the queue index is mended from it; the messages there cannot be delivered", "position", position, "why", why)
		}
	}
	if err := scan.run(ctx); err != nil {
		return c.queues, err
	}
	for _, q := range c.queues {
		c.note(q, c.finish(q))
	}
	return c.queues, nil
}

// begin notes the bounds of queues.
func (c *comparison) begin(names []queueName) {
	c.e.enter()
	defer c.e.leave()
	for _, name := range names {
		if slot, ok := c.e.fold.topics.queueSlot(name.topic, name.queue); ok {
			c.queues[name] = &queueComparison{name: name, next: c.e.fold.topics.queues.At(slot).begin, end: c.e.queueRun[slot].visible}
		}
	}
}

// beginOf is where a queue begins now. ok is false when its topic was deleted.
func (c *comparison) beginOf(name queueName) (begin uint64, ok bool) {
	c.e.enter()
	defer c.e.leave()
	slot, ok := c.e.fold.topics.queueSlot(name.topic, name.queue)
	if !ok {
		return 0, false
	}
	return c.e.fold.topics.queues.At(slot).begin, true
}

// note ends the comparison of a queue for which something failed.
func (c *comparison) note(q *queueComparison, err error) {
	if err == nil {
		return
	}
	c.drop(q)
	q.err = err
	if _, ok := c.beginOf(q.name); !ok {
		q.gone = true
	}
}

// record takes a record of the log.
func (c *comparison) record(r mmaplog.Record) error {
	if r.Header.Type != codec.TypeMessage {
		return nil
	}
	p := codec.ParseMessagePlace(r.Assigned)
	q := c.queues[queueName{p.Topic, p.Queue}]
	if q == nil || q.err != nil || p.Offset < q.next {
		return nil
	}
	c.note(q, c.message(q, p.Offset, indexEntry(&r.Header, &p, r.Payload)))
	if c.buffered >= mostMendBuffered {
		for _, q := range c.queues {
			c.note(q, c.flush(q))
			q.entries = nil
		}
	}
	return nil
}

func (c *comparison) message(q *queueComparison, offset uint64, entry consumequeue.Entry) error {
	if offset > q.next {
		if err := c.missing(q, offset); err != nil {
			return err
		}
	}
	if err := c.add(q, offset, entry); err != nil {
		return err
	}
	q.next, q.last = offset+1, entry.Position
	return nil
}

// missing takes the messages up to an offset that the log does not have. Retention has let go of them, or they are
// damaged.
func (c *comparison) missing(q *queueComparison, to uint64) error {
	begin, ok := c.beginOf(q.name)
	if !ok {
		return errors.New("broker: the topic was deleted while its index was mended")
	}
	q.next = max(q.next, min(begin, to))
	if q.next == to {
		return nil
	}
	if c.damage <= q.last {
		return fmt.Errorf("broker: topic %d queue %d: the log has no messages of the offsets %d to %d, and no damage where they should be",
			q.name.topic, q.name.queue, q.next, to-1)
	}
	q.lost = append(q.lost, offsetRange{q.next, to})
	for ; q.next < to; q.next++ {
		if err := c.add(q, q.next, lostEntry(c.damage)); err != nil {
			return err
		}
	}
	return nil
}

// finish takes the end of a queue.
func (c *comparison) finish(q *queueComparison) error {
	if q.err != nil {
		return nil
	}
	if q.next < q.end {
		if err := c.missing(q, q.end); err != nil {
			return err
		}
	}
	return c.flush(q)
}

// add gathers neighbouring entries.
func (c *comparison) add(q *queueComparison, offset uint64, entry consumequeue.Entry) error {
	if n := len(q.entries); n > 0 && (offset != q.from+uint64(n) || n == mendBatch) {
		if err := c.flush(q); err != nil {
			return err
		}
	}
	if len(q.entries) == 0 {
		q.from = offset
	}
	q.entries = append(q.entries, entry)
	c.buffered++
	return nil
}

// drop forgets what was gathered.
func (c *comparison) drop(q *queueComparison) {
	c.buffered -= len(q.entries)
	q.entries = q.entries[:0]
}

// flush stores what was gathered, as far as the index has it otherwise.
func (c *comparison) flush(q *queueComparison) error {
	defer c.drop(q)
	from, entries := q.from, q.entries
	if len(entries) == 0 {
		return nil
	}
	have := c.have[:len(entries)]
	n, err := c.e.index.Read(q.name.topic, q.name.queue, from, have)
	if removed, ok := errors.AsType[*consumequeue.RemovedError](err); ok {
		if removed.Begin >= from+uint64(len(entries)) {
			return nil
		}
		entries = entries[removed.Begin-from:]
		from, have = removed.Begin, have[:len(entries)]
		n, _ = c.e.index.Read(q.name.topic, q.name.queue, from, have)
	}
	clear(have[n:]) // what cannot be read is stored anew
	first, end, differ := 0, 0, 0
	for i := range entries {
		if entries[i].Flags&entryLost != 0 && c.e.sound(have[i]) {
			entries[i] = have[i] // it is as good, and perhaps the true one
		}
		if entries[i] == have[i] {
			continue
		}
		if differ == 0 {
			first = i
		}
		end = i + 1
		differ++
	}
	if differ == 0 {
		return nil
	}
	if err := c.e.index.Repair(q.name.topic, q.name.queue, from+uint64(first), entries[first:end]); err != nil {
		return err
	}
	q.stored += differ
	c.takeRepairs()
	return nil
}

// takeRepairs has the section see what was stored: it takes over a few at a time, so they must not gather.
func (c *comparison) takeRepairs() {
	c.e.enter()
	defer c.e.leave()
}
