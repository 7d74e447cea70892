package main

import (
	"encoding/json"
	"strings"
	"testing"
)

// list decodes a JSON array of objects.
func list(t *testing.T, text string) []map[string]any {
	t.Helper()
	var rows []map[string]any
	if err := json.Unmarshal([]byte(text), &rows); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	return rows
}

func TestTopicSettings(t *testing.T) {
	b := startBroker(t, t.TempDir(), "")
	topic := func() map[string]any {
		t.Helper()
		return list(t, at(t, b, "", "topic", "list", "-o", "json").stdout)[0]
	}
	want := func(queues, messages, sent, uniqueKeyMs float64) {
		t.Helper()
		got := topic()
		if got["queues"] != queues || got["messages"] != messages || got["sent"] != sent || got["unique_key_ms"] != uniqueKeyMs {
			t.Errorf("got %v, want %v queues, %v messages of %v, %v ms", got, queues, messages, sent, uniqueKeyMs)
		}
	}
	at(t, b, "", "topic", "create", "t", "--queues", "1")
	at(t, b, "one\ntwo\n", "send", "--topic", "t")
	want(1, 2, 2, 600_000)
	at(t, b, "", "topic", "update", "t", "--unique-for", "90s")
	want(1, 2, 2, 90_000)
	at(t, b, "", "topic", "update", "t", "--queues", "2")
	want(2, 2, 2, 90_000)
	purged := at(t, b, "", "topic", "purge", "t")
	if purged.stdout != "topic t purged\n" {
		t.Errorf("purge said %q", purged.stdout)
	}
	want(2, 0, 2, 90_000)
	if got := at(t, b, "", "pop", "--topic", "t", "--group", "g", "--until-empty").stdout; got != "" {
		t.Errorf("a purged topic gave %q", got)
	}
	text := strings.Split(at(t, b, "", "topic", "list").stdout, "\n")
	if got := strings.Join(strings.Fields(text[0]), " "); got != "TOPIC QUEUES MESSAGES SENT UNIQUE FOR" {
		t.Errorf("topic list begins with %q", got)
	}
	if got := strings.Join(strings.Fields(text[1]), " "); got != "t 2 0 2 1m30s" {
		t.Errorf("topic list says %q", got)
	}
	at(t, b, "", "topic", "delete", "t")
	at(t, b, "", "topic", "create", "t", "--queues", "1", "--unique-for", "1h")
	want(1, 0, 0, 3_600_000)
}

func TestGroupHold(t *testing.T) {
	b := startBroker(t, t.TempDir(), "")
	hold := func() (ms float64, text string) {
		t.Helper()
		g := object(t, at(t, b, "", "group", "show", "g", "-o", "json").stdout)
		if _, there := g["idle_ms"].(float64); !there {
			t.Errorf("no idle_ms in %v", g)
		}
		for _, line := range strings.Split(at(t, b, "", "group", "show", "g").stdout, "\n") {
			if fields := strings.Fields(line); len(fields) == 2 && fields[0] == "hold" {
				text = fields[1]
			}
		}
		return g["rules"].(map[string]any)["hold_ms"].(float64), text
	}
	for _, x := range []struct {
		change []string
		ms     float64
		text   string
	}{
		{[]string{"create", "g"}, 604_800_000, "168h0m0s"},
		{[]string{"update", "g", "--hold", "forever"}, -1, "forever"},
		{[]string{"update", "g", "--max-renewals", "5"}, -1, "forever"},
		{[]string{"update", "g", "--hold", "90m"}, 5_400_000, "1h30m0s"},
	} {
		at(t, b, "", append([]string{"group"}, x.change...)...)
		if ms, text := hold(); ms != x.ms || text != x.text {
			t.Errorf("after %v: hold %v, %q, want %v, %q", x.change, ms, text, x.ms, x.text)
		}
	}
	for _, bad := range []string{"never", "10s", "1h1us", "-5m"} {
		r := leasemq(t, nil, "group", "update", "g", "--hold", bad, "--addr", b.Addr)
		if r.code != exitUsage || !strings.Contains(r.stderr, "forever") {
			t.Errorf("--hold %s: exit code %d, %s", bad, r.code, r.stderr)
		}
	}
	at(t, b, "x\n", "send", "--topic", "t", "--queue", "0")
	at(t, b, "", "pop", "--topic", "t", "--group", "g", "--until-empty")
	g := object(t, at(t, b, "", "group", "show", "g", "-o", "json").stdout)
	if c := g["cursors"].([]any)[0].(map[string]any); c["dropped"] != 0.0 || c["settled"] != 1.0 {
		t.Errorf("cursor %v", c)
	}
	if text := at(t, b, "", "group", "show", "g").stdout; !strings.Contains(text, "DROPPED") || !strings.Contains(text, "idle, without a session") {
		t.Errorf("group show says %q", text)
	}
}

// A message that is sent twice with one unique key is there once. More lines with one key are refused unsent.
func TestSendWithUniqueKey(t *testing.T) {
	b := startBroker(t, t.TempDir(), "")
	at(t, b, "", "topic", "create", "t", "--queues", "1")
	for range 2 {
		at(t, b, "hello\n", "send", "--topic", "t", "--unique-key", "order-1")
	}
	at(t, b, "\n"+`{"body":"again"}`+"\n\n", "send", "--topic", "t", "--format", "jsonl", "--unique-key", "order-1")
	r := leasemq(t, strings.NewReader("one\ntwo\n"), "send", "--topic", "t", "--unique-key", "order-2", "--addr", b.Addr)
	if r.code != exitError || !strings.Contains(r.stderr, "one message") {
		t.Errorf("two lines: exit code %d, %s", r.code, r.stderr)
	}
	at(t, b, "", "send", "--topic", "t", "--unique-key", "order-3") // no line, no message
	rows := strings.Split(strings.TrimSpace(at(t, b, "", "pop", "--topic", "t", "--group", "g", "--until-empty", "-o", "json").stdout), "\n")
	if m := object(t, rows[0]); len(rows) != 1 || m["unique_key"] != "order-1" || m["body"] != "hello" {
		t.Errorf("stored is %v", rows)
	}
}
