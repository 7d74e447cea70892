package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/leasemq/leasemq/client"
)

const defaultQueues = 8

type topicRow struct {
	Name     string `json:"name"`
	ID       uint32 `json:"id"`
	Queues   int    `json:"queues"`
	Messages uint64 `json:"messages"` // ever sent
}

func (a *app) topicCommand() *cobra.Command {
	c := &cobra.Command{Use: "topic", Short: "Create, change, list and delete topics", Args: cobra.NoArgs, RunE: needsSubcommand}
	c.AddCommand(a.topicCreate(), a.topicUpdate(), a.topicList(), a.topicDelete())
	return c
}

func (a *app) topicCreate() *cobra.Command {
	var queues int
	c := &cobra.Command{
		Use:   "create NAME",
		Short: "Make a topic",
		Args:  cobra.ExactArgs(1),
		RunE: a.asks(func(ctx context.Context, c *client.Client, args []string) error {
			if err := c.CreateTopic(ctx, args[0], queues); err != nil {
				return err
			}
			return a.done("created", "topic", args[0])
		}),
	}
	c.Flags().IntVar(&queues, "queues", defaultQueues, "number of queues; order is kept within a queue only")
	return c
}

func (a *app) topicUpdate() *cobra.Command {
	var queues int
	c := &cobra.Command{
		Use:   "update NAME",
		Short: "Give a topic more queues",
		Args:  cobra.ExactArgs(1),
		RunE: a.asks(func(ctx context.Context, c *client.Client, args []string) error {
			if err := c.UpdateTopic(ctx, args[0], queues); err != nil {
				return err
			}
			return a.done("updated", "topic", args[0])
		}),
	}
	c.Flags().IntVar(&queues, "queues", 0, "number of queues, never fewer than before")
	c.MarkFlagRequired("queues")
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
				rows = append(rows, topicRow{t.Name, t.ID, int(t.Queues), t.Messages})
			}
			return a.print(rows, func(w io.Writer) {
				fmt.Fprintln(w, "TOPIC\tQUEUES\tMESSAGES")
				for _, r := range rows {
					fmt.Fprintf(w, "%s\t%d\t%d\n", r.Name, r.Queues, r.Messages)
				}
			})
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
