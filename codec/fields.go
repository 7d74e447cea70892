package codec

import (
	"encoding/binary"
	"errors"
)

// ErrFields is wrapped by complaints about the fields of a record whose checksum was good.
var ErrFields = errors.New("codec: bad record fields")

// fields reads little-endian fields one after the other. The first read past the end latches bad, and
// every later read gives zero, so that a decoder checks once, at its end.
type fields struct {
	b   []byte
	bad bool
}

func (f *fields) take(n int) []byte {
	if f.bad || n > len(f.b) {
		f.bad = true
		return nil
	}
	p := f.b[:n]
	f.b = f.b[n:]
	return p
}

func (f *fields) u8() uint8 {
	if p := f.take(1); p != nil {
		return p[0]
	}
	return 0
}

func (f *fields) u16() uint16 {
	if p := f.take(2); p != nil {
		return binary.LittleEndian.Uint16(p)
	}
	return 0
}

func (f *fields) u32() uint32 {
	if p := f.take(4); p != nil {
		return binary.LittleEndian.Uint32(p)
	}
	return 0
}

func (f *fields) u64() uint64 {
	if p := f.take(8); p != nil {
		return binary.LittleEndian.Uint64(p)
	}
	return 0
}

func (f *fields) i64() int64 { return int64(f.u64()) }

// bool reads a flag. Only 0 and 1 are flags: every record has one encoding.
func (f *fields) bool() bool {
	v := f.u8()
	if v > 1 {
		f.bad = true
	}
	return v == 1
}

// short reads a byte string of up to 255 bytes; it points into the record.
func (f *fields) short() []byte { return f.take(int(f.u8())) }

// count reads the number of entries of at least size bytes each that follow, and refuses more than can.
func (f *fields) count(size int) int {
	n := int(f.u32())
	if n > len(f.b)/size {
		f.bad = true
		return 0
	}
	return n
}

// end is the verdict: everything was there and nothing is left.
func (f *fields) end() error {
	if f.bad || len(f.b) != 0 {
		return ErrFields
	}
	return nil
}

var le = binary.LittleEndian

// appendShort writes a byte string of up to 255 bytes. Callers have checked its length: a longer one would
// be a record that nobody can read again.
func appendShort[T string | []byte](dst []byte, s T) []byte {
	if len(s) > maxShort {
		panic("codec: a short field is too long")
	}
	dst = append(dst, byte(len(s)))
	return append(dst, s...)
}
