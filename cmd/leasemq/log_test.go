package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/leasemq/leasemq/bench"
)

// TestALogIsLookedIntoCheckedAndRepaired goes the way of docs/OPERATIONS.md when a broker does not start.
func TestALogIsLookedIntoCheckedAndRepaired(t *testing.T) {
	// Given a running broker with some messages, two of which were popped,
	b := startBroker(t, t.TempDir(), "")
	at(t, b, "", "topic", "create", "lines", "--queues", "1")
	at(t, b, "a\nb\nc\nd\ne\n", "send", "--topic", "lines")
	at(t, b, "", "pop", "--topic", "lines", "--group", "readers", "--max", "2")
	log := func(code int, args ...string) result {
		t.Helper()
		r := leasemq(t, nil, append([]string{"log"}, append(args, "--data", b.Dir)...)...)
		if r.code != code {
			t.Fatalf("leasemq log %s: exit code %d, not %d\n%s%s", strings.Join(args, " "), r.code, code, r.stdout, r.stderr)
		}
		return r
	}
	// then its log can be looked into and is well, beside it and when it was killed.
	story := log(exitOK, "dump", "--topic", "lines", "--queue", "0", "--offset", "1", "--type", "message,grant,settle")
	if n := strings.Count(story.stdout, "\n"); n != 4 || !strings.Contains(story.stdout, "readers") {
		t.Errorf("the story of a message is\n%s", story.stdout)
	}
	log(exitOK, "verify")
	refused := log(exitError, "repair", "--at", "64", "--yes")
	if !strings.Contains(refused.stderr, "is in use by another leasemq broker") {
		t.Errorf("%s", refused.stderr)
	}
	if err := b.Kill(); err != nil {
		t.Fatal(err)
	}
	log(exitOK, "verify")
	if r := log(exitOK, "repair", "--yes"); !strings.HasPrefix(r.stdout, "nothing to repair") {
		t.Errorf("%s", r.stdout)
	}
	// Given damage to the third message,
	third := object(t, log(exitOK, "dump", "--topic", "lines", "--offset", "2", "--limit", "1", "--body", "-o", "json").stdout)
	position := int64(third["position"].(float64))
	damage(t, filepath.Join(b.Dir, "log", fmt.Sprintf("%020d.log", 0)), position+70)
	// then the broker does not start, and says what to do;
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := bench.StartChild(ctx, bench.ChildOptions{Dir: b.Dir, Args: []string{"--io", "staged"}}); err == nil {
		t.Fatal("a broker starts on a damaged log")
	}
	found := log(exitError, "verify")
	if want := fmt.Sprintf("byte %d (position %d)", position, position); !strings.HasPrefix(found.stdout, "FINDING ") || !strings.Contains(found.stdout, want) {
		t.Errorf("%q is not in\n%s", want, found.stdout)
	}
	if report := object(t, log(exitError, "verify", "-o", "json").stdout); report["good"] != false || report["how_it_ends"] != "damaged" {
		t.Errorf("%v", report)
	}
	if r := log(exitOK, "dump"); !strings.Contains(r.stderr, fmt.Sprintf("(position %d)", position)) {
		t.Errorf("%s", r.stderr)
	}
	// a repair says first what it would do,
	plan := log(exitError, "repair")
	for _, words := range []string{fmt.Sprintf("would be cut at position %d", position), "would be copied aside", "broken promise", "would then start by replaying the log from position 64"} {
		if !strings.Contains(plan.stdout, words) {
			t.Errorf("%q is not in\n%s", words, plan.stdout)
		}
	}
	// then does it,
	done := log(exitOK, "repair", "--yes")
	if !strings.Contains(done.stdout, "log dump --data "+b.Dir+" --aside") {
		t.Errorf("%s", done.stdout)
	}
	// and the broker starts with what lay before; the rest can still be looked at.
	b = startBroker(t, b.Dir, b.Addr)
	if r := at(t, b, "", "pop", "--topic", "lines", "--group", "others", "--until-empty"); r.stdout != "a\nb\n" {
		t.Errorf("there is %q", r.stdout)
	}
	aside := log(exitOK, "dump", "--aside", "--type", "MESSAGE", "--offset", "3-4", "--body")
	if !strings.Contains(aside.stdout, "# 00000000000000000000.log.aside-1\n") || !strings.Contains(aside.stdout, `"d"`) || !strings.Contains(aside.stdout, `"e"`) {
		t.Errorf("aside is\n%s", aside.stdout)
	}
	log(exitOK, "verify")
}

// damage flips a bit of a file.
func damage(t *testing.T, path string, offset int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var c [1]byte
	if _, err := f.ReadAt(c[:], offset); err != nil {
		t.Fatal(err)
	}
	c[0] ^= 4
	if _, err := f.WriteAt(c[:], offset); err != nil {
		t.Fatal(err)
	}
}

func TestLogCommandLines(t *testing.T) {
	empty := t.TempDir()
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"log", exitUsage, "needs a command"},
		{"log dump --type LETTER", exitUsage, `no record type "LETTER"`},
		{"log dump --offset 9-5", exitUsage, "neither an offset nor a range"},
		{"log dump --queue 70000", exitUsage, "no such queue"},
		{"log dump --id 17", exitUsage, "no message id"},
		{"log dump --since yesterday", exitUsage, "neither a time"},
		{"log dump --limit -1", exitUsage, "negative"},
		{"log dump --data " + empty, exitUsage, "no such file"},
		{"log verify --data " + empty, exitUsage, "no such file"},
		{"log repair --data " + empty, exitError, "no such file"},
		{"log verify --help", exitOK, ""},
	} {
		r := leasemq(t, nil, strings.Fields(c.args)...)
		if r.code != c.code || !strings.Contains(r.stderr, c.says) {
			t.Errorf("%s: exit code %d, not %d; %s", c.args, r.code, c.code, r.stderr)
		}
	}
}
