package codec

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cespare/xxhash/v2"
)

// # Message record
//
// The assigned fields of a TypeMessage record, behind its header. Part of the on-disk and wire format:
//
//	64  u32  topic id
//	68  u16  queue
//	70  u16  zero
//	72  u64  queue offset
//	80  u64  hash of the tag (xxhash64; 0: no tag)
//	88  u32  epoch at birth      \
//	92  u32  zero                 > the message id, 16 bytes
//	96  u64  position at birth   /
//
// The payload is the message as the sender encoded it:
//
//	 0  u8   compression of the body: 0 none, 1 zstd, 2 s2
//	 1  u8   flags: 1 a deliver-at follows, 2 producer id and sequence follow, 4 deliver-at is a
//	         calendar time (else a delay in ms)
//	 2  u8   length of the tag
//	 3  u8   length of the key
//	 4  u8   length of the order key
//	 5  u8   length of the unique key
//	 6  u16  length of the properties
//	 8  u32  length of the body as stored
//	12  u32  length of the body decompressed
//	16       [u64 deliver-at] [u64 producer id, u64 sequence]
//	         tag, key, order key, unique key
//	         properties: {u8 length, u16 length, name, value} each
//	         body
const (
	// MessageAssignedBytes is the length of the assigned fields of a message record.
	MessageAssignedBytes = 40
	messageFixedBytes    = 16

	// MaxBody is the most bytes of a stored body, MaxDecompressed of a decompressed one.
	MaxBody         = 4 << 20
	MaxDecompressed = 16 << 20
	// MaxProperties and MaxPropertyBytes limit the properties of a message.
	MaxProperties    = 64
	MaxPropertyBytes = 16 << 10
	maxShort         = 255
)

const (
	flagDeliverAt = 1 << iota
	flagProducer
	flagCalendar
	flagsKnown = flagDeliverAt | flagProducer | flagCalendar
)

// Compression of a message body.
type Compression uint8

const (
	None Compression = 0
	Zstd Compression = 1
	S2   Compression = 2
)

// Property is one name and value of a message.
type Property struct {
	Name, Value string
}

// Message is what a sender hands in and a consumer gets: everything but what the broker assigns.
type Message struct {
	Compression Compression
	RawBytes    uint32 // length of the body decompressed
	DeliverAt   uint64 // ms: a delay, or since 1970 when Calendar; only when Delayed
	Delayed     bool
	Calendar    bool
	ProducerID  uint64 // 0: none
	Sequence    uint64
	Tag         string
	Key         string
	OrderKey    string
	UniqueKey   string
	Properties  []Property
	Body        []byte // as stored
}

// ErrMessage is wrapped by every complaint about a message.
var ErrMessage = errors.New("invalid message")

// ErrTooLarge is wrapped, beside ErrMessage, when a message is over a size limit.
var ErrTooLarge = errors.New("too large")

func tooLarge(what string, n, limit int) error {
	return fmt.Errorf("%w: %w: %s of %d bytes, limit %d", ErrMessage, ErrTooLarge, what, n, limit)
}

// Append encodes m behind dst. It fails when m is over a limit or is not what Parse would accept.
func (m *Message) Append(dst []byte) ([]byte, error) {
	for _, f := range [...]struct{ what, s string }{
		{"tag", m.Tag}, {"key", m.Key}, {"order key", m.OrderKey}, {"unique key", m.UniqueKey},
	} {
		if len(f.s) > maxShort {
			return dst, tooLarge(f.what, len(f.s), maxShort)
		}
	}
	if len(m.Body) > MaxBody {
		return dst, tooLarge("body", len(m.Body), MaxBody)
	}
	if len(m.Properties) > MaxProperties {
		return dst, fmt.Errorf("%w: %w: %d properties, limit %d", ErrMessage, ErrTooLarge, len(m.Properties), MaxProperties)
	}
	props := 0
	for _, p := range m.Properties {
		if len(p.Name) > maxShort || len(p.Name) == 0 {
			return dst, fmt.Errorf("%w: property name of %d bytes, 1 to %d are legal", ErrMessage, len(p.Name), maxShort)
		}
		props += 3 + len(p.Name) + len(p.Value)
	}
	if props > MaxPropertyBytes {
		return dst, tooLarge("properties", props, MaxPropertyBytes)
	}
	if m.Compression > S2 {
		return dst, fmt.Errorf("%w: unknown compression %d", ErrMessage, m.Compression)
	}
	if m.Calendar && !m.Delayed {
		return dst, fmt.Errorf("%w: a calendar time without a delay", ErrMessage)
	}
	raw := m.RawBytes
	if m.Compression == None {
		raw = uint32(len(m.Body))
	}
	if raw > MaxDecompressed {
		return dst, tooLarge("decompressed body", int(raw), MaxDecompressed)
	}
	var flags byte
	if m.Delayed {
		flags |= flagDeliverAt
	}
	if m.Calendar {
		flags |= flagCalendar
	}
	if m.ProducerID != 0 {
		flags |= flagProducer
	}
	dst = append(dst, byte(m.Compression), flags, byte(len(m.Tag)), byte(len(m.Key)), byte(len(m.OrderKey)), byte(len(m.UniqueKey)))
	dst = binary.LittleEndian.AppendUint16(dst, uint16(props))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(m.Body)))
	dst = binary.LittleEndian.AppendUint32(dst, raw)
	if m.Delayed {
		dst = binary.LittleEndian.AppendUint64(dst, m.DeliverAt)
	}
	if m.ProducerID != 0 {
		dst = binary.LittleEndian.AppendUint64(dst, m.ProducerID)
		dst = binary.LittleEndian.AppendUint64(dst, m.Sequence)
	}
	dst = append(dst, m.Tag...)
	dst = append(dst, m.Key...)
	dst = append(dst, m.OrderKey...)
	dst = append(dst, m.UniqueKey...)
	for _, p := range m.Properties {
		dst = append(dst, byte(len(p.Name)))
		dst = binary.LittleEndian.AppendUint16(dst, uint16(len(p.Value)))
		dst = append(dst, p.Name...)
		dst = append(dst, p.Value...)
	}
	return append(dst, m.Body...), nil
}

// View is a message payload whose lengths have been checked. Its slices point into the payload. The
// broker works on views: it looks at what routing needs and stores the payload as it came.
type View struct {
	Compression Compression
	Delayed     bool
	Calendar    bool
	RawBytes    uint32
	DeliverAt   uint64
	ProducerID  uint64
	Sequence    uint64
	Tag         []byte
	Key         []byte
	OrderKey    []byte
	UniqueKey   []byte
	properties  []byte
	Body        []byte
}

// Parse checks payload and sets v to it. It allocates nothing.
func (v *View) Parse(payload []byte) error {
	if len(payload) < messageFixedBytes {
		return fmt.Errorf("%w: %d bytes, at least %d", ErrMessage, len(payload), messageFixedBytes)
	}
	flags := payload[1]
	*v = View{
		Compression: Compression(payload[0]),
		Delayed:     flags&flagDeliverAt != 0,
		Calendar:    flags&flagCalendar != 0,
		RawBytes:    binary.LittleEndian.Uint32(payload[12:]),
	}
	if v.Compression > S2 || flags&^flagsKnown != 0 || (v.Calendar && !v.Delayed) {
		return fmt.Errorf("%w: compression %d, flags %#x", ErrMessage, payload[0], flags)
	}
	tag, key, orderKey, uniqueKey := int(payload[2]), int(payload[3]), int(payload[4]), int(payload[5])
	props := int(binary.LittleEndian.Uint16(payload[6:]))
	body := binary.LittleEndian.Uint32(payload[8:])
	if body > MaxBody {
		return tooLarge("body", int(body), MaxBody)
	}
	if v.RawBytes > MaxDecompressed {
		return tooLarge("decompressed body", int(v.RawBytes), MaxDecompressed)
	}
	if props > MaxPropertyBytes {
		return tooLarge("properties", props, MaxPropertyBytes)
	}
	if v.Compression == None && v.RawBytes != body {
		return fmt.Errorf("%w: uncompressed body of %d bytes claims %d", ErrMessage, body, v.RawBytes)
	}
	rest := payload[messageFixedBytes:]
	want := tag + key + orderKey + uniqueKey + props + int(body)
	if v.Delayed {
		want += 8
	}
	if flags&flagProducer != 0 {
		want += 16
	}
	if len(rest) != want {
		return fmt.Errorf("%w: %d bytes, its lengths add up to %d", ErrMessage, len(payload), messageFixedBytes+want)
	}
	if v.Delayed {
		v.DeliverAt = binary.LittleEndian.Uint64(rest)
		rest = rest[8:]
	}
	if flags&flagProducer != 0 {
		v.ProducerID = binary.LittleEndian.Uint64(rest)
		v.Sequence = binary.LittleEndian.Uint64(rest[8:])
		rest = rest[16:]
		if v.ProducerID == 0 {
			return fmt.Errorf("%w: producer id 0", ErrMessage)
		}
	}
	v.Tag, rest = rest[:tag], rest[tag:]
	v.Key, rest = rest[:key], rest[key:]
	v.OrderKey, rest = rest[:orderKey], rest[orderKey:]
	v.UniqueKey, rest = rest[:uniqueKey], rest[uniqueKey:]
	v.properties, v.Body = rest[:props], rest[props:]
	return v.checkProperties()
}

func (v *View) checkProperties() error {
	n := 0
	for rest := v.properties; len(rest) > 0; n++ {
		if len(rest) < 3 || rest[0] == 0 {
			return fmt.Errorf("%w: property %d is cut off or has no name", ErrMessage, n)
		}
		size := 3 + int(rest[0]) + int(binary.LittleEndian.Uint16(rest[1:]))
		if size > len(rest) {
			return fmt.Errorf("%w: property %d is cut off", ErrMessage, n)
		}
		rest = rest[size:]
	}
	if n > MaxProperties {
		return fmt.Errorf("%w: %w: %d properties, limit %d", ErrMessage, ErrTooLarge, n, MaxProperties)
	}
	return nil
}

// RouteHash is the hash that chooses the queue, by order key or else key; ok is false when the message
// has neither.
func (v *View) RouteHash() (hash uint64, ok bool) {
	switch {
	case len(v.OrderKey) > 0:
		return xxhash.Sum64(v.OrderKey), true
	case len(v.Key) > 0:
		return xxhash.Sum64(v.Key), true
	}
	return 0, false
}

// TagHash is the hash of a tag as stored in records and index entries; 0 stands for no tag.
func TagHash[T string | []byte](tag T) uint64 {
	if len(tag) == 0 {
		return 0
	}
	var h uint64
	switch tag := any(tag).(type) { // a conversion would copy long tags to the heap
	case string:
		h = xxhash.Sum64String(tag)
	case []byte:
		h = xxhash.Sum64(tag)
	}
	return max(h, 1)
}

// Message copies v out of the payload it points into. The body is left as stored.
func (v *View) Message() Message {
	m := Message{
		Compression: v.Compression, RawBytes: v.RawBytes,
		DeliverAt: v.DeliverAt, Delayed: v.Delayed, Calendar: v.Calendar,
		ProducerID: v.ProducerID, Sequence: v.Sequence,
		Tag: string(v.Tag), Key: string(v.Key), OrderKey: string(v.OrderKey), UniqueKey: string(v.UniqueKey),
		Body: append([]byte(nil), v.Body...),
	}
	for rest := v.properties; len(rest) > 0; {
		name, value := int(rest[0]), int(binary.LittleEndian.Uint16(rest[1:]))
		m.Properties = append(m.Properties, Property{string(rest[3 : 3+name]), string(rest[3+name : 3+name+value])})
		rest = rest[3+name+value:]
	}
	return m
}

// Deduplicating is what of a stored message deduplicates sends: 0 and nil where it has none. The payload has been checked
// before.
func Deduplicating(payload []byte) (producer, sequence uint64, uniqueKey []byte) {
	if len(payload) < messageFixedBytes || payload[1]&flagProducer == 0 && payload[5] == 0 {
		return 0, 0, nil
	}
	var v View
	if err := v.Parse(payload); err != nil {
		return 0, 0, nil
	}
	return v.ProducerID, v.Sequence, v.UniqueKey
}

// MessageID is the broker's identity of a message: u32 epoch, u32 zero, u64 position, both at birth.
type MessageID [16]byte

// NewMessageID makes the id of a message born at position in epoch.
func NewMessageID(epoch uint32, position uint64) (id MessageID) {
	binary.LittleEndian.PutUint32(id[:], epoch)
	binary.LittleEndian.PutUint64(id[8:], position)
	return id
}

// Birth is the epoch and position that id is made of.
func (id MessageID) Birth() (epoch uint32, position uint64) {
	return binary.LittleEndian.Uint32(id[:]), binary.LittleEndian.Uint64(id[8:])
}

// String is the id as users see it: 8 hex digits of the epoch, a dash, 16 of the position.
func (id MessageID) String() string {
	e, p := id.Birth()
	return fmt.Sprintf("%08x-%016x", e, p)
}

// MessagePlace is the assigned part of a message record.
type MessagePlace struct {
	Topic   uint32
	Queue   uint16
	Offset  uint64
	TagHash uint64
	ID      MessageID
}

// Put writes p into b[:MessageAssignedBytes].
func (p *MessagePlace) Put(b []byte) {
	_ = b[MessageAssignedBytes-1]
	binary.LittleEndian.PutUint32(b, p.Topic)
	binary.LittleEndian.PutUint16(b[4:], p.Queue)
	binary.LittleEndian.PutUint16(b[6:], 0)
	binary.LittleEndian.PutUint64(b[8:], p.Offset)
	binary.LittleEndian.PutUint64(b[16:], p.TagHash)
	copy(b[24:40], p.ID[:])
}

// ParseMessagePlace reads the assigned part of a message record.
func ParseMessagePlace(b []byte) (p MessagePlace) {
	_ = b[MessageAssignedBytes-1]
	p.Topic = binary.LittleEndian.Uint32(b)
	p.Queue = binary.LittleEndian.Uint16(b[4:])
	p.Offset = binary.LittleEndian.Uint64(b[8:])
	p.TagHash = binary.LittleEndian.Uint64(b[16:])
	copy(p.ID[:], b[24:40])
	return p
}
