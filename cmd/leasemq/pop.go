package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/spf13/cobra"

	"github.com/leasemq/leasemq/client"
	"github.com/leasemq/leasemq/protocol"
)

type popFlags struct {
	topic, group     string
	max              int
	untilEmpty       bool
	invisible, await time.Duration
	tags             []string
}

func (a *app) popCommand() *cobra.Command {
	var f popFlags
	c := &cobra.Command{
		Use:   "pop --topic T --group G",
		Short: "Take messages, print and ack them",
		Long: `Pops messages, up to --max or until nothing is ready, prints their bodies with a newline behind each, and acks them when
the output has been written: if that fails, or the command is killed, they come again.

A body that holds newlines itself can't be told from several messages in this form. -o json prints each message
as a JSON object on a line of its own, with everything that is known of it; a body that is no UTF-8 is in
body_base64.

The group is made if it is missing, and begins with the oldest message of the topic. Its positions and rules
outlive the command.`,
		Args: cobra.NoArgs,
		RunE: a.does(func(ctx context.Context, _ []string) error { return a.runPop(ctx, &f) }),
	}
	flags := c.Flags()
	flags.StringVar(&f.topic, "topic", "", "topic to read")
	flags.StringVar(&f.group, "group", "", "group to read as")
	flags.IntVar(&f.max, "max", 0, "most messages to take in all (default 1, with --until-empty no limit)")
	flags.BoolVar(&f.untilEmpty, "until-empty", false, "pop again and again until nothing is ready")
	flags.DurationVar(&f.invisible, "invisible", 0, "length of the lease (default: the group's)")
	flags.DurationVar(&f.await, "await", 0, "how long to wait for a message when none is ready")
	flags.StringSliceVar(&f.tags, "tag", nil, "only messages with one of these tags; fixed by the group's first pop of the topic")
	c.MarkFlagRequired("topic")
	c.MarkFlagRequired("group")
	c.PreRunE = func(c *cobra.Command, _ []string) error {
		if !c.Flags().Changed("max") {
			if f.max = 1; f.untilEmpty {
				f.max = math.MaxInt
			}
		}
		if f.max < 1 {
			return usageError{fmt.Errorf("--max %d: at least 1", f.max)}
		}
		return nil
	}
	return c
}

// popping is one run of the pop command.
type popping struct {
	app     *app
	flags   *popFlags
	session *client.Session
	out     *bufio.Writer

	printed    int
	unreadable int
	refused    int
	firstBad   error
}

func (a *app) runPop(ctx context.Context, f *popFlags) error {
	c, err := a.dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	registering, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	s, err := c.Register(registering, f.group, client.RegisterOptions{Create: true})
	if err != nil {
		return err
	}
	// What is not acked by then is given back at once.
	defer func() {
		leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.timeout)
		defer cancel()
		s.Close(leaving)
	}()
	p := &popping{app: a, flags: f, session: s, out: bufio.NewWriterSize(a.stdout, 64<<10)}
	return p.run(ctx)
}

func (p *popping) run(ctx context.Context) error {
	for left := p.flags.max; left > 0; {
		batch, err := p.pop(ctx, min(left, protocol.MaxPopMessages))
		if err != nil {
			return err
		}
		n, leased, waiting := len(batch.Deliveries), batch.Leased, batch.Waiting
		if err := p.take(ctx, batch); err != nil {
			return err
		}
		batch.Release()
		if left -= n; n > 0 {
			continue
		}
		if p.flags.untilEmpty {
			p.app.note("%d messages; nothing more is ready, %d are leased, %d wait until they are visible again", p.printed, leased, waiting)
		}
		break
	}
	switch {
	case p.refused > 0:
		return fmt.Errorf("%d messages were printed and could not be acked, so they may come again; the first: %w", p.refused, p.firstBad)
	case p.unreadable > 0:
		return fmt.Errorf("%d messages could not be read and were given back; the first: %w", p.unreadable, p.firstBad)
	}
	return nil
}

func (p *popping) pop(ctx context.Context, most int) (*client.Batch, error) {
	ctx, cancel := context.WithTimeout(ctx, p.flags.await+p.app.timeout)
	defer cancel()
	return p.session.Pop(ctx, client.PopOptions{
		Topic: p.flags.topic, Max: most, Invisible: p.flags.invisible, Await: p.flags.await,
		FilterTags: p.flags.tags, Create: true,
	})
}

// take prints the messages of a batch, and acks them when they are out.
func (p *popping) take(ctx context.Context, batch *client.Batch) error {
	printed := make([]*client.Delivery, 0, len(batch.Deliveries))
	for _, d := range batch.Deliveries {
		body, err := d.Body()
		if err != nil {
			p.unreadable++
			p.bad(err)
			continue
		}
		if p.app.json() {
			err = jsonTo(p.out, showDelivery(d, body))
		} else if _, err = p.out.Write(body); err == nil {
			err = p.out.WriteByte('\n')
		}
		if err != nil {
			return fmt.Errorf("output: %w", err)
		}
		printed = append(printed, d)
	}
	if err := p.out.Flush(); err != nil {
		return fmt.Errorf("output: %w", err)
	}
	p.printed += len(printed)
	if len(printed) == 0 {
		return nil
	}
	// Not ended by a signal: what was printed is to be acked.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.app.timeout)
	defer cancel()
	results, err := p.session.Ack(ctx, printed...)
	if err == nil {
		return nil
	}
	for i := range results {
		if results[i].Err != nil {
			p.refused++
			p.bad(results[i].Err)
		}
	}
	if errors.Is(err, client.ErrStale) || errors.Is(err, client.ErrAlreadySettled) {
		return nil // a slow reader of the output: others have these messages now; go on with the next ones
	}
	return fmt.Errorf("ack of %d printed messages: %w", len(printed), err)
}

func (p *popping) bad(err error) {
	if p.firstBad == nil {
		p.firstBad = err
	}
}
