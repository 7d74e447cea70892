package inspect

import (
	"fmt"
	"slices"
	"time"

	"github.com/leasemq/leasemq/codec"
)

// Filter says which records Dump gives out: those that everything in it holds for. The zero value is all of them.
//
// Topic, Queue and Offsets go together: a record passes that has one message for which all that is given of the three
// holds, be it the message itself or a run of offsets in a GRANT, a SETTLE and so on. So a topic, a queue and an offset
// give the whole story of a message.
type Filter struct {
	From uint64 // records that begin here or behind
	To   uint64 // records that begin before; 0: no bound

	Types   []codec.Type
	Topic   string // name, or #id
	Queue   *uint16
	Offsets *OffsetRange

	ID        *codec.MessageID // messages and copies
	UniqueKey string           // likewise
	Key       string           // likewise

	Group   string // name, or #id
	Session uint64 // 0: any

	Since, Until time.Time // by the wall clock of the record: from Since on, and before Until

	Limit int  // so many records at most; 0: all
	Body  bool // give out bodies
	Aside bool // then the records in the files that were moved aside
}

// OffsetRange is the offsets From to To, both included.
type OffsetRange struct{ From, To uint64 }

// touched is what a record is about, for the filter.
type touched struct {
	spans    []span
	groups   []uint32
	sessions []uint64
}

// span is offsets of one queue. A record about a whole topic has all of them.
type span struct {
	topic    uint32
	queue    uint16
	anyQueue bool
	from, to uint64 // to is included
}

func (t *touched) reset() { t.spans, t.groups, t.sessions = t.spans[:0], t.groups[:0], t.sessions[:0] }

func (t *touched) run(topic uint32, queue uint16, offset, count uint64) {
	if count > 0 {
		t.spans = append(t.spans, span{topic: topic, queue: queue, from: offset, to: offset + (count - 1)})
	}
}

// wholeTopic notes a record that is about a topic and none of its messages.
func (t *touched) wholeTopic(topic uint32) {
	t.spans = append(t.spans, span{topic: topic, anyQueue: true, to: ^uint64(0)})
}

// early tells by the header alone whether a record may pass.
func (f *Filter) early(h *codec.Header) bool {
	switch {
	case h.Position < f.From, f.To > 0 && h.Position >= f.To:
		return false
	case len(f.Types) > 0 && !slices.Contains(f.Types, h.Type):
		return false
	case !f.Since.IsZero() && h.WallMs < f.Since.UnixMilli(), !f.Until.IsZero() && h.WallMs >= f.Until.UnixMilli():
		return false
	}
	return true
}

// admits tells by the place alone whether a message or a copy may pass. It saves describing most of them.
func (f *Filter) admits(p *codec.MessagePlace, n *names) bool {
	switch {
	case f.ID != nil && p.ID != *f.ID, f.Group != "", f.Session != 0:
		return false
	case f.Queue != nil && p.Queue != *f.Queue, f.Offsets != nil && (p.Offset < f.Offsets.From || p.Offset > f.Offsets.To):
		return false
	}
	return f.Topic == "" || isNamed(n.topics, p.Topic, f.Topic)
}

// passes tells whether a record passes that early let through.
func (f *Filter) passes(l *Line, t *touched, n *names) bool {
	message := l.ID != ""
	switch {
	case f.ID != nil && l.ID != f.ID.String():
		return false
	case f.UniqueKey != "" && (!message || l.UniqueKey != f.UniqueKey), f.Key != "" && (!message || l.Key != f.Key):
		return false
	case f.Group != "" && !slices.ContainsFunc(t.groups, func(id uint32) bool { return isNamed(n.groups, id, f.Group) }):
		return false
	case f.Session != 0 && !slices.Contains(t.sessions, f.Session):
		return false
	}
	if f.Topic == "" && f.Queue == nil && f.Offsets == nil {
		return true
	}
	return slices.ContainsFunc(t.spans, func(s span) bool {
		switch {
		case f.Topic != "" && !isNamed(n.topics, s.topic, f.Topic):
			return false
		case f.Queue != nil && (s.anyQueue || s.queue != *f.Queue):
			return false
		case f.Offsets != nil && (s.anyQueue || s.to < f.Offsets.From || s.from > f.Offsets.To):
			return false
		}
		return true
	})
}

func isNamed(names map[uint32]string, id uint32, want string) bool {
	return names[id] == want || want[0] == '#' && want == fmt.Sprintf("#%d", id)
}
