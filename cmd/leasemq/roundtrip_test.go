package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// awkwardText is a text of many lines, among them all that line readers stumble over; its last line lacks a newline.
func awkwardText(lines int) string {
	random := rand.New(rand.NewPCG(7, 7))
	var b strings.Builder
	b.WriteString("\n\n \nplain\r\n\x00\xff\xfe\n")
	b.WriteString(strings.Repeat("long ", 200_000) + "\n") // over the reader's buffer, over the compression threshold
	for i := range lines {
		fmt.Fprintf(&b, "line %d %x\n", i, random.Uint64())
		if i%50 == 0 {
			b.WriteString("the same line\n")
		}
	}
	b.WriteString("no newline behind this")
	return b.String()
}

func TestTextComesBackInOrderAfterKill(t *testing.T) {
	text := awkwardText(20_000)
	b := startBroker(t, t.TempDir(), "")
	at(t, b, "", "topic", "create", "lines", "--queues", "1")
	sent := at(t, b, text, "send", "--topic", "lines")
	if want := fmt.Sprintf("sent %d messages", strings.Count(text, "\n")+1); !strings.HasPrefix(sent.stderr, want) {
		t.Errorf("%q does not begin with %q", sent.stderr, want)
	}
	b = restart(t, b)
	if got := at(t, b, "", "pop", "--topic", "lines", "--group", "g", "--until-empty"); got.stdout != text+"\n" {
		t.Fatalf("%d bytes came back of %d, or others", len(got.stdout), len(text)+1)
	}
	again := at(t, b, "", "pop", "--topic", "lines", "--group", "g", "--until-empty")
	if again.stdout != "" || !strings.HasPrefix(again.stderr, "0 messages; nothing more is ready, 0 are leased, 0 wait") {
		t.Errorf("a second pop gave %q, and says %q", again.stdout, again.stderr)
	}
	if other := at(t, b, "", "pop", "--topic", "lines", "--group", "other", "--until-empty"); other.stdout != text+"\n" {
		t.Error("another group does not see every message")
	}
}

func TestTextComesBackAsAMultisetFromEightQueues(t *testing.T) {
	text := awkwardText(20_000)
	b := startBroker(t, t.TempDir(), "", "--fsync", "interval")
	at(t, b, text, "send", "--topic", "lines") // which makes the topic
	b = restart(t, b)
	got := at(t, b, "", "pop", "--topic", "lines", "--group", "g", "--until-empty")
	have, want := strings.Split(got.stdout, "\n"), strings.Split(text+"\n", "\n")
	slices.Sort(have)
	slices.Sort(want)
	if !slices.Equal(have, want) {
		t.Fatalf("%d lines came back of %d, or others", len(have), len(want))
	}
	for _, row := range strings.Split(strings.TrimSpace(at(t, b, "", "topic", "list").stdout), "\n")[1:] {
		if f := strings.Fields(row); f[0] != "lines" || f[1] != "8" || f[2] != fmt.Sprint(len(want)-1) {
			t.Errorf("topic list says %q", row)
		}
	}
}

func TestMessagesAsJSONComeBackWhole(t *testing.T) {
	b := startBroker(t, t.TempDir(), "")
	at(t, b, "", "topic", "create", "t", "--queues", "1")
	input := `{"key":"k","tag":"red","order_key":"o","properties":{"b":"2","a":"1"},"body":"two\nlines <&>"}

{"tag":"blue","body_base64":"AP8="}
{}
`
	at(t, b, input, "send", "--topic", "t", "--format", "jsonl")
	got := at(t, b, "", "pop", "--topic", "t", "--group", "g", "--until-empty", "-o", "json").stdout
	lines := strings.Split(strings.TrimSuffix(got, "\n"), "\n")
	if len(lines) != 3 {
		t.Fatalf("got %d lines: %s", len(lines), got)
	}
	first, second, third := object(t, lines[0]), object(t, lines[1]), object(t, lines[2])
	for name, want := range map[string]any{
		"topic": "t", "offset": 0.0, "key": "k", "tag": "red", "order_key": "o", "attempt": 1.0,
		"body": "two\nlines <&>",
	} {
		if first[name] != want {
			t.Errorf("%s is %v, not %v", name, first[name], want)
		}
	}
	if p, _ := first["properties"].(map[string]any); len(p) != 2 || p["a"] != "1" || p["b"] != "2" {
		t.Errorf("properties are %v", first["properties"])
	}
	if _, isText := first["token"].(string); !isText {
		t.Errorf("token is %v, not a string", first["token"])
	}
	if second["body_base64"] != "AP8=" || second["body"] != nil {
		t.Errorf("bytes that are no text came as %v", second)
	}
	if third["body"] != "" {
		t.Errorf("an empty message came as %v", third)
	}
	if red := at(t, b, "", "pop", "--topic", "t", "--group", "reds", "--tag", "red", "--until-empty"); red.stdout != "two\nlines <&>\n" {
		t.Errorf("the filter gave %q", red.stdout)
	}
	peeked := at(t, b, "", "peek", "--topic", "t", "--offset", "1", "--max", "1", "-o", "json")
	if p := object(t, peeked.stdout); p["tag"] != "blue" || p["offset"] != 1.0 || p["token"] != nil {
		t.Errorf("peek gave %v", p)
	}
	if text := at(t, b, "", "peek", "--topic", "t", "--offset", "2"); text.stdout != "2\t\n" {
		t.Errorf("peek gave %q", text.stdout)
	}
}

// brokenPipe takes some bytes and then fails, as an output that somebody has closed.
type brokenPipe struct{ left int }

func (w *brokenPipe) Write(b []byte) (int, error) {
	if w.left -= len(b); w.left < 0 {
		return 0, errors.New("nobody reads any more")
	}
	return len(b), nil
}

func TestWhatCouldNotBePrintedIsNotAcked(t *testing.T) {
	b := startBroker(t, t.TempDir(), "")
	at(t, b, "", "topic", "create", "t", "--queues", "1")
	at(t, b, "first\nsecond\nthird\n", "send", "--topic", "t")
	pop := []string{"pop", "--topic", "t", "--group", "g", "--addr", b.Addr}

	one := leasemq(t, nil, pop...)
	if one.stdout != "first\n" {
		t.Fatalf("a pop without --max gave %q", one.stdout)
	}
	var stderr strings.Builder
	code := run(context.Background(), append(pop, "--until-empty"), nil, &brokenPipe{left: 3}, &stderr)
	if code != exitError || !strings.Contains(stderr.String(), "nobody reads any more") {
		t.Fatalf("exit code %d, %s", code, stderr.String())
	}
	if rest := leasemq(t, nil, append(pop, "--until-empty")...); rest.stdout != "second\nthird\n" {
		t.Errorf("what could not be printed came back as %q (%s)", rest.stdout, rest.stderr)
	}
}

func TestUntilEmptyCountsWhatOthersHold(t *testing.T) {
	b := startBroker(t, t.TempDir(), "")
	at(t, b, "", "topic", "create", "t", "--queues", "1")
	at(t, b, "1\n2\n3\n4\n", "send", "--topic", "t")
	s, held := popOne(t, dial(t, b), "g", "t", 0)
	_, back := popOne(t, dial(t, b), "g", "t", 0)
	if err := back.session.Release(within(t), back.Delivery, patience); err != nil {
		t.Fatal(err)
	}
	got := at(t, b, "", "pop", "--topic", "t", "--group", "g", "--until-empty")
	if got.stdout != "3\n4\n" || !strings.HasPrefix(got.stderr, "2 messages; nothing more is ready, 1 are leased, 1 wait") {
		t.Errorf("got %q, and %q", got.stdout, got.stderr)
	}
	if _, err := s.Ack(within(t), held.Delivery); err != nil {
		t.Error(err)
	}
}
