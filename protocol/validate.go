package protocol

import "fmt"

// Decode checks that a body has its layout; Validate checks the values in it, as far as the wire format
// sets their limits. What depends on a group's rules, on the broker's configuration or on the state of
// anything is the broker's to check. The errors are of type *RequestError. A client may call Validate
// before it sends.

func invalid(limit uint64, format string, args ...any) error {
	return &RequestError{Invalid, fmt.Sprintf(format, args...), limit}
}

// unsupported refuses what the wire format has room for and this version of the broker does not serve.
func unsupported(what string) error {
	return &RequestError{Status: Unsupported, Message: what + ": not served by this broker"}
}

func checkText(what, s string, least int) error {
	if len(s) < least {
		return invalid(0, "the %s is empty", what)
	}
	if len(s) > MaxFieldBytes {
		return invalid(MaxFieldBytes, "%s of %d bytes, limit %d", what, len(s), MaxFieldBytes)
	}
	return nil
}

func checkEntries(n, limit int) error {
	if n == 0 {
		return invalid(0, "a batch without entries")
	}
	if n > limit {
		return &RequestError{TooLarge, fmt.Sprintf("%d entries, limit %d", n, limit), uint64(limit)}
	}
	return nil
}

func (m *HelloRequest) Validate() error {
	switch {
	case m.MinVersion > m.MaxVersion:
		return invalid(0, "versions %d to %d", m.MinVersion, m.MaxVersion)
	case m.MinVersion > Version || m.MaxVersion < Version:
		return &RequestError{Unsupported, fmt.Sprintf("protocol versions %d to %d, this broker speaks %d", m.MinVersion, m.MaxVersion, Version), uint64(Version)}
	case len(m.Auth) != 0:
		return unsupported("authentication")
	}
	return nil
}

func (m *RegisterRequest) Validate() error {
	if err := CheckName("group", m.Group); err != nil {
		return err
	}
	if err := checkText("consumer id", m.ConsumerID, 1); err != nil {
		return err
	}
	return checkRange("reclaimed lease", uint64(m.ReclaimMs), MinInvisibleMs, MaxInvisibleMs)
}

func (m *SendRequest) Validate() error {
	if err := CheckExistingName("topic", m.Topic); err != nil {
		return err
	}
	if m.Queue != AnyQueue && (m.Queue < 0 || m.Queue >= MaxQueuesPerTopic) {
		return invalid(MaxQueuesPerTopic-1, "queue %d, -1 to %d are legal", m.Queue, MaxQueuesPerTopic-1)
	}
	if m.ProducerID != 0 {
		return unsupported("producer ids")
	}
	return checkEntries(len(m.Messages), MaxSendEntries)
}

func (m *PopRequest) Validate() error {
	if err := CheckExistingName("topic", m.Topic); err != nil {
		return err
	}
	switch {
	case m.Max == 0 || m.Max > MaxPopMessages:
		return invalid(MaxPopMessages, "a pop of %d messages, 1 to %d are legal", m.Max, MaxPopMessages)
	case m.MaxBytes > MaxPopBytes:
		return invalid(MaxPopBytes, "a pop of %d bytes, limit %d", m.MaxBytes, MaxPopBytes)
	case m.AwaitMs > MaxAwaitMs:
		return invalid(MaxAwaitMs, "await time of %d ms, limit %d", m.AwaitMs, MaxAwaitMs)
	case m.Slot > MaxPopSlot:
		return invalid(MaxPopSlot, "pop slot %d, 0 to %d are legal", m.Slot, MaxPopSlot)
	case m.Sequence > MaxPopSequence:
		return invalid(MaxPopSequence, "pop sequence %d, limit %d", m.Sequence, uint64(MaxPopSequence))
	case m.PreviousLost && m.Sequence == 0:
		return invalid(0, "previous lost without a pop sequence")
	case m.Start > StartTime:
		return invalid(uint64(StartTime), "start %d, 0 to %d are legal", m.Start, StartTime)
	case m.Start == StartTime:
		return unsupported("start at a time")
	case len(m.FilterTags) > MaxFilterTags:
		return invalid(MaxFilterTags, "%d filter tags, limit %d", len(m.FilterTags), MaxFilterTags)
	}
	for _, tag := range m.FilterTags {
		if err := checkText("filter tag", tag, 1); err != nil {
			return err
		}
	}
	return checkRange("invisible time", uint64(m.InvisibleMs), MinInvisibleMs, MaxInvisibleMs)
}

func (m *AckRequest) Validate() error { return checkEntries(len(m.Entries), MaxAckEntries) }

// Validate checks the batch; what is wrong with an entry (ChangeEntry.Validate) is that entry's result.
func (m *ChangeInvisibleRequest) Validate() error { return checkEntries(len(m.Entries), MaxAckEntries) }

// Validate checks one entry. Its status goes into the entry's result.
func (m *ChangeEntry) Validate() error {
	switch {
	case m.Cause > CausePostponed:
		return invalid(uint64(CausePostponed), "unknown cause %d", m.Cause)
	case m.Ordinal == 0:
		return invalid(1, "ordinal 0: the first change of a grant has 1")
	case len(m.Checkpoint) > MaxCheckpointBytes:
		return &RequestError{TooLarge, fmt.Sprintf("checkpoint of %d bytes, limit %d", len(m.Checkpoint), MaxCheckpointBytes), MaxCheckpointBytes}
	case len(m.Checkpoint) != 0:
		return unsupported("checkpoints")
	}
	return checkRange("invisible time", uint64(m.InvisibleMs), MinInvisibleMs, MaxInvisibleMs)
}

func (m *PeekRequest) Validate() error {
	if m.Max == 0 || m.Max > MaxPeekMessages {
		return invalid(MaxPeekMessages, "a peek of %d messages, 1 to %d are legal", m.Max, MaxPeekMessages)
	}
	return CheckExistingName("topic", m.Topic)
}

func (m *CreateTopicRequest) Validate() error {
	if err := CheckName("topic", m.Name); err != nil {
		return err
	}
	if err := checkQueues(m.Queues); err != nil {
		return err
	}
	return checkRange("unique key time", uint64(m.UniqueKeyMs), 1, MaxUniqueKeyMs)
}

func (m *UpdateTopicRequest) Validate() error {
	if err := CheckExistingName("topic", m.Name); err != nil {
		return err
	}
	if m.Queues != 0 || m.UniqueKeyMs == 0 {
		if err := checkQueues(m.Queues); err != nil {
			return err
		}
	}
	return checkRange("unique key time", uint64(m.UniqueKeyMs), 1, MaxUniqueKeyMs)
}

func checkQueues(n uint16) error {
	if n == 0 || n > MaxQueuesPerTopic {
		return invalid(MaxQueuesPerTopic, "%d queues, 1 to %d are legal", n, MaxQueuesPerTopic)
	}
	return nil
}

func (m *GroupRequest) Validate() error {
	if err := CheckName("group", m.Name); err != nil {
		return err
	}
	return m.Rules.Validate()
}
