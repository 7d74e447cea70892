package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/leasemq/leasemq/client"
)

type groupRow struct {
	Name     string `json:"name"`
	ID       uint32 `json:"id"`
	Sessions uint32 `json:"sessions"`
	Leased   uint64 `json:"leased"`
	Waiting  uint64 `json:"waiting"`
}

func (a *app) groupCommand() *cobra.Command {
	c := &cobra.Command{Use: "group", Short: "Create, change, show, list and delete consumer groups", Args: cobra.NoArgs, RunE: needsSubcommand}
	c.AddCommand(
		a.groupChange("create", "created", "Make a group", (*client.Client).CreateGroup),
		a.groupChange("update", "updated", "Change the rules of a group; what is not named stays", (*client.Client).UpdateGroup),
		a.groupList(), a.groupShow(), a.groupDelete(),
	)
	return c
}

// groupChange is create and update: both take the rules.
func (a *app) groupChange(verb, done, short string, call func(*client.Client, context.Context, string, client.GroupRules) error) *cobra.Command {
	c := &cobra.Command{Use: verb + " NAME", Short: short, Args: cobra.ExactArgs(1)}
	f := newRuleFlags(c.Flags())
	c.RunE = func(c *cobra.Command, args []string) error {
		rules, err := f.rules(c.Flags())
		if err != nil {
			return usageError{err}
		}
		return a.asks(func(ctx context.Context, conn *client.Client, args []string) error {
			if err := call(conn, ctx, args[0], rules); err != nil {
				return err
			}
			return a.done(done, "group", args[0])
		})(c, args)
	}
	return c
}

func (a *app) groupList() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the groups",
		Args:  cobra.NoArgs,
		RunE: a.asks(func(ctx context.Context, c *client.Client, _ []string) error {
			groups, err := c.ListGroups(ctx)
			if err != nil {
				return err
			}
			rows := make([]groupRow, 0, len(groups))
			for _, g := range groups {
				rows = append(rows, groupRow(g))
			}
			return a.print(rows, func(w io.Writer) {
				fmt.Fprintln(w, "GROUP\tSESSIONS\tLEASED\tWAITING")
				for _, r := range rows {
					fmt.Fprintf(w, "%s\t%d\t%d\t%d\n", r.Name, r.Sessions, r.Leased, r.Waiting)
				}
			})
		}),
	}
}

func (a *app) groupDelete() *cobra.Command {
	return &cobra.Command{
		Use:   "delete NAME",
		Short: "Delete a group that nobody uses, and its positions",
		Args:  cobra.ExactArgs(1),
		RunE: a.asks(func(ctx context.Context, c *client.Client, args []string) error {
			if err := c.DeleteGroup(ctx, args[0]); err != nil {
				return err
			}
			return a.done("deleted", "group", args[0])
		}),
	}
}

type sessionRow struct {
	Session    string `json:"session"` // as a string: it may not fit a double
	ConsumerID string `json:"consumer_id"`
	ClientInfo string `json:"client_info"`
	Leases     uint32 `json:"leases"`
	SilentMs   uint32 `json:"silent_ms"`
}

type cursorRow struct {
	Topic   string `json:"topic"`
	Queue   uint16 `json:"queue"`
	Next    uint64 `json:"next"`
	End     uint64 `json:"end"`
	Leased  uint64 `json:"leased"`
	Waiting uint64 `json:"waiting"`
	Settled uint64 `json:"settled"`
	Skipped uint64 `json:"skipped"`
	Dropped uint64 `json:"dropped"` // let go by retention before they were settled
}

type groupShown struct {
	Name            string       `json:"name"`
	ID              uint32       `json:"id"`
	Version         uint64       `json:"version"`
	IdleMs          uint64       `json:"idle_ms"` // since it had a session
	Rules           rulesShown   `json:"rules"`
	Sessions        []sessionRow `json:"sessions"`
	Cursors         []cursorRow  `json:"cursors"`
	SessionsLeftOff uint32       `json:"sessions_left_off,omitempty"`
	CursorsLeftOff  uint32       `json:"cursors_left_off,omitempty"`
}

func (a *app) groupShow() *cobra.Command {
	return &cobra.Command{
		Use:   "show NAME",
		Short: "Show a group: its rules, who consumes, and how far it is",
		Args:  cobra.ExactArgs(1),
		RunE: a.asks(func(ctx context.Context, c *client.Client, args []string) error {
			info, err := c.ShowGroup(ctx, args[0])
			if err != nil {
				return err
			}
			g := shown(info)
			return a.print(g, func(w io.Writer) { g.text(w) })
		}),
	}
}

func shown(info *client.GroupInfo) *groupShown {
	g := &groupShown{
		Name: info.Name, ID: info.ID, Version: info.Version, IdleMs: info.IdleMs, Rules: showRules(&info.Rules),
		Sessions: make([]sessionRow, 0, len(info.Sessions)), Cursors: make([]cursorRow, 0, len(info.Cursors)),
		SessionsLeftOff: info.SessionsLeftOff, CursorsLeftOff: info.CursorsLeftOff,
	}
	for _, s := range info.Sessions {
		g.Sessions = append(g.Sessions, sessionRow{fmt.Sprint(s.Session), s.ConsumerID, s.ClientInfo, s.Leases, s.SilentMs})
	}
	for _, c := range info.Cursors {
		g.Cursors = append(g.Cursors, cursorRow(c))
	}
	return g
}

func (g *groupShown) text(w io.Writer) {
	fmt.Fprintf(w, "group %s\n", g.Name)
	g.Rules.text(w)
	fmt.Fprintf(w, "idle, without a session\t%s\n", spelled(g.IdleMs))
	fmt.Fprintf(w, "\nSESSION\tCONSUMER\tCLIENT\tLEASES\tSILENT\n")
	for _, s := range g.Sessions {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%v\n", s.Session, s.ConsumerID, s.ClientInfo, s.Leases, time.Duration(s.SilentMs)*time.Millisecond)
	}
	leftOff(w, g.SessionsLeftOff)
	fmt.Fprintf(w, "\nTOPIC\tQUEUE\tNEXT\tEND\tLEASED\tWAITING\tSETTLED\tSKIPPED\tDROPPED\n")
	for _, c := range g.Cursors {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\n",
			c.Topic, c.Queue, c.Next, c.End, c.Leased, c.Waiting, c.Settled, c.Skipped, c.Dropped)
	}
	leftOff(w, g.CursorsLeftOff)
}

func leftOff(w io.Writer, n uint32) {
	if n > 0 {
		fmt.Fprintf(w, "... and %d more\n", n)
	}
}
