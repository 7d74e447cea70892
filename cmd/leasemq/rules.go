package main

import (
	"fmt"
	"io"
	"math"
	"time"

	"github.com/spf13/pflag"

	"github.com/leasemq/leasemq/client"
	"github.com/leasemq/leasemq/protocol"
)

// unlimited stands for no limit in --max-renewals and in what group show prints, and there also for holding for ever.
const unlimited = -1

// ruleFlags are the rules of a group as flags. One that is not given is left to the broker: its default, or
// what it was.
type ruleFlags struct {
	invisible, maxInvisible, maxTotal        time.Duration
	heartbeat, sessionTimeout                time.Duration
	backOff                                  choice
	backOffMin, backOffMax                   time.Duration
	maxRenewals                              int
	maxFailures, maxExpiries, maxSessionLoss uint8
	maxInFlight                              uint32
	hold                                     holdTime
}

// holdTime is a flag that takes a duration or "forever".
type holdTime struct{ ms uint64 } // as GroupRules.HoldMs has it

const forever = "forever"

func (h *holdTime) Type() string { return "duration|" + forever }

func (h *holdTime) String() string {
	switch h.ms {
	case 0:
		return ""
	case protocol.HoldForever:
		return forever
	}
	return spelled(h.ms)
}

func (h *holdTime) Set(s string) error {
	if s == forever {
		h.ms = protocol.HoldForever
		return nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < protocol.MinHoldMs*time.Millisecond || d%time.Millisecond != 0 {
		return fmt.Errorf("a duration of at least %s, in whole milliseconds, or %s is needed", spelled(protocol.MinHoldMs), forever)
	}
	h.ms = uint64(d.Milliseconds())
	return nil
}

// spelled is a time in words.
func spelled(ms uint64) string {
	return (time.Duration(min(ms, math.MaxInt64/uint64(time.Millisecond))) * time.Millisecond).String()
}

// backOffs are the words for protocol.BackOff, in its order.
var backOffs = []string{"exponential", "none", "fixed", "levels"}

func newRuleFlags(flags *pflag.FlagSet) *ruleFlags {
	f := &ruleFlags{backOff: oneOf(backOffs...)}
	flags.DurationVar(&f.invisible, "invisible", 0, "length of a lease unless a pop says otherwise (default 30s)")
	flags.DurationVar(&f.maxInvisible, "max-invisible", 0, "longest lease or renewal (default 6h)")
	flags.DurationVar(&f.maxTotal, "max-total", 0, "longest time for one grant with all its renewals (default: no limit)")
	flags.IntVar(&f.maxRenewals, "max-renewals", 0, "renewals of one grant, -1 for any number (default 3)")
	flags.DurationVar(&f.heartbeat, "heartbeat", 0, "interval of heartbeats (default 3s)")
	flags.DurationVar(&f.sessionTimeout, "session-timeout", 0, "silence that ends a session and gives its messages back (default 10s)")
	flags.Var(&f.backOff, "back-off", "wait after a failed attempt")
	flags.DurationVar(&f.backOffMin, "back-off-min", 0, "first, or fixed, wait (default 1s)")
	flags.DurationVar(&f.backOffMax, "back-off-max", 0, "longest wait (default 5m)")
	flags.Uint8Var(&f.maxFailures, "max-failures", 0, "failures after which a message is a dead letter (default 16; stored, not in force yet)")
	flags.Uint8Var(&f.maxExpiries, "max-expiries", 0, "the same for leases that expire (default 5; stored, not in force yet)")
	flags.Uint8Var(&f.maxSessionLoss, "max-session-losses", 0, "the same for lost sessions (default 3; stored, not in force yet)")
	flags.Uint32Var(&f.maxInFlight, "max-in-flight", 0, "leases of the group on one queue (default 10000)")
	flags.Var(&f.hold, "hold", "how long the group holds what it has not settled after its last session has ended (default 168h)")
	return f
}

func (f *ruleFlags) rules(flags *pflag.FlagSet) (client.GroupRules, error) {
	r := client.GroupRules{
		MaxFailures: f.maxFailures, MaxExpiries: f.maxExpiries, MaxSessionLosses: f.maxSessionLoss, MaxInFlight: f.maxInFlight,
		HoldMs: f.hold.ms,
	}
	for _, x := range []struct {
		name string
		d    time.Duration
		ms   *uint32
	}{
		{"invisible", f.invisible, &r.InvisibleMs}, {"max-invisible", f.maxInvisible, &r.MaxInvisibleMs},
		{"heartbeat", f.heartbeat, &r.HeartbeatMs}, {"session-timeout", f.sessionTimeout, &r.SessionTimeoutMs},
		{"back-off-min", f.backOffMin, &r.BackOffMinMs}, {"back-off-max", f.backOffMax, &r.BackOffMaxMs},
	} {
		if x.d%time.Millisecond != 0 || x.d < 0 || x.d.Milliseconds() > math.MaxUint32 {
			return r, fmt.Errorf("--%s %v: whole milliseconds, up to 49 days, are needed", x.name, x.d)
		}
		*x.ms = uint32(x.d.Milliseconds())
	}
	if f.maxTotal < 0 || f.maxTotal%time.Millisecond != 0 {
		return r, fmt.Errorf("--max-total %v: whole milliseconds are needed", f.maxTotal)
	}
	if r.MaxTotalMs = uint64(f.maxTotal.Milliseconds()); flags.Changed("max-total") && r.MaxTotalMs == 0 {
		r.MaxTotalMs = protocol.UnlimitedTotal
	}
	switch {
	case f.maxRenewals == unlimited:
		r.MaxRenewals = protocol.UnlimitedRenewals
	case f.maxRenewals < 0 || f.maxRenewals >= int(protocol.UnlimitedRenewals):
		return r, fmt.Errorf("--max-renewals %d: 1 to %d, or -1 for any number, are needed", f.maxRenewals, protocol.UnlimitedRenewals-1)
	default:
		r.MaxRenewals = uint16(f.maxRenewals)
	}
	if flags.Changed("back-off") {
		for i, word := range backOffs {
			if word == f.backOff.value {
				r.BackOff = protocol.BackOff(i)
			}
		}
		if r.BackOff == protocol.BackOffExponential {
			r.BackOff = protocol.BackOffExponentialAgain // an update would take 0 for "as it was"
		}
	}
	return r, nil
}

// rulesShown are the rules of a group as they are printed.
type rulesShown struct {
	InvisibleMs      uint32 `json:"invisible_ms"`
	MaxInvisibleMs   uint32 `json:"max_invisible_ms"`
	MaxRenewals      int    `json:"max_renewals"` // -1: any number
	MaxTotalMs       uint64 `json:"max_total_ms"` // 0: no limit
	HeartbeatMs      uint32 `json:"heartbeat_ms"`
	SessionTimeoutMs uint32 `json:"session_timeout_ms"`
	BackOff          string `json:"back_off"`
	BackOffMinMs     uint32 `json:"back_off_min_ms"`
	BackOffMaxMs     uint32 `json:"back_off_max_ms"`
	MaxFailures      uint8  `json:"max_failures"`
	MaxExpiries      uint8  `json:"max_expiries"`
	MaxSessionLosses uint8  `json:"max_session_losses"`
	MaxInFlight      uint32 `json:"max_in_flight"`
	HoldMs           int64  `json:"hold_ms"` // -1: for ever
}

func showRules(r *client.GroupRules) rulesShown {
	s := rulesShown{
		InvisibleMs: r.InvisibleMs, MaxInvisibleMs: r.MaxInvisibleMs, MaxRenewals: int(r.MaxRenewals), MaxTotalMs: r.MaxTotalMs,
		HeartbeatMs: r.HeartbeatMs, SessionTimeoutMs: r.SessionTimeoutMs,
		BackOffMinMs: r.BackOffMinMs, BackOffMaxMs: r.BackOffMaxMs,
		MaxFailures: r.MaxFailures, MaxExpiries: r.MaxExpiries, MaxSessionLosses: r.MaxSessionLosses, MaxInFlight: r.MaxInFlight,
		HoldMs: int64(min(r.HoldMs, math.MaxInt64)),
	}
	if r.HoldMs == protocol.HoldForever {
		s.HoldMs = unlimited
	}
	if r.MaxRenewals == protocol.UnlimitedRenewals {
		s.MaxRenewals = unlimited
	}
	if s.BackOff = "unknown"; int(r.BackOff) < len(backOffs) {
		s.BackOff = backOffs[r.BackOff]
	}
	return s
}

func (s *rulesShown) text(w io.Writer) {
	ms := spelled
	renewals, total, hold := fmt.Sprint(s.MaxRenewals), ms(s.MaxTotalMs), forever
	if s.MaxRenewals == unlimited {
		renewals = "any number"
	}
	if s.MaxTotalMs == 0 {
		total = "no limit"
	}
	if s.HoldMs != unlimited {
		hold = ms(uint64(s.HoldMs))
	}
	for _, row := range [][2]string{
		{"invisible", ms(uint64(s.InvisibleMs))}, {"max invisible", ms(uint64(s.MaxInvisibleMs))},
		{"max renewals", renewals}, {"max total", total},
		{"heartbeat", ms(uint64(s.HeartbeatMs))}, {"session timeout", ms(uint64(s.SessionTimeoutMs))},
		{"back-off", fmt.Sprintf("%s, %s to %s", s.BackOff, ms(uint64(s.BackOffMinMs)), ms(uint64(s.BackOffMaxMs)))},
		{"max failures, expiries, session losses", fmt.Sprintf("%d, %d, %d", s.MaxFailures, s.MaxExpiries, s.MaxSessionLosses)},
		{"max in flight a queue", fmt.Sprint(s.MaxInFlight)}, {"hold", hold},
	} {
		fmt.Fprintf(w, "%s\t%s\n", row[0], row[1])
	}
}
