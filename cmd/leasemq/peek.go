package main

import (
	"bufio"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/leasemq/leasemq/client"
)

type peekFlags struct {
	topic  string
	queue  int
	offset uint64
	max    int
}

func (a *app) peekCommand() *cobra.Command {
	var f peekFlags
	c := &cobra.Command{
		Use:   "peek --topic T",
		Short: "Look at the messages of a queue without taking them",
		Long: `Prints offset, a tab, and body of the messages of one queue. Nothing is leased, and no group's position changes.
-o json prints each message as a JSON object on a line of its own.`,
		Args: cobra.NoArgs,
		RunE: a.asks(func(ctx context.Context, c *client.Client, _ []string) error { return a.runPeek(ctx, c, &f) }),
	}
	flags := c.Flags()
	flags.StringVar(&f.topic, "topic", "", "topic to look at")
	flags.IntVar(&f.queue, "queue", 0, "queue to look at")
	flags.Uint64Var(&f.offset, "offset", 0, "offset to begin with")
	flags.IntVar(&f.max, "max", 16, "messages at most, 1 to 256")
	c.MarkFlagRequired("topic")
	return c
}

func (a *app) runPeek(ctx context.Context, c *client.Client, f *peekFlags) error {
	peeked, err := c.Peek(ctx, f.topic, f.queue, f.offset, f.max)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(a.stdout)
	for _, m := range peeked.Messages {
		body, err := m.Body()
		if err != nil {
			return fmt.Errorf("offset %d: %w", m.Offset, err)
		}
		if a.json() {
			err = jsonTo(out, showMessage(m, body))
		} else {
			_, err = fmt.Fprintf(out, "%d\t%s\n", m.Offset, body)
		}
		if err != nil {
			return err
		}
	}
	if err := out.Flush(); err != nil {
		return err
	}
	if peeked.End == peeked.Begin {
		a.note("queue %d of %s is empty", f.queue, f.topic)
	} else {
		a.note("queue %d of %s has the offsets %d to %d", f.queue, f.topic, peeked.Begin, peeked.End-1)
	}
	return nil
}
