package inspect_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/leasemq/leasemq/broker"
	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/inspect"
)

func TestACleanDirectoryHasNoFindings(t *testing.T) {
	r := newRig(t, nil)
	// A new one, beside its broker,
	r.clean("new")
	// a busy one beside its broker, killed, and stopped in order, again and again,
	for round := range 3 {
		r.busy()
		r.clean("beside a running broker")
		if round == 1 {
			r.snapshot()
			r.busy()
		}
		r.clean("beside a running broker, after a snapshot")
		r.kill()
		report := r.clean("killed")
		if report.Messages == 0 || report.Topics != 2 || report.Queues != 16 || report.RecordsByType["GRANT"] == 0 || strings.Contains(report.HowItEnds, "cleanly") {
			t.Fatalf("%+v", report)
		}
		r.open()
		r.stop()
		report = r.clean("stopped")
		if report.HowItEnds != "cleanly stopped" || len(report.Notes) != 0 || report.IndexEntries != report.Messages {
			t.Fatalf("%+v", report)
		}
		r.open()
	}
	// and one in which topics were emptied, deleted and given more queues.
	if err := r.c.UpdateTopic(t.Context(), "orders", 12); err != nil {
		t.Fatal(err)
	}
	r.send("orders", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13")
	if err := r.c.DeleteTopic(t.Context(), "mail"); err != nil {
		t.Fatal(err)
	}
	r.send("mail", "anew")
	r.clean("topics changed")
	r.kill()
	r.clean("topics changed, killed")
}

// shortened is a rig whose log has lost its beginning, and has copies of messages that lay there.
func shortened(t *testing.T) *rig {
	r := newRig(t, func(o *broker.Options) { o.Retention.Bytes = 4 * segmentBytes })
	s := r.register("workers")
	r.send("orders", "kept", "done", "kept too")
	r.fill("orders", 5)
	for range 100 {
		for _, d := range r.pop(s, "orders", 50) {
			if !strings.HasPrefix(body(t, d.Body), "kept") {
				r.ack(s, d)
			}
		}
	}
	r.removed = map[string][]byte{}
	segments, err := filepath.Glob(r.path("log", "*.log"))
	for _, path := range segments {
		if r.removed[path], err = os.ReadFile(path); err != nil {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	r.shorten()
	return r
}

func body(t *testing.T, read func() ([]byte, error)) string {
	t.Helper()
	b, err := read()
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestALogWithoutItsBeginningHasNoFindings(t *testing.T) {
	r := shortened(t)
	report := r.clean("running")
	if report.First <= segmentBytes || report.RecordsByType["COPY"] != 2 || report.RecordsByType["RETAIN"] == 0 {
		t.Fatalf("%+v", report)
	}
	r.kill()
	r.clean("killed")
	r.open()
	r.fill("orders", 5)
	s := r.register("workers")
	for range 60 {
		r.ack(s, r.pop(s, "orders", 50)...)
	}
	r.shorten() // the originals of the copies were gone; now the copies go
	r.clean("again")
	r.stop()
	r.clean("stopped")
}

// TestDamageIsFound: each kind of damage, planted in a directory of its own, is found where it is.
func TestDamageIsFound(t *testing.T) {
	type damage struct {
		what  string
		plant func(r *rig) (file string, offset int64)
		words []string
	}
	// firstOf is the position of the first record of a type, and of another one behind it.
	firstOf := func(r *rig, t codec.Type) uint64 {
		return r.dump(inspect.Filter{Types: []codec.Type{t}})[0].Position
	}
	message := func(r *rig, n int) *inspect.Line {
		return r.dump(inspect.Filter{Types: []codec.Type{codec.TypeMessage}})[n]
	}
	forged := func(t codec.Type, change func(raw []byte)) func(r *rig) (string, int64) {
		return func(r *rig) (string, int64) {
			position := firstOf(r, t)
			r.forge(position, change)
			return r.segmentOf(position)
		}
	}
	entryOf := func(r *rig, n int) (string, int64) {
		l := message(r, n)
		return r.entry(topicID(r, l.Topic), *l.Queue, *l.Offset)
	}
	for _, d := range []damage{
		{"a flipped bit in a record", func(r *rig) (string, int64) {
			path, off := r.segmentOf(message(r, 7).Position)
			flip(r.t, path, off+70)
			return path, off
		}, []string{"the log is damaged", "checksum", "promises", "good records of"}},
		{"a record of zeroes", func(r *rig) (string, int64) {
			l := message(r, 7)
			path, off := r.segmentOf(l.Position)
			overwrite(r.t, path, off, make([]byte, l.Size))
			return path, off
		}, []string{"the log is damaged"}},
		{"a segment header", func(r *rig) (string, int64) {
			path, _ := r.segmentOf(segmentBytes)
			flip(r.t, path, 20)
			return path, 0
		}, []string{"header", "good records of"}},
		{"a segment cut short", func(r *rig) (string, int64) {
			path, _ := r.segmentOf(segmentBytes)
			if err := os.Truncate(path, 1000); err != nil {
				r.t.Fatal(err)
			}
			return path, 0
		}, []string{"1000 bytes"}},
		{"a missing segment", func(r *rig) (string, int64) {
			path, _ := r.segmentOf(segmentBytes)
			if err := os.Remove(path); err != nil {
				r.t.Fatal(err)
			}
			return path, 0
		}, []string{"missing"}},
		{"a message of another identity", forged(codec.TypeMessage, func(raw []byte) { raw[codec.HeaderBytes+24]++ }),
			[]string{"carries the id", "two records for one message"}},
		{"a message that skips offsets", forged(codec.TypeMessage, func(raw []byte) { raw[codec.HeaderBytes+8] += 3 }),
			[]string{"3 messages are missing"}},
		{"a message of another queue", func(r *rig) (string, int64) {
			first, second := message(r, 0), message(r, 16) // the same topic, queue by queue
			r.forge(second.Position, func(raw []byte) {
				raw[codec.HeaderBytes+4], raw[codec.HeaderBytes+8] = byte(*first.Queue), byte(*first.Offset)
			})
			return r.segmentOf(second.Position)
		}, []string{"two records for one offset"}},
		{"a message of no topic", forged(codec.TypeMessage, func(raw []byte) { raw[codec.HeaderBytes+1] = 7 }),
			[]string{"which there is not"}},
		{"a message with another tag", forged(codec.TypeMessage, func(raw []byte) { raw[codec.HeaderBytes+16]++ }),
			[]string{"hash", "another tag"}},
		{"a message that cannot be decoded", forged(codec.TypeMessage, func(raw []byte) { raw[codec.HeaderBytes+40] = 9 }),
			[]string{"cannot be decoded"}},
		{"a grant that skips a number", forged(codec.TypeGrant, func(raw []byte) { raw[codec.HeaderBytes+4] += 2 }),
			[]string{"GRANT", "number"}},
		{"a state record that cannot be decoded", forged(codec.TypeSettle, func(raw []byte) { raw[codec.HeaderBytes+12]++ }),
			[]string{"SETTLE", "cannot be decoded"}},
		{"a snapshot", func(r *rig) (string, int64) {
			path := r.verify().Snapshots[0].Path
			flip(r.t, path, 64+20)
			return path, 64
		}, []string{"the snapshot is damaged", "checksum"}},
		{"a snapshot of another log", func(r *rig) (string, int64) {
			path := r.verify().Snapshots[0].Path
			head, err := os.ReadFile(path)
			if err != nil {
				r.t.Fatal(err)
			}
			head = head[:64]
			head[32]++ // checksum of the last record
			clear(head[12:16])
			sum := codec.Checksum(0, head)
			head[12], head[13], head[14], head[15] = byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24)
			overwrite(r.t, path, 0, head)
			return path, 0
		}, []string{"does not fit the log", "another log"}},
		{"an index entry that points to another message", func(r *rig) (string, int64) {
			path, at := entryOf(r, 0)
			overwrite(r.t, path, at, putUint64(message(r, 1).Position))
			return path, at
		}, []string{"two index entries for one message"}},
		{"an index entry that points nowhere", func(r *rig) (string, int64) {
			path, at := entryOf(r, 0)
			overwrite(r.t, path, at, putUint64(message(r, 1).Position+8))
			return path, at
		}, []string{"points nowhere"}},
		{"an index entry that points to no message", func(r *rig) (string, int64) {
			path, at := entryOf(r, 0)
			overwrite(r.t, path, at, putUint64(firstOf(r, codec.TypeGrant)))
			return path, at
		}, []string{"points to no message", "GRANT"}},
		{"an index entry with another size", func(r *rig) (string, int64) {
			path, at := entryOf(r, 3)
			flip(r.t, path, at+8)
			return path, at
		}, []string{"has size"}},
		{"an index entry with another tag", func(r *rig) (string, int64) {
			path, at := entryOf(r, 3)
			flip(r.t, path, at+16)
			return path, at
		}, []string{"tag hash"}},
		{"an index entry that is missing", func(r *rig) (string, int64) {
			path, at := entryOf(r, 0)
			overwrite(r.t, path, at, make([]byte, 32))
			return path, at
		}, []string{"has no entries for offsets 0 to 0"}},
		{"an index file that is missing", func(r *rig) (string, int64) {
			path, _ := entryOf(r, 0)
			if err := os.Remove(path); err != nil {
				r.t.Fatal(err)
			}
			return path, 0
		}, []string{"the index file is missing"}},
		{"an index entry behind the end", func(r *rig) (string, int64) {
			path, _ := entryOf(r, 0)
			overwrite(r.t, path, 32*500, putUint64(message(r, 1).Position))
			return path, 32 * 500
		}, []string{"has an entry for offset 500", "two index entries for one message"}},
		{"an index file that is too long", func(r *rig) (string, int64) {
			path, _ := entryOf(r, 0)
			if err := os.Truncate(path, 1<<20+4096); err != nil {
				r.t.Fatal(err)
			}
			return path, 1 << 20
		}, []string{"1052672 bytes"}},
		{"a missing receipt key", func(r *rig) (string, int64) {
			if err := os.Remove(r.path("receipt.key")); err != nil {
				r.t.Fatal(err)
			}
			return r.path("receipt.key"), 0
		}, []string{"receipt key is missing"}},
		{"a damaged receipt key", func(r *rig) (string, int64) {
			flip(r.t, r.path("receipt.key"), 3)
			return r.path("receipt.key"), 16
		}, []string{"receipt key is damaged"}},
	} {
		t.Run(d.what, func(t *testing.T) {
			// Given a directory that was stopped in order,
			r := newRig(t, nil)
			r.busy()
			r.fill("mail", 2)
			r.snapshot()
			r.busy()
			r.stop()
			r.clean("before")
			// when something is damaged, then a finding names it, its file and its offset.
			file, offset := d.plant(r)
			f := r.finds(d.words...)
			if f.File != file || f.Offset != offset {
				t.Fatalf("planted in %s at %d, found %s", file, offset, f)
			}
		})
	}
}

// topicID is the id of a topic, by its TOPIC record.
func topicID(r *rig, name string) (id uint32) {
	r.t.Helper()
	for _, l := range r.dump(inspect.Filter{Types: []codec.Type{codec.TypeTopic}, Topic: name}) {
		if _, err := fmt.Sscanf(l.Detail, "create topic %d", &id); err == nil {
			return id
		}
	}
	r.t.Fatalf("no topic %s", name)
	return 0
}

func TestACopyThatIsNoneIsFound(t *testing.T) {
	for what, c := range map[string]struct {
		change func(raw []byte)
		words  []string
	}{
		"":                    {func(raw []byte) {}, nil},
		"another place":       {func(raw []byte) { raw[codec.HeaderBytes+4]++ }, []string{"COPY", "not the same message"}},
		"another identity":    {func(raw []byte) { raw[codec.HeaderBytes+32] += 8 }, []string{"COPY", "there is no such message"}},
		"another content":     {func(raw []byte) { raw[len(raw)-1]++ }, []string{"COPY", "another content"}},
		"another birth":       {func(raw []byte) { raw[56] ^= 1 }, []string{"COPY", "born at"}},
		"of a future message": {func(raw []byte) { raw[codec.HeaderBytes+38]++ }, []string{"COPY", "later message"}},
	} {
		t.Run(what, func(t *testing.T) {
			// Given a log with copies, whose beginning is put back as if a crash had come between the copies and the removal,
			r := shortened(t)
			r.kill()
			for path, b := range r.removed {
				if _, err := os.Stat(path); err != nil {
					if err := os.WriteFile(path, b, 0o644); err != nil {
						t.Fatal(err)
					}
				}
			}
			report := r.clean("before")
			copies := r.dump(inspect.Filter{Types: []codec.Type{codec.TypeCopy}})
			if report.First != 64 || len(copies) != 2 || copies[0].Born == nil {
				t.Fatalf("%d copies, the log begins at %d", len(copies), report.First)
			}
			// when a copy says something else than its original, then that is found.
			r.forge(copies[0].Position, c.change)
			if len(c.words) == 0 {
				r.clean("unchanged")
				return
			}
			f := r.finds(c.words...)
			if path, off := r.segmentOf(copies[0].Position); f.File != path || f.Offset != off {
				t.Fatalf("%s", f)
			}
		})
	}
}

// TestAnIndexIsBuiltAnew: what docs/OPERATIONS.md says to do about a damaged index helps.
func TestAnIndexIsBuiltAnew(t *testing.T) {
	r := shortened(t)
	r.stop()
	l := r.dump(inspect.Filter{Types: []codec.Type{codec.TypeMessage}, From: r.verify().First + segmentBytes})[0]
	path, at := r.entry(1, *l.Queue, *l.Offset)
	overwrite(t, path, at, putUint64(l.Position+8))
	r.finds("points nowhere")
	if err := os.Rename(r.path("queues"), filepath.Join(t.TempDir(), "queues")); err != nil {
		t.Fatal(err)
	}
	r.finds("the index file is missing")
	r.open()
	r.stop()
	if report := r.clean("built anew"); report.IndexEntries == 0 || report.IndexEntries != report.Messages {
		t.Fatalf("%d entries of %d messages", report.IndexEntries, report.Messages)
	}
}

// What a kill may leave is noted, and no finding.
func TestATornTailIsANote(t *testing.T) {
	r := newRig(t, nil)
	r.busy()
	r.kill()
	end := r.verify().End
	path, off := r.segmentOf(end)
	overwrite(t, path, off, []byte("half a record"))
	report := r.clean("torn")
	if !strings.HasPrefix(report.HowItEnds, "torn") || len(report.Notes) == 0 {
		t.Fatalf("%s %v", report.HowItEnds, report.Notes)
	}
}

func TestMessagesThatShouldBeThere(t *testing.T) {
	// Given a log without its beginning, when one segment more is gone, then the messages of it are missing.
	r := shortened(t)
	r.stop()
	path, _ := r.segmentOf(r.verify().First)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	r.finds("topic orders queue", "and the log has no message of offset")
}

// TestBesideABusyBroker: while a broker sends, empties and deletes topics, lets old log go and takes snapshots, nothing of that
// is taken for a fault.
func TestBesideABusyBroker(t *testing.T) {
	r := newRig(t, func(o *broker.Options) {
		o.Retention.Bytes = 4 * segmentBytes
		o.Verify = false
	})
	rounds := 12
	if testing.Short() {
		rounds = 4
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range rounds {
			topic := fmt.Sprint("t", i%3)
			r.fill(topic, 2)
			r.cover()
			r.advance(11 * time.Second)
			r.e.Steward()
			if i%3 == 2 {
				if err := r.c.DeleteTopic(context.Background(), topic); err != nil {
					t.Error(err)
				}
			}
		}
	}()
	looks := 0
	for over := false; !over; looks++ {
		select {
		case <-done:
			over = true
		default:
		}
		r.clean(fmt.Sprint("look ", looks))
		r.dump(inspect.Filter{})
		if _, err := inspect.PlanRepair(t.Context(), r.o.Dir, 0); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			<-done
			break
		}
	}
	if first := r.verify().First; first == 64 {
		t.Error("no log was let go meanwhile")
	}
	t.Logf("looked %d times", looks)
}

func TestWhatStandsForTheBeginning(t *testing.T) {
	// Given a log without its beginning,
	r := shortened(t)
	r.kill()
	// when its snapshots are gone, then that is found.
	for _, s := range r.verify().Snapshots {
		if err := os.Remove(s.Path); err != nil {
			t.Fatal(err)
		}
	}
	r.finds("the log begins at position", "no good snapshot")
}

// Rot that a start does not read does not keep Verify from looking at the rest.
func TestBehindDamageItGoesOnWithTheSnapshot(t *testing.T) {
	r := newRig(t, nil)
	r.busy()
	r.snapshot()
	r.busy()
	r.stop()
	line := r.dump(inspect.Filter{Types: []codec.Type{codec.TypeMessage}})[3]
	path, off := r.segmentOf(line.Position)
	flip(t, path, off+66)
	grants := r.verify().RecordsByType["GRANT"]
	if grants == 0 {
		t.Fatal("nothing was read behind the damage")
	}
	if err := os.Remove(r.path("receipt.key")); err != nil {
		t.Fatal(err)
	}
	if report := r.verify(); len(report.Findings) != 2 {
		t.Fatalf("%v", report.Findings)
	}
}

func TestNothingToLookAt(t *testing.T) {
	if _, err := inspect.Verify(context.Background(), t.TempDir()); err == nil {
		t.Fatal("an empty directory is well")
	}
	if _, err := inspect.PlanRepair(context.Background(), t.TempDir(), 0); err == nil {
		t.Fatal("an empty directory can be repaired")
	}
	if _, _, err := inspect.Dump(context.Background(), t.TempDir(), &inspect.Filter{}, nil); err == nil {
		t.Fatal("an empty directory has a log")
	}
}
