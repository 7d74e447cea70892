package lease

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"testing"

	"github.com/dchest/siphash"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/protocol"
)

func fullReceipt() Receipt {
	return Receipt{
		Topic: 0x01020304, Group: 0x11121314, Sub: 0x21222324, Queue: 0x3132, Session: 0x4142434445464748,
		Offset: 0x5152535455565758, ID: codec.NewMessageID(0x61626364, 0x7172737475767778), Token: 0x0182838485868788,
		GrantMs: 0x1192939495969798,
	}
}

// hash is what an authentic receipt ends with.
func (k Key) hash(fields []byte) (sum [16]byte) {
	lo, hi := siphash.Hash128(k.k0, k.k1, fields)
	binary.LittleEndian.PutUint64(sum[:], lo)
	binary.LittleEndian.PutUint64(sum[8:], hi)
	return sum
}

func countingKey() Key {
	var secret [KeyBytes]byte
	for i := range secret {
		secret[i] = byte(i)
	}
	return NewKey(secret)
}

// TestReceiptGolden: receipts are stored by clients, and outlive an upgrade of the broker.
func TestReceiptGolden(t *testing.T) {
	const fields = "04030201" + "14131211" + "24232221" + "3231" + "0100" + "4847464544434241" +
		"5857565554535251" + "64636261" + "00000000" + "7877767574737271" + "8887868584838201" + "9897969594939211"
	const hash = "192973fa62ef03485646e0f9711234e0"
	r := fullReceipt()
	b := countingKey().Append(nil, &r)
	if got := hex.EncodeToString(b[:64]); got != fields {
		t.Errorf("fields %s, want %s", got, fields)
	}
	if got := hex.EncodeToString(b[64:]); got != hash {
		t.Errorf("hash %s, want %s", got, hash)
	}
}

// TestSipHash: the first of the reference vectors of siphash-128, so that the hash above is the one of the book.
func TestSipHash(t *testing.T) {
	sum := countingKey().hash(nil)
	if got := hex.EncodeToString(sum[:]); got != "a3817f04ba25a8e66df67214c7550293" {
		t.Error(got)
	}
}

func TestReceiptRoundTrip(t *testing.T) {
	r := newRand(t)
	for range 2000 {
		var secret [KeyBytes]byte
		for i := range secret {
			secret[i] = byte(r.Uint32())
		}
		key := NewKey(secret)
		want := Receipt{
			Topic: r.Uint32(), Group: r.Uint32(), Sub: r.Uint32(), Queue: uint16(r.Uint32()), Session: r.Uint64(), Offset: r.Uint64(),
			ID: codec.NewMessageID(r.Uint32(), r.Uint64()), Token: r.Uint64(), GrantMs: int64(r.Uint64()),
		}
		b := key.Append([]byte("before"), &want)
		if !bytes.HasPrefix(b, []byte("before")) || len(b) != len("before")+protocol.ReceiptBytes {
			t.Fatalf("%d bytes", len(b))
		}
		var got Receipt
		if !key.Parse(b[len("before"):], &got) || got != want {
			t.Fatalf("%+v came back as %+v", want, got)
		}
	}
}

func TestEveryFlippedBitOfAReceiptIsRefused(t *testing.T) {
	r := fullReceipt()
	key := countingKey()
	b := key.Append(nil, &r)
	for bit := range 8 * len(b) {
		b[bit/8] ^= 1 << (bit % 8)
		var got Receipt
		if key.Parse(b, &got) {
			t.Fatalf("bit %d of byte %d is flipped, and it is a receipt", bit%8, bit/8)
		}
		b[bit/8] ^= 1 << (bit % 8)
	}
	if !key.Parse(b, &r) {
		t.Fatal("unchanged, it is none")
	}
}

func TestForgedReceiptsAreRefused(t *testing.T) {
	r := fullReceipt()
	key := countingKey()
	b := key.Append(nil, &r)
	var got Receipt
	for n := range b {
		if key.Parse(b[:n], &got) {
			t.Errorf("%d bytes of it are a receipt", n)
		}
	}
	if key.Parse(append(bytes.Clone(b), 0), &got) {
		t.Error("a byte more is a receipt")
	}
	if key.Parse(nil, &got) || key.Parse(make([]byte, protocol.ReceiptBytes), &got) {
		t.Error("nothing is a receipt")
	}
	for i := range KeyBytes {
		var secret [KeyBytes]byte
		for k := range secret {
			secret[k] = byte(k)
		}
		secret[i]++
		if NewKey(secret).Parse(b, &got) {
			t.Errorf("a key that differs in byte %d takes it", i)
		}
	}
}

// TestReceiptOfAnotherVersion: authentic, of a layout to come.
func TestReceiptOfAnotherVersion(t *testing.T) {
	key := countingKey()
	r := fullReceipt()
	b := key.Append(nil, &r)
	b[14]++
	sum := key.hash(b[:receiptFields])
	copy(b[receiptFields:], sum[:])
	if key.Parse(b, &r) {
		t.Error("it was taken for one of this version")
	}
	b[14]--
	sum = key.hash(b[:receiptFields])
	copy(b[receiptFields:], sum[:])
	if !key.Parse(b, &r) {
		t.Error("the test does not make authentic receipts")
	}
}

func TestReceiptsDoNotAllocate(t *testing.T) {
	key := countingKey()
	r := fullReceipt()
	buf := make([]byte, 0, protocol.ReceiptBytes)
	if n := testing.AllocsPerRun(100, func() {
		buf = key.Append(buf[:0], &r)
		if !key.Parse(buf, &r) {
			t.Fatal("refused")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkReceipt(b *testing.B) {
	key := countingKey()
	r := fullReceipt()
	var buf []byte
	b.Run("make", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			buf = key.Append(buf[:0], &r)
		}
	})
	b.Run("check", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if !key.Parse(buf, &r) {
				b.Fatal("refused")
			}
		}
	})
}
