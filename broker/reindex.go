package broker

import (
	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/consumequeue"
	"github.com/leasemq/leasemq/mmaplog"
)

// entryLost marks an index entry of a message whose record is damaged, and whose true entry is lost as well. It names the place of the
// damage: in the order of the others, in the right segment. So a pop grants it, finds no record there, and passes it as unreadable.
const entryLost = 1

func lostEntry(damage uint64) consumequeue.Entry {
	return consumequeue.Entry{Position: damage, Size: leastMessageBytes, Flags: entryLost}
}

// reindexing is how far the index of a queue is, that is built anew.
type reindexing struct {
	next uint64 // offset
	last uint64 // position of the record before; 0: none yet
}

// reindex gives the index every message of the log. Those whose records are damaged get an entry by which they are passed; what is
// missing without damage is left to FinishRecovery, which says so.
func (e *Engine) reindex() (lost int, err error) {
	queues := map[uint32]*reindexing{} // by slot
	damage := uint64(0)
	at := func(slot uint32) *reindexing {
		q := queues[slot]
		if q == nil {
			q = &reindexing{next: e.fold.topics.queues.At(slot).begin}
			queues[slot] = q
		}
		return q
	}
	fill := func(topic uint32, queue uint16, q *reindexing, to uint64) error {
		if damage <= q.last {
			return nil
		}
		for ; q.next < to; q.next++ {
			if err := e.index.Recover(topic, queue, q.next, lostEntry(damage)); err != nil {
				return err
			}
			lost++
		}
		return nil
	}
	scan := logScan{log: e.log, to: e.log.Appended()}
	scan.damaged = func(position uint64, why error) {
		damage = position
		if scan.places <= mostDamageLines {
			e.logger.Error("the log is damaged where the index is built anew from it; the messages there cannot be delivered", "position", position, "why", why)
		}
	}
	scan.fn = func(r mmaplog.Record) error {
		if r.Header.Type != codec.TypeMessage {
			return nil
		}
		p := codec.ParseMessagePlace(r.Assigned)
		slot, ok := e.fold.topics.queueSlot(p.Topic, p.Queue)
		if !ok || p.Offset < e.fold.topics.queues.At(slot).begin {
			return nil
		}
		q := at(slot)
		if err := fill(p.Topic, p.Queue, q, p.Offset); err != nil {
			return err
		}
		q.next, q.last = max(q.next, p.Offset+1), r.Header.Position
		return e.index.Recover(p.Topic, p.Queue, p.Offset, indexEntry(&r.Header, &p, r.Payload))
	}
	if err := scan.run(e.ctx); err != nil {
		return lost, err
	}
	for end := range e.queueEnds() {
		slot, _ := e.fold.topics.queueSlot(end.Topic, end.Queue)
		if err := fill(end.Topic, end.Queue, at(slot), end.End); err != nil {
			return lost, err
		}
	}
	return lost, nil
}
