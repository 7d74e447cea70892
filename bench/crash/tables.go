package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/leasemq/leasemq/bench"
)

// table writes the rows of a report.
type table struct{ to io.Writer }

func (t table) row(name, format string, args ...any) {
	fmt.Fprintf(t.to, "%s\t%s\n", name, fmt.Sprintf(format, args...))
}

// zero is a row for a figure that must be zero.
func (t table) zero(name string, n uint64) {
	mark := "ok"
	if n != 0 {
		mark = "MUST BE ZERO"
	}
	t.row(name, "%d\t%s", n, mark)
}

func roundsTable(w io.Writer, r *bench.RoundsReport) {
	t := table{w}
	t.row("rounds", "%d in %.1f s, seed %d", r.Rounds, r.Seconds, r.Seed)
	t.row("outage, kill to first answer", "median %.0f ms, max %.0f ms", r.OutageMedianMs, r.OutageMaxMs)
	t.row("start of the process to listening", "median %.0f ms, max %.0f ms", r.StartMedianMs, r.StartMaxMs)
	t.row("sends acknowledged", "%d", r.Workers.Acknowledged)
	t.row("sends without an answer", "%d, of which %d were stored", r.Workers.Unknown, r.Workers.UnknownKept)
	groupRows(t, "workers", &r.Workers, &r.WorkerLeases)
	groupRows(t, "keepers", &r.Keepers, &r.KeeperLeases)
	t.zero("sessions lost", r.SessionsLost)
	t.zero("messages dropped, unreadable", r.Dropped+r.Unreadable)
	t.zero("records that did not fit the state", r.Misfits)
	if r.LeftOver {
		t.row("left over", "a group still had something in the end\tMUST NOT BE")
	}
	switch {
	case r.LogVerifyFail:
		t.row("log verify", "MUST NOT FAIL:\n%s", r.LogVerify)
	case r.LogVerify != "":
		t.row("log verify", "%s", r.LogVerify)
	}
	mark := "ok"
	if r.LogBytesMax > r.LogBytesLimit {
		mark = "MUST NOT BE MORE THAN THE LIMIT"
	}
	t.row("log", "at most %d MiB, in the end %d MiB, limit %d MiB\t%s", r.LogBytesMax>>20, r.LogBytes[len(r.LogBytes)-1]>>20, r.LogBytesLimit>>20, mark)
	t.row("snapshots, segments removed, copies", "%d, %d, %d", r.Snapshots, r.SegmentsRemoved, r.CopiedForward)
}

func groupRows(t table, group string, v *bench.Verdict, again *bench.RegrantVerdict) {
	t.row("group "+group, "")
	t.row("  recovered: came, and were settled", "%d, %d", v.Delivered, v.Acked+v.UnknownTaken)
	t.row("  acks without an answer", "%d messages, of which %d were settled by it", v.UnknownAcks, v.UnknownTaken)
	t.row("  acks refused", "%d", v.RefusedAcks)
	t.row("  again with a cause", "%d: lease expired %d, given back %d, holder left %d, first grant lost in a kill %d",
		again.AfterExpiry+again.AfterRelease+again.AfterSession+again.AfterKill,
		again.AfterExpiry, again.AfterRelease, again.AfterSession, again.AfterKill)
	t.zero("  again without a cause", again.WithoutCause)
	t.zero("  lost", v.Lost)
	t.zero("  back after their ack", v.AfterAck)
	t.zero("  stale tokens, tokens twice", again.StaleTokens+v.TwiceGranted)
	t.zero("  stored twice", again.StoredTwice)
	t.zero("  never sent, refused, or damaged", v.Phantoms+v.Damaged)
	if len(again.Examples) > 0 {
		t.row("  for example", "%s", strings.Join(again.Examples, "\n\t"))
	}
}

func restartTable(w io.Writer, r *bench.RestartReport) {
	t := table{w}
	t.row("log", "%.2f GB in %d segments, filled at %.0f messages/s", float64(r.LogBytes)/1e9, r.Segments, r.FillPerS)
	t.row("unsettled", "%d in %d sessions, leased at %.0f messages/s", r.Unsettled, r.Sessions, r.LeasesPerS)
	for i := range r.Starts {
		s := &r.Starts[i]
		t.row("start, "+s.Cache, "listening after %.2f s, first answer after %.2f s, a pop and its ack after %.2f s", s.ListeningS, s.FirstAnswerS, s.PopAckS)
		t.row("", "%d MiB of log since the newest snapshot", s.ReplayBytes>>20)
		for _, line := range s.Log {
			t.row("", "%s", line)
		}
	}
}
