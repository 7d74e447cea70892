package broker

import (
	"fmt"
	"testing"
	"time"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
)

func fromProducer(producer, sequence uint64, body string) codec.Message {
	return codec.Message{ProducerID: producer, Sequence: sequence, Body: []byte(body)}
}

func keyed(key, body string) codec.Message { return codec.Message{UniqueKey: key, Body: []byte(body)} }

func TestARepeatedSendGetsTheFirstAnswer(t *testing.T) {
	for _, how := range []string{"running", "killed", "killed behind a snapshot", "stopped"} {
		t.Run(how, func(t *testing.T) {
			// Given messages of a producer that were stored, out of their order,
			r := newRig(t, nil)
			c := r.dial()
			first := c.send("jobs", fromProducer(7, 1, "a"), fromProducer(7, 3, "c"), fromProducer(8, 1, "other"))
			switch how {
			case "killed":
				r.restart()
			case "killed behind a snapshot":
				r.take()
				r.restart()
			case "stopped":
				if err := r.e.Close(); err != nil {
					t.Fatal(err)
				}
				r.open()
			}
			c = r.dial()
			// when they are sent again, one of them twice in a batch with one that is new,
			again := c.send("jobs", fromProducer(7, 3, "c"), fromProducer(7, 1, "a"), fromProducer(7, 2, "b"), fromProducer(7, 2, "b"), fromProducer(8, 1, "other"))
			// then each gets the answer that it got first, and is there once.
			for i, want := range []protocol.SendResult{first[1], first[0], again[2], again[2], first[2]} {
				if again[i] != want || again[i].Status != protocol.OK {
					t.Errorf("message %d: %+v, want %+v", i, again[i], want)
				}
			}
			if n := r.e.stats.duplicateSends.Load(); n != 4 {
				t.Errorf("%d repeated sends are counted", n)
			}
			r.takeAll("jobs", 4)
		})
	}
}

func TestASequenceBelowTheWindowIsNeverOK(t *testing.T) {
	r := newRig(t, nil)
	c := r.dial()
	c.send("jobs", fromProducer(7, 1, "a"))
	c.send("jobs", fromProducer(7, 1_000_000, "b"))
	for range 2 {
		for _, sequence := range []uint64{1, 2, 900_000} {
			if res := c.send("jobs", fromProducer(7, sequence, "?")); res[0].Status != protocol.SeqTooOld {
				t.Fatalf("sequence %d: %s", sequence, res[0].Status)
			}
		}
		r.restart()
		c = r.dial()
	}
	if res := c.send("jobs", fromProducer(7, 999_999, "c")); res[0].Status != protocol.OK {
		t.Fatalf("one in the window: %s", res[0].Status)
	}
	r.takeAll("jobs", 3)
}

func TestUniqueKeys(t *testing.T) {
	// Given a topic in which a key stands for a minute,
	r := newRig(t, nil)
	c := r.dial()
	c.ok(protocol.OpCreateTopic, 0, &protocol.CreateTopicRequest{Name: "jobs", Queues: 4, UniqueKeyMs: 60_000}, nil)
	first := c.send("jobs", keyed("k", "1"), keyed("l", "2"))
	// when the key comes again within it, in this topic and in another, before and after a restart,
	for range 2 {
		if res := c.send("jobs", keyed("k", "again")); res[0] != first[0] {
			t.Fatalf("%+v, want %+v", res[0], first[0])
		}
		r.restart()
		c = r.dial()
	}
	if res := c.send("others", keyed("k", "elsewhere")); res[0].Status != protocol.OK || res[0].MessageID == first[0].MessageID {
		t.Fatalf("in another topic: %+v", res[0])
	}
	// then the message is not stored; but it is when the minute is over, or when the topic was emptied.
	r.advance(61 * time.Second)
	second := c.send("jobs", keyed("k", "later"))
	if second[0].MessageID == first[0].MessageID {
		t.Fatal("the key stood for longer than it should")
	}
	c.ok(protocol.OpPurgeTopic, 0, &protocol.NameRequest{Name: "jobs"}, nil)
	if third := c.send("jobs", keyed("k", "afresh")); third[0].MessageID == second[0].MessageID || third[0].Status != protocol.OK {
		t.Fatalf("after a purge: %+v", third[0])
	}
	r.takeAll("jobs", 1)
}

// BenchmarkSendNumbered is what the numbers of a producer cost in a batch of 64.
func BenchmarkSendNumbered(b *testing.B) {
	for _, producer := range []uint64{0, 9} {
		b.Run(fmt.Sprint("producer", producer), func(b *testing.B) {
			r := newRig(b, func(o *Options) { o.Verify, o.SegmentBytes, o.RingBytes = false, 64<<20, 64<<20 })
			c := r.dial()
			c.sendBodies("jobs", "first")
			sequence := uint64(0)
			b.ResetTimer()
			for range b.N {
				req := protocol.SendRequest{Topic: "jobs", Queue: protocol.AnyQueue}
				for range 64 {
					m := codec.Message{Body: make([]byte, 128)}
					if producer != 0 {
						sequence++
						m.ProducerID, m.Sequence = producer, sequence
					}
					p, err := m.Append(nil)
					if err != nil {
						b.Fatal(err)
					}
					req.Messages = append(req.Messages, p)
				}
				c.ok(protocol.OpSend, 0, &req, nil)
			}
		})
	}
}
