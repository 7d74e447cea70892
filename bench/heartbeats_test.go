package bench

import (
	"bufio"
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasemq/leasemq/protocol"
)

// heartTo is a heart whose broker answers request n when answer returns, with the frames that that says; with none it closes the
// connection.
func heartTo(t *testing.T, answer func(n int, h protocol.Header) []protocol.Header) *heart {
	t.Helper()
	mine, theirs := net.Pipe()
	t.Cleanup(func() { mine.Close() })
	go func() {
		defer theirs.Close()
		in := bufio.NewReader(theirs)
		for n := 0; ; n++ {
			head := make([]byte, protocol.HeaderBytes)
			if _, err := io.ReadFull(in, head); err != nil {
				return
			}
			h, err := protocol.ParseHeader(head)
			if err != nil {
				return
			}
			if _, err := io.CopyN(io.Discard, in, int64(h.BodyLen)); err != nil {
				return
			}
			answers := answer(n, h)
			if len(answers) == 0 {
				return
			}
			for _, a := range answers {
				if _, err := theirs.Write(a.Append(nil)); err != nil {
					return
				}
			}
		}
	}()
	return &heart{conn: mine, in: bufio.NewReader(mine)}
}

// A broker that stands still for a second: the heartbeats that were due meanwhile tell of it, too.
func TestAStallOfHeartbeatsIsNotHidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := heartTo(t, func(n int, h protocol.Header) []protocol.Header {
			time.Sleep(time.Millisecond)
			if n == heartbeatRate {
				time.Sleep(time.Second)
			}
			return []protocol.Header{{Opcode: protocol.OpHeartbeat, Flags: protocol.FlagPush}, {Opcode: h.Opcode, Flags: protocol.FlagAnswer, RequestID: h.RequestID}}
		})
		lane := newLane("heartbeat", 0)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second-time.Millisecond)
		defer cancel()
		if err := h.beat(ctx, 1, lane, lane.Recorder()); err != nil {
			t.Fatal(err)
		}
		r := lane.rate()
		if r.Messages != 3*heartbeatRate || r.Errors != 0 {
			t.Errorf("%d heartbeats, %d errors", r.Messages, r.Errors)
		}
		// A third was due in the stall, and waited for half of it on average.
		if r.P50 > 1001 || r.P90 < 500_000 || r.Max < 1_001_000 || r.Max > 1_010_000 {
			t.Errorf("p50 %v, p90 %v, max %v us", r.P50, r.P90, r.Max)
		}
	})
}

// A refusal is the end of the measurement, and so are an answer to something else and a lost connection.
func TestHeartbeatsThatFail(t *testing.T) {
	for want, answers := range map[string]func(h protocol.Header) []protocol.Header{
		protocol.SessionNotFound.String(): func(h protocol.Header) []protocol.Header {
			return []protocol.Header{{Opcode: h.Opcode, Flags: protocol.FlagAnswer, Status: protocol.SessionNotFound, RequestID: h.RequestID}}
		},
		"answer to 77": func(h protocol.Header) []protocol.Header {
			return []protocol.Header{{Opcode: h.Opcode, Flags: protocol.FlagAnswer, RequestID: 77}}
		},
		"HEARTBEAT: EOF": func(protocol.Header) []protocol.Header { return nil },
	} {
		synctest.Test(t, func(t *testing.T) {
			h := heartTo(t, func(_ int, h protocol.Header) []protocol.Header { return answers(h) })
			lane := newLane("heartbeat", 0)
			err := h.beat(t.Context(), 1, lane, lane.Recorder())
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, not %s", err, want)
			}
			if r := lane.rate(); r.Messages != 0 || r.Errors != 1 {
				t.Errorf("%+v", r)
			}
		})
	}
}
