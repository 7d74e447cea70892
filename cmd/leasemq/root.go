package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/leasemq/leasemq/client"
)

const (
	defaultAddr = "127.0.0.1:7650"

	// startPatience is how long a broker that was just started may take until it listens: the first start on a
	// directory probes the disk.
	startPatience = 5 * time.Second
	redialEvery   = 100 * time.Millisecond
)

// app is what all commands share: the global flags and the three streams.
type app struct {
	addr    string
	output  choice
	timeout time.Duration

	stdin          io.Reader
	stdout, stderr io.Writer

	began bool // the command line was understood; an error is the command's own from here on
}

func (a *app) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "leasemq",
		Short: "A message broker whose unit of consumption is a lease",
		Long: "leasemq is a message broker: consumers pop messages under leases, and ack, extend or give them back.\n\n" +
			exitHelp,
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          needsSubcommand,
	}
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.CompletionOptions.HiddenDefaultCmd = true
	a.output = oneOf("text", "json")
	flags := root.PersistentFlags()
	flags.StringVar(&a.addr, "addr", defaultAddr, "`HOST:PORT` of the broker")
	flags.VarP(&a.output, "output", "o", "text for people, json for machines")
	flags.DurationVar(&a.timeout, "timeout", 10*time.Second, "how long to wait for a connection and for an answer")
	root.AddCommand(
		a.brokerCommand(), a.topicCommand(), a.groupCommand(), a.sendCommand(), a.popCommand(), a.peekCommand(),
		a.statsCommand(), a.logCommand(), a.benchCommand(), a.demoCommand(), a.demoWorkerCommand(), a.versionCommand(),
	)
	return root
}

// needsSubcommand is for commands that only hold others: alone they show what there is.
func needsSubcommand(c *cobra.Command, _ []string) error {
	if err := c.Help(); err != nil {
		return err
	}
	return usageError{fmt.Errorf("'%s' needs a command", c.CommandPath())}
}

// does makes f the action of a command.
func (a *app) does(f func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		a.began = true
		return f(c.Context(), args)
	}
}

// asks is does for a command that makes one call to the broker.
func (a *app) asks(f func(ctx context.Context, c *client.Client, args []string) error) func(*cobra.Command, []string) error {
	return a.does(func(ctx context.Context, args []string) error {
		c, err := a.dial(ctx)
		if err != nil {
			return err
		}
		defer c.Close()
		ctx, cancel := context.WithTimeout(ctx, a.timeout)
		defer cancel()
		return f(ctx, c, args)
	})
}

// dial connects. While nobody listens it tries again for a moment, so that a script may start a broker and use it in
// the next line.
func (a *app) dial(ctx context.Context) (*client.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	for began := time.Now(); ; {
		c, err := client.Dial(ctx, a.addr, client.Options{ClientInfo: "leasemq command line"})
		if err == nil {
			return c, nil
		}
		if !errors.Is(err, syscall.ECONNREFUSED) || time.Since(began) > startPatience {
			return nil, fmt.Errorf("broker at %s: %w", a.addr, err)
		}
		select {
		case <-time.After(redialEvery):
		case <-ctx.Done():
			return nil, fmt.Errorf("broker at %s: %w", a.addr, err)
		}
	}
}

func (a *app) json() bool { return a.output.value == "json" }

// print writes v as JSON, or lets text write what people get.
func (a *app) print(v any, text func(w io.Writer)) error {
	if a.json() {
		return jsonTo(a.stdout, v)
	}
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	text(w)
	return w.Flush()
}

// jsonTo writes v as one line of JSON.
func jsonTo(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// note tells people something that is not the command's output.
func (a *app) note(format string, args ...any) {
	fmt.Fprintf(a.stderr, format+"\n", args...)
}
