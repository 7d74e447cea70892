// Command leasemq is the broker and everything to work with it from a shell.
//
// One file a command. Here are flags and printing; what a command does lies in the package that it is about.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/leasemq/leasemq/broker"
	"github.com/leasemq/leasemq/client"
	"github.com/leasemq/leasemq/netserver"
)

// Exit codes. Scripts rely on them; exitHelp and the README say the same.
const (
	exitOK             = 0
	exitError          = 1
	exitUsage          = 2
	exitStoreFailed    = 3
	exitOutcomeUnknown = 4
)

const exitHelp = `Exit codes:
  0  done
  1  an error; standard error says which
  2  the command line is wrong
  3  the store failed. A broker ends so when what it has in memory may differ from what is on the disk: look
     at the disk, then start it again. From other commands: the broker said so
  4  outcome unknown: the connection was lost before the answer came, so what was asked for may have been
     done or not (a message that was sent may be stored or not)`

// usageError is a command line that cannot be carried out.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run carries out one command line and returns the exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	a := &app{stdin: stdin, stdout: stdout, stderr: stderr}
	root := a.rootCommand()
	root.SetArgs(args)
	command, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	var usage usageError
	if !a.began || errors.As(err, &usage) {
		fmt.Fprintf(stderr, "leasemq: %v\nSee '%s --help'.\n", err, command.CommandPath())
		return exitUsage
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = fmt.Errorf("interrupted: %w", err)
	}
	fmt.Fprintf(stderr, "leasemq: %v\n", err)
	code := exitCode(err)
	if code == exitStoreFailed && command.Name() == "broker" {
		// The error may be long, a stack for example; this is to be the last line.
		fmt.Fprintln(stderr, "leasemq: the store failed and the broker has ended: look at the disk, then start it again")
	}
	return code
}

// exitCode is the code for an error of a command that has begun.
func exitCode(err error) int {
	switch {
	case errors.Is(err, client.ErrOutcomeUnknown):
		return exitOutcomeUnknown
	case errors.Is(err, broker.ErrStoreFailed), errors.Is(err, client.ErrStoreFailed),
		errors.Is(err, netserver.ErrEnded), errors.Is(err, netserver.ErrVoid):
		return exitStoreFailed
	}
	return exitError
}
