package broker

import (
	"fmt"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/dedup"
	"github.com/leasemq/leasemq/heartbeat"
	"github.com/leasemq/leasemq/lease"
)

// stateView is the fold as it was when it was frozen: what a snapshot is made of. Another goroutine writes it while the fold
// goes on.
type stateView struct {
	topics   topicsView
	sessions *heartbeat.View
	leases   *lease.View
	stored   *dedup.View
	state    codec.StateRow
}

// freeze takes a view of the fold. It costs copies of page tables, not of pages.
func (f *fold) freeze() *stateView {
	v := &stateView{topics: f.topics.freeze(), sessions: f.sessions.Freeze(), leases: f.leases.Freeze(), stored: f.stored.Freeze()}
	v.state = codec.StateRow{
		LogStart: f.topics.logStart, NextTopic: f.topics.nextID, NextGroup: v.sessions.NextGroup,
		NextSub: v.leases.NextSub, LastSession: v.sessions.LastSession,
	}
	return v
}

// thaw ends the view, which nobody reads any more.
func (f *fold) thaw() {
	f.topics.thaw()
	f.sessions.Thaw()
	f.leases.Thaw()
	f.stored.Thaw()
}

// rows gives out the whole state, in the order in which a stateLoader wants it.
func (v *stateView) rows(emit emitRow) error {
	if err := emit(codec.RowState, v.state.Append(nil)); err != nil {
		return err
	}
	if err := v.leases.EpochRows(emit); err != nil {
		return err
	}
	if err := v.topics.rows(emit); err != nil {
		return err
	}
	if err := v.sessions.Rows(emit); err != nil {
		return err
	}
	if err := v.leases.Rows(v.sessions.SessionID, emit); err != nil {
		return err
	}
	return v.stored.Rows(emit)
}

// stateLoader fills an empty fold with the rows of a snapshot.
type stateLoader struct {
	f      *fold
	leases *lease.Loader
}

// load begins to load a snapshot whose newest record had these clocks and was of this epoch.
func (f *fold) load(epoch uint32, leaseMs, wallMs int64) *stateLoader {
	f.epoch, f.leaseMs, f.wallMs = epoch, leaseMs, wallMs
	return &stateLoader{f: f}
}

// row takes a row. An error says that it contradicts others.
func (l *stateLoader) row(kind codec.RowKind, b []byte) error {
	err := l.take(kind, b)
	if err != nil {
		return fmt.Errorf("row of kind %d: %w", kind, err)
	}
	return nil
}

func (l *stateLoader) take(kind codec.RowKind, b []byte) error {
	if (kind == codec.RowState) != (l.leases == nil) {
		return fmt.Errorf("the counters of the state are not the first row, or stand there twice")
	}
	switch kind {
	case codec.RowState:
		var r codec.StateRow
		if err := r.Decode(b); err != nil {
			return err
		}
		l.begin(&r)
		return nil
	case codec.RowTopic:
		var r codec.TopicRow
		if err := r.Decode(b); err != nil {
			return err
		}
		return l.f.topics.loadTopic(&r)
	case codec.RowCopy:
		var r codec.CopyRow
		if err := r.Decode(b); err != nil {
			return err
		}
		return l.f.topics.loadCopy(&r)
	case codec.RowGroup:
		var r codec.GroupRow
		if err := r.Decode(b); err != nil {
			return err
		}
		return l.f.sessions.LoadGroup(&r)
	case codec.RowSession:
		var r codec.SessionRow
		if err := r.Decode(b); err != nil {
			return err
		}
		return l.f.sessions.LoadSession(&r, l.f.leaseMs)
	case codec.RowProducer, codec.RowSequences, codec.RowUniqueKey:
		return l.f.stored.Load(kind, b)
	}
	return l.leases.Row(kind, b)
}

func (l *stateLoader) begin(r *codec.StateRow) {
	l.f.topics.nextID, l.f.topics.logStart = r.NextTopic, r.LogStart
	l.f.sessions.LoadCounters(r.NextGroup, r.LastSession)
	l.leases = l.f.leases.Load(r.NextSub, func(session uint64) (slot uint32, live bool) {
		s, ok := l.f.sessions.Session(session)
		return s.Slot, ok && !s.Ended
	})
}

// finish ends the loading.
func (l *stateLoader) finish() error {
	if l.leases == nil {
		return fmt.Errorf("the counters of the state are missing")
	}
	if err := l.leases.Finish(); err != nil {
		return err
	}
	l.f.topics.sortPlaces()
	if err := l.f.stored.Loaded(); err != nil {
		return err
	}
	if err := l.fits(); err != nil {
		return err
	}
	return l.f.auditBegins()
}

// fits looks whether subscriptions are of topics and groups that there are, with a cursor for each queue.
func (l *stateLoader) fits() error {
	for _, slot := range l.f.leases.Subs() {
		sub := l.f.leases.At(slot)
		topicSlot, ok := l.f.topics.ids[sub.Topic]
		if _, known := l.f.sessions.GroupByID(sub.Group); !ok || !known {
			return fmt.Errorf("subscription %d is of group %d to topic %d", sub.ID, sub.Group, sub.Topic)
		}
		queues := l.f.topics.queueOf[topicSlot]
		if len(queues) != l.f.leases.Queues(slot) {
			return fmt.Errorf("subscription %d has %d cursors for %d queues", sub.ID, l.f.leases.Queues(slot), len(queues))
		}
		for i, q := range queues {
			x := l.f.topics.queues.At(q)
			if next := l.f.leases.Position(slot, uint16(i)).Next; next > x.next {
				return fmt.Errorf("subscription %d is at offset %d of queue %d, which ends at %d", sub.ID, next, i, x.next)
			}
		}
	}
	return nil
}
