package inspect

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/leasemq/leasemq/codec"
)

var typeNames = map[codec.Type]string{
	codec.TypeEpoch: "EPOCH", codec.TypeSegmentEnd: "SEGMENT_END", codec.TypeCleanStop: "CLEAN_STOP", codec.TypeClock: "CLOCK",
	codec.TypeMessage: "MESSAGE", codec.TypeCopy: "COPY",
	codec.TypeTopic: "TOPIC", codec.TypeGroup: "GROUP", codec.TypeSubscribe: "SUBSCRIBE", codec.TypeRetain: "RETAIN",
	codec.TypeGrant: "GRANT", codec.TypeSettle: "SETTLE", codec.TypeChange: "CHANGE", codec.TypeExpire: "EXPIRE",
	codec.TypeUnreadable: "UNREADABLE", codec.TypeSessionStart: "SESSION_START", codec.TypeSessionEnd: "SESSION_END",
}

// TypeName is a record type in words.
func TypeName(t codec.Type) string {
	if name, ok := typeNames[t]; ok {
		return name
	}
	return fmt.Sprintf("TYPE_%d", t)
}

// TypeNames are the names of all types, in the order of their numbers.
func TypeNames() []string {
	list := make([]string, 0, len(typeNames))
	for _, t := range slices.Sorted(maps.Keys(typeNames)) {
		list = append(list, typeNames[t])
	}
	return list
}

// ParseType reads a record type from its name, in capitals or not.
func ParseType(name string) (codec.Type, error) {
	for t, n := range typeNames {
		if strings.EqualFold(n, name) {
			return t, nil
		}
	}
	return 0, fmt.Errorf("there is no record type %q", name)
}

// decoded is a record that changes state, as a value that the next one overwrites. One of the pointers is set; none for a
// record of another type.
type decoded struct {
	topic        *codec.Topic
	group        *codec.Group
	retain       *codec.Retain
	subscribe    *codec.Subscribe
	grant        *codec.Grant
	settle       *codec.Settle
	change       *codec.Change
	expire       *codec.Expire
	unreadable   *codec.Unreadable
	sessionStart *codec.SessionStart
	sessionEnd   *codec.SessionEnd
}

// stateDecoder decodes records into values that it uses again.
type stateDecoder struct {
	topic        codec.Topic
	group        codec.Group
	retain       codec.Retain
	subscribe    codec.Subscribe
	grant        codec.Grant
	settle       codec.Settle
	change       codec.Change
	expire       codec.Expire
	unreadable   codec.Unreadable
	sessionStart codec.SessionStart
	sessionEnd   codec.SessionEnd
}

// decode decodes the payload of a record that changes state.
func (s *stateDecoder) decode(t codec.Type, payload []byte) (decoded, error) {
	switch t {
	case codec.TypeTopic:
		return decoded{topic: &s.topic}, s.topic.Decode(payload)
	case codec.TypeGroup:
		return decoded{group: &s.group}, s.group.Decode(payload)
	case codec.TypeRetain:
		return decoded{retain: &s.retain}, s.retain.Decode(payload)
	case codec.TypeSubscribe:
		return decoded{subscribe: &s.subscribe}, s.subscribe.Decode(payload)
	case codec.TypeGrant:
		return decoded{grant: &s.grant}, s.grant.Decode(payload)
	case codec.TypeSettle:
		return decoded{settle: &s.settle}, s.settle.Decode(payload)
	case codec.TypeChange:
		return decoded{change: &s.change}, s.change.Decode(payload)
	case codec.TypeExpire:
		return decoded{expire: &s.expire}, s.expire.Decode(payload)
	case codec.TypeUnreadable:
		return decoded{unreadable: &s.unreadable}, s.unreadable.Decode(payload)
	case codec.TypeSessionStart:
		return decoded{sessionStart: &s.sessionStart}, s.sessionStart.Decode(payload)
	case codec.TypeSessionEnd:
		return decoded{sessionEnd: &s.sessionEnd}, s.sessionEnd.Decode(payload)
	}
	return decoded{}, nil
}
