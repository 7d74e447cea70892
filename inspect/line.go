package inspect

import (
	"fmt"
	"strings"
	"time"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/mmaplog"
)

// Line is one record as Dump gives it out. What a record does not have is empty. A topic or group whose name
// is not known stands there as #id.
type Line struct {
	File     string     `json:"file,omitempty"` // name of the file that was moved aside; empty for a record of the log
	Position uint64     `json:"position"`
	Size     int64      `json:"size"` // on disk, the padding included
	Type     string     `json:"type"`
	Epoch    uint32     `json:"epoch"`
	Stored   time.Time  `json:"stored"`         // the record's wall clock
	Born     *time.Time `json:"born,omitempty"` // of a message: when it was stored first. A copy is stored later
	Topic    string     `json:"topic,omitempty"`
	Queue    *uint16    `json:"queue,omitempty"`
	Offset   *uint64    `json:"offset,omitempty"`

	ID        string `json:"id,omitempty"`
	UniqueKey string `json:"unique_key,omitempty"`
	Key       string `json:"key,omitempty"`
	Tag       string `json:"tag,omitempty"`
	OrderKey  string `json:"order_key,omitempty"`

	Group   string `json:"group,omitempty"`
	Session string `json:"session,omitempty"` // in decimal; as a string: it may not fit a double
	Detail  string `json:"detail,omitempty"`  // what the record says beyond that, in words

	Compression string `json:"compression,omitempty"` // of Body, which is as stored
	Body        []byte `json:"body,omitempty"`        // with Filter.Body
}

// mostRuns is how many runs or leases Detail lists.
const mostRuns = 8

// describer turns records into lines.
type describer struct {
	names *names
	body  bool

	state   stateDecoder
	touched touched
	view    codec.View
}

// line describes a record. What it touches is in d.touched until the next one.
func (d *describer) line(r *mmaplog.Record, rec *decoded, broken error) *Line {
	h := &r.Header
	d.touched.reset()
	l := &Line{
		Position: h.Position, Size: int64(codec.Padded(int(h.Length))), Type: TypeName(h.Type), Epoch: h.Epoch,
		Stored: time.UnixMilli(h.WallMs).UTC(),
	}
	switch {
	case broken != nil:
		l.Detail = "cannot be decoded: " + broken.Error()
	case h.Type == codec.TypeMessage || h.Type == codec.TypeCopy:
		d.message(l, r)
	case rec.grant != nil, rec.settle != nil, rec.change != nil, rec.expire != nil, rec.unreadable != nil:
		d.leases(l, rec)
	default:
		d.others(l, rec)
	}
	return l
}

func (d *describer) message(l *Line, r *mmaplog.Record) {
	p := codec.ParseMessagePlace(r.Assigned)
	l.Topic, l.Queue, l.Offset, l.ID = d.names.topic(p.Topic), &p.Queue, &p.Offset, p.ID.String()
	d.touched.run(p.Topic, p.Queue, p.Offset, 1)
	born := time.UnixMilli(r.Header.Born()).UTC()
	l.Born = &born
	v := &d.view
	if err := v.Parse(r.Payload); err != nil {
		l.Detail = "cannot be decoded: " + err.Error()
		return
	}
	l.UniqueKey, l.Key, l.Tag, l.OrderKey = string(v.UniqueKey), string(v.Key), string(v.Tag), string(v.OrderKey)
	var parts []string
	for _, f := range [...]struct{ what, value string }{{"key", l.Key}, {"tag", l.Tag}, {"order key", l.OrderKey}} {
		if f.value != "" {
			parts = append(parts, fmt.Sprintf("%s %q", f.what, f.value))
		}
	}
	parts = append(parts, fmt.Sprintf("body %d bytes", len(v.Body)))
	switch v.Compression {
	case codec.Zstd:
		l.Compression = "zstd"
	case codec.S2:
		l.Compression = "s2"
	}
	if l.Compression != "" {
		parts = append(parts, l.Compression)
	}
	l.Detail = strings.Join(parts, ", ")
	if d.body {
		l.Body = append([]byte{}, v.Body...)
	}
}

// of sets topic and group of a line by the subscription that its record is about.
func (d *describer) of(l *Line, sub uint32) (topic uint32) {
	s, ok := d.names.subs[sub]
	if !ok {
		return 0
	}
	l.Topic, l.Group = d.names.topic(s.topic), d.names.group(s.group)
	d.touched.groups = append(d.touched.groups, s.group)
	d.touched.wholeTopic(s.topic)
	return s.topic
}

func (d *describer) session(l *Line, session uint64) {
	if session == 0 {
		return
	}
	l.Session = fmt.Sprint(session)
	d.touched.sessions = append(d.touched.sessions, session)
}

// token is a fencing token in words.
func token(t uint64) string { return fmt.Sprintf("%d-%d", t>>32, t&(1<<32-1)) }

var runKinds = map[codec.RunKind]string{
	codec.RunNew: "new", codec.RunAgain: "again", codec.RunSkipped: "skipped", codec.RunKnown: "known", codec.RunReclaimed: "reclaimed",
}

var changeKinds = map[codec.ChangeKind]string{
	codec.ChangeRenewed: "renewed", codec.ChangeShortened: "shortened", codec.ChangeReleased: "released", codec.ChangeFailed: "failed",
	codec.ChangePostponed: "postponed", codec.ChangeTaken: "taken back",
}

var endCauses = map[codec.EndCause]string{codec.EndExpired: "expired", codec.EndFenced: "fenced", codec.EndLeft: "left"}

// word is the name of a number of an enumeration.
func word[K interface{ ~uint8 }](words map[K]string, k K) string {
	if w, ok := words[k]; ok {
		return w
	}
	return fmt.Sprintf("kind %d", k)
}

// runText is a run of offsets of one queue.
func runText(queue uint16, offset uint64, count uint64) string {
	if count == 1 {
		return fmt.Sprintf("%d:%d", queue, offset)
	}
	return fmt.Sprintf("%d:%d-%d", queue, offset, offset+count-1)
}

// detail is a head and the first of a list.
type detail struct {
	strings.Builder
	n int
}

func (t *detail) item(format string, args ...any) {
	if t.n++; t.n <= mostRuns {
		t.WriteString(" ")
		fmt.Fprintf(t, format, args...)
	}
}

func (t *detail) text() string {
	if t.n > mostRuns {
		fmt.Fprintf(t, " and %d more", t.n-mostRuns)
	}
	return t.String()
}

func (d *describer) leases(l *Line, rec *decoded) {
	var t detail
	switch {
	case rec.grant != nil:
		r := rec.grant
		topic := d.of(l, r.Sub)
		d.session(l, r.Session)
		fmt.Fprintf(&t, "sub %d, token %d-%d, until %d:", r.Sub, l.Epoch, r.Number, r.DeadlineMs)
		for _, run := range r.Runs {
			d.touched.run(topic, run.Queue, run.Offset, uint64(run.Count))
			t.item("%s %s", runText(run.Queue, run.Offset, uint64(run.Count)), word(runKinds, run.Kind))
		}
	case rec.settle != nil:
		r := rec.settle
		topic := d.of(l, r.Sub)
		d.session(l, r.Session)
		fmt.Fprintf(&t, "sub %d:", r.Sub)
		for _, run := range r.Runs {
			d.touched.run(topic, run.Queue, run.Offset, uint64(run.Count))
			t.item("%s by %s", runText(run.Queue, run.Offset, uint64(run.Count)), token(run.Token))
		}
	case rec.change != nil:
		r := rec.change
		topic := d.of(l, r.Sub)
		d.session(l, r.Session)
		fmt.Fprintf(&t, "sub %d:", r.Sub)
		for _, e := range r.Entries {
			d.touched.run(topic, e.Queue, e.Offset, 1)
			t.item("%d:%d by %s %s, at %d", e.Queue, e.Offset, token(e.Token), word(changeKinds, e.Kind), e.AtMs)
		}
	case rec.expire != nil:
		fmt.Fprintf(&t, "%d leases:", len(rec.expire.Entries))
		d.releases(l, &t, rec.expire.Entries)
	case rec.unreadable != nil:
		r := rec.unreadable
		topic := d.of(l, r.Sub)
		d.touched.run(topic, r.Queue, r.Offset, 1)
		fmt.Fprintf(&t, "sub %d: %d:%d by %s", r.Sub, r.Queue, r.Offset, token(r.Token))
	}
	l.Detail = t.text()
}

// releases lists leases that end without their holder's word. They may be of several subscriptions; a line has a topic
// and a group if all are of one.
func (d *describer) releases(l *Line, t *detail, entries []codec.ReleaseEntry) {
	for i, e := range entries {
		var own Line
		topic := d.of(&own, e.Sub)
		d.touched.run(topic, e.Queue, e.Offset, 1)
		t.item("sub %d %d:%d by %s", e.Sub, e.Queue, e.Offset, token(e.Token))
		if i == 0 {
			l.Topic = own.Topic
			if l.Group == "" {
				l.Group = own.Group
			}
		}
		if own.Topic != l.Topic {
			l.Topic = ""
		}
		if own.Group != l.Group {
			l.Group = ""
		}
	}
}

var ops = map[codec.Op]string{codec.OpCreate: "create", codec.OpUpdate: "update", codec.OpDelete: "delete", codec.OpPurge: "purge"}

func (d *describer) others(l *Line, rec *decoded) {
	var t detail
	switch {
	case rec.topic != nil:
		r := rec.topic
		l.Topic = d.names.topic(r.ID)
		d.touched.wholeTopic(r.ID)
		fmt.Fprintf(&t, "%s topic %d", word(ops, r.Op), r.ID)
		if r.Op == codec.OpCreate || r.Op == codec.OpUpdate {
			fmt.Fprintf(&t, ", %d queues", r.Queues)
		}
	case rec.group != nil:
		r := rec.group
		l.Group = d.names.group(r.ID)
		d.touched.groups = append(d.touched.groups, r.ID)
		fmt.Fprintf(&t, "%s group %d", word(ops, r.Op), r.ID)
	case rec.subscribe != nil:
		r := rec.subscribe
		d.of(l, r.Sub)
		fmt.Fprintf(&t, "sub %d, %d filter tags, starts at %v", r.Sub, len(r.Filter), r.Starts[:min(len(r.Starts), mostRuns)])
	case rec.retain != nil:
		r := rec.retain
		if r.LogStart != 0 {
			fmt.Fprintf(&t, "log start %d, ", r.LogStart)
		}
		fmt.Fprintf(&t, "%d queues begin:", len(r.Queues))
		for _, q := range r.Queues {
			if q.Begin > 0 {
				d.touched.run(q.Topic, q.Queue, 0, q.Begin)
			}
			t.item("%s %d at %d", d.names.topic(q.Topic), q.Queue, q.Begin)
		}
	case rec.sessionStart != nil:
		r := rec.sessionStart
		l.Group = d.names.group(r.Group)
		d.touched.groups = append(d.touched.groups, r.Group)
		d.session(l, r.Session)
		fmt.Fprintf(&t, "consumer %q, client %q", r.ConsumerID, r.ClientInfo)
	case rec.sessionEnd != nil:
		r := rec.sessionEnd
		d.session(l, r.Session)
		if g, ok := d.names.sessions[r.Session]; ok {
			l.Group = d.names.group(g)
			d.touched.groups = append(d.touched.groups, g)
		}
		fmt.Fprintf(&t, "%s, releases %d:", word(endCauses, r.Cause), len(r.Releases))
		group := l.Group
		d.releases(l, &t, r.Releases)
		if group != "" {
			l.Group = group
		}
	}
	l.Detail = t.text()
}
