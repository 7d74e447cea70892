package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/leasemq/leasemq/bench"
	"github.com/leasemq/leasemq/client"
)

const (
	smallDiskMiB = 64
	// healTime is how long a broker may take to go on by itself when there is room again.
	healTime = 30 * time.Second
	// fullBody is the body of a message that fills a disk.
	fullBody  = 8 << 10
	fullBatch = 32
)

// onSmallDisks runs a test on small file systems of two kinds: one that lives in memory and one on a block device, which allocates late
// and has a journal.
func onSmallDisks(t *testing.T, test func(t *testing.T, disk string)) {
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		t.Skip("only root on Linux can mount a small file system")
	}
	t.Run("tmpfs", func(t *testing.T) {
		test(t, mounted(t, "-t", "tmpfs", "-o", fmt.Sprintf("size=%dm", smallDiskMiB), "tmpfs"))
	})
	t.Run("ext4", func(t *testing.T) {
		if testing.Short() {
			t.Skip("the one in memory does")
		}
		mkfs, err := exec.LookPath("mkfs.ext4")
		if err != nil {
			t.Skip("no mkfs.ext4 here")
		}
		image := filepath.Join(t.TempDir(), "image")
		if err := os.WriteFile(image, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(image, smallDiskMiB<<20); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(mkfs, "-q", "-F", "-m", "0", image).CombinedOutput(); err != nil {
			t.Skipf("mkfs.ext4: %v\n%s", err, out)
		}
		test(t, mounted(t, "-o", "loop", image))
	})
}

// mounted mounts what is given and is gone when the test ends.
func mounted(t *testing.T, args ...string) string {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("mount", append(args, dir)...).CombinedOutput(); err != nil {
		t.Skipf("mount is not possible here: %v\n%s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v\n%s", err, out)
		}
	})
	return dir
}

func startOnSmallDisk(t *testing.T, disk, listen string) *bench.Child {
	t.Helper()
	return startBroker(t, filepath.Join(disk, "data"), listen,
		"--segment-size", "4MiB", "--snapshot-every", "4MiB", "--retention", "1s", "--watermark", "90")
}

// killedAndStarted kills a broker as kill -9 does and starts it again.
func killedAndStarted(t *testing.T, disk string, b *bench.Child) *bench.Child {
	t.Helper()
	if err := b.Kill(); err != nil {
		t.Fatal(err)
	}
	return startOnSmallDisk(t, disk, b.Addr)
}

// filler sends messages and knows which of them the broker has acknowledged.
type filler struct {
	t            *testing.T
	p            *client.Producer
	next         int
	acknowledged map[string]bool
}

func newFiller(t *testing.T, c *client.Client) *filler {
	return &filler{t: t, p: c.Producer(client.ProducerOptions{Compression: client.CompressNone}), acknowledged: map[string]bool{}}
}

// send sends a batch and returns why some of it was refused.
func (f *filler) send() error {
	f.t.Helper()
	messages := make([]*client.Message, fullBatch)
	for i := range messages {
		name := fmt.Sprintf("%08d", f.next+i)
		messages[i] = &client.Message{Body: []byte(name + strings.Repeat(".", fullBody-len(name)))}
	}
	results, err := f.p.SendBatch(within(f.t), "t", messages)
	for i := range results {
		if results[i].Err == nil {
			f.acknowledged[fmt.Sprintf("%08d", f.next+i)] = true
		}
	}
	f.next += len(messages)
	return err
}

// fill sends until the disk is full, and returns the refusal.
func (f *filler) fill() error {
	f.t.Helper()
	for f.next*fullBody < 2*smallDiskMiB<<20 {
		err := f.send()
		switch {
		case errors.Is(err, client.ErrStoreFull):
			return err
		case err != nil:
			f.t.Fatalf("a send ended with %v", err)
		}
	}
	f.t.Fatal("twice as much as the disk holds was sent and taken")
	return nil
}

// heal sends until it works again.
func (f *filler) heal() {
	f.t.Helper()
	began := time.Now()
	eventually(f.t, healTime, "sends went on by themselves", func() error { return f.send() })
	f.t.Logf("sends went on after %v", time.Since(began).Round(time.Millisecond))
}

// eventually asks until there is no error.
func eventually(t *testing.T, most time.Duration, what string, ask func() error) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(most); ; {
		err := ask()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("waited %v in vain until %s: %v", most, what, err)
		}
	}
}

// drain takes and settles everything that a group has to get. Pops may be refused for a while; acks may not.
func drain(t *testing.T, s *client.Session, got map[string]bool) {
	t.Helper()
	for late := time.Now().Add(patience); ; {
		if time.Now().After(late) {
			t.Fatalf("the group is not empty after %v", patience)
		}
		batch, err := s.Pop(within(t), client.PopOptions{Topic: "t", Max: 64, Await: 200 * time.Millisecond})
		if errors.Is(err, client.ErrStoreFull) {
			t.Logf("a pop was refused: %v", err)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(batch.Deliveries) == 0 && batch.Leased == 0 && batch.Waiting == 0 {
			return
		}
		settle(t, s, batch.Deliveries, got)
	}
}

// settle acks, which must always be possible.
func settle(t *testing.T, s *client.Session, all []*client.Delivery, got map[string]bool) {
	t.Helper()
	for _, d := range all {
		body, err := d.Body()
		if err != nil {
			t.Fatal(err)
		}
		if got[string(body[:8])] {
			t.Errorf("message %s came again after it was settled", body[:8])
		}
		got[string(body[:8])] = true
	}
	if len(all) > 0 {
		if _, err := s.Ack(within(t), all...); err != nil {
			t.Fatalf("an ack on a full disk: %v", err)
		}
	}
}

// holding opens a session that holds n messages.
func holding(t *testing.T, c *client.Client, n int) (*client.Session, []*client.Delivery) {
	t.Helper()
	s, err := c.Register(within(t), "g", client.RegisterOptions{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	batch, err := s.Pop(within(t), client.PopOptions{Topic: "t", Max: n, Invisible: 10 * time.Minute, Await: patience / 2})
	if err != nil || len(batch.Deliveries) != n {
		t.Fatalf("pop gave %v, %v", batch, err)
	}
	return s, batch.Deliveries
}

func missing(acknowledged, got map[string]bool) (n int) {
	for name := range acknowledged {
		if !got[name] {
			n++
		}
	}
	return n
}

// saysWhatIsMissing checks that a refusal names what is free and what is needed.
func saysWhatIsMissing(t *testing.T, err error) {
	t.Helper()
	var refusal *client.StatusError
	if !errors.As(err, &refusal) || refusal.Detail == 0 || !strings.Contains(refusal.Message, "bytes are free") ||
		!strings.Contains(refusal.Message, fmt.Sprintf("%d more are needed", refusal.Detail)) {
		t.Errorf("the refusal does not say what is free and what is needed: %v", err)
	}
}

// lives checks that the broker runs and serves.
func lives(t *testing.T, b *bench.Child, c *client.Client) {
	t.Helper()
	select {
	case <-b.Done():
		t.Fatalf("the broker has ended:\n%s", b.LastLines())
	default:
	}
	if _, err := c.Stats(within(t)); err != nil {
		t.Fatal(err)
	}
}

// Given a disk that senders have filled, the broker refuses sends and serves everybody else; when what is on it was consumed
// it frees space and takes sends again, without a restart. A kill on the full disk and one afterwards lose nothing.
func TestFullDiskHealsByConsuming(t *testing.T) {
	onSmallDisks(t, func(t *testing.T, disk string) {
		b := startOnSmallDisk(t, disk, "")
		c := dial(t, b)
		if err := c.CreateTopic(within(t), "t", 4); err != nil {
			t.Fatal(err)
		}
		f, got := newFiller(t, c), map[string]bool{}
		if err := f.send(); err != nil {
			t.Fatal(err)
		}
		leaver, _ := holding(t, c, 3)
		holder, held := holding(t, c, 10)

		saysWhatIsMissing(t, f.fill())
		t.Logf("%d messages fit", len(f.acknowledged))
		lives(t, b, c)
		settle(t, holder, held[:5], got)
		if err := leaver.Close(within(t)); err != nil {
			t.Errorf("a session cannot leave: %v", err)
		}
		b = killedAndStarted(t, disk, b)
		settle(t, holder, held[5:], got) // the session and its leases are still there
		if err := f.send(); !errors.Is(err, client.ErrStoreFull) {
			t.Errorf("a send after the start ended with %v", err)
		}
		drain(t, holder, got)
		lives(t, b, c)
		if n := missing(f.acknowledged, got); n > 0 {
			t.Errorf("%d of %d messages are lost", n, len(f.acknowledged))
		}

		f.heal()
		for range smallDiskMiB << 20 / fullBody / fullBatch / 4 { // not only once: a quarter of the disk
			eventually(t, healTime, "a send was taken", f.send)
		}
		b = killedAndStarted(t, disk, b)
		drain(t, holder, got)
		lives(t, b, c)
		if n := missing(f.acknowledged, got); n > 0 {
			t.Errorf("%d of %d messages are lost", n, len(f.acknowledged))
		}
	})
}

// Given a full disk, deleting the topic that fills it frees the space, though nobody has consumed it.
func TestFullDiskHealsByDeletingTheTopic(t *testing.T) {
	onSmallDisks(t, func(t *testing.T, disk string) {
		b := startOnSmallDisk(t, disk, "")
		c := dial(t, b)
		if err := c.CreateTopic(within(t), "t", 4); err != nil {
			t.Fatal(err)
		}
		f := newFiller(t, c)
		if err := f.send(); err != nil {
			t.Fatal(err)
		}
		holding(t, c, 3)
		f.fill()
		if err := c.DeleteTopic(within(t), "t"); err != nil {
			t.Fatalf("the topic cannot be deleted: %v", err)
		}
		eventually(t, healTime, "a topic could be made", func() error { return c.CreateTopic(within(t), "t", 4) })
		f.heal()
		lives(t, b, c)
	})
}

// Given a disk that something else has filled up to the last byte, the broker refuses sends and serves acks and leaving
// sessions; it can be killed and started; and it goes on by itself when there is room.
func TestDiskFilledByOthersHeals(t *testing.T) {
	onSmallDisks(t, func(t *testing.T, disk string) {
		b := startOnSmallDisk(t, disk, "")
		c := dial(t, b)
		if err := c.CreateTopic(within(t), "t", 4); err != nil {
			t.Fatal(err)
		}
		f, got := newFiller(t, c), map[string]bool{}
		for range 10 {
			if err := f.send(); err != nil {
				t.Fatal(err)
			}
		}
		leaver, _ := holding(t, c, 3)
		holder, held := holding(t, c, 10)

		ballast := filepath.Join(disk, "ballast")
		fillWithBallast(t, ballast)
		saysWhatIsMissing(t, f.fill())
		fillWithBallast(t, ballast+"2") // what a segment that was given up has left
		lives(t, b, c)
		settle(t, holder, held[:5], got)
		if err := leaver.Close(within(t)); err != nil {
			t.Errorf("a session cannot leave: %v", err)
		}
		b = killedAndStarted(t, disk, b)
		settle(t, holder, held[5:], got)
		if err := f.send(); !errors.Is(err, client.ErrStoreFull) {
			t.Errorf("a send after the start ended with %v", err)
		}
		if err := errors.Join(os.Remove(ballast), os.Remove(ballast+"2")); err != nil {
			t.Fatal(err)
		}
		f.heal()
		drain(t, holder, got)
		lives(t, b, c)
		if n := missing(f.acknowledged, got); n > 0 {
			t.Errorf("%d of %d messages are lost", n, len(f.acknowledged))
		}
		b = killedAndStarted(t, disk, b)
		drain(t, holder, got)
		lives(t, b, c)
	})
}

// fillWithBallast writes a file until nothing more fits on its disk.
func fillWithBallast(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	for chunk := make([]byte, 1<<20); len(chunk) > 0 && err == nil; {
		var n int
		if n, err = f.Write(chunk); err != nil && n == 0 && len(chunk) > 4096 {
			chunk, err = chunk[:len(chunk)/2], nil
		}
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
}
