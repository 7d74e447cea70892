package client

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
)

// StoredMessage is a message as the broker has it. Its parts are decoded when they are asked for and point into
// the answer that brought it; whoever keeps a body keeps the whole answer.
type StoredMessage struct {
	ID     MessageID
	Topic  string
	Queue  int
	Offset uint64
	BornAt time.Time // when it was stored first, by the broker's wall clock

	view  codec.View
	err   error                  // the record is damaged
	plain atomic.Pointer[[]byte] // the body decompressed, once it was asked for
}

// read checks record, the bytes of a log record in an answer to op, and sets m to it. What is wrong with it is kept in err.
func (m *StoredMessage) read(op protocol.Opcode, topic string, record []byte) {
	m.Topic = topic
	h, assigned, payload, err := codec.ReadRecord(record)
	switch {
	case err != nil:
	case h.Type != codec.TypeMessage && h.Type != codec.TypeCopy:
		err = fmt.Errorf("a record of type %d, not a message", h.Type)
	case int(h.Length) != len(record):
		err = fmt.Errorf("a record of %d bytes in %d", h.Length, len(record))
	default:
		err = m.view.Parse(payload)
	}
	if err != nil {
		m.view = codec.View{}
		m.err = &StatusError{Op: op, Status: protocol.Unreadable, Message: err.Error(), cause: err}
		return
	}
	place := codec.ParseMessagePlace(assigned)
	m.ID, m.Queue, m.Offset = place.ID, int(place.Queue), place.Offset
	m.BornAt = time.UnixMilli(h.Born())
}

// Err is not nil when the bytes that came are not the message that was stored (a checksum does not
// fit): a *StatusError with status UNREADABLE. Everything but Topic and, in a Delivery, the lease, is empty then.
func (m *StoredMessage) Err() error { return m.err }

// Tag, Key, OrderKey and UniqueKey are the sender's; empty where there was none.
func (m *StoredMessage) Tag() string       { return string(m.view.Tag) }
func (m *StoredMessage) Key() string       { return string(m.view.Key) }
func (m *StoredMessage) OrderKey() string  { return string(m.view.OrderKey) }
func (m *StoredMessage) UniqueKey() string { return string(m.view.UniqueKey) }

// Properties are the sender's, in their order. Each call makes them anew.
func (m *StoredMessage) Properties() []Property {
	if m.err != nil {
		return nil
	}
	view := m.view
	view.Body = nil
	return view.Message().Properties
}

// Property is the value of the first property of that name.
func (m *StoredMessage) Property(name string) (value string, ok bool) {
	for _, p := range m.Properties() {
		if p.Name == name {
			return p.Value, true
		}
	}
	return "", false
}

// Body is the body as the sender had it. It is decompressed at the first call; one that was not compressed
// is not copied. The error is that of Err, or says that the body cannot be decompressed, or not within the
// limits. The bytes are not to be changed.
func (m *StoredMessage) Body() ([]byte, error) {
	switch {
	case m.err != nil:
		return nil, m.err
	case m.view.Compression == codec.None:
		return m.view.Body, nil
	}
	if b := m.plain.Load(); b != nil {
		return *b, nil
	}
	packed := codec.Message{Compression: m.view.Compression, RawBytes: m.view.RawBytes, Body: m.view.Body}
	b, err := packed.Decompress()
	if err != nil {
		return nil, fmt.Errorf("leasemq: message %s: %w", m.ID, err)
	}
	m.plain.Store(&b)
	return b, nil
}
