package main

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/leasemq/leasemq/protocol"
)

func TestExitCodes(t *testing.T) {
	b := startBroker(t, t.TempDir(), "")
	at(t, b, "x\n", "send", "--topic", "there")
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"", exitUsage, "needs a command"},
		{"topic", exitUsage, "needs a command"},
		{"nonsense", exitUsage, "unknown command"},
		{"topic nonsense", exitUsage, "unknown command"},
		{"topic create", exitUsage, "arg"},
		{"topic list --nonsense", exitUsage, "unknown flag"},
		{"topic list -o yaml", exitUsage, "one of text, json"},
		{"pop --topic there", exitUsage, `"group" not set`},
		{"pop --topic there --group g --max 0", exitUsage, "at least 1"},
		{"broker --segment-size 1X", exitUsage, "256MiB"},
		{"broker --fsync sometimes", exitUsage, "always, interval, never"},
		{"group create g --max-renewals -2", exitUsage, "-1 for any number"},
		{"topic --help", exitOK, ""},
		{"topic list", exitOK, ""},
		{"topic create there", exitError, "TOPIC_EXISTS"},
		{"topic create a%b", exitError, "INVALID"},
		{"topic delete nowhere", exitError, "TOPIC_NOT_FOUND"},
		{"group show nobody", exitError, "GROUP_NOT_FOUND"},
		{"peek --topic nowhere", exitError, "TOPIC_NOT_FOUND"},
		{"send --topic t --file /nonexistent/file", exitError, "no such file"},
	} {
		args := strings.Fields(c.args)
		if c.args != "" && args[0] != "broker" {
			args = append(args, "--addr", b.Addr)
		}
		r := leasemq(t, strings.NewReader(""), args...)
		if r.code != c.code || !strings.Contains(r.stderr, c.says) {
			t.Errorf("leasemq %s: exit code %d, not %d; %q in %q", c.args, r.code, c.code, c.says, r.stderr)
		}
	}
}

func TestNoBroker(t *testing.T) {
	r := leasemq(t, nil, "topic", "list", "--addr", freeAddr(t), "--timeout", "50ms")
	if r.code != exitError || !strings.Contains(r.stderr, "refused") {
		t.Errorf("exit code %d, %s", r.code, r.stderr)
	}
}

func TestLineThatCannotBeSent(t *testing.T) {
	b := startBroker(t, t.TempDir(), "")
	at(t, b, "", "topic", "create", "t", "--queues", "1")
	send := func(input string, args ...string) result {
		return leasemq(t, strings.NewReader(input), append([]string{"send", "--topic", "t", "--addr", b.Addr}, args...)...)
	}
	r := send("one\n" + strings.Repeat("x", 17<<20) + "\nthree\n")
	if r.code != exitError || !strings.Contains(r.stderr, "line 2 is longer than") || !strings.Contains(r.stderr, "sent 1 messages") {
		t.Errorf("exit code %d, %s", r.code, r.stderr)
	}
	r = send("{\"body\":\"two\"}\n{\"boddy\":\"\"}\n", "--format", "jsonl")
	if r.code != exitError || !strings.Contains(r.stderr, "line 2: ") || !strings.Contains(r.stderr, "boddy") {
		t.Errorf("exit code %d, %s", r.code, r.stderr)
	}
	r = send("never\n", "--queue", "7", "-o", "json")
	if r.code != exitError || object(t, r.stdout)["failed"] != 1.0 {
		t.Errorf("exit code %d, %s %s", r.code, r.stdout, r.stderr)
	}
	if got := at(t, b, "", "pop", "--topic", "t", "--group", "g", "--until-empty").stdout; got != "one\ntwo\n" {
		t.Errorf("stored is %q", got)
	}
}

// A broker that dies with a SEND in its hands leaves the outcome unknown.
func TestUnknownOutcome(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- dieAtSend(l) }()
	r := leasemq(t, strings.NewReader("x\n"), "send", "--topic", "t", "--addr", l.Addr().String(), "--timeout", "1s", "-o", "json")
	if err := <-served; err != nil {
		t.Fatal(err)
	}
	if r.code != exitOutcomeUnknown || object(t, r.stdout)["unknown"] != 1.0 {
		t.Errorf("exit code %d, %s %s", r.code, r.stdout, r.stderr)
	}
}

// dieAtSend answers the HELLO of one connection and closes everything at its SEND.
func dieAtSend(l net.Listener) error {
	defer l.Close()
	c, err := l.Accept()
	if err != nil {
		return err
	}
	defer c.Close()
	for {
		head := make([]byte, protocol.HeaderBytes)
		if _, err := io.ReadFull(c, head); err != nil {
			return err
		}
		h, err := protocol.ParseHeader(head)
		if err != nil {
			return err
		}
		if _, err := io.CopyN(io.Discard, c, int64(h.BodyLen)); err != nil {
			return err
		}
		if h.Opcode == protocol.OpSend {
			return nil
		}
		answer := protocol.HelloAnswer{
			Version: protocol.Version, BrokerID: "test", Epoch: 1, CreditBytes: 4 << 20,
			MaxFrameBytes: protocol.MaxFrameBytes, MaxBodyBytes: protocol.MaxBodyBytes,
		}
		frame := protocol.BeginFrame(nil, protocol.Header{Opcode: h.Opcode, Flags: protocol.FlagAnswer, RequestID: h.RequestID})
		frame = answer.Append(frame)
		protocol.EndFrame(frame, 0)
		if _, err := c.Write(frame); err != nil {
			return err
		}
	}
}

// A signal ends a send whose input is silent; what was read before is acknowledged.
func TestInterruptedSend(t *testing.T) {
	b := startBroker(t, t.TempDir(), "")
	input, feed := io.Pipe()
	defer feed.Close()
	ctx, interrupt := context.WithCancel(context.Background())
	go func() {
		io.WriteString(feed, "x\ny") // returns when both were read; y waits for the end of its line
		interrupt()
	}()
	var stdout, stderr strings.Builder
	code := run(ctx, []string{"send", "--topic", "t", "--addr", b.Addr}, input, &stdout, &stderr)
	if code != exitError || !strings.Contains(stderr.String(), "interrupted") {
		t.Errorf("exit code %d, %s", code, stderr.String())
	}
}
