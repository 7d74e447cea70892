package client

import (
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/leasemq/leasemq/protocol"
)

// frame is the bytes of one request, header first. A call holds one reference, the writer another one
// while it writes; whoever gives up the last one returns the buffer to the pool of its size. The bytes
// do not change between submit and the end of the call, but for the header, which is put by take when
// no writer has the frame.
type frame struct {
	b    []byte
	refs atomic.Int32
}

// Buffers are pooled in classes of 2^n bytes; longer ones are left to the collector.
const (
	leastFrameClass = 9
	mostFrameClass  = 21
)

var framePools [mostFrameClass + 1]sync.Pool

// newFrame makes a frame with a header and room for so many bytes in all. More may be appended.
func newFrame(op protocol.Opcode, flags protocol.Flags, room int) *frame {
	f := emptyFrame(room)
	f.b = protocol.BeginFrame(f.b, protocol.Header{Opcode: op, Flags: flags})
	return f
}

func emptyFrame(room int) *frame {
	class := max(bits.Len(uint(max(room, 1)-1)), leastFrameClass)
	if class > mostFrameClass {
		f := &frame{b: make([]byte, 0, room)}
		f.refs.Store(1)
		return f
	}
	f, _ := framePools[class].Get().(*frame)
	if f == nil {
		f = &frame{b: make([]byte, 0, 1<<class)}
	}
	f.b = f.b[:0]
	f.refs.Store(1)
	return f
}

func (f *frame) retain() { f.refs.Add(1) }

func (f *frame) release() {
	if f.refs.Add(-1) > 0 {
		return
	}
	if class := bits.Len(uint(cap(f.b))) - 1; class >= leastFrameClass && class <= mostFrameClass {
		framePools[class].Put(f)
	}
}

// copied is a frame of its own with the same bytes.
func (f *frame) copied() *frame {
	c := emptyFrame(len(f.b))
	c.b = append(c.b, f.b...)
	return c
}
