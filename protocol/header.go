// Package protocol is the wire format between a client and a broker: frames, opcodes, statuses, limits
// and the body of every request, answer and push. It imports nothing of ours and knows no connection;
// docs/PROTOCOL.md is the same in prose.
//
// Encoders cannot fail: they panic when a name or a receipt is longer than its length byte can say, which
// Validate or CheckName would have found. Decoders trust nothing and allocate nothing that the bytes at
// hand do not pay for.
package protocol

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Everything on a connection is a frame: this header, then a body. Integers are little endian, here and
// in every body.
//
//	 0  u16  magic: the bytes 'L' 'Q'
//	 2  u8   version: 1
//	 3  u8   opcode
//	 4  u16  flags: 1 ANSWER, 2 PUSH, 4 CREATE; the others are zero
//	 6  u16  status; zero in requests
//	 8  u64  request id; zero in pushes only
//	16  u32  length of the body
//	20  u32  zero
const HeaderBytes = 24

// Version is the protocol version that this package speaks.
const Version uint8 = 1

const (
	magic         uint16 = 'L' | 'Q'<<8
	offsetBodyLen        = 16
	offsetZero           = 20
)

// MaxFrameBodyBytes is the longest body that a frame may have.
const MaxFrameBodyBytes = MaxFrameBytes - HeaderBytes

// Flags of a frame.
type Flags uint16

const (
	FlagAnswer Flags = 1 << 0 // an answer of the broker
	FlagPush   Flags = 1 << 1 // sent by the broker unasked, with request id 0
	FlagCreate Flags = 1 << 2 // SEND, POP: make the topic when it is missing; REGISTER: the group

	flagsKnown = FlagAnswer | FlagPush | FlagCreate
)

// Header is the fixed part of a frame. A zero Version is written as the package's.
type Header struct {
	Version   uint8
	Opcode    Opcode
	Flags     Flags
	Status    Status
	RequestID uint64
	BodyLen   uint32
}

// ErrShort says that there are fewer bytes than a header has. It is no fault of the peer: more may come.
var ErrShort = errors.New("protocol: fewer bytes than a frame header")

// Append encodes h behind dst.
func (h Header) Append(dst []byte) []byte {
	n := len(dst)
	dst = append(dst, make([]byte, HeaderBytes)...)
	h.Put(dst[n:])
	return dst
}

// Put writes h into b[:HeaderBytes].
func (h Header) Put(b []byte) {
	_ = b[HeaderBytes-1]
	if h.Version == 0 {
		h.Version = Version
	}
	binary.LittleEndian.PutUint16(b, magic)
	b[2], b[3] = h.Version, byte(h.Opcode)
	binary.LittleEndian.PutUint16(b[4:], uint16(h.Flags))
	binary.LittleEndian.PutUint16(b[6:], uint16(h.Status))
	binary.LittleEndian.PutUint64(b[8:], h.RequestID)
	binary.LittleEndian.PutUint32(b[offsetBodyLen:], h.BodyLen)
	binary.LittleEndian.PutUint32(b[offsetZero:], 0)
}

// ParseHeader reads the header at the start of b. Fewer than HeaderBytes give ErrShort; every other
// error is a *FrameError, after which nothing that follows on the connection can be trusted. The header
// is returned with the error as far as it could be read, for the log.
func ParseHeader(b []byte) (Header, error) {
	if len(b) < HeaderBytes {
		return Header{}, ErrShort
	}
	if m := binary.LittleEndian.Uint16(b); m != magic {
		return Header{}, &FrameError{BadFrame, fmt.Sprintf("the frame begins with %02x %02x, not with 'L' 'Q'", b[0], b[1])}
	}
	h := Header{
		Version:   b[2],
		Opcode:    Opcode(b[3]),
		Flags:     Flags(binary.LittleEndian.Uint16(b[4:])),
		Status:    Status(binary.LittleEndian.Uint16(b[6:])),
		RequestID: binary.LittleEndian.Uint64(b[8:]),
		BodyLen:   binary.LittleEndian.Uint32(b[offsetBodyLen:]),
	}
	switch {
	case h.Version != Version:
		return h, &FrameError{BadFrame, fmt.Sprintf("frame version %d, this side speaks %d", h.Version, Version)}
	case h.Flags&^flagsKnown != 0:
		return h, &FrameError{BadFrame, fmt.Sprintf("unknown flags %#04x", uint16(h.Flags&^flagsKnown))}
	case binary.LittleEndian.Uint32(b[offsetZero:]) != 0:
		return h, &FrameError{BadFrame, "the last four bytes of the header are not zero"}
	case h.BodyLen > MaxFrameBodyBytes:
		return h, &FrameError{FrameTooLarge, fmt.Sprintf("frame of %d bytes, limit %d", HeaderBytes+uint64(h.BodyLen), MaxFrameBytes)}
	}
	return h, nil
}

// CheckRequest says what is wrong with h as the header of a request, beyond what ParseHeader checks:
// only the broker answers and pushes, and an answer to request id 0 would look like a push. An opcode
// that nobody knows is no fault of the frame; it is answered with UNSUPPORTED.
func (h Header) CheckRequest() error {
	switch {
	case h.Flags&(FlagAnswer|FlagPush) != 0:
		return &FrameError{BadFrame, "a request with the flag ANSWER or PUSH"}
	case h.Status != 0:
		return &FrameError{BadFrame, "a request with a status"}
	case h.RequestID == 0:
		return &FrameError{BadFrame, "a request with id 0"}
	}
	return nil
}

// BeginFrame appends h to dst; the caller appends the body behind it and calls EndFrame with the length
// that dst had before. So frames are built in place:
//
//	start := len(dst)
//	dst = protocol.BeginFrame(dst, header)
//	dst = body.Append(dst)
//	protocol.EndFrame(dst, start)
func BeginFrame(dst []byte, h Header) []byte { return h.Append(dst) }

// EndFrame sets the body length of the frame that begins at dst[start] and ends where dst ends. Whoever
// builds a frame keeps it within MaxFrameBytes.
func EndFrame(dst []byte, start int) {
	binary.LittleEndian.PutUint32(dst[start+offsetBodyLen:], uint32(len(dst)-start-HeaderBytes))
}
