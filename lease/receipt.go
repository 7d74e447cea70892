package lease

import (
	"encoding/binary"

	"github.com/dchest/siphash"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
)

// Receipt names one grant of one message. It does not change with renewals, so it can be stored and
// compared by its holder. On the wire it is opaque: 64 bytes of fields and a siphash-128 over them under
// a key that only the broker's data directory has.
//
//	 0 u32 topic id      4 u32 group id      8 u32 subscription (incarnation)
//	12 u16 queue        14 u16 version (1)  16 u64 session
//	24 u64 offset       32 16 bytes message id (u32 epoch, u32 zero, u64 position)
//	48 u64 token        56 i64 grant time, lease-clock ms
//	64 16 bytes siphash-128
type Receipt struct {
	Topic   uint32
	Group   uint32
	Sub     uint32
	Queue   uint16
	Session uint64
	Offset  uint64
	ID      codec.MessageID
	Token   uint64
	GrantMs int64
}

const (
	receiptVersion = 1
	receiptFields  = 64
	_              = uint(protocol.ReceiptBytes-receiptFields-16) + uint(receiptFields+16-protocol.ReceiptBytes) // sizes agree
)

// Key makes and checks receipts. It is safe for concurrent use.
type Key struct{ k0, k1 uint64 }

// KeyBytes is the length of a receipt key.
const KeyBytes = 16

// NewKey makes a key of KeyBytes random bytes.
func NewKey(secret [KeyBytes]byte) Key {
	return Key{binary.LittleEndian.Uint64(secret[:]), binary.LittleEndian.Uint64(secret[8:])}
}

// Append encodes r behind dst.
func (k Key) Append(dst []byte, r *Receipt) []byte {
	start := len(dst)
	dst = binary.LittleEndian.AppendUint32(dst, r.Topic)
	dst = binary.LittleEndian.AppendUint32(dst, r.Group)
	dst = binary.LittleEndian.AppendUint32(dst, r.Sub)
	dst = binary.LittleEndian.AppendUint16(dst, r.Queue)
	dst = binary.LittleEndian.AppendUint16(dst, receiptVersion)
	dst = binary.LittleEndian.AppendUint64(dst, r.Session)
	dst = binary.LittleEndian.AppendUint64(dst, r.Offset)
	dst = append(dst, r.ID[:]...)
	dst = binary.LittleEndian.AppendUint64(dst, r.Token)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(r.GrantMs))
	lo, hi := siphash.Hash128(k.k0, k.k1, dst[start:])
	dst = binary.LittleEndian.AppendUint64(dst, lo)
	return binary.LittleEndian.AppendUint64(dst, hi)
}

// Parse checks b and sets r. It is false for anything that this key did not make.
func (k Key) Parse(b []byte, r *Receipt) bool {
	if len(b) != protocol.ReceiptBytes {
		return false
	}
	lo, hi := siphash.Hash128(k.k0, k.k1, b[:receiptFields])
	if lo != binary.LittleEndian.Uint64(b[64:]) || hi != binary.LittleEndian.Uint64(b[72:]) {
		return false
	}
	*r = Receipt{
		Topic:   binary.LittleEndian.Uint32(b),
		Group:   binary.LittleEndian.Uint32(b[4:]),
		Sub:     binary.LittleEndian.Uint32(b[8:]),
		Queue:   binary.LittleEndian.Uint16(b[12:]),
		Session: binary.LittleEndian.Uint64(b[16:]),
		Offset:  binary.LittleEndian.Uint64(b[24:]),
		ID:      codec.MessageID(b[32:48]),
		Token:   binary.LittleEndian.Uint64(b[48:]),
		GrantMs: int64(binary.LittleEndian.Uint64(b[56:])),
	}
	return binary.LittleEndian.Uint16(b[14:]) == receiptVersion
}
