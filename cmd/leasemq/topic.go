package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/leasemq/leasemq/client"
)

const defaultQueues = 8

type topicRow struct {
	Name        string `json:"name"`
	ID          uint32 `json:"id"`
	Queues      int    `json:"queues"`
	Messages    uint64 `json:"messages"` // that are there
	Sent        uint64 `json:"sent"`     // ever
	UniqueKeyMs uint32 `json:"unique_key_ms"`
}

func (a *app) topicCommand() *cobra.Command {
	c := &cobra.Command{Use: "topic", Short: "Create, change, list, purge and delete topics", Args: cobra.NoArgs, RunE: needsSubcommand}
	c.AddCommand(a.topicCreate(), a.topicUpdate(), a.topicList(), a.topicPurge(), a.topicDelete())
	return c
}

func (a *app) topicCreate() *cobra.Command {
	var o client.TopicOptions
	c := &cobra.Command{
		Use:   "create NAME",
		Short: "Make a topic",
		Args:  cobra.ExactArgs(1),
		RunE: a.asks(func(ctx context.Context, c *client.Client, args []string) error {
			if err := c.CreateTopicWith(ctx, args[0], o); err != nil {
				return err
			}
			return a.done("created", "topic", args[0])
		}),
	}
	c.Flags().IntVar(&o.Queues, "queues", defaultQueues, "number of queues; order is kept within a queue only")
	c.Flags().DurationVar(&o.UniqueKeyFor, "unique-for", 0, "how long a unique key keeps a second message out (default 10m)")
	return c
}

func (a *app) topicUpdate() *cobra.Command {
	var o client.TopicOptions
	c := &cobra.Command{
		Use:   "update NAME",
		Short: "Change the settings of a topic; what is not named stays",
		Args:  cobra.ExactArgs(1),
		RunE: a.asks(func(ctx context.Context, c *client.Client, args []string) error {
			if err := c.UpdateTopicWith(ctx, args[0], o); err != nil {
				return err
			}
			return a.done("updated", "topic", args[0])
		}),
	}
	c.Flags().IntVar(&o.Queues, "queues", 0, "number of queues, never fewer than before")
	c.Flags().DurationVar(&o.UniqueKeyFor, "unique-for", 0, "how long a unique key keeps a second message out; counts for what is sent from now on")
	c.MarkFlagsOneRequired("queues", "unique-for")
	return c
}

func (a *app) topicList() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the topics",
		Args:  cobra.NoArgs,
		RunE: a.asks(func(ctx context.Context, c *client.Client, _ []string) error {
			topics, err := c.ListTopics(ctx)
			if err != nil {
				return err
			}
			rows := make([]topicRow, 0, len(topics))
			for _, t := range topics {
				rows = append(rows, topicRow{t.Name, t.ID, int(t.Queues), t.Messages, t.Sent, t.UniqueKeyMs})
			}
			return a.print(rows, func(w io.Writer) {
				fmt.Fprintln(w, "TOPIC\tQUEUES\tMESSAGES\tSENT\tUNIQUE FOR")
				for _, r := range rows {
					fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%s\n", r.Name, r.Queues, r.Messages, r.Sent, time.Duration(r.UniqueKeyMs)*time.Millisecond)
				}
			})
		}),
	}
}

func (a *app) topicPurge() *cobra.Command {
	return &cobra.Command{
		Use:   "purge NAME",
		Short: "Let go of every message that a topic has now, without asking",
		Args:  cobra.ExactArgs(1),
		RunE: a.asks(func(ctx context.Context, c *client.Client, args []string) error {
			if err := c.PurgeTopic(ctx, args[0]); err != nil {
				return err
			}
			return a.done("purged", "topic", args[0])
		}),
	}
}

func (a *app) topicDelete() *cobra.Command {
	return &cobra.Command{
		Use:   "delete NAME",
		Short: "Delete a topic and its messages",
		Args:  cobra.ExactArgs(1),
		RunE: a.asks(func(ctx context.Context, c *client.Client, args []string) error {
			if err := c.DeleteTopic(ctx, args[0]); err != nil {
				return err
			}
			return a.done("deleted", "topic", args[0])
		}),
	}
}

// done says that a change was made.
func (a *app) done(what, kind, name string) error {
	return a.print(map[string]string{"done": what, kind: name}, func(w io.Writer) {
		fmt.Fprintf(w, "%s %s %s\n", kind, name, what)
	})
}
