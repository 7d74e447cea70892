package protocol

// The defaults of GroupRules.
const (
	defaultMaxRenewals      = 3
	defaultHeartbeatMs      = 3000
	defaultSessionTimeoutMs = 10_000
	defaultBackOffMinMs     = 1000
	defaultBackOffMaxMs     = 5 * 60 * 1000
	defaultMaxFailures      = 16
	defaultMaxExpiries      = 5
	defaultMaxSessionLosses = 3
	defaultHoldMs           = 7 * 24 * 60 * 60 * 1000
)

// WithDefaults fills the zero fields of r with their defaults. Where a field that was set has a partner
// that was not, the partner follows it, so that no single legal setting makes illegal rules.
func (r GroupRules) WithDefaults() GroupRules {
	r = r.settled()
	setDefault(&r.MaxInvisibleMs, MaxInvisibleMs)
	cap := uint64(r.MaxInvisibleMs)
	if r.MaxTotalMs != 0 {
		cap = min(cap, r.MaxTotalMs)
	}
	setDefault(&r.InvisibleMs, uint32(min(DefaultInvisibleMs, cap)))
	setDefault(&r.MaxRenewals, defaultMaxRenewals)
	// The presets have at least three intervals in a timeout.
	setDefault(&r.SessionTimeoutMs, max(defaultSessionTimeoutMs, min(3*uint64(r.HeartbeatMs), MaxSessionTimeoutMs)))
	setDefault(&r.HeartbeatMs, min(defaultHeartbeatMs, r.SessionTimeoutMs*3/10))
	if r.BackOffMaxMs != 0 {
		setDefault(&r.BackOffMinMs, min(defaultBackOffMinMs, r.BackOffMaxMs))
	}
	setDefault(&r.BackOffMinMs, defaultBackOffMinMs)
	setDefault(&r.BackOffMaxMs, max(defaultBackOffMaxMs, r.BackOffMinMs))
	setDefault(&r.MaxFailures, defaultMaxFailures)
	setDefault(&r.MaxExpiries, defaultMaxExpiries)
	setDefault(&r.MaxSessionLosses, defaultMaxSessionLosses)
	setDefault(&r.MaxInFlight, MaxInFlightPerQueue)
	setDefault(&r.HoldMs, defaultHoldMs)
	return r
}

// Merge is r as an update of old: the zero fields of r keep what old has. The result is to be validated:
// a new field may contradict an old one.
func (r GroupRules) Merge(old GroupRules) GroupRules {
	setDefault(&r.InvisibleMs, old.InvisibleMs)
	setDefault(&r.MaxInvisibleMs, old.MaxInvisibleMs)
	setDefault(&r.MaxRenewals, old.MaxRenewals)
	setDefault(&r.MaxTotalMs, old.MaxTotalMs)
	setDefault(&r.HeartbeatMs, old.HeartbeatMs)
	setDefault(&r.SessionTimeoutMs, old.SessionTimeoutMs)
	setDefault(&r.BackOff, old.BackOff)
	setDefault(&r.BackOffMinMs, old.BackOffMinMs)
	setDefault(&r.BackOffMaxMs, old.BackOffMaxMs)
	setDefault(&r.MaxFailures, old.MaxFailures)
	setDefault(&r.MaxExpiries, old.MaxExpiries)
	setDefault(&r.MaxSessionLosses, old.MaxSessionLosses)
	setDefault(&r.MaxInFlight, old.MaxInFlight)
	setDefault(&r.HoldMs, old.HoldMs)
	r.Ordered = r.Ordered || old.Ordered
	r.Assigned = r.Assigned || old.Assigned
	return r.settled()
}

// settled replaces the values that say "the zero value, outright" by that zero value.
func (r GroupRules) settled() GroupRules {
	if r.BackOff == BackOffExponentialAgain {
		r.BackOff = BackOffExponential
	}
	if r.MaxTotalMs == UnlimitedTotal {
		r.MaxTotalMs = 0
	}
	return r
}

func setDefault[T ~uint8 | ~uint16 | ~uint32 | ~uint64, V ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~int](field *T, value V) {
	if *field == 0 {
		*field = T(value)
	}
}

// Validate says what is wrong with r, whether its zero fields have been filled or not.
func (r GroupRules) Validate() error {
	switch {
	case r.Ordered:
		return unsupported("ordered groups")
	case r.Assigned:
		return unsupported("assigned groups")
	case r.BackOff > BackOffExponentialAgain:
		return invalid(uint64(BackOffExponentialAgain), "unknown back-off %d", r.BackOff)
	case r.MaxInFlight > MaxInFlightPerQueue:
		return invalid(MaxInFlightPerQueue, "max in flight %d, limit %d", r.MaxInFlight, MaxInFlightPerQueue)
	}
	if err := checkRange("invisible time", uint64(r.InvisibleMs), MinInvisibleMs, MaxInvisibleMs); err != nil {
		return err
	}
	if err := checkRange("max invisible time", uint64(r.MaxInvisibleMs), MinInvisibleMs, MaxInvisibleMs); err != nil {
		return err
	}
	if err := checkRange("session timeout", uint64(r.SessionTimeoutMs), MinSessionTimeoutMs, MaxSessionTimeoutMs); err != nil {
		return err
	}
	if err := checkRange("heartbeat interval", uint64(r.HeartbeatMs), MinHeartbeatMs, MaxSessionTimeoutMs); err != nil {
		return err
	}
	if err := checkRange("max total", r.MaxTotalMs, MinInvisibleMs, UnlimitedTotal); err != nil {
		return err
	}
	if err := checkRange("hold", r.HoldMs, MinHoldMs, HoldForever); err != nil {
		return err
	}
	if err := checkRange("back-off min", uint64(r.BackOffMinMs), 1, MaxInvisibleMs); err != nil {
		return err
	}
	if err := checkRange("back-off max", uint64(r.BackOffMaxMs), 1, MaxInvisibleMs); err != nil {
		return err
	}
	if err := checkOrder("invisible time", uint64(r.InvisibleMs), "max invisible time", uint64(r.MaxInvisibleMs)); err != nil {
		return err
	}
	if err := checkOrder("invisible time", uint64(r.InvisibleMs), "max total", r.MaxTotalMs); err != nil {
		return err
	}
	if err := checkOrder("heartbeat interval", uint64(r.HeartbeatMs), "session timeout", uint64(r.SessionTimeoutMs)); err != nil {
		return err
	}
	return checkOrder("back-off min", uint64(r.BackOffMinMs), "back-off max", uint64(r.BackOffMaxMs))
}

// checkRange allows 0: it stands for the default or for what the field was.
func checkRange(what string, ms, least, most uint64) error {
	switch {
	case ms == 0:
		return nil
	case ms < least:
		return invalid(least, "%s of %d ms, at least %d", what, ms, least)
	case ms > most:
		return invalid(most, "%s of %d ms, limit %d", what, ms, most)
	}
	return nil
}

func checkOrder(what string, ms uint64, limitName string, limit uint64) error {
	if ms == 0 || limit == 0 || ms <= limit {
		return nil
	}
	return invalid(limit, "%s of %d ms, longer than the %s of %d", what, ms, limitName, limit)
}
