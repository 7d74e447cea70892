package codec

import (
	"fmt"
	"sync"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
)

// Bodies are compressed by the client that sends and decompressed by the client that consumes; the
// broker stores and delivers them as they came. A body whose compressed form is not smaller is kept
// as it is.

var zstdEncoder = sync.OnceValue(func() *zstd.Encoder {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderCRC(false),
		zstd.WithWindowSize(1<<20), zstd.WithLowerEncoderMem(true))
	if err != nil {
		panic(err) // the options are constants
	}
	return e
})

var zstdDecoder = sync.OnceValue(func() *zstd.Decoder {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(MaxDecompressed),
		zstd.WithDecodeAllCapLimit(true))
	if err != nil {
		panic(err)
	}
	return d
})

// Compress sets the body of m to its compressed form if that is smaller.
func (m *Message) Compress(c Compression) error {
	if m.Compression != None {
		return fmt.Errorf("%w: the body is compressed already", ErrMessage)
	}
	if len(m.Body) > MaxDecompressed {
		return tooLarge("body", len(m.Body), MaxDecompressed)
	}
	var out []byte
	switch c {
	case None:
		return nil
	case Zstd:
		out = zstdEncoder().EncodeAll(m.Body, make([]byte, 0, len(m.Body)/2+64))
	case S2:
		out = s2.Encode(nil, m.Body)
	default:
		return fmt.Errorf("%w: unknown compression %d", ErrMessage, c)
	}
	if len(out) < len(m.Body) {
		m.RawBytes, m.Compression, m.Body = uint32(len(m.Body)), c, out
	}
	return nil
}

// Decompress returns the body of m as its sender had it. It produces at most MaxDecompressed bytes, and
// exactly RawBytes, or fails: neither the claim of the sender nor the data can make it produce more.
func (m *Message) Decompress() ([]byte, error) {
	if m.Compression == None {
		return m.Body, nil
	}
	if m.RawBytes > MaxDecompressed {
		return nil, tooLarge("decompressed body", int(m.RawBytes), MaxDecompressed)
	}
	var out []byte
	var err error
	switch m.Compression {
	case Zstd:
		// The capacity of the destination is a hard limit on what the decoder produces. (It looks after each
		// block, of 128 KiB at most, which may have made the buffer grow by a quarter.)
		out, err = zstdDecoder().DecodeAll(m.Body, make([]byte, 0, m.RawBytes))
	case S2:
		var n int
		if n, err = s2.DecodedLen(m.Body); err == nil && n != int(m.RawBytes) {
			err = fmt.Errorf("it claims %d bytes, its block %d", m.RawBytes, n)
		}
		if err == nil {
			out, err = s2.Decode(make([]byte, n), m.Body)
		}
	default:
		err = fmt.Errorf("unknown compression %d", m.Compression)
	}
	if err == nil && len(out) != int(m.RawBytes) {
		err = fmt.Errorf("it claims %d bytes and has %d", m.RawBytes, len(out))
	}
	if err != nil {
		return nil, fmt.Errorf("%w: compressed body: %w", ErrMessage, err)
	}
	return out, nil
}
