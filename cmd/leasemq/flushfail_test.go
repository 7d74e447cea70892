package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/leasemq/leasemq/bench"
)

// A flush of the disk that fails ends the broker with code 3, after the clients were told; and what was
// acknowledged before is there at the next start. strace stands in for a broken disk; without it the test is skipped.
func TestFlushFailureEndsTheBroker(t *testing.T) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("no strace here to make fdatasync fail with")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	// -D leaves the broker the direct child, so that it is the broker that is killed at the end of the test.
	script := filepath.Join(t.TempDir(), "broken-disk")
	body := fmt.Sprintf("#!/bin/sh\nexec %s -D -f -o /dev/null -e trace=fdatasync -e inject=fdatasync:error=EIO:when=12+ %s \"$@\"\n", strace, self)
	if err := os.WriteFile(script, []byte(body), 0o700); err != nil {
		t.Fatal(err)
	}
	b, err := bench.StartChild(within(t), bench.ChildOptions{Program: script, Dir: dir, Args: []string{"--io", "staged"}})
	if err != nil {
		t.Skipf("processes cannot be traced here: %v", err)
	}
	t.Cleanup(func() { b.Kill() })

	at(t, b, "", "topic", "create", "t", "--queues", "1")
	acknowledged := 0
	var last result
	for ; acknowledged < 1000; acknowledged++ { // each send waits for a flush of its own
		last = leasemq(t, strings.NewReader(fmt.Sprintln(acknowledged)), "send", "--topic", "t", "--addr", b.Addr, "--timeout", "5s")
		if last.code != exitOK {
			break
		}
	}
	if last.code != exitOutcomeUnknown {
		t.Errorf("the send at the failure ended with code %d: %s", last.code, last.stderr)
	}
	if code := b.ExitCode(); code != exitStoreFailed {
		t.Errorf("the broker ended with code %d:\n%s", code, b.LastLines())
	}
	lines := strings.Split(b.LastLines(), "\n")
	if end := lines[len(lines)-1]; !strings.HasPrefix(end, "leasemq: the store failed") {
		t.Errorf("its last line is %q", end)
	}
	b = startBroker(t, dir, "")
	got := strings.Fields(at(t, b, "", "pop", "--topic", "t", "--group", "g", "--until-empty").stdout)
	if len(got) < acknowledged {
		t.Fatalf("%d messages of %d that were acknowledged are there", len(got), acknowledged)
	}
	for i, line := range got[:acknowledged] {
		if line != fmt.Sprint(i) {
			t.Fatalf("message %d is %q", i, line)
		}
	}
}
