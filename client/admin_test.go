package client

import (
	"testing"
	"time"

	"github.com/leasemq/leasemq/protocol"
)

func TestAdminCalls(t *testing.T) {
	bubble(t, func(t *testing.T, b *fakeBroker) {
		c, p := b.client(Options{})
		call := func(op protocol.Opcode, request, answer protocol.Body, f func() error) {
			t.Helper()
			wait := going(f)
			p.answer(p.expect(op, request), protocol.OK, answer)
			ok(t, wait())
		}
		ctx := t.Context()
		var create protocol.CreateTopicRequest
		call(protocol.OpCreateTopic, &create, nil, func() error { return c.CreateTopic(ctx, "t", 4) })
		var update protocol.UpdateTopicRequest
		call(protocol.OpUpdateTopic, &update, nil, func() error { return c.UpdateTopic(ctx, "%DLQ%g", 8) })
		var name protocol.NameRequest
		call(protocol.OpDeleteTopic, &name, nil, func() error { return c.DeleteTopic(ctx, "t") })
		var group protocol.GroupRequest
		call(protocol.OpCreateGroup, &group, nil, func() error { return c.CreateGroup(ctx, "g", GroupRules{MaxRenewals: 5}) })
		call(protocol.OpPurgeTopic, &name, nil, func() error { return c.PurgeTopic(ctx, "p") })
		if name.Name != "p" || create.UniqueKeyMs != 0 || update.UniqueKeyMs != 0 {
			t.Errorf("got %+v, %+v, %+v", name, create, update)
		}
		call(protocol.OpDeleteTopic, &name, nil, func() error { return c.DeleteTopic(ctx, "t") })
		if create.Queues != 4 || update.Name != "%DLQ%g" || name.Name != "t" || group.Name != "g" || group.Rules.MaxRenewals != 5 {
			t.Errorf("got %+v, %+v, %+v, %+v", create, update, name, group)
		}
		call(protocol.OpCreateTopic, &create, nil, func() error {
			return c.CreateTopicWith(ctx, "u", TopicOptions{Queues: 2, UniqueKeyFor: time.Hour})
		})
		call(protocol.OpUpdateTopic, &update, nil, func() error {
			return c.UpdateTopicWith(ctx, "u", TopicOptions{UniqueKeyFor: time.Minute})
		})
		if create != (protocol.CreateTopicRequest{Name: "u", Queues: 2, UniqueKeyMs: 3_600_000}) ||
			update != (protocol.UpdateTopicRequest{Name: "u", UniqueKeyMs: 60_000}) {
			t.Errorf("got %+v, %+v", create, update)
		}
		call(protocol.OpUpdateGroup, &group, nil, func() error { return c.UpdateGroup(ctx, "g", GroupRules{MaxExpiries: 2}) })
		call(protocol.OpDeleteGroup, &name, nil, func() error { return c.DeleteGroup(ctx, "g") })
		call(protocol.OpListTopics, nil, &protocol.ListTopicsAnswer{Topics: []TopicInfo{{Name: "t"}}}, func() error {
			topics, err := c.ListTopics(ctx)
			if len(topics) != 1 || topics[0].Name != "t" {
				t.Errorf("got %+v", topics)
			}
			return err
		})
		call(protocol.OpListGroups, nil, &protocol.ListGroupsAnswer{Groups: []GroupSummary{{Name: "g"}}}, func() error {
			groups, err := c.ListGroups(ctx)
			if len(groups) != 1 || groups[0].Name != "g" {
				t.Errorf("got %+v", groups)
			}
			return err
		})
		// An answer longer than the read buffer.
		long := make([]Stat, 3000)
		for i := range long {
			long[i] = Stat{Name: "a.rather.long.name", Value: uint64(i)}
		}
		call(protocol.OpStats, nil, &protocol.StatsAnswer{Stats: long}, func() error {
			stats, err := c.Stats(ctx)
			if len(stats) != 3000 || stats[2999].Value != 2999 {
				t.Errorf("%d figures", len(stats))
			}
			return err
		})
		call(protocol.OpShowGroup, &name, &GroupInfo{Name: "g", Version: 3}, func() error {
			info, err := c.ShowGroup(ctx, "g")
			if info.Version != 3 {
				t.Errorf("got %+v", info)
			}
			return err
		})
		for _, err := range []error{c.CreateTopic(ctx, "a b", 1), c.CreateTopic(ctx, "t", 0), c.UpdateTopic(ctx, "t", 70_000),
			c.UpdateTopic(ctx, "t", 0), c.UpdateTopic(ctx, "t", -1), c.UpdateTopicWith(ctx, "t", TopicOptions{}),
			c.CreateTopicWith(ctx, "t", TopicOptions{UniqueKeyFor: time.Hour}), c.PurgeTopic(ctx, "a b"),
			c.CreateTopicWith(ctx, "t", TopicOptions{Queues: 1, UniqueKeyFor: 25 * time.Hour}),
			c.UpdateTopicWith(ctx, "t", TopicOptions{UniqueKeyFor: time.Microsecond}),
			c.UpdateTopicWith(ctx, "t", TopicOptions{UniqueKeyFor: -time.Second}),
			c.DeleteTopic(ctx, ""), c.CreateGroup(ctx, "%g", GroupRules{}), c.DeleteGroup(ctx, "")} {
			wantErr(t, err, ErrInvalid)
		}
		p.quiet()
		wait := going(func() error { return c.CreateTopic(ctx, "t", 1) })
		p.refuse(p.expect(protocol.OpCreateTopic, nil), protocol.TopicExists, "t")
		var status *StatusError
		if err := wait(); !asStatus(err, &status) || status.Status != protocol.TopicExists {
			t.Errorf("got %v", err)
		}
	})
}

func asStatus(err error, e **StatusError) bool {
	s, ok := err.(*StatusError)
	*e = s
	return ok
}
