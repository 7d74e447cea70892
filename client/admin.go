package client

import (
	"context"

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

// A create, update or delete whose answer was lost with its connection fails with ErrOutcomeUnknown: look with
// the list calls, which are repeated by themselves.

// CreateTopic makes a topic of so many queues. A status of TOPIC_EXISTS says that the name is taken.
func (c *Client) CreateTopic(ctx context.Context, name string, queues int) error {
	n, err := wireQueues(protocol.OpCreateTopic, queues)
	if err != nil {
		return err
	}
	request := protocol.CreateTopicRequest{Name: name, Queues: n}
	return c.admin(ctx, protocol.OpCreateTopic, request.Validate(), &request, nil)
}

// UpdateTopic gives a topic so many queues; there are never fewer than before.
func (c *Client) UpdateTopic(ctx context.Context, name string, queues int) error {
	n, err := wireQueues(protocol.OpUpdateTopic, queues)
	if err != nil {
		return err
	}
	request := protocol.UpdateTopicRequest{Name: name, Queues: n}
	return c.admin(ctx, protocol.OpUpdateTopic, request.Validate(), &request, nil)
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

func wireQueues(op protocol.Opcode, n int) (uint16, error) {
	if n < 1 || n > protocol.MaxQueuesPerTopic {
		return 0, invalid(op, "%d queues, 1 to %d are legal", n, protocol.MaxQueuesPerTopic)
	}
	return uint16(n), nil
}
