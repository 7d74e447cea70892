package netserver

import (
	"fmt"
	"math/rand"
	"strings"
	"sync"
	"testing"

	"github.com/leasemq/leasemq/broker"
	"github.com/leasemq/leasemq/protocol"
)

// gnet's slices die when OnTraffic returns, at the next Discard, or when its ring grows. Given frames of all sizes
// from several connections, cut anywhere, some of them refused once, then each body is at Flush what it was at
// Frame: fake echoes it from the slice that Frame got.
func TestBodiesStayValidUntilFlush(t *testing.T) {
	seed := rand.Int63()
	f := &fake{}
	refuse := rand.New(rand.NewSource(seed))
	f.frame = func(_ broker.Peer, h protocol.Header, _ []byte) bool {
		if h.Opcode == protocol.OpSend && refuse.Intn(30) == 0 {
			f.wake()
			return false
		}
		return true
	}
	fx := start(t, Options{}, f)
	var wg sync.WaitGroup
	for n := range 4 {
		c := fx.greeted()
		wg.Go(func() {
			rng := rand.New(rand.NewSource(seed + int64(n)))
			var stream []byte
			var sizes []int
			for len(stream) < 3<<20 {
				size := rng.Intn(200)
				if rng.Intn(20) == 0 {
					size = rng.Intn(1 << 18)
				}
				id := uint64(len(sizes) + 10)
				sizes = append(sizes, size)
				stream = append(stream, request(protocol.OpSend, id, pattern(id, size))...)
			}
			go func() {
				for len(stream) > 0 {
					k := min(1+rng.Intn(150_000), len(stream))
					if _, err := c.Write(stream[:k]); err != nil {
						return
					}
					stream = stream[k:]
				}
			}()
			for i, size := range sizes {
				id := uint64(i + 10)
				h, body, err := c.read()
				if err != nil || h.RequestID != id || string(body) != string(pattern(id, size)) {
					t.Errorf("seed %d: answer %d: %+v, %d bytes, %v", seed, id, h, len(body), err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestFramesSplitAtEveryByteBoundary(t *testing.T) {
	fx := start(t, Options{}, &fake{})
	stream := request(protocol.OpHello, 1, nil)
	stream = append(stream, request(protocol.OpSend, 2, pattern(2, 30))...)
	stream = append(stream, request(protocol.OpAck, 3, pattern(3, 1))...)
	for cut := 1; cut < len(stream); cut++ {
		before := fx.Stats().BytesIn
		c := fx.connect()
		c.send(stream[:cut])
		waitFor(t, "the first part was read", func() bool { return fx.Stats().BytesIn == before+uint64(cut) })
		c.send(stream[cut:])
		c.expect(1, nil)
		c.expect(2, pattern(2, 30))
		c.expect(3, pattern(3, 1))
		_ = c.Close()
	}
	// And byte by byte.
	c := fx.connect()
	for _, b := range stream {
		before := fx.Stats().BytesIn
		c.send([]byte{b})
		waitFor(t, "the byte was read", func() bool { return fx.Stats().BytesIn == before+1 })
	}
	c.expect(1, nil)
	c.expect(2, pattern(2, 30))
	c.expect(3, pattern(3, 1))
}

func TestTenThousandTinyFramesInOneWrite(t *testing.T) {
	fx := start(t, Options{}, &fake{})
	c := fx.greeted()
	before := fx.Stats()
	var stream []byte
	const n = 10_000
	for id := uint64(2); id < n+2; id++ {
		stream = append(stream, request(protocol.OpHeartbeat, id, nil)...)
	}
	c.send(stream)
	for id := uint64(2); id < n+2; id++ {
		c.expect(id, nil)
	}
	after := fx.Stats()
	if got := after.Frames - before.Frames; got != n {
		t.Errorf("%d frames counted, want %d", got, n)
	}
	if got := after.Writes - before.Writes; got > n/20 {
		t.Errorf("%d writes for %d answers that came in one stream", got, n)
	}
}

func TestOneFlushAndOneWriteForABatch(t *testing.T) {
	fx := start(t, Options{}, &fake{})
	c := fx.greeted()
	flushes, writes := fx.fake.flushes.Load(), fx.Stats().Writes
	var stream []byte
	for id := uint64(2); id < 12; id++ {
		stream = append(stream, request(protocol.OpSend, id, pattern(id, 50))...)
	}
	c.send(stream) // less than a segment, so one read
	for id := uint64(2); id < 12; id++ {
		c.expect(id, pattern(id, 50))
	}
	if f, w := fx.fake.flushes.Load()-flushes, fx.Stats().Writes-writes; f != 1 || w != 1 {
		t.Errorf("%d flushes and %d writes, want 1 and 1", f, w)
	}
}

// A large batch is flushed in the middle, so that neither the work of one section nor its answers are unbounded.
func TestALargeBatchIsFlushedInTheMiddle(t *testing.T) {
	most := 0
	batch := 0
	f := &fake{
		frame: func(broker.Peer, protocol.Header, []byte) bool { batch++; return true },
		flush: func(broker.Peer) { most = max(most, batch); batch = 0 },
	}
	fx := start(t, Options{}, f)
	c := fx.greeted()
	var stream []byte
	const n = 3 * batchFrames
	for id := uint64(2); id < n+2; id++ {
		stream = append(stream, request(protocol.OpSend, id, nil)...)
	}
	c.send(stream)
	for id := uint64(2); id < n+2; id++ {
		c.expect(id, nil)
	}
	fx.onLoop(func(*loop) {
		if most > batchFrames {
			t.Errorf("a batch of %d frames", most)
		}
	})
}

func TestAFrameOverTheLimitIsRefusedByItsHeader(t *testing.T) {
	for name, limit := range map[string]int{"of the protocol": 0, "of the options": 1000} {
		t.Run(name, func(t *testing.T) {
			fx := start(t, Options{MaxFrameBytes: limit}, &fake{})
			c := fx.greeted()
			if limit == 0 {
				limit = protocol.MaxFrameBytes
			}
			h := protocol.Header{Opcode: protocol.OpSend, RequestID: 2, BodyLen: uint32(limit - protocol.HeaderBytes + 1)}
			c.send(h.Append(nil)) // no byte of the body
			c.expectGoodbye(protocol.FrameTooLarge)
		})
	}
}

func TestAFrameAtTheLimitPasses(t *testing.T) {
	fx := start(t, Options{}, &fake{})
	c := fx.greeted()
	body := pattern(2, protocol.MaxFrameBytes-protocol.HeaderBytes)
	go func() { _, _ = c.Write(request(protocol.OpSend, 2, body)) }()
	c.expect(2, body)
}

func TestBrokenFramesEndTheConnection(t *testing.T) {
	good := request(protocol.OpSend, 2, []byte("x"))
	change := func(at int, b byte) []byte {
		f := append([]byte(nil), good...)
		f[at] = b
		return f
	}
	for name, frame := range map[string][]byte{
		"magic":         change(0, 'G'),
		"version":       change(2, 9),
		"unknown flag":  change(4, 0x80),
		"flag ANSWER":   change(4, byte(protocol.FlagAnswer)),
		"flag PUSH":     change(4, byte(protocol.FlagPush)),
		"status":        change(6, 1),
		"request id 0":  change(8, 0),
		"reserved word": change(20, 1),
	} {
		t.Run(name, func(t *testing.T) {
			fx := start(t, Options{}, &fake{})
			c := fx.greeted()
			// What came before is answered first.
			c.send(append(request(protocol.OpSend, 7, []byte("before")), frame...))
			c.expect(7, []byte("before"))
			c.expectGoodbye(protocol.BadFrame)
			if n := fx.Stats().Goodbyes[protocol.BadFrame]; n != 1 {
				t.Errorf("counted %d", n)
			}
		})
	}
}

func TestTheFirstFrameMustBeHello(t *testing.T) {
	fx := start(t, Options{}, &fake{})
	c := fx.connect()
	c.send(request(protocol.OpSend, 1, make([]byte, 1000))[:protocol.HeaderBytes]) // its body is not waited for
	if why := c.expectGoodbye(protocol.HelloRequired); !strings.Contains(why, "SEND") {
		t.Errorf("reason %q does not name the frame", why)
	}
	if fx.Stats().Frames != 0 {
		t.Error("the frame reached the handler")
	}
}

func TestASecondHelloAndAnUnknownOpcodeAreTheHandlers(t *testing.T) {
	fx := start(t, Options{}, &fake{})
	c := fx.greeted()
	c.send(request(protocol.OpHello, 2, []byte("again")))
	c.expect(2, []byte("again"))
	for _, op := range []protocol.Opcode{0x00, 0x7f, protocol.OpGoodbye, 0xff} {
		c.send(request(op, 3, []byte("what")))
		c.expect(3, []byte("what"))
	}
}

// The Addr is that of the client, and the context is the handler's.
func TestAPeerKnowsItsAddressAndContext(t *testing.T) {
	f := &fake{open: func(p broker.Peer) { p.SetContext("state of " + p.Addr()) }}
	f.answer = func(p broker.Peer, _ staged) []byte { return []byte(fmt.Sprint(p.Context())) }
	fx := start(t, Options{}, f)
	c := fx.connect()
	c.send(request(protocol.OpHello, 1, nil))
	c.expect(1, []byte("state of "+c.LocalAddr().String()))
}
