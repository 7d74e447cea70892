package inspect

import (
	"bytes"
	"fmt"
	"maps"
	"slices"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/mmaplog"
)

// tally follows what can be followed with little state while the log is read: which topics there are, where their
// queues begin and end, the numbers of grants. It compares that with each good snapshot when it comes to its position.
//
// Where the log no longer begins at position 64 what came before is not known until the first snapshot tells. Until then
// a queue begins to be known with its first message.
type tally struct {
	report *Report
	read   func(position uint64) (mmaplog.Record, error) // of the log
	first  uint64                                        // first position of the log
	files  func(position uint64) (file string, offset int64)

	whole    bool // nothing lies before what was read, or a snapshot stood for it
	topics   map[uint32]*topicTally
	deleted  map[uint32]struct{} // topics that the log says were deleted
	logStart uint64

	epoch       uint32
	number      uint32 // of the newest grant in it
	numberKnown bool

	state stateDecoder
	view  codec.View
}

type topicTally struct {
	name   string // empty: not known
	all    bool   // queues has all that there are
	queues []*queueTally
}

// queueTally is one queue. What is not known is as if it were 0.
type queueTally struct {
	begin, next           uint64
	beginKnown, nextKnown bool
	places                places
}

func newTally(report *Report, first uint64) *tally {
	return &tally{report: report, first: first, whole: first <= firstPosition, topics: map[uint32]*topicTally{}, deleted: map[uint32]struct{}{}}
}

func (t *tally) find(h *codec.Header, format string, args ...any) {
	file, offset := t.files(h.Position)
	t.report.find(Finding{What: fmt.Sprintf(format, args...), File: file, Offset: offset, Position: h.Position})
}

// record takes the next record of the log.
func (t *tally) record(r *mmaplog.Record) {
	h := &r.Header
	t.report.RecordsByType[TypeName(h.Type)]++
	switch h.Type {
	case codec.TypeMessage:
		t.message(r)
		return
	case codec.TypeCopy:
		t.copied(r)
		return
	case codec.TypeEpoch:
		if h.Epoch <= t.epoch {
			t.find(h, "an EPOCH record begins epoch %d, and epoch %d was before", h.Epoch, t.epoch)
		}
		t.epoch, t.number, t.numberKnown = h.Epoch, 0, true
		return
	case codec.TypeSegmentEnd, codec.TypeCleanStop, codec.TypeClock:
		return
	}
	rec, err := t.state.decode(h.Type, r.Payload)
	switch {
	case err != nil:
		t.find(h, "a %s record has a good checksum and cannot be decoded: %v", TypeName(h.Type), err)
	case rec.topic != nil:
		t.topic(h, rec.topic)
	case rec.retain != nil:
		t.retain(h, rec.retain)
	case rec.grant != nil:
		t.grant(h, rec.grant)
	case typeNames[h.Type] == "":
		t.find(h, "a record has type %d, which is not known", h.Type)
	}
}

// queue is a queue that a record names; nil if there is none. It is made when the topic is one whose beginnings are not known.
func (t *tally) queue(topic uint32, queue uint16) *queueTally {
	x := t.topics[topic]
	if x == nil {
		if _, gone := t.deleted[topic]; gone || t.whole {
			return nil
		}
		x = &topicTally{}
		t.topics[topic] = x
	}
	for int(queue) >= len(x.queues) {
		if x.all {
			return nil
		}
		x.queues = append(x.queues, &queueTally{})
	}
	return x.queues[queue]
}

// nameOf is how messages name a queue.
func (t *tally) nameOf(topic uint32, queue uint16) string {
	if x := t.topics[topic]; x != nil && x.name != "" {
		return fmt.Sprintf("topic %s queue %d", x.name, queue)
	}
	return fmt.Sprintf("topic #%d queue %d", topic, queue)
}

func (t *tally) message(r *mmaplog.Record) {
	h, p := &r.Header, codec.ParseMessagePlace(r.Assigned)
	if p.ID != codec.NewMessageID(h.Epoch, h.Position) {
		t.find(h, "a MESSAGE record carries the id %s, which is that of another: two records for one message", p.ID)
	}
	if err := t.view.Parse(r.Payload); err != nil {
		t.find(h, "a MESSAGE record has a good checksum and cannot be decoded: %v", err)
		t.view = codec.View{}
	} else if codec.TagHash(t.view.Tag) != p.TagHash {
		t.find(h, "a MESSAGE record has the tag %q and the hash %016x, which is that of another tag", t.view.Tag, p.TagHash)
	}
	q := t.queue(p.Topic, p.Queue)
	if q == nil {
		t.find(h, "a MESSAGE record is of %s, which there is not", t.nameOf(p.Topic, p.Queue))
		return
	}
	switch {
	case q.nextKnown && p.Offset < q.next:
		what := "two records for one offset"
		if position, _, ok := q.places.at(p.Offset); ok {
			what = fmt.Sprintf("the one at position %d has it, too: two records for one offset", position)
		}
		t.find(h, "a MESSAGE record has offset %d of %s, whose next is %d; %s", p.Offset, t.nameOf(p.Topic, p.Queue), q.next, what)
		return
	case q.nextKnown && p.Offset > q.next:
		t.find(h, "a MESSAGE record has offset %d of %s, whose next is %d: %d messages are missing", p.Offset, t.nameOf(p.Topic, p.Queue), q.next, p.Offset-q.next)
	}
	q.next, q.nextKnown = p.Offset+1, true
	entry := expectedEntry(h, &p, &t.view)
	q.places.add(p.Offset, h.Position, entrySum(entry[:]))
}

// copied compares a copy with its original, as long as that is there.
func (t *tally) copied(r *mmaplog.Record) {
	h, p := &r.Header, codec.ParseMessagePlace(r.Assigned)
	q := t.queue(p.Topic, p.Queue)
	if q == nil {
		t.find(h, "a COPY record is of %s, which there is not", t.nameOf(p.Topic, p.Queue))
		return
	}
	if q.nextKnown && p.Offset >= q.next {
		t.find(h, "a COPY record has offset %d of %s, whose next is %d", p.Offset, t.nameOf(p.Topic, p.Queue), q.next)
	}
	epoch, birth := p.ID.Birth()
	if birth >= h.Position || epoch > h.Epoch {
		t.find(h, "a COPY record carries the id %s, which is of a later message", p.ID)
		return
	}
	if birth < t.first {
		return
	}
	original, err := t.read(birth)
	if err != nil {
		t.find(h, "a COPY record carries the id %s, and there is no such message: %v", p.ID, err)
		return
	}
	if original.Header.Type != codec.TypeMessage {
		t.find(h, "a COPY record carries the id %s, and the record there is a %s", p.ID, TypeName(original.Header.Type))
		return
	}
	if o := codec.ParseMessagePlace(original.Assigned); o != p {
		t.find(h, "a COPY record is offset %d of %s with the id %s, its original is offset %d of %s with the id %s: they are not the same message",
			p.Offset, t.nameOf(p.Topic, p.Queue), p.ID, o.Offset, t.nameOf(o.Topic, o.Queue), o.ID)
	} else if !bytes.Equal(original.Payload, r.Payload) {
		t.find(h, "a COPY record of %s has another content than its original at position %d", p.ID, birth)
	} else if at := h.BornMs; at != 0 && at != original.Header.WallMs {
		t.find(h, "a COPY record of %s says that it was born at %d ms, its original at position %d at %d ms", p.ID, at, birth, original.Header.WallMs)
	}
}

func (t *tally) topic(h *codec.Header, r *codec.Topic) {
	x := t.topics[r.ID]
	_, gone := t.deleted[r.ID]
	if r.Op == codec.OpCreate {
		if x != nil || gone {
			t.find(h, "a TOPIC record makes topic %d %q, which was there before", r.ID, r.Name)
			return
		}
		x = &topicTally{name: string(r.Name), all: true}
		t.topics[r.ID] = x
		x.grow(r.Queues)
		return
	}
	if x == nil {
		if t.whole || gone {
			t.find(h, "a TOPIC record is of topic %d, which there is not", r.ID)
			return
		}
		x = &topicTally{}
		t.topics[r.ID] = x
	}
	switch r.Op {
	case codec.OpUpdate:
		switch {
		case x.all && int(r.Queues) < len(x.queues):
			t.find(h, "a TOPIC record leaves topic %d %d queues, it had %d", r.ID, r.Queues, len(x.queues))
		case x.all:
			x.grow(r.Queues)
		}
	case codec.OpPurge:
		for _, q := range x.queues {
			q.begin, q.beginKnown = q.next, q.nextKnown
			q.places.dropBefore(q.next)
		}
	case codec.OpDelete:
		delete(t.topics, r.ID)
		t.deleted[r.ID] = struct{}{}
	default:
		t.find(h, "a TOPIC record has operation %d, which is not known", r.Op)
	}
}

// grow gives a topic queues that begin at 0.
func (x *topicTally) grow(queues uint16) {
	for len(x.queues) < int(queues) {
		x.queues = append(x.queues, &queueTally{beginKnown: true, nextKnown: true})
	}
}

func (t *tally) retain(h *codec.Header, r *codec.Retain) {
	t.logStart = max(t.logStart, r.LogStart)
	if r.LogStart > h.Position {
		t.find(h, "a RETAIN record lets go of the log below position %d, behind itself", r.LogStart)
	}
	for i := range r.Queues {
		b := &r.Queues[i]
		q := t.queue(b.Topic, b.Queue)
		switch {
		case q == nil:
			t.find(h, "a RETAIN record is of %s, which there is not", t.nameOf(b.Topic, b.Queue))
		case q.beginKnown && b.Begin < q.begin, q.nextKnown && b.Begin > q.next:
			t.find(h, "a RETAIN record has %s begin at offset %d, it has %d to %d", t.nameOf(b.Topic, b.Queue), b.Begin, q.begin, q.next)
		default:
			q.begin, q.beginKnown = b.Begin, true
			q.places.dropBefore(b.Begin)
		}
	}
}

func (t *tally) grant(h *codec.Header, r *codec.Grant) {
	if t.epoch == 0 {
		t.epoch = h.Epoch // the EPOCH record is gone
	}
	if h.Epoch != t.epoch {
		t.find(h, "a GRANT record is of epoch %d, the newest EPOCH record began epoch %d", h.Epoch, t.epoch)
		return
	}
	if t.numberKnown && r.Number != t.number+1 {
		t.find(h, "a GRANT record has number %d of epoch %d, the one before has %d", r.Number, h.Epoch, t.number)
	}
	t.number, t.numberKnown = r.Number, true
}

// compare looks whether a snapshot says of its position what the records before it say, and takes from it what is not known.
func (t *tally) compare(s *snapshotState) {
	find := func(format string, args ...any) {
		t.report.find(Finding{What: fmt.Sprintf("the snapshot of position %d says that ", s.position) + fmt.Sprintf(format, args...),
			File: s.path, Position: s.position})
	}
	if t.whole && t.logStart != s.logStart {
		find("nothing below position %d is needed; the records say %d", s.logStart, t.logStart)
	}
	t.logStart = max(t.logStart, s.logStart)
	in := make(map[uint32]struct{}, len(s.topics))
	for i := range s.topics {
		row := &s.topics[i]
		in[row.ID] = struct{}{}
		t.compareTopic(row, find)
	}
	for id, x := range t.topics {
		if _, ok := in[id]; !ok {
			find("there is no topic #%d %s; the records know it", id, x.name)
			if !t.whole {
				delete(t.topics, id)
			}
		}
	}
	if e := &s.number; e.Epoch != 0 {
		switch {
		case t.epoch == 0:
			t.epoch, t.number, t.numberKnown = e.Epoch, e.Number, true
		case e.Epoch != t.epoch:
			find("the epoch is %d; the records say %d", e.Epoch, t.epoch)
		case !t.numberKnown:
			t.number, t.numberKnown = e.Number, true
		case e.Number != t.number:
			find("the newest grant is number %d of epoch %d; the records say %d", e.Number, e.Epoch, t.number)
		}
	}
	t.whole = true
}

func (t *tally) compareTopic(row *codec.TopicRow, find func(string, ...any)) {
	x := t.topics[row.ID]
	if x == nil {
		if _, gone := t.deleted[row.ID]; gone || t.whole {
			find("there is a topic #%d %q; the records do not know it", row.ID, row.Name)
			return
		}
		x = &topicTally{}
		t.topics[row.ID] = x
	}
	if x.name == "" {
		x.name = string(row.Name)
	}
	if x.name != string(row.Name) || x.all && len(x.queues) != len(row.Queues) || len(x.queues) > len(row.Queues) {
		find("topic #%d is %q with %d queues; the records say %q with %d", row.ID, row.Name, len(row.Queues), x.name, len(x.queues))
	}
	for len(x.queues) < len(row.Queues) {
		x.queues = append(x.queues, &queueTally{})
	}
	x.all = true
	for i, r := range row.Queues {
		q := x.queues[i]
		name := t.nameOf(row.ID, uint16(i))
		if q.nextKnown && q.next != r.Next {
			find("%s ends at offset %d; the records say %d", name, r.Next, q.next)
		}
		if q.beginKnown && q.begin != r.Begin {
			find("%s begins at offset %d; the records say %d", name, r.Begin, q.begin)
		}
		if !q.nextKnown {
			q.next, q.nextKnown = r.Next, true
		}
		if !q.beginKnown {
			q.begin, q.beginKnown = r.Begin, true
			q.places.dropBefore(r.Begin)
		}
	}
}

// adopt goes on with the state of a snapshot behind a part of the log that cannot be read. What was read before stays known.
func (t *tally) adopt(s *snapshotState) {
	in := make(map[uint32]struct{}, len(s.topics))
	for _, row := range s.topics {
		in[row.ID] = struct{}{}
		x := t.topics[row.ID]
		if x == nil {
			x = &topicTally{}
			t.topics[row.ID] = x
		}
		x.name, x.all = string(row.Name), true
		for len(x.queues) < len(row.Queues) {
			x.queues = append(x.queues, &queueTally{})
		}
		for i, r := range row.Queues {
			q := x.queues[i]
			q.begin, q.beginKnown, q.next, q.nextKnown = r.Begin, true, r.Next, true
			q.places.dropBefore(r.Begin)
		}
	}
	for id := range t.topics {
		if _, ok := in[id]; !ok {
			delete(t.topics, id)
			t.deleted[id] = struct{}{}
		}
	}
	t.epoch, t.number, t.numberKnown = s.head.Epoch, s.number.Number, s.number.Epoch == s.head.Epoch
	t.logStart, t.whole = s.logStart, true
}

// finish looks whether what the queues begin with is in the log. That the rest is was seen on the way.
func (t *tally) finish() {
	for _, id := range slices.Sorted(maps.Keys(t.topics)) {
		for i, q := range t.topics[id].queues {
			if q.begin >= q.next || !q.beginKnown {
				continue
			}
			if _, _, ok := q.places.at(q.begin); !ok {
				t.report.find(Finding{What: fmt.Sprintf("%s has offsets %d to %d, and the log has no message of offset %d",
					t.nameOf(id, uint16(i)), q.begin, q.next-1, q.begin)})
			}
		}
	}
}
