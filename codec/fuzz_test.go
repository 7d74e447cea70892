package codec

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
)

// FuzzReadRecord: whatever lies in a segment, reading it neither panics nor reads past it; and what is read is
// what was written: with its checksum put right, any header that leaves room reads as itself.
func FuzzReadRecord(f *testing.F) {
	for _, v := range vectors() {
		f.Add(v.bytes)
	}
	f.Add(make([]byte, 200))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, assigned, payload, err := ReadRecord(b)
		if err != nil && !errors.Is(err, ErrNoRecord) {
			t.Fatalf("%T: %v", err, err)
		}
		if err == nil {
			checkSealed(t, b, h, assigned, payload)
		}
		if len(b) < HeaderBytes {
			return
		}
		fixed := bytes.Clone(b)
		h = ParseHeader(fixed)
		least := HeaderBytes + h.Type.AssignedBytes()
		if room := len(fixed) - least; room >= 0 {
			// Most lengths that chance gives do not fit: half of the inputs get one that does.
			if h.Length%2 == 0 {
				h.Length = uint32(least + int(h.Length/2)%(room+1))
				binary.LittleEndian.PutUint32(fixed, h.Length)
			}
		}
		fits := int64(h.Length) >= int64(least) && int64(h.Length) <= int64(len(fixed))
		if fits {
			sum := Checksum(Checksum(0, fixed[least:h.Length]), fixed[HeaderBytes:least])
			clear(fixed[4:8])
			binary.LittleEndian.PutUint32(fixed[4:], Checksum(sum, fixed[:HeaderBytes]))
		}
		h, assigned, payload, err = ReadRecord(fixed)
		if (err == nil) != fits {
			t.Fatalf("a record of %d bytes in %d: %v", h.Length, len(fixed), err)
		}
		if err == nil {
			checkSealed(t, fixed, h, assigned, payload)
		}
	})
}

// checkSealed holds a record that was read against what Seal makes of its parts.
func checkSealed(t *testing.T, b []byte, h Header, assigned, payload []byte) {
	t.Helper()
	if int(h.Length) != HeaderBytes+len(assigned)+len(payload) || int(h.Length) > len(b) {
		t.Fatalf("length %d: %d and %d bytes", h.Length, len(assigned), len(payload))
	}
	again := h
	again.Length, again.CRC = 0, 0
	if !bytes.Equal(sealed(&again, assigned, payload), b[:h.Length]) || again != h {
		t.Fatalf("%x is sealed as %+v", b[:h.Length], again)
	}
}

// FuzzMessage: what parses encodes to the bytes that it came from, so a message has one encoding.
func FuzzMessage(f *testing.F) {
	for _, v := range vectors() {
		f.Add(v.bytes)
	}
	for _, payload := range hostilePayloads() {
		if len(payload) < 1<<10 {
			f.Add(payload)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var v View
		if err := v.Parse(b); err != nil {
			if !errors.Is(err, ErrMessage) {
				t.Fatalf("%T: %v", err, err)
			}
			return
		}
		m := v.Message()
		again, err := m.Append(nil)
		if err != nil || !bytes.Equal(again, b) {
			t.Fatalf("%x encodes to %x, %v", b, again, err)
		}
	})
}

// FuzzState: the first byte chooses the type. What decodes encodes to the bytes that it came from.
func FuzzState(f *testing.F) {
	kinds := stateRecords()
	for _, v := range vectors() {
		for i, kind := range kinds {
			if m, ok := v.value.(stateRecord); ok && typeName(m) == typeName(kind) {
				f.Add(append([]byte{byte(i)}, v.bytes...))
			}
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 {
			return
		}
		m := like(kinds[int(b[0])%len(kinds)])
		b = b[1:]
		if err := m.Decode(b); err != nil {
			if !errors.Is(err, ErrFields) {
				t.Fatalf("%T: %v", err, err)
			}
			return
		}
		if again := m.Append(nil); !bytes.Equal(again, b) {
			t.Fatalf("%T: %x encodes to %x", m, b, again)
		}
	})
}

// FuzzDecompress: no body makes the decoder panic, and what comes out is as long as was claimed. The claim is kept
// small, so that the fuzzer looks for bytes and not for memory.
func FuzzDecompress(f *testing.F) {
	for _, c := range compressions {
		for _, n := range []int{0, 300, 3000} {
			m := Message{Body: repetitive(n)}
			if err := m.Compress(c); err != nil {
				f.Fatal(err)
			}
			f.Add(byte(c), uint32(n), m.Body)
		}
	}
	f.Add(byte(S2), uint32(100), []byte{0xff, 0xff, 0xff, 0xff, 0x0f, 0})
	f.Add(byte(Zstd), uint32(1000), stream(f, repetitive(1000)))
	f.Fuzz(func(t *testing.T, c byte, claim uint32, b []byte) {
		m := Message{Compression: Compression(c % 4), RawBytes: claim % (1 << 16), Body: b}
		body, err := m.Decompress()
		switch {
		case err != nil:
			if body != nil || !errors.Is(err, ErrMessage) {
				t.Fatalf("%d bytes, %v", len(body), err)
			}
		case m.Compression == None:
			if !bytes.Equal(body, b) {
				t.Fatal("a body that is not compressed was changed")
			}
		case len(body) != int(m.RawBytes):
			t.Fatalf("%d bytes, %d claimed", len(body), m.RawBytes)
		}
	})
}
