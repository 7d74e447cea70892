package heartbeat

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/slab"
)

// View is the registry as it was when it was frozen, for another goroutine to write.
type View struct {
	groups    *slab.Slab[group]
	sessions  *slab.Slab[session]
	endedHead uint32
	// NextGroup and LastSession are counters of the registry.
	NextGroup   uint32
	LastSession uint64
}

// Freeze gives a view that stays as it is while the registry goes on, until Thaw.
func (r *Registry) Freeze() *View {
	return &View{
		groups: r.groups.Freeze(), sessions: r.sessions.Freeze(), endedHead: r.endedHead,
		NextGroup: r.nextGroup, LastSession: r.lastID,
	}
}

// Thaw ends the view.
func (r *Registry) Thaw() {
	r.groups.Thaw()
	r.sessions.Thaw()
}

// SessionID is the id of the session in a slot.
func (v *View) SessionID(slot uint32) uint64 { return v.sessions.At(slot).id }

// Rows gives out a row for each group, by id, then one for each session: ended ones in the order in which they ended, then
// live ones by id.
func (v *View) Rows(emit func(kind codec.RowKind, row []byte) error) error {
	var b []byte
	for _, i := range sorted(v.groups, func(g *group) uint64 { return uint64(g.id) }) {
		g := v.groups.At(i)
		row := codec.GroupRow{ID: g.id, Version: g.version, IdleMs: g.idleMs, Rules: g.rules, Name: g.name.b[:g.name.n]}
		b = row.Append(b[:0])
		if err := emit(codec.RowGroup, b); err != nil {
			return err
		}
	}
	for i := v.endedHead; i != 0; i = v.sessions.At(i).next {
		b = v.session(b[:0], i)
		if err := emit(codec.RowSession, b); err != nil {
			return err
		}
	}
	for _, i := range sorted(v.sessions, func(s *session) uint64 { return s.id }) {
		if v.sessions.At(i).ended {
			continue
		}
		b = v.session(b[:0], i)
		if err := emit(codec.RowSession, b); err != nil {
			return err
		}
	}
	return nil
}

func (v *View) session(b []byte, i uint32) []byte {
	s := v.sessions.At(i)
	row := codec.SessionRow{
		ID: s.id, Group: v.groups.At(s.group).id, Ended: s.ended, Cause: s.cause, EndedMs: s.endedMs, Nonce: s.nonce,
		HeartbeatMs: s.heartbeatMs, TimeoutMs: s.timeoutMs,
		ConsumerID: s.consumer.b[:s.consumer.n], ClientInfo: s.info.b[:s.info.n],
	}
	return row.Append(b)
}

// sorted lists the indexes in use by a key.
func sorted[T any](s *slab.Slab[T], key func(*T) uint64) []uint32 {
	list := make([]uint32, 0, s.Len())
	for i := uint32(1); i < s.End(); i++ {
		if s.Used(i) {
			list = append(list, i)
		}
	}
	slices.SortFunc(list, func(a, b uint32) int { return cmp.Compare(key(s.At(a)), key(s.At(b))) })
	return list
}

// LoadCounters begins the loading of a snapshot into an empty registry.
func (r *Registry) LoadCounters(nextGroup uint32, lastSession uint64) {
	r.nextGroup, r.lastID = nextGroup, lastSession
}

// LoadGroup takes the row of a group.
func (r *Registry) LoadGroup(row *codec.GroupRow) error {
	_, known := r.groupIDs[row.ID]
	_, taken := r.groupNames[string(row.Name)]
	if known || taken || row.ID == 0 || row.ID >= r.nextGroup {
		return fmt.Errorf("group %d %q", row.ID, row.Name)
	}
	slot := r.groups.Alloc()
	*r.groups.Mut(slot) = group{id: row.ID, rules: row.Rules, version: row.Version, idleMs: row.IdleMs, name: newText(row.Name)}
	r.linkGroup(slot)
	return nil
}

// LoadSession takes the row of a session. Live ones have shown their last sign of life at the lease clock leaseMs.
func (r *Registry) LoadSession(row *codec.SessionRow, leaseMs int64) error {
	group, known := r.groupIDs[row.Group]
	_, twice := r.slots[row.ID]
	if !known || twice || row.ID == 0 || row.ID > r.lastID {
		return fmt.Errorf("session %d of group %d", row.ID, row.Group)
	}
	if _, alive := r.consumers[consumerKey{row.Group, string(row.ConsumerID)}]; alive && !row.Ended {
		return fmt.Errorf("consumer %q of group %d lives twice", row.ConsumerID, row.Group)
	}
	i := r.sessions.Alloc()
	*r.sessions.Mut(i) = session{
		id: row.ID, group: group, ended: row.Ended, cause: row.Cause, endedMs: row.EndedMs, nonce: row.Nonce,
		heartbeatMs: row.HeartbeatMs, timeoutMs: row.TimeoutMs,
		consumer: newText(row.ConsumerID), info: newText(row.ClientInfo),
	}
	if row.Ended {
		r.slots[row.ID] = i
		r.rememberEnded(i)
		return nil
	}
	r.groups.Mut(group).live++
	r.link(i, leaseMs)
	return nil
}
