package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/leasemq/leasemq/client"
	"github.com/leasemq/leasemq/codec"
)

// jsonLineFactor is how much longer than its body a line of JSON may be.
const jsonLineFactor = 6

type sendFlags struct {
	topic, file string
	queue       int
	format      choice
	topicTag    string
	key         string
	uniqueKey   string
}

func (a *app) sendCommand() *cobra.Command {
	f := sendFlags{format: oneOf("lines", "jsonl")}
	c := &cobra.Command{
		Use:   "send --topic T",
		Short: "Send messages, one a line",
		Long: `Sends each line of a file, or of standard input, as a message: its bytes as they are, without the newline.
The last line need not end with one. An empty line is an empty message.

With --format jsonl each line is a JSON object with key, tag, order_key, unique_key, properties (an object of strings),
and body, or body_base64 for bytes that are no text; all may be missing. Blank lines are skipped.

--unique-key is for one message: an input of more lines is refused before anything is sent. While the broker knows
the key (topic create --unique-for) another message with it is not stored, and the command ends as if it had been.

A message whose answer was lost is sent again for as long as --timeout says; the broker does not store it twice.

A topic that is missing is made, with 8 queues. The messages of one topic keep their order if they go to one
queue: one key, one order_key, or --queue. The command ends when every message was acknowledged; if one
was not, it stops reading and says so by its exit code.`,
		Args: cobra.NoArgs,
		RunE: a.does(func(ctx context.Context, _ []string) error { return a.runSend(ctx, &f) }),
	}
	flags := c.Flags()
	flags.StringVar(&f.topic, "topic", "", "topic to send to")
	flags.StringVar(&f.file, "file", "", "file to read; standard input if it is missing")
	flags.IntVar(&f.queue, "queue", -1, "queue to send to; -1 leaves the choice to the broker")
	flags.Var(&f.format, "format", "lines: a line is a body. jsonl: a line is a JSON object")
	flags.StringVar(&f.topicTag, "tag", "", "tag of the messages, where the input names none")
	flags.StringVar(&f.key, "key", "", "key of the messages, where the input names none; one key goes to one queue")
	flags.StringVar(&f.uniqueKey, "unique-key", "", "unique key of the message, where the input names none; the input is one message")
	c.MarkFlagRequired("topic")
	return c
}

// sendSummary is what a send command has to say in the end.
type sendSummary struct {
	Acknowledged uint64  `json:"acknowledged"`
	Failed       uint64  `json:"failed"`  // not stored
	Unknown      uint64  `json:"unknown"` // stored or not
	Bytes        uint64  `json:"bytes"`   // of the bodies of those that were acknowledged
	Seconds      float64 `json:"seconds"`
	MessagesPerS float64 `json:"msgs_per_s"`
}

// sending is one run of the send command. mu guards what the callbacks of the producer change.
type sending struct {
	flags    *sendFlags
	producer *client.Producer
	queue    *int

	mu      sync.Mutex
	summary sendSummary
	first   error // why a message was not acknowledged
	stop    context.CancelCauseFunc
}

var errNotAcknowledged = errors.New("a message was not acknowledged")

func (a *app) runSend(ctx context.Context, f *sendFlags) error {
	input := a.stdin
	if f.file != "" {
		file, err := os.Open(f.file)
		if err != nil {
			return err
		}
		defer file.Close()
		input = file
	}
	c, err := a.dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	s := &sending{flags: f, producer: c.Producer(client.ProducerOptions{Create: true, RetryFor: a.timeout})}
	if f.queue >= 0 {
		s.queue = &f.queue
	}
	began := time.Now()
	reading, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	s.stop = stop
	read := make(chan error, 1)
	go func() { read <- s.read(reading, input) }()
	var readErr error
	select {
	case readErr = <-read:
	case <-reading.Done(): // without waiting for an input that may be silent for long
		readErr = context.Cause(reading)
	}
	flushErr := s.flush(reading, a.timeout)
	return s.report(a, time.Since(began), errors.Join(readErr, flushErr))
}

// read sends what there is until the input ends or something has gone wrong.
func (s *sending) read(ctx context.Context, input io.Reader) error {
	most := codec.MaxDecompressed
	if s.flags.format.value == "jsonl" {
		most *= jsonLineFactor
	}
	lines := newLineReader(input, most)
	if s.flags.uniqueKey != "" {
		return s.sendOnly(ctx, lines)
	}
	for {
		line, err := lines.next()
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = s.send(ctx, line, lines.line)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return err
		}
	}
}

// sendOnly sends the only message that there is, once it is certain that there is no other.
func (s *sending) sendOnly(ctx context.Context, lines *lineReader) error {
	var only []byte
	number := 0
	for {
		line, err := lines.next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		if s.flags.format.value == "jsonl" && len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		if number > 0 {
			return fmt.Errorf("line %d: --unique-key is for an input of one message", lines.line)
		}
		only, number = bytes.Clone(line), lines.line
	}
	if number == 0 {
		return nil
	}
	return s.send(ctx, only, number)
}

func (s *sending) send(ctx context.Context, line []byte, number int) error {
	m := &client.Message{Body: line}
	if s.flags.format.value == "jsonl" {
		if len(bytes.TrimSpace(line)) == 0 {
			return nil
		}
		var err error
		if m, err = parseMessage(line); err != nil {
			return fmt.Errorf("line %d: %w", number, err)
		}
	}
	m.Topic, m.Queue = s.flags.topic, s.queue
	if m.Tag == "" {
		m.Tag = s.flags.topicTag
	}
	if m.Key == "" {
		m.Key = s.flags.key
	}
	if m.UniqueKey == "" {
		m.UniqueKey = s.flags.uniqueKey
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	size := len(m.Body)
	err := s.producer.SendAsync(ctx, m, func(_ client.SendResult, err error) { s.answered(number, size, err) })
	if err != nil {
		return fmt.Errorf("line %d: %w", number, err)
	}
	return nil
}

// answered counts an outcome. After the first bad one nothing more is read: what comes behind it would be
// stored out of order, or not at all.
func (s *sending) answered(number, size int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		s.summary.Acknowledged++
		s.summary.Bytes += uint64(size)
		return
	case errors.Is(err, client.ErrOutcomeUnknown):
		s.summary.Unknown++
	default:
		s.summary.Failed++
	}
	if s.first == nil {
		s.first = fmt.Errorf("line %d: %w", number, err)
		s.stop(errNotAcknowledged)
	}
}

// flush waits for all answers. Once something has gone wrong, which ends reading, it does so no longer than
// patience: a broker that is gone may never come back.
func (s *sending) flush(reading context.Context, patience time.Duration) error {
	waiting, giveUp := context.WithCancel(context.WithoutCancel(reading))
	defer giveUp()
	flushed := make(chan error, 1)
	go func() { flushed <- s.producer.Flush(waiting) }()
	select {
	case err := <-flushed:
		return err
	case <-reading.Done():
	}
	late := time.AfterFunc(patience, giveUp)
	defer late.Stop()
	return <-flushed
}

func (s *sending) report(a *app, took time.Duration, err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum := &s.summary
	sum.Seconds = took.Seconds()
	sum.MessagesPerS = float64(sum.Acknowledged) / max(sum.Seconds, 1e-9)
	a.note("sent %d messages, %.1f MB, in %.2f s: %.0f messages/s", sum.Acknowledged, float64(sum.Bytes)/1e6, sum.Seconds, sum.MessagesPerS)
	if a.json() {
		if err := jsonTo(a.stdout, sum); err != nil {
			return err
		}
	}
	if s.first != nil {
		return fmt.Errorf("%d messages were not stored and of %d it is not known; the first: %w", sum.Failed, sum.Unknown, s.first)
	}
	return err
}
