package protocol

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
)

func TestHeaderLayout(t *testing.T) {
	h := Header{Version: 1, Opcode: OpPop, Flags: FlagAnswer | FlagCreate, Status: Stale, RequestID: 0x1122334455667788, BodyLen: 0x00010203}
	want := []byte{0x4c, 0x51, 1, 0x06, 5, 0, 31, 0, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 3, 2, 1, 0, 0, 0, 0, 0}
	if got := h.Append(nil); !bytes.Equal(got, want) {
		t.Fatalf("got  %x\nwant %x", got, want)
	}
	if got, err := ParseHeader(want); err != nil || got != h {
		t.Errorf("%+v, %v", got, err)
	}
	if got := (Header{Opcode: OpStats}).Append(nil); got[2] != Version {
		t.Errorf("a zero version is written as %d", got[2])
	}
}

func TestParseHeaderRefuses(t *testing.T) {
	good := Header{Version: 1, Opcode: OpSend, RequestID: 1, BodyLen: MaxFrameBodyBytes}.Append(nil)
	if _, err := ParseHeader(good); err != nil {
		t.Fatalf("the longest frame: %v", err)
	}
	for n := range HeaderBytes {
		if _, err := ParseHeader(good[:n]); err != ErrShort {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	change := func(at int, v ...byte) []byte {
		b := bytes.Clone(good)
		copy(b[at:], v)
		return b
	}
	for what, c := range map[string]struct {
		b      []byte
		status Status
	}{
		"first magic byte":   {change(0, 'G'), BadFrame},
		"second magic byte":  {change(1, 'E'), BadFrame},
		"version 0":          {change(2, 0), BadFrame},
		"version 2":          {change(2, 2), BadFrame},
		"unknown flag":       {change(4, 8), BadFrame},
		"unknown high flag":  {change(5, 0x80), BadFrame},
		"reserved":           {change(23, 1), BadFrame},
		"a byte too long":    {change(16, binary.LittleEndian.AppendUint32(nil, MaxFrameBodyBytes+1)...), FrameTooLarge},
		"as long as can be":  {change(16, 0xff, 0xff, 0xff, 0xff), FrameTooLarge},
		"an HTTP request":    {[]byte("GET / HTTP/1.1\r\nHost: example\r\n"), BadFrame},
		"a TLS client hello": {append([]byte{0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3}, make([]byte, 32)...), BadFrame},
	} {
		_, err := ParseHeader(c.b)
		var frameError *FrameError
		if !errors.As(err, &frameError) || frameError.Status != c.status || frameError.Reason == "" {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestCheckRequest(t *testing.T) {
	good := Header{Opcode: OpSend, Flags: FlagCreate, RequestID: 1}
	if err := good.CheckRequest(); err != nil {
		t.Error(err)
	}
	for what, change := range map[string]func(*Header){
		"answer":       func(h *Header) { h.Flags |= FlagAnswer },
		"push":         func(h *Header) { h.Flags |= FlagPush },
		"status":       func(h *Header) { h.Status = Stale },
		"request id 0": func(h *Header) { h.RequestID = 0 },
	} {
		h := good
		change(&h)
		if err := h.CheckRequest(); err == nil {
			t.Errorf("%s passes for a request", what)
		}
	}
}

// TestFramesInPlace: frames are built one behind the other in one buffer.
func TestFramesInPlace(t *testing.T) {
	var buffer []byte
	for i := range 3 {
		start := len(buffer)
		buffer = BeginFrame(buffer, Header{Opcode: OpStats, RequestID: uint64(i)})
		buffer = append(buffer, make([]byte, i)...)
		EndFrame(buffer, start)
	}
	for i := range 3 {
		h, err := ParseHeader(buffer)
		if err != nil || h.RequestID != uint64(i) || h.BodyLen != uint32(i) {
			t.Fatalf("frame %d: %+v, %v", i, h, err)
		}
		buffer = buffer[HeaderBytes+i:]
	}
	if len(buffer) != 0 {
		t.Errorf("%d bytes are left", len(buffer))
	}
}
