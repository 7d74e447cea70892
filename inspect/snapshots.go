package inspect

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/mmaplog"
	"github.com/leasemq/leasemq/snapshot"
)

// rowValue is one row of a snapshot, as a value that the next one overwrites. Of the rest only what kind says is set.
type rowValue struct {
	kind         codec.RowKind
	state        codec.StateRow
	epoch        codec.EpochRow
	topic        codec.TopicRow
	copied       codec.CopyRow
	group        codec.GroupRow
	session      codec.SessionRow
	subscription codec.SubscriptionRow
	cursor       codec.CursorRow
	message      codec.MessageRow
	memory       codec.MemoryRow
	mark         codec.PopMarkRow
	producer     codec.ProducerRow
	sequences    codec.SequencesRow
	key          codec.UniqueKeyRow
}

func (r *rowValue) decode(kind codec.RowKind, b []byte) error {
	r.kind = kind
	switch kind {
	case codec.RowState:
		return r.state.Decode(b)
	case codec.RowEpoch:
		return r.epoch.Decode(b)
	case codec.RowTopic:
		return r.topic.Decode(b)
	case codec.RowCopy:
		return r.copied.Decode(b)
	case codec.RowGroup:
		return r.group.Decode(b)
	case codec.RowSession:
		return r.session.Decode(b)
	case codec.RowSubscription:
		return r.subscription.Decode(b)
	case codec.RowCursor:
		return r.cursor.Decode(b)
	case codec.RowMessage:
		return r.message.Decode(b)
	case codec.RowMemory, codec.RowReady:
		return r.memory.Decode(b)
	case codec.RowPopMark:
		return r.mark.Decode(b)
	case codec.RowProducer:
		return r.producer.Decode(b)
	case codec.RowSequences:
		return r.sequences.Decode(b)
	case codec.RowUniqueKey:
		return r.key.Decode(b)
	}
	return errors.New("a row of that kind is not known")
}

// snapshotState is what Verify keeps of a snapshot: where the queues begin and end in it.
type snapshotState struct {
	position uint64
	path     string
	head     snapshot.Head
	rows     uint64
	logStart uint64
	number   codec.EpochRow // of its newest epoch
	topics   []codec.TopicRow
}

// readSnapshot reads a whole snapshot: checksums, and every row decoded. see, if it is not nil, is given each.
func readSnapshot(store *snapshot.Store, position uint64, see func(*rowValue)) (s snapshotState, err error) {
	s = snapshotState{position: position, path: store.Path(position)}
	var r rowValue
	s.head, err = store.Read(position, func(kind codec.RowKind, b []byte) error {
		if err := r.decode(kind, b); err != nil {
			return fmt.Errorf("row of kind %d: %w", kind, err)
		}
		if err := s.take(&r); err != nil {
			return err
		}
		if see != nil {
			see(&r)
		}
		return nil
	})
	if err == nil && s.rows == 0 {
		err = fmt.Errorf("snapshot: %s has no rows", s.path)
	}
	return s, err
}

func (s *snapshotState) take(r *rowValue) error {
	if (r.kind == codec.RowState) != (s.rows == 0) {
		return errors.New("the counters of the state are not the first row, or stand there twice")
	}
	s.rows++
	switch r.kind {
	case codec.RowState:
		s.logStart = r.state.LogStart
	case codec.RowEpoch:
		s.number = r.epoch
	case codec.RowTopic:
		for i, q := range r.topic.Queues {
			if q.Begin > q.Next {
				return fmt.Errorf("topic %d queue %d begins at %d and ends at %d", r.topic.ID, i, q.Begin, q.Next)
			}
		}
		row := r.topic
		row.Name, row.Queues = slices.Clone(row.Name), slices.Clone(row.Queues)
		s.topics = append(s.topics, row)
	}
	return nil
}

// isBad tells an error that says that a snapshot is no good from one of looking at it.
func isBad(err error) bool {
	if _, damaged := errors.AsType[*snapshot.DamagedError](err); damaged {
		return true
	}
	_, row := errors.AsType[*snapshot.RowError](err)
	return row
}

func isGone(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// listSnapshots names the snapshots, newest first; none where there is no directory for them.
func listSnapshots(store *snapshot.Store) ([]uint64, error) {
	list, err := store.List()
	if isGone(err) {
		return nil, nil
	}
	return list, err
}

// anchored says why a snapshot does not fit the log; nil if it does. It follows the rules by which a start chooses one.
func anchored(r *mmaplog.Reader, h *snapshot.Head) error {
	size := uint64(r.SegmentBytes())
	firstOf := func(p uint64) uint64 { return p - p%size + firstPosition }
	if h.Position < r.First() {
		return fmt.Errorf("it is older than the log, which begins at %d", r.First())
	}
	if h.LastPosition >= h.Position {
		return fmt.Errorf("it says that the record at %d is the last one before it", h.LastPosition)
	}
	rec, err := r.ReadRecord(h.LastPosition)
	switch {
	case errors.Is(err, mmaplog.ErrRemoved) && h.Position == r.First():
		return nil // the record went with its segment
	case err != nil:
		return fmt.Errorf("it ends with a record that the log does not have: %w", err)
	case rec.Header.CRC != h.LastCRC || rec.Header.Epoch != h.Epoch || rec.Header.LeaseMs != h.LeaseMs || rec.Header.WallMs != h.WallMs:
		return fmt.Errorf("it is of another log: the record at %d is another one (checksum %08x, not %08x)", h.LastPosition, rec.Header.CRC, h.LastCRC)
	}
	next := behind(&rec.Header, size)
	if next != h.Position && firstOf(h.Position) == h.Position && rec.Header.Type != codec.TypeSegmentEnd {
		if end, err := r.ReadRecord(next); err == nil && end.Header.Type == codec.TypeSegmentEnd {
			next = behind(&end.Header, size) // only the log's own closing record may lie between
		}
	}
	if next != h.Position {
		return fmt.Errorf("the record at %d, with which it ends, is followed by position %d", h.LastPosition, next)
	}
	return nil
}

// behind is the position behind a record.
func behind(h *codec.Header, segmentBytes uint64) uint64 {
	if h.Type == codec.TypeSegmentEnd {
		return h.Position - h.Position%segmentBytes + segmentBytes + firstPosition
	}
	return h.Position + uint64(codec.Padded(int(h.Length)))
}
