package codec

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
)

var compressions = [...]Compression{Zstd, S2}

// repetitive is n bytes of text that compresses well.
func repetitive(n int) []byte {
	var b []byte
	for i := 0; len(b) < n; i++ {
		b = fmt.Appendf(b, "order %d was paid; ", i%100)
	}
	return b[:n]
}

func noise(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func TestCompressionRoundTrip(t *testing.T) {
	r := newRand(t)
	for _, c := range compressions {
		for _, n := range []int{200, 1000, 100_000, 1<<20 + r.IntN(1000), MaxDecompressed} {
			// Given a body that compresses,
			body := repetitive(n)
			m := Message{Body: body}
			if err := m.Compress(c); err != nil {
				t.Fatal(err)
			}
			// when it was compressed, it is smaller and says how large it was,
			if m.Compression != c || int(m.RawBytes) != n || len(m.Body) >= n {
				t.Fatalf("compression %d of %d bytes: %d, %d of %d bytes", c, n, m.Compression, len(m.Body), m.RawBytes)
			}
			// and then it comes back through a payload as it was.
			v := mustParse(t, mustAppend(t, &m))
			got := v.Message()
			if again, err := got.Decompress(); err != nil || !bytes.Equal(again, body) {
				t.Fatalf("compression %d of %d bytes: %d, %v", c, n, len(again), err)
			}
		}
	}
}

// TestIncompressibleStaysRaw: also what is too short to gain anything, and nothing at all.
func TestIncompressibleStaysRaw(t *testing.T) {
	r := newRand(t)
	for _, c := range append(compressions[:], None) {
		for _, n := range []int{0, 1, 5, 1000, 100_000} {
			body := noise(r, n)
			m := Message{Body: body}
			if err := m.Compress(c); err != nil {
				t.Fatal(err)
			}
			if m.Compression != None || !bytes.Equal(m.Body, body) {
				t.Fatalf("compression %d of %d bytes of noise: %d, %d bytes", c, n, m.Compression, len(m.Body))
			}
			if again, err := m.Decompress(); err != nil || !bytes.Equal(again, body) {
				t.Fatal(err)
			}
		}
	}
}

func TestCompressRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		m Message
		c Compression
	}{
		"a body that is compressed": {Message{Compression: Zstd, Body: repetitive(1000)}, S2},
		"an unknown compression":    {Message{Body: repetitive(1000)}, S2 + 1},
		"a body over the limit":     {Message{Body: make([]byte, MaxDecompressed+1)}, Zstd},
	} {
		m := test.m
		if err := m.Compress(test.c); !errors.Is(err, ErrMessage) {
			t.Errorf("%s: %v", name, err)
		}
		if m.Compression != test.m.Compression || len(m.Body) != len(test.m.Body) {
			t.Errorf("%s: the refused message was changed", name)
		}
	}
}

// stream encodes as a stream does, without a word on how much will come out.
func stream(t testing.TB, body []byte, options ...zstd.EOption) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := zstd.NewWriter(&b, append([]zstd.EOption{zstd.WithEncoderConcurrency(1)}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	for rest := body; len(rest) > 0; {
		n := min(len(rest), 1<<20)
		if _, err := w.Write(rest[:n]); err != nil {
			t.Fatal(err)
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		rest = rest[n:]
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// hostileBodies are compressed bodies that no honest sender makes.
func hostileBodies(t testing.TB, r *rand.Rand) map[string]Message {
	const n = 100_000
	body := repetitive(n)
	whole := func(c Compression) []byte {
		m := Message{Body: body}
		if err := m.Compress(c); err != nil {
			t.Fatal(err)
		}
		return m.Body
	}
	zeroes := make([]byte, 24<<20) // over every limit
	cases := map[string]Message{
		"an unknown compression":        {Compression: S2 + 1, RawBytes: n, Body: body},
		"more than the limit, zstd":     {Compression: Zstd, RawBytes: MaxDecompressed + 1, Body: whole(Zstd)},
		"more than the limit, s2":       {Compression: S2, RawBytes: MaxDecompressed + 1, Body: whole(S2)},
		"all ones":                      {Compression: Zstd, RawBytes: ^uint32(0), Body: whole(Zstd)},
		"a bomb that tells its size":    {Compression: Zstd, RawBytes: n, Body: zstdEncoder().EncodeAll(zeroes, nil)},
		"a bomb that does not":          {Compression: Zstd, RawBytes: n, Body: stream(t, zeroes)},
		"a bomb over the limit":         {Compression: Zstd, RawBytes: MaxDecompressed, Body: stream(t, zeroes)},
		"a bomb in many frames":         {Compression: Zstd, RawBytes: n, Body: bytes.Repeat(stream(t, zeroes[:1<<20]), 24)},
		"a bomb that claims nothing":    {Compression: Zstd, RawBytes: 0, Body: stream(t, zeroes)},
		"a window of 512 MiB":           {Compression: Zstd, RawBytes: n, Body: stream(t, body, zstd.WithWindowSize(zstd.MaxWindowSize))},
		"a bomb, s2":                    {Compression: S2, RawBytes: n, Body: s2.Encode(nil, zeroes)},
		"s2 that is zstd":               {Compression: S2, RawBytes: n, Body: whole(Zstd)},
		"zstd that is s2":               {Compression: Zstd, RawBytes: n, Body: whole(S2)},
		"s2 whose block claims 4 GiB":   {Compression: S2, RawBytes: n, Body: []byte{0xff, 0xff, 0xff, 0xff, 0x0f, 0}},
		"s2 that claims and has little": {Compression: S2, RawBytes: MaxDecompressed, Body: []byte{0x80, 0x80, 0x80, 0x08, 0}},
	}
	for _, c := range compressions {
		b := whole(c)
		cases[fmt.Sprintf("nothing, %d", c)] = Message{Compression: c, RawBytes: n}
		cases[fmt.Sprintf("noise, %d", c)] = Message{Compression: c, RawBytes: n, Body: noise(r, 1000)}
		cases[fmt.Sprintf("one byte less claimed, %d", c)] = Message{Compression: c, RawBytes: n - 1, Body: b}
		cases[fmt.Sprintf("one byte more claimed, %d", c)] = Message{Compression: c, RawBytes: n + 1, Body: b}
		cases[fmt.Sprintf("nothing claimed, %d", c)] = Message{Compression: c, RawBytes: 0, Body: b}
		cases[fmt.Sprintf("half of it, %d", c)] = Message{Compression: c, RawBytes: n, Body: b[:len(b)/2]}
		cases[fmt.Sprintf("one byte cut off, %d", c)] = Message{Compression: c, RawBytes: n, Body: b[:len(b)-1]}
	}
	return cases
}

// TestHostileBodies: none is taken for a body, and none makes us allocate more than the decoder's window and what
// the limits allow.
func TestHostileBodies(t *testing.T) {
	r := newRand(t)
	warm := Message{Body: repetitive(MaxDecompressed)} // the decoders make their tables at their first use
	if err := warm.Compress(Zstd); err != nil {
		t.Fatal(err)
	}
	if _, err := warm.Decompress(); err != nil {
		t.Fatal(err)
	}
	for name, m := range hostileBodies(t, r) {
		t.Run(name, func(t *testing.T) {
			var body []byte
			var err error
			bytes := allocated(func() { body, err = m.Decompress() })
			if body != nil || !errors.Is(err, ErrMessage) {
				t.Errorf("%d bytes, %v", len(body), err)
			}
			// A decoder notices one block late that there is no room, when that block has made its buffer grow.
			most := uint64(2 << 20)
			if m.RawBytes <= MaxDecompressed {
				most += uint64(m.RawBytes) * 5 / 2
			}
			if bytes > most {
				t.Errorf("%d bytes allocated for a claim of %d", bytes, m.RawBytes)
			}
		})
	}
}

// TestClaimedLengthIsExact: also a claim below what is there, by a stream that ends inside its last block.
func TestClaimedLengthIsExact(t *testing.T) {
	body := repetitive(300_000)
	packed := stream(t, body)
	for _, claim := range []int{0, 1, 299_999, 300_000, 300_001, 400_000} {
		m := Message{Compression: Zstd, RawBytes: uint32(claim), Body: packed}
		got, err := m.Decompress()
		if claim == len(body) {
			if err != nil || !bytes.Equal(got, body) {
				t.Errorf("%d bytes: %v", len(got), err)
			}
		} else if err == nil {
			t.Errorf("%d bytes claimed, %d given", claim, len(got))
		}
	}
}

// TestFlippedBitsOfCompressedBodies: the record's checksum is what finds them; here they only must do no harm.
func TestFlippedBitsOfCompressedBodies(t *testing.T) {
	r := newRand(t)
	for _, c := range compressions {
		m := Message{Body: append(repetitive(3000), noise(r, 500)...)}
		if err := m.Compress(c); err != nil {
			t.Fatal(err)
		}
		for range 2000 {
			bit := r.IntN(8 * len(m.Body))
			m.Body[bit/8] ^= 1 << (bit % 8)
			if body, err := m.Decompress(); err == nil && len(body) != int(m.RawBytes) {
				t.Fatalf("compression %d, bit %d: %d bytes", c, bit, len(body))
			}
			m.Body[bit/8] ^= 1 << (bit % 8)
		}
	}
}

// TestCompressionIsSafeForConcurrentUse: encoders and decoders are shared by all that use the package.
func TestCompressionIsSafeForConcurrentUse(t *testing.T) {
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			body := repetitive(10_000 + i)
			for _, c := range compressions {
				for range 20 {
					m := Message{Body: body}
					if err := m.Compress(c); err != nil {
						t.Error(err)
					}
					if again, err := m.Decompress(); err != nil || !bytes.Equal(again, body) {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkCompress(b *testing.B) {
	body := repetitive(16 << 10)
	for _, c := range compressions {
		b.Run([]string{"none", "zstd", "s2"}[c], func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				m := Message{Body: body}
				if err := m.Compress(c); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkDecompress(b *testing.B) {
	body := repetitive(16 << 10)
	for _, c := range compressions {
		b.Run([]string{"none", "zstd", "s2"}[c], func(b *testing.B) {
			m := Message{Body: body}
			if err := m.Compress(c); err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := m.Decompress(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
