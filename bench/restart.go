package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leasemq/leasemq/client"
)

const (
	restartTopic = "restart"
	restartBody  = 1024
	holdGroup    = "holders"
	probeGroup   = "probes"
	// restartLease is the longest there is: what is leased stays so.
	restartLease = 6 * time.Hour
	// holdClients is how many connections the sessions that hold messages share.
	holdClients = 8
	// nearlyDue is the share of a snapshot's distance, in percent, that is written before the kill.
	nearlyDue = 95
	// snapshotDistance is the broker's default distance between two snapshots.
	snapshotDistance = 256 << 20
	// redialEvery is how often a broker that starts is tried.
	redialEvery = 2 * time.Millisecond
	// restartPatience is for a start from a cold disk, and much more.
	restartPatience = 5 * time.Minute
)

// RestartOptions say how Restart goes about it.
type RestartOptions struct {
	Program   string
	Dir       string
	LogBytes  int64
	Unsettled int
	Queues    int
	Sessions  int
	Say       func(string)
}

// RestartStart is one start after a kill. Times run from the start of the process.
type RestartStart struct {
	Cache        string   `json:"cache"`        // what the system had of the files in memory
	ReplayBytes  uint64   `json:"replay_bytes"` // log since the newest snapshot at the kill
	ListeningS   float64  `json:"listening_s"`
	FirstAnswerS float64  `json:"first_answer_s"`
	PopAckS      float64  `json:"pop_ack_s"`
	Log          []string `json:"log"` // what the broker said of it
}

// RestartReport is what Restart found.
type RestartReport struct {
	LogBytes   uint64         `json:"log_bytes"`
	Segments   uint64         `json:"segments"`
	Unsettled  uint64         `json:"unsettled"`
	Sessions   uint64         `json:"sessions"`
	FillPerS   float64        `json:"fill_msgs_per_s"`
	LeasesPerS float64        `json:"leases_per_s"`
	Starts     []RestartStart `json:"starts"`
}

// Restart fills a data directory through a broker, kills it at the worst moment, and measures how long a start takes.
func Restart(ctx context.Context, o RestartOptions) (report RestartReport, err error) {
	broker, err := startRestart(ctx, o, "", nil)
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, broker.Kill()) }()
	if err := fillRestart(ctx, broker.Addr, o, &report); err != nil {
		return report, err
	}
	for i, cache := range []string{"warm", "cold"} {
		if i > 0 { // past the snapshot that was due, so that there is as much to do again
			if _, err := sendRestart(ctx, broker.Addr, snapshotDistance/10/restartRecord); err != nil {
				return report, err
			}
		}
		s := RestartStart{Cache: cache}
		if s.ReplayBytes, err = worstMoment(ctx, broker.Addr, o, &report); err != nil {
			return report, err
		}
		if err := broker.Kill(); err != nil {
			return report, err
		}
		if cache == "cold" {
			if s.Cache, err = dropCache(o.Dir); err != nil {
				return report, err
			}
		}
		o.Say("start, cache " + s.Cache)
		if broker, err = measureStart(ctx, broker, o, &s); err != nil {
			return report, err
		}
		report.Starts = append(report.Starts, s)
	}
	return report, nil
}

func startRestart(ctx context.Context, o RestartOptions, listen string, log *bytes.Buffer) (*Child, error) {
	c := ChildOptions{Program: o.Program, Listen: listen, Dir: o.Dir, Args: []string{"--fsync", "interval", "--watermark", "0"}}
	if log != nil {
		c.Log = log
	}
	return StartChild(ctx, c)
}

// fillRestart writes the log and leases the messages.
func fillRestart(ctx context.Context, addr string, o RestartOptions, report *RestartReport) error {
	clients, err := dialAll(ctx, addr, "leasemq crash restart", holdClients)
	if err != nil {
		return err
	}
	defer closeAll(clients)
	watcher := clients[0]
	if _, err := needTopic(ctx, watcher, restartTopic, o.Queues); err != nil {
		return err
	}
	rules := client.GroupRules{SessionTimeoutMs: 300_000, HeartbeatMs: 30_000, MaxInvisibleMs: uint32(restartLease.Milliseconds())}
	for _, group := range []string{holdGroup, probeGroup} {
		if err := watcher.CreateGroup(ctx, group, rules); err != nil {
			return err
		}
	}
	// What is leased must be there before; the rest is sent afterwards.
	early := uint64(o.Unsettled + o.Unsettled/10)
	o.Say(fmt.Sprintf("%d messages are sent", early))
	if _, err := sendRestart(ctx, addr, early); err != nil {
		return err
	}
	o.Say(fmt.Sprintf("%d messages are leased by %d sessions", o.Unsettled, o.Sessions))
	began := time.Now()
	if err := leaseAll(ctx, clients, o.Sessions, o.Unsettled, heldGroup{holdGroup, restartTopic, restartLease}); err != nil {
		return err
	}
	report.LeasesPerS = float64(o.Unsettled) / time.Since(began).Seconds()
	if err := popAndAck(ctx, watcher); err != nil {
		return err
	}
	figures, err := figuresOf(ctx, watcher)
	if err != nil {
		return err
	}
	if left := o.LogBytes - int64(figures["log_appended"]); left > 0 {
		o.Say(fmt.Sprintf("%.1f GB more of log are written", float64(left)/1e9))
		rate, err := sendRestart(ctx, addr, uint64(left)/restartRecord)
		if err != nil {
			return err
		}
		report.FillPerS = rate.MessagesPerS
	}
	return nil
}

// restartRecord is about what a message of the fill takes in the log.
const restartRecord = restartBody + 120

func sendRestart(ctx context.Context, addr string, messages uint64) (Rate, error) {
	return Send(ctx, SendOptions{Addr: addr, Topic: restartTopic, Queues: 1, Size: restartBody, Batch: 64, Producers: 4, Messages: messages})
}

// worstMoment sends on until the next snapshot is nearly due, and tells how much log a start then has to replay: there is
// no moment with more.
func worstMoment(ctx context.Context, addr string, o RestartOptions, report *RestartReport) (replay uint64, err error) {
	const near = snapshotDistance * nearlyDue / 100
	c, err := client.Dial(ctx, addr, client.Options{})
	if err != nil {
		return 0, err
	}
	defer c.Close()
	o.Say("the next snapshot comes near")
	for {
		figures, err := figuresOf(ctx, c)
		if err != nil {
			return 0, err
		}
		replay = figures["log_appended"] - figures["snapshot_position"]
		switch {
		case replay < near:
			_, err = sendRestart(ctx, addr, max(1000, (near-replay)/restartRecord))
		case replay >= snapshotDistance || figures["log_synced"] < figures["log_appended"]:
			err = sleep(ctx, workStep) // the snapshot is being taken, or the disk is behind
		default:
			report.Segments, report.LogBytes = figures["log_segments"], figures["log_appended"]-figures["log_first"]
			report.Unsettled, report.Sessions = figures["leases"]+figures["messages_waiting"], figures["sessions"]
			return replay, nil
		}
		if err != nil {
			return 0, err
		}
	}
}

// popAndAck takes one message with a new session and settles it.
func popAndAck(ctx context.Context, c *client.Client) error {
	s, err := c.Register(ctx, probeGroup, client.RegisterOptions{})
	if err != nil {
		return err
	}
	batch, err := s.Pop(ctx, client.PopOptions{Topic: restartTopic, Await: time.Minute})
	if err != nil {
		return fmt.Errorf("bench: pop: %w", err)
	}
	if len(batch.Deliveries) != 1 {
		return errors.New("bench: a pop got nothing")
	}
	if _, err := s.Ack(ctx, batch.Deliveries...); err != nil {
		return fmt.Errorf("bench: ack: %w", err)
	}
	return s.Close(ctx)
}

// measureStart starts the broker and asks it until it answers.
func measureStart(ctx context.Context, broker *Child, o RestartOptions, s *RestartStart) (*Child, error) {
	ctx, cancel := context.WithTimeout(ctx, restartPatience)
	defer cancel()
	type started struct {
		child *Child
		err   error
		after time.Duration
	}
	var log bytes.Buffer // read when the child listens, and it says nothing of this before
	up := make(chan started, 1)
	began := time.Now()
	go func() {
		c, err := startRestart(ctx, o, broker.Addr, &log)
		up <- started{c, err, time.Since(began)}
	}()
	c, err := dialWhenUp(ctx, broker.Addr)
	if err == nil {
		_, err = c.ListTopics(ctx)
		s.FirstAnswerS = time.Since(began).Seconds()
	}
	if err == nil {
		err = popAndAck(ctx, c)
		s.PopAckS = time.Since(began).Seconds()
	}
	if c != nil {
		c.Close()
	}
	child := <-up
	if child.err != nil {
		return broker, child.err
	}
	s.ListeningS = child.after.Seconds()
	s.Log = linesWith(child.child.LastLines(), "snapshot loaded", "recovered", "anew")
	return child.child, err
}

// dialWhenUp connects as soon as somebody listens.
func dialWhenUp(ctx context.Context, addr string) (*client.Client, error) {
	tick := time.NewTicker(redialEvery)
	defer tick.Stop()
	for {
		c, err := client.Dial(ctx, addr, client.Options{})
		if err == nil {
			return c, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, err
		}
	}
}

// linesWith are the lines of a text that have one of some words in them.
func linesWith(text string, words ...string) (lines []string) {
	for line := range strings.Lines(text) {
		for _, word := range words {
			if strings.Contains(line, word) {
				lines = append(lines, strings.TrimSpace(line))
				break
			}
		}
	}
	return lines
}

// dropCache has the system forget what it has of the files in memory, and tells how.
func dropCache(dir string) (how string, err error) {
	unix.Sync()
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3\n"), 0); err == nil {
		return "cold (drop_caches)", nil
	}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		return forget(f)
	})
	if err != nil {
		return "", fmt.Errorf("bench: the cache cannot be dropped: %w", err)
	}
	return "cold (fadvise)", nil
}
