package client

import (
	"context"
	"math"
	"time"

	"github.com/leasemq/leasemq/protocol"
)

// What the admin calls give and take, as the wire has it. Times are milliseconds.
type (
	TopicInfo    = protocol.TopicInfo
	GroupRules   = protocol.GroupRules
	GroupSummary = protocol.GroupSummary
	GroupInfo    = protocol.ShowGroupAnswer
	Stat         = protocol.Stat
)

// TopicOptions are the settings of a topic.
type TopicOptions struct {
	// Queues is how many queues the topic has; there are never fewer than before.
	Queues int
	// UniqueKeyFor is for how long a unique key deduplicates (Message.UniqueKey), in whole milliseconds, up to a day;
	// a change counts for messages that are sent from then on.
	UniqueKeyFor time.Duration
}

// A create, update, purge or delete whose answer was lost with its connection fails with ErrOutcomeUnknown: look with
// the list calls, which are repeated by themselves.

// CreateTopic makes a topic of so many queues. A status of TOPIC_EXISTS says that the name is taken.
func (c *Client) CreateTopic(ctx context.Context, name string, queues int) error {
	return c.CreateTopicWith(ctx, name, TopicOptions{Queues: queues})
}

// CreateTopicWith is CreateTopic with all settings. A zero UniqueKeyFor takes the default of 10 min.
func (c *Client) CreateTopicWith(ctx context.Context, name string, o TopicOptions) error {
	queues, uniqueKeyMs, err := o.wire(protocol.OpCreateTopic, 1)
	if err != nil {
		return err
	}
	request := protocol.CreateTopicRequest{Name: name, Queues: queues, UniqueKeyMs: uniqueKeyMs}
	return c.admin(ctx, protocol.OpCreateTopic, request.Validate(), &request, nil)
}

// UpdateTopic gives a topic so many queues; there are never fewer than before.
func (c *Client) UpdateTopic(ctx context.Context, name string, queues int) error {
	if queues == 0 {
		return invalidQueues(protocol.OpUpdateTopic, queues)
	}
	return c.UpdateTopicWith(ctx, name, TopicOptions{Queues: queues})
}

// UpdateTopicWith changes the settings of a topic. Zero fields stay what they were; one is needed.
func (c *Client) UpdateTopicWith(ctx context.Context, name string, o TopicOptions) error {
	queues, uniqueKeyMs, err := o.wire(protocol.OpUpdateTopic, 0)
	if err != nil {
		return err
	}
	request := protocol.UpdateTopicRequest{Name: name, Queues: queues, UniqueKeyMs: uniqueKeyMs}
	return c.admin(ctx, protocol.OpUpdateTopic, request.Validate(), &request, nil)
}

// PurgeTopic lets go of every message that a topic has now. Its queues go on at the offsets that they have, and what
// groups hold of those messages under leases is void.
func (c *Client) PurgeTopic(ctx context.Context, name string) error {
	return c.admin(ctx, protocol.OpPurgeTopic, protocol.CheckExistingName("topic", name), &protocol.NameRequest{Name: name}, nil)
}

// DeleteTopic deletes a topic and its messages.
func (c *Client) DeleteTopic(ctx context.Context, name string) error {
	return c.admin(ctx, protocol.OpDeleteTopic, protocol.CheckExistingName("topic", name), &protocol.NameRequest{Name: name}, nil)
}

// ListTopics lists all topics, by name.
func (c *Client) ListTopics(ctx context.Context) ([]TopicInfo, error) {
	var answer protocol.ListTopicsAnswer
	if err := c.admin(ctx, protocol.OpListTopics, nil, nil, &answer); err != nil {
		return nil, err
	}
	return answer.Topics, nil
}

// CreateGroup makes a group. Zero fields of rules take their defaults.
func (c *Client) CreateGroup(ctx context.Context, name string, rules GroupRules) error {
	request := protocol.GroupRequest{Name: name, Rules: rules}
	return c.admin(ctx, protocol.OpCreateGroup, request.Validate(), &request, nil)
}

// UpdateGroup changes the rules of a group. Zero fields of rules stay what they were.
func (c *Client) UpdateGroup(ctx context.Context, name string, rules GroupRules) error {
	request := protocol.GroupRequest{Name: name, Rules: rules}
	return c.admin(ctx, protocol.OpUpdateGroup, request.Validate(), &request, nil)
}

// DeleteGroup deletes a group, its sessions and its positions.
func (c *Client) DeleteGroup(ctx context.Context, name string) error {
	return c.admin(ctx, protocol.OpDeleteGroup, protocol.CheckName("group", name), &protocol.NameRequest{Name: name}, nil)
}

// ListGroups lists all groups, by name.
func (c *Client) ListGroups(ctx context.Context) ([]GroupSummary, error) {
	var answer protocol.ListGroupsAnswer
	if err := c.admin(ctx, protocol.OpListGroups, nil, nil, &answer); err != nil {
		return nil, err
	}
	return answer.Groups, nil
}

// ShowGroup shows a group with its rules, sessions and positions.
func (c *Client) ShowGroup(ctx context.Context, name string) (*GroupInfo, error) {
	answer := new(protocol.ShowGroupAnswer)
	err := c.admin(ctx, protocol.OpShowGroup, protocol.CheckName("group", name), &protocol.NameRequest{Name: name}, answer)
	if err != nil {
		return nil, err
	}
	return answer, nil
}

// Stats lists the broker's figures, by name.
func (c *Client) Stats(ctx context.Context) ([]Stat, error) {
	var answer protocol.StatsAnswer
	if err := c.admin(ctx, protocol.OpStats, nil, nil, &answer); err != nil {
		return nil, err
	}
	return answer.Stats, nil
}

// admin makes the call unless the request was found illegal.
func (c *Client) admin(ctx context.Context, op protocol.Opcode, illegal error, request, answer protocol.Body) error {
	if illegal != nil {
		return refused(op, illegal)
	}
	return c.link.simple(ctx, op, 0, request, answer)
}

// wire is o as the request has it.
func (o *TopicOptions) wire(op protocol.Opcode, fewest int) (queues uint16, uniqueKeyMs uint32, err error) {
	if o.Queues < fewest || o.Queues > protocol.MaxQueuesPerTopic {
		return 0, 0, invalidQueues(op, o.Queues)
	}
	if d := o.UniqueKeyFor; d < 0 || d%time.Millisecond != 0 || d.Milliseconds() > math.MaxUint32 {
		return 0, 0, invalid(op, "a unique-key time of %v, whole milliseconds up to a day are legal", d)
	}
	return uint16(o.Queues), uint32(o.UniqueKeyFor.Milliseconds()), nil
}

func invalidQueues(op protocol.Opcode, n int) error {
	return invalid(op, "%d queues, 1 to %d are legal", n, protocol.MaxQueuesPerTopic)
}
