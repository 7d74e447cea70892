package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/leasemq/leasemq/bench"
)

// demoWorkerCommand is a worker process of the demo. It is hidden: nobody but the demo and tests start it.
func (a *app) demoWorkerCommand() *cobra.Command {
	var o bench.WorkerOptions
	c := &cobra.Command{
		Use:    "demo-worker",
		Short:  "A worker of the demo: takes jobs, tells in lines of JSON what becomes of them",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: a.does(func(ctx context.Context, _ []string) error {
			o.Addr = a.addr
			return bench.RunWorker(ctx, o, a.stdout)
		}),
	}
	c.Flags().StringVar(&o.Group, "group", "workers", "")
	c.Flags().StringVar(&o.Topic, "topic", "jobs", "")
	c.Flags().StringVar(&o.ConsumerID, "consumer", "", "consumer id; none: random")
	c.Flags().IntVar(&o.Workers, "workers", 1, "jobs at once")
	c.Flags().DurationVar(&o.Lease, "lease", 0, "invisible time; 0: the group's default")
	c.Flags().DurationVar(&o.FinishJobs, "finish", 0, "how long jobs may go on once the worker is told to stop; negative: not at all")
	return c
}
