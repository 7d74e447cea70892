package protocol

import (
	"reflect"
	"testing"
)

func TestDefaultRules(t *testing.T) {
	want := GroupRules{
		InvisibleMs: 30_000, MaxInvisibleMs: 21_600_000, MaxRenewals: 3, HeartbeatMs: 3000, SessionTimeoutMs: 10_000,
		BackOffMinMs: 1000, BackOffMaxMs: 300_000, MaxFailures: 16, MaxExpiries: 5, MaxSessionLosses: 3, MaxInFlight: 10_000, HoldMs: 604_800_000,
	}
	if got := (GroupRules{}).WithDefaults(); got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	wantValid(t, "defaults", want)
	wantValid(t, "nothing", GroupRules{})
	if got := want.WithDefaults(); got != want {
		t.Errorf("defaults of the defaults: %+v", got)
	}
}

// TestOneRuleIsEnough: no legal setting of one field makes illegal rules of the defaults beside it.
func TestOneRuleIsEnough(t *testing.T) {
	for _, r := range []GroupRules{
		{InvisibleMs: MinInvisibleMs}, {InvisibleMs: MaxInvisibleMs}, {MaxInvisibleMs: MinInvisibleMs}, {MaxTotalMs: MinInvisibleMs}, {MaxTotalMs: UnlimitedTotal},
		{MaxRenewals: UnlimitedRenewals}, {HeartbeatMs: MinHeartbeatMs}, {HeartbeatMs: MaxSessionTimeoutMs}, {HeartbeatMs: 5000},
		{SessionTimeoutMs: MinSessionTimeoutMs}, {SessionTimeoutMs: MaxSessionTimeoutMs},
		{BackOff: BackOffLevels}, {BackOff: BackOffExponentialAgain}, {BackOffMinMs: MaxInvisibleMs}, {BackOffMaxMs: 1}, {MaxInFlight: 1}, {MaxFailures: 255},
	} {
		wantValid(t, "the rule alone", r)
		full := r.WithDefaults()
		wantValid(t, "with defaults", full)
		if full.BackOff == BackOffExponentialAgain || full.MaxTotalMs == UnlimitedTotal {
			t.Errorf("%+v keeps what only an update says", full)
		}
		v := reflect.ValueOf(full)
		for i := range v.NumField() {
			switch name := v.Type().Field(i).Name; name {
			case "BackOff", "MaxTotalMs", "Ordered", "Assigned":
			default:
				if v.Field(i).IsZero() {
					t.Errorf("%+v leaves %s zero", r, name)
				}
			}
		}
	}
}

func TestMergeRules(t *testing.T) {
	old := GroupRules{
		InvisibleMs: 1, MaxInvisibleMs: 2, MaxRenewals: 3, MaxTotalMs: 4, HeartbeatMs: 5, SessionTimeoutMs: 6, BackOff: BackOffLevels,
		BackOffMinMs: 8, BackOffMaxMs: 9, MaxFailures: 10, MaxExpiries: 11, MaxSessionLosses: 12, MaxInFlight: 13, HoldMs: 14, Ordered: true, Assigned: true,
	}
	if got := (GroupRules{}).Merge(old); got != old {
		t.Errorf("an empty update changes the rules to %+v", got)
	}
	new := GroupRules{
		InvisibleMs: 21, MaxInvisibleMs: 22, MaxRenewals: 23, MaxTotalMs: 24, HeartbeatMs: 25, SessionTimeoutMs: 26, BackOff: BackOffFixed,
		BackOffMinMs: 28, BackOffMaxMs: 29, MaxFailures: 30, MaxExpiries: 31, MaxSessionLosses: 32, MaxInFlight: 33, HoldMs: HoldForever, Ordered: true, Assigned: true,
	}
	if got := new.Merge(old); got != new {
		t.Errorf("a full update keeps something of the old rules: %+v", got)
	}
	got := GroupRules{BackOff: BackOffExponentialAgain, MaxTotalMs: UnlimitedTotal}.Merge(old)
	want := old
	want.BackOff, want.MaxTotalMs = BackOffExponential, 0
	if got != want {
		t.Errorf("back to the zero values:\ngot  %+v\nwant %+v", got, want)
	}
}

func TestValidateRules(t *testing.T) {
	for what, c := range map[string]struct {
		rules  GroupRules
		status Status
		detail uint64
	}{
		"short lease":                     {GroupRules{InvisibleMs: 9}, Invalid, MinInvisibleMs},
		"long lease":                      {GroupRules{InvisibleMs: MaxInvisibleMs + 1}, Invalid, MaxInvisibleMs},
		"long longest lease":              {GroupRules{MaxInvisibleMs: MaxInvisibleMs + 1}, Invalid, MaxInvisibleMs},
		"lease longer than the longest":   {GroupRules{InvisibleMs: 2000, MaxInvisibleMs: 1000}, Invalid, 1000},
		"lease longer than the total":     {GroupRules{InvisibleMs: 2000, MaxTotalMs: 1000}, Invalid, 1000},
		"total":                           {GroupRules{MaxTotalMs: 1}, Invalid, MinInvisibleMs},
		"short timeout":                   {GroupRules{SessionTimeoutMs: 999}, Invalid, MinSessionTimeoutMs},
		"long timeout":                    {GroupRules{SessionTimeoutMs: MaxSessionTimeoutMs + 1}, Invalid, MaxSessionTimeoutMs},
		"short heartbeat":                 {GroupRules{HeartbeatMs: 49}, Invalid, MinHeartbeatMs},
		"long heartbeat":                  {GroupRules{HeartbeatMs: MaxSessionTimeoutMs + 1}, Invalid, MaxSessionTimeoutMs},
		"heartbeat beyond the timeout":    {GroupRules{HeartbeatMs: 2001, SessionTimeoutMs: 2000}, Invalid, 2000},
		"back-off":                        {GroupRules{BackOff: 5}, Invalid, 4},
		"back-off of days":                {GroupRules{BackOffMaxMs: MaxInvisibleMs + 1}, Invalid, MaxInvisibleMs},
		"back-off least beyond the most":  {GroupRules{BackOffMinMs: 2, BackOffMaxMs: 1}, Invalid, 1},
		"back-off least beyond the limit": {GroupRules{BackOffMinMs: MaxInvisibleMs + 1}, Invalid, MaxInvisibleMs},
		"hold":                            {GroupRules{HoldMs: MinHoldMs - 1}, Invalid, MinHoldMs},
		"in flight":                       {GroupRules{MaxInFlight: MaxInFlightPerQueue + 1}, Invalid, MaxInFlightPerQueue},
		"ordered":                         {GroupRules{Ordered: true}, Unsupported, 0},
		"assigned":                        {GroupRules{Assigned: true}, Unsupported, 0},
	} {
		wantRefusal(t, what, c.rules, c.status, c.detail)
	}
}
