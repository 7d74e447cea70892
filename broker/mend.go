package broker

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/consumequeue"
	"github.com/leasemq/leasemq/mmaplog"
)

// Mending the index. An index entry that is missing, or that names another record than its message's, says nothing about
// the message: the log has it. So the message waits, and the log is read for where the messages of its queue really lie. Only
// what still cannot be read afterwards is damaged.

const (
	// mendEvery is how often the log is read for the same queue at most.
	mendEvery = time.Minute
	// mendBatch is how many entries are stored again at once.
	mendBatch = 1024
	// maxMended bounds what is remembered of messages that were looked for.
	maxMended = 64 << 10
)

type queueName struct {
	topic uint32
	queue uint16
}

// messageName is a message and where the index says it lies.
type messageName struct {
	queueName
	offset, position uint64
}

// mender gathers queues whose index is wrong. Safe for concurrent use.
type mender struct {
	busy    atomic.Bool // as running; read without mu
	mu      sync.Mutex
	wanted  map[queueName]bool
	running bool
	done    map[queueName]time.Duration // when the log was last read for it
	// looked has the messages for which that was done and that were found where the index said.
	looked map[messageName]bool
}

// indexWrong has the index of a queue built anew from the log, in the background. Any goroutine may call it.
func (e *Engine) indexWrong(topic uint32, q uint16) {
	m := &e.mender
	name := queueName{topic, q}
	m.mu.Lock()
	defer m.mu.Unlock()
	if last, ok := m.done[name]; ok && e.clock.Mono()-last < mendEvery {
		return
	}
	if m.wanted == nil {
		m.wanted, m.done, m.looked = map[queueName]bool{}, map[queueName]time.Duration{}, map[messageName]bool{}
	}
	m.wanted[name] = true
	if !m.running {
		m.running = true
		m.busy.Store(true)
		e.peeks.add(e.mend)
	}
}

// wasLookedFor tells whether the log was read for a message, and had it where the index says. It notes that it will be.
func (e *Engine) wasLookedFor(topic uint32, q uint16, offset, position uint64) bool {
	m := &e.mender
	m.mu.Lock()
	defer m.mu.Unlock()
	name := messageName{queueName{topic, q}, offset, position}
	if m.looked[name] {
		_, read := m.done[name.queueName]
		return read && !m.wanted[name.queueName]
	}
	if m.looked == nil {
		m.looked = map[messageName]bool{}
	}
	if len(m.looked) >= maxMended {
		clear(m.looked)
	}
	m.looked[name] = true
	return false
}

// mend reads the log for the queues that are wanted.
func (e *Engine) mend() {
	m := &e.mender
	for {
		m.mu.Lock()
		queues := m.wanted
		m.wanted = map[queueName]bool{}
		if len(queues) == 0 || e.ctx.Err() != nil {
			m.running = false
			m.busy.Store(false)
			m.mu.Unlock()
			return
		}
		m.mu.Unlock()
		began := e.clock.Mono()
		n, err := e.mendQueues(queues)
		m.mu.Lock()
		for name := range queues {
			m.done[name] = began
		}
		m.mu.Unlock()
		e.stats.indexMended.Add(uint64(n))
		e.logger.Warn("the queue index was wrong and was compared with the log", "queues", len(queues), "entries stored again", n, "error", err)
		e.lookAtQueues(queues)
	}
}

// mendQueues stores the index entries of queues again that differ from what the log says.
func (e *Engine) mendQueues(queues map[queueName]bool) (n int, err error) {
	batches := map[queueName]*mendingBatch{}
	for name := range queues {
		batches[name] = &mendingBatch{name: name}
	}
	err = e.log.Scan(e.ctx, e.log.First(), e.log.Committed(), func(r mmaplog.Record) error {
		if r.Header.Type != codec.TypeMessage {
			return nil
		}
		p := codec.ParseMessagePlace(r.Assigned)
		b := batches[queueName{p.Topic, p.Queue}]
		if b == nil {
			return nil
		}
		stored, err := b.add(e.index, p.Offset, indexEntry(&r.Header, &p, r.Payload))
		n += stored
		return err
	})
	for _, b := range batches {
		stored, flushErr := b.flush(e.index)
		n += stored
		err = errors.Join(err, flushErr)
	}
	return n, err
}

// mendingBatch is neighbouring entries of one queue.
type mendingBatch struct {
	name    queueName
	from    uint64
	entries []consumequeue.Entry
}

func (b *mendingBatch) add(index *consumequeue.Index, offset uint64, entry consumequeue.Entry) (stored int, err error) {
	if len(b.entries) > 0 && (offset != b.from+uint64(len(b.entries)) || len(b.entries) == mendBatch) {
		if stored, err = b.flush(index); err != nil {
			return stored, err
		}
	}
	if len(b.entries) == 0 {
		b.from = offset
	}
	b.entries = append(b.entries, entry)
	return stored, nil
}

// flush stores what differs from the index.
func (b *mendingBatch) flush(index *consumequeue.Index) (stored int, err error) {
	if len(b.entries) == 0 {
		return 0, nil
	}
	defer func() { b.entries = b.entries[:0] }()
	from, entries := b.from, b.entries
	have := make([]consumequeue.Entry, len(entries))
	n, err := index.Read(b.name.topic, b.name.queue, from, have)
	if removed, ok := errors.AsType[*consumequeue.RemovedError](err); ok {
		if removed.Begin >= from+uint64(len(entries)) {
			return 0, nil
		}
		skip := removed.Begin - from
		from, entries = removed.Begin, entries[skip:]
		have = have[:len(entries)]
		n, err = index.Read(b.name.topic, b.name.queue, from, have)
	}
	if err == nil && n == len(entries) && equalEntries(have, entries) {
		return 0, nil
	}
	if err := index.Repair(b.name.topic, b.name.queue, from, entries); err != nil {
		return 0, err
	}
	return len(entries), nil
}

func equalEntries(a, b []consumequeue.Entry) bool {
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// lookAtQueues has pops look at queues again.
func (e *Engine) lookAtQueues(queues map[queueName]bool) {
	e.enter()
	defer e.leave()
	for name := range queues {
		for _, sub := range e.fold.leases.SubsOf(name.topic) {
			if int(name.queue) < e.fold.leases.Queues(sub) {
				e.markActive(sub, name.queue)
			}
		}
	}
	e.settleDown(nil)
}
