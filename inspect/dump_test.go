package inspect_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasemq/leasemq/broker"
	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/inspect"
)

func types(lines []*inspect.Line) (list []string) {
	for _, l := range lines {
		list = append(list, l.Type)
	}
	return list
}

func TestDumpPrintsEveryRecord(t *testing.T) {
	// Given a log with a bit of everything,
	r := newRig(t, nil)
	r.busy()
	if err := r.c.DeleteTopic(t.Context(), "mail"); err != nil {
		t.Fatal(err)
	}
	r.advance(time.Second)
	r.stop()
	// when it is dumped, then each record is there, in order, as often as Verify counts them,
	lines := r.dump(inspect.Filter{})
	report := r.clean("stopped")
	count := map[string]int64{}
	for i, l := range lines {
		count[l.Type]++
		if i > 0 && (l.Position <= lines[i-1].Position || l.Position != lines[i-1].Position+uint64(lines[i-1].Size)) {
			t.Fatalf("record at %d behind one at %d of %d bytes", l.Position, lines[i-1].Position, lines[i-1].Size)
		}
		if l.Epoch == 0 || l.Stored.Before(clockStart) {
			t.Fatalf("%+v", l)
		}
	}
	if fmt.Sprint(count) != fmt.Sprint(report.RecordsByType) || int64(len(lines)) != report.Records {
		t.Fatalf("%v, verify counts %v", count, report.RecordsByType)
	}
	// and says what it is about, by name.
	want := map[string]string{
		"TOPIC": "create topic 1, 8 queues", "GROUP": "create group 1", "SUBSCRIBE": "sub 1, ", "SESSION_START": "consumer ",
		"GRANT": "sub 1, token ", "SETTLE": "sub 1: ", "SESSION_END": "left, releases 5: sub 2 ",
	}
	seen := map[string]bool{}
	for _, l := range lines {
		if w, ok := want[l.Type]; ok && !seen[l.Type] {
			seen[l.Type] = true
			if !strings.HasPrefix(l.Detail, w) {
				t.Errorf("%s: %q does not begin with %q", l.Type, l.Detail, w)
			}
		}
		if strings.Contains(l.Topic+l.Group, "#") {
			t.Errorf("%s at %d is about %q %q", l.Type, l.Position, l.Topic, l.Group)
		}
	}
	if len(seen) != len(want) {
		t.Errorf("only %v", seen)
	}
	message := r.dump(inspect.Filter{Types: []codec.Type{codec.TypeMessage}, Limit: 1})[0]
	if message.Topic != "orders" || message.Queue == nil || *message.Offset != 0 || message.Key != "k-body 0" || message.Tag != "blue" ||
		message.Born == nil || !message.Born.Equal(message.Stored) || message.Body != nil {
		t.Errorf("%+v", message)
	}
}

func TestDumpFilters(t *testing.T) {
	r := newRig(t, nil)
	s, held := r.busy()
	session := s.ID()
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.advance(time.Minute)
	late := r.clock.Wall()
	r.send("orders", "late one")
	r.stop()
	d := held[0]
	queue := uint16(d.Queue)
	all := r.dump(inspect.Filter{})
	// The story of one message: sent, granted, given back when the session ended.
	story := inspect.Filter{Topic: "orders", Queue: &queue, Offsets: &inspect.OffsetRange{From: d.Offset, To: d.Offset}}
	if got := types(r.dump(story)); !slices.Equal(got, []string{"MESSAGE", "GRANT", "SESSION_END"}) {
		t.Errorf("the story is %v", got)
	}
	id := idOf(t, d.ID.String())
	by := func(what string, f inspect.Filter, want func(l *inspect.Line) bool) {
		t.Helper()
		var expected []uint64
		for _, l := range all {
			if want(l) {
				expected = append(expected, l.Position)
			}
		}
		var got []uint64
		for _, l := range r.dump(f) {
			got = append(got, l.Position)
		}
		if len(expected) == 0 || !slices.Equal(got, expected) {
			t.Errorf("%s: %v, should be %v", what, got, expected)
		}
	}
	middle := all[len(all)/2].Position
	by("from", inspect.Filter{From: middle}, func(l *inspect.Line) bool { return l.Position >= middle })
	by("from between records", inspect.Filter{From: middle - 3}, func(l *inspect.Line) bool { return l.Position >= middle })
	by("to", inspect.Filter{To: middle}, func(l *inspect.Line) bool { return l.Position < middle })
	by("types", inspect.Filter{Types: []codec.Type{codec.TypeGrant, codec.TypeTopic}}, func(l *inspect.Line) bool { return l.Type == "GRANT" || l.Type == "TOPIC" })
	by("topic", inspect.Filter{Topic: "mail"}, func(l *inspect.Line) bool { return l.Topic == "mail" })
	by("topic by id", inspect.Filter{Topic: "#2"}, func(l *inspect.Line) bool { return l.Topic == "mail" })
	by("group", inspect.Filter{Group: "others"}, func(l *inspect.Line) bool { return l.Group == "others" })
	by("session", inspect.Filter{Session: session}, func(l *inspect.Line) bool { return l.Session == fmt.Sprint(session) })
	by("id", inspect.Filter{ID: &id}, func(l *inspect.Line) bool { return l.ID == d.ID.String() })
	by("key", inspect.Filter{Key: "k-body 7"}, func(l *inspect.Line) bool { return l.Key == "k-body 7" })
	by("since", inspect.Filter{Since: late}, func(l *inspect.Line) bool { return !l.Stored.Before(late) })
	by("until", inspect.Filter{Until: late}, func(l *inspect.Line) bool { return l.Stored.Before(late) })
	by("offsets", inspect.Filter{Types: []codec.Type{codec.TypeMessage}, Offsets: &inspect.OffsetRange{From: 1, To: 2}},
		func(l *inspect.Line) bool { return l.Offset != nil && (*l.Offset == 1 || *l.Offset == 2) })
	by("combined", inspect.Filter{Types: []codec.Type{codec.TypeMessage}, Topic: "orders", Queue: &queue, Since: late.Add(-time.Hour), Until: late},
		func(l *inspect.Line) bool {
			return l.Topic == "orders" && l.Queue != nil && *l.Queue == queue && l.Stored.Before(late)
		})
	if got := r.dump(inspect.Filter{UniqueKey: "none"}); len(got) != 0 {
		t.Errorf("%d records have a unique key that nobody gave", len(got))
	}
	if got := r.dump(inspect.Filter{Limit: 5}); len(got) != 5 || got[4].Position != all[4].Position {
		t.Errorf("%d records", len(got))
	}
	if got := r.dump(inspect.Filter{ID: &id, Body: true}); len(got) != 1 || !strings.HasPrefix(string(got[0].Body), "body ") {
		t.Errorf("%+v", got)
	}
}

// Names are known where the records that gave them are gone: from the snapshot; and where there is none, from what lies before.
func TestDumpKnowsNames(t *testing.T) {
	t.Run("whose records are gone", func(t *testing.T) {
		r := shortened(t)
		r.kill()
		lines := r.dump(inspect.Filter{})
		if lines[0].Position <= segmentBytes || !slices.ContainsFunc(lines, func(l *inspect.Line) bool { return l.Type == "GRANT" && l.Group == "workers" && l.Topic == "orders" }) {
			t.Fatalf("the log begins at %d, %v", lines[0].Position, types(lines))
		}
		// A copy was born before it was stored.
		copies := r.dump(inspect.Filter{Types: []codec.Type{codec.TypeCopy}, Topic: "orders"})
		if len(copies) != 2 || copies[0].Born == nil || !copies[0].Born.Before(copies[0].Stored) || copies[0].Detail == "" {
			t.Fatalf("%+v", copies)
		}
		id := idOf(t, copies[1].ID)
		if got := r.dump(inspect.Filter{ID: &id}); len(got) != 1 || got[0].Position != copies[1].Position {
			t.Fatalf("%+v", got)
		}
	})
	t.Run("without a snapshot", func(t *testing.T) {
		r := newRig(t, nil)
		r.busy()
		r.fill("orders", 3)
		r.kill()
		lines := r.dump(inspect.Filter{From: 2*segmentBytes + 64, Types: []codec.Type{codec.TypeMessage}})
		if len(lines) == 0 || lines[0].Topic != "orders" {
			t.Fatalf("%+v", lines)
		}
	})
	t.Run("nowhere", func(t *testing.T) {
		r := shortened(t)
		r.kill()
		if err := os.RemoveAll(r.path("snapshots")); err != nil {
			t.Fatal(err)
		}
		lines := r.dump(inspect.Filter{Types: []codec.Type{codec.TypeMessage}})
		if len(lines) == 0 || lines[0].Topic != "#1" {
			t.Fatalf("%+v", lines)
		}
	})
}

func TestDumpStops(t *testing.T) {
	r := newRig(t, func(o *broker.Options) {})
	r.busy()
	r.kill()
	// What the caller says ends it,
	full := errors.New("the disk is full")
	if _, _, err := inspect.Dump(t.Context(), r.o.Dir, &inspect.Filter{}, func(*inspect.Line) error { return full }); !errors.Is(err, full) {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	_, _, err := inspect.Dump(ctx, r.o.Dir, &inspect.Filter{}, func(*inspect.Line) error {
		n++
		cancel()
		return nil
	})
	if !errors.Is(err, context.Canceled) || n != 1 {
		t.Fatalf("%d records, %v", n, err)
	}
	// and damage, which is told.
	lines := r.dump(inspect.Filter{})
	path, off := r.segmentOf(lines[20].Position)
	flip(t, path, off+65)
	n = 0
	tail, ended, err := inspect.Dump(t.Context(), r.o.Dir, &inspect.Filter{}, func(*inspect.Line) error { n++; return nil })
	if err != nil || !ended || n != 20 || tail.Damage == nil || tail.Damage.Position != lines[20].Position || tail.BehindRecords != len(lines)-21 {
		t.Fatalf("%d records, %t, %v, %+v", n, ended, err, tail)
	}
}
