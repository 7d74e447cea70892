package protocol

import (
	"encoding/binary"
	"fmt"
	"slices"
	"unicode/utf8"
)

// The primitives of bodies: integers little endian; a bool is a byte 0 or 1; a short string is a u8
// length and its bytes, a medium one a u16 length, a long one a u32 length; a list is a u32 count and
// its entries.

// reader takes a body apart. The first thing that is wrong is kept in err and leaves nothing to read, so
// that decoders need to look only once, at the end. Nothing in here escapes: decoding allocates for
// errors, for strings that changed and for lists that outgrew their slice, and for nothing else.
type reader struct {
	b     []byte
	body  string // for errors
	list  string // the list being read, if any, and where in it
	index int
	err   *BodyError
}

// fail records what is wrong with field, unless something was wrong before.
func (r *reader) fail(status Status, field string, detail uint64, format string, args ...any) {
	if r.err != nil {
		return
	}
	if r.list != "" {
		field = fmt.Sprintf("%s[%d] %s", r.list, r.index, field)
	}
	r.err = &BodyError{status, r.body, field, fmt.Sprintf(format, args...), detail}
	r.b = nil
}

// cutOff and overLimit keep the formatting, and the allocations of its arguments, away from the readers.
func (r *reader) cutOff(field string, want int) {
	r.fail(Invalid, field, 0, "cut off: %d bytes are left of %d", len(r.b), want)
}

func (r *reader) overLimit(field string, n, limit int) {
	r.fail(TooLarge, field, uint64(limit), "%d, limit %d", n, limit)
}

// done ends the decoding; a body must be used up.
func (r *reader) done() error {
	r.list = ""
	if len(r.b) != 0 {
		r.fail(Invalid, "end", 0, "%d bytes too many", len(r.b))
	}
	if r.err != nil {
		return r.err
	}
	return nil
}

// take returns the next n bytes; nil when there are fewer.
func (r *reader) take(field string, n int) []byte {
	if n > len(r.b) {
		r.cutOff(field, n)
		return nil
	}
	b := r.b[:n:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) u8(field string) uint8 {
	if b := r.take(field, 1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) u16(field string) uint16 {
	if b := r.take(field, 2); b != nil {
		return binary.LittleEndian.Uint16(b)
	}
	return 0
}

func (r *reader) u32(field string) uint32 {
	if b := r.take(field, 4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (r *reader) u64(field string) uint64 {
	if b := r.take(field, 8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (r *reader) bool(field string) bool {
	v := r.u8(field)
	if v > 1 {
		r.fail(Invalid, field, 0, "neither 0 nor 1")
	}
	return v == 1
}

// bytes returns the next n bytes; an empty string is nil.
func (r *reader) bytes(field string, n, limit int) []byte {
	if n > limit {
		r.overLimit(field, n, limit)
		return nil
	}
	if n == 0 {
		return nil
	}
	return r.take(field, n)
}

func (r *reader) short(field string) []byte { return r.bytes(field, int(r.u8(field)), MaxFieldBytes) }
func (r *reader) medium(field string, limit int) []byte {
	return r.bytes(field, int(r.u16(field)), limit)
}

// long reads a string whose only limit is what is left of the body.
func (r *reader) long(field string) []byte {
	n := r.u32(field)
	if uint64(n) > uint64(len(r.b)) {
		r.cutOff(field, int(min(n, MaxFrameBytes)))
		return nil
	}
	return r.bytes(field, int(n), len(r.b))
}

// text reads a short string into s, which is left alone when it is the same.
func (r *reader) text(field string, limit int, s *string) {
	r.set(r.bytes(field, int(r.u8(field)), limit), s)
}

func (r *reader) set(b []byte, s *string) {
	if string(b) != *s {
		*s = string(b)
	}
}

// count reads the length of a list. It is checked against the limit (0: none) and against the bytes that
// are left, of which each entry needs at least least, before anybody makes room for the entries.
func (r *reader) count(field string, least, limit int) int {
	n := r.u32(field)
	if limit != 0 && uint64(n) > uint64(limit) {
		r.fail(TooLarge, field, uint64(limit), "%d entries, limit %d", n, limit)
		return 0
	}
	if uint64(n)*uint64(least) > uint64(len(r.b)) {
		r.fail(Invalid, field, 0, "%d entries of at least %d bytes in the %d that are left", n, least, len(r.b))
		return 0
	}
	return int(n)
}

// entry says which entry of which list is being read.
func (r *reader) entry(list string, i int) { r.list, r.index = list, i }

// resize makes s n long and keeps the elements it had room for, with the strings and slices in them.
func resize[T any](s []T, n int) []T {
	if n <= cap(s) {
		return s[:n]
	}
	return slices.Grow(s[:cap(s)], n-cap(s))[:n]
}

func appendU16(dst []byte, v uint16) []byte { return binary.LittleEndian.AppendUint16(dst, v) }
func appendU32(dst []byte, v uint32) []byte { return binary.LittleEndian.AppendUint32(dst, v) }
func appendU64(dst []byte, v uint64) []byte { return binary.LittleEndian.AppendUint64(dst, v) }

func appendBool(dst []byte, v bool) []byte {
	if v {
		return append(dst, 1)
	}
	return append(dst, 0)
}

// appendShort encodes a name, a key or a receipt. One that does not fit its length byte is a fault of
// the program (Validate would have found it), and cutting it would name something else.
func appendShort[T string | []byte](dst []byte, s T) []byte {
	if len(s) > MaxFieldBytes {
		panic(fmt.Sprintf("protocol: a string of %d bytes where at most %d fit", len(s), MaxFieldBytes))
	}
	return append(append(dst, byte(len(s))), s...)
}

// appendText encodes a short string that only people read; it is cut where it is too long.
func appendText(dst []byte, s string) []byte { return appendShort(dst, cut(s, MaxFieldBytes)) }

func appendMedium[T string | []byte](dst []byte, s T) []byte {
	if len(s) > 1<<16-1 {
		panic(fmt.Sprintf("protocol: a string of %d bytes where at most %d fit", len(s), 1<<16-1))
	}
	return append(appendU16(dst, uint16(len(s))), s...)
}

func appendLong(dst []byte, s []byte) []byte { return append(appendU32(dst, uint32(len(s))), s...) }

func appendCount(dst []byte, n int) []byte { return appendU32(dst, uint32(n)) }

// cut shortens s to at most n bytes, between characters.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// extend makes room for n more bytes behind dst and returns both.
func extend(dst []byte, n int) (whole, added []byte) {
	whole = slices.Grow(dst, n)[:len(dst)+n]
	return whole, whole[len(dst):]
}
