package protocol

import (
	"bytes"
	"errors"
	"reflect"
	"testing"
)

// FuzzHeader: what parses encodes to the bytes that it came from.
func FuzzHeader(f *testing.F) {
	for _, v := range vectors() {
		f.Add(v.encode()[:HeaderBytes])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := ParseHeader(b)
		var frameError *FrameError
		switch {
		case len(b) < HeaderBytes:
			if err != ErrShort {
				t.Fatalf("%d bytes: %v", len(b), err)
			}
		case err == nil:
			if again := h.Append(nil); !bytes.Equal(again, b[:HeaderBytes]) {
				t.Fatalf("%x encodes to %x", b[:HeaderBytes], again)
			}
			if h.BodyLen > MaxFrameBodyBytes {
				t.Fatalf("body of %d bytes", h.BodyLen)
			}
		case !errors.As(err, &frameError):
			t.Fatalf("%T: %v", err, err)
		}
	})
}

// FuzzBodies: the first byte chooses the type. No bytes make a decoder panic, every layout has one
// encoding only, and Validate copes with whatever Decode lets through.
func FuzzBodies(f *testing.F) {
	types := bodies()
	for _, v := range vectors() {
		for i, m := range types {
			if v.body != nil && reflect.TypeOf(m) == reflect.TypeOf(v.body) {
				f.Add(append([]byte{byte(i)}, v.encodeBody()...))
			}
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 {
			return
		}
		m := newBody(types[int(b[0])%len(types)])
		b = b[1:]
		if err := m.Decode(b); err != nil {
			var bodyError *BodyError
			if !errors.As(err, &bodyError) {
				t.Fatalf("%T: %v", err, err)
			}
			return
		}
		if again := m.Append(nil); !bytes.Equal(again, b) {
			t.Fatalf("%T: %x encodes to %x", m, b, again)
		}
		if v, ok := m.(interface{ Validate() error }); ok {
			var requestError *RequestError
			if err := v.Validate(); err != nil && !errors.As(err, &requestError) {
				t.Fatalf("%T: %T: %v", m, err, err)
			}
		}
	})
}
