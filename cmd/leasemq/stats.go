package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/leasemq/leasemq/client"
)

func (a *app) statsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "stats",
		Short: "Print the broker's figures",
		Args:  cobra.NoArgs,
		RunE: a.asks(func(ctx context.Context, c *client.Client, _ []string) error {
			stats, err := c.Stats(ctx)
			if err != nil {
				return err
			}
			figures := make(map[string]uint64, len(stats))
			for _, s := range stats {
				figures[s.Name] = s.Value
			}
			return a.print(figures, func(w io.Writer) {
				for _, s := range stats {
					fmt.Fprintf(w, "%s\t%d\n", s.Name, s.Value)
				}
			})
		}),
	}
}
