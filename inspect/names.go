package inspect

import (
	"fmt"

	"github.com/leasemq/leasemq/codec"
)

// names knows what ids stand for, from the records that gave them out and from the rows of a snapshot. Ids are never reused, so
// what was deleted keeps its name.
type names struct {
	topics   map[uint32]string
	groups   map[uint32]string
	subs     map[uint32]subscription
	sessions map[uint64]uint32 // group; live ones, and ended ones that the snapshot remembers
}

type subscription struct{ group, topic uint32 }

func newNames() *names {
	return &names{map[uint32]string{}, map[uint32]string{}, map[uint32]subscription{}, map[uint64]uint32{}}
}

func named(names map[uint32]string, id uint32) string {
	if name, ok := names[id]; ok {
		return name
	}
	return fmt.Sprintf("#%d", id)
}

func (n *names) topic(id uint32) string { return named(n.topics, id) }
func (n *names) group(id uint32) string { return named(n.groups, id) }

// learn takes what a record says about names.
func (n *names) learn(d *decoded) {
	switch {
	case d.topic != nil && len(d.topic.Name) > 0:
		n.topics[d.topic.ID] = string(d.topic.Name)
	case d.group != nil && len(d.group.Name) > 0:
		n.groups[d.group.ID] = string(d.group.Name)
	case d.subscribe != nil:
		n.subs[d.subscribe.Sub] = subscription{d.subscribe.Group, d.subscribe.Topic}
	case d.sessionStart != nil:
		n.sessions[d.sessionStart.Session] = d.sessionStart.Group
	}
}

// forget lets go of what no later record can name.
func (n *names) forget(d *decoded) {
	if d.sessionEnd != nil {
		delete(n.sessions, d.sessionEnd.Session)
	}
}

// learnRow takes what a row of a snapshot says about names.
func (n *names) learnRow(r *rowValue) {
	switch r.kind {
	case codec.RowTopic:
		n.topics[r.topic.ID] = string(r.topic.Name)
	case codec.RowGroup:
		n.groups[r.group.ID] = string(r.group.Name)
	case codec.RowSubscription:
		n.subs[r.subscription.Sub] = subscription{r.subscription.Group, r.subscription.Topic}
	case codec.RowSession:
		n.sessions[r.session.ID] = r.session.Group
	}
}
