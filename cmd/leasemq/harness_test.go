package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/leasemq/leasemq/bench"
	"github.com/leasemq/leasemq/client"
)

// asProgramEnv makes the test binary behave as leasemq itself, so that brokers are real processes.
const asProgramEnv = "LEASEMQ_TEST_AS_PROGRAM"

// patience is a bound for what normally takes milliseconds.
const patience = 60 * time.Second

func TestMain(m *testing.M) {
	if os.Getenv(asProgramEnv) == "1" {
		main()
	}
	os.Setenv(asProgramEnv, "1")
	os.Setenv(verifyEnv, "1")
	os.Exit(m.Run())
}

// startBroker starts a broker process that is gone when the test ends.
func startBroker(t *testing.T, dir, listen string, args ...string) *bench.Child {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	// The io mode is given since a probe of the disk for each test would only take time.
	b, err := bench.StartChild(ctx, bench.ChildOptions{
		Dir: dir, Listen: listen, Args: append([]string{"--io", "staged", "--segment-size", "32MiB"}, args...),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Kill(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("last lines of broker %d:\n%s", b.PID(), b.LastLines())
		}
	})
	return b
}

// restart kills a broker as kill -9 does and starts it again, on the same directory and port.
func restart(t *testing.T, b *bench.Child) *bench.Child {
	t.Helper()
	if err := b.Kill(); err != nil {
		t.Fatal(err)
	}
	return startBroker(t, b.Dir, b.Addr)
}

// result is what a command left behind.
type result struct {
	code           int
	stdout, stderr string
}

// leasemq runs a command in this process; only brokers need one of their own.
func leasemq(t *testing.T, input io.Reader, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var stdout, stderr bytes.Buffer
	code := run(ctx, args, input, &stdout, &stderr)
	return result{code, stdout.String(), stderr.String()}
}

// at runs a command against b, which must succeed.
func at(t *testing.T, b *bench.Child, input string, args ...string) result {
	t.Helper()
	r := leasemq(t, strings.NewReader(input), append(args, "--addr", b.Addr)...)
	if r.code != exitOK {
		t.Fatalf("leasemq %s: exit code %d\n%s", strings.Join(args, " "), r.code, r.stderr)
	}
	return r
}

func dial(t *testing.T, b *bench.Child) *client.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := client.Dial(ctx, b.Addr, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// object decodes one JSON object.
func object(t *testing.T, text string) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	return m
}
