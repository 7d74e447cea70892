package codec

import (
	"flag"
	"math/rand/v2"
	"reflect"
	"runtime"
	"testing"
	"time"
)

var seedFlag = flag.Uint64("seed", 0, "seed of the random tests, as a failed run has printed it")

func newRand(t testing.TB) *rand.Rand {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

// oddUint is a random number that is often at an edge: zero, one, all ones, or of any magnitude.
func oddUint(r *rand.Rand) uint64 {
	switch r.IntN(6) {
	case 0:
		return 0
	case 1:
		return ^uint64(0)
	default:
		return r.Uint64() >> r.IntN(64)
	}
}

// oddBytes is up to most random bytes, often none or all of them.
func oddBytes(r *rand.Rand, most int) []byte {
	n := r.IntN(most + 1)
	switch r.IntN(6) {
	case 0:
		n = 0
	case 1:
		n = most
	}
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// fill sets v, which can be set, to a random value: byte strings of up to 255 bytes, lists of up to 20.
func fill(r *rand.Rand, v reflect.Value) {
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(r.IntN(2) == 0)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(oddUint(r) & (1<<(8*v.Type().Size()) - 1))
	case reflect.Int64:
		v.SetInt(int64(oddUint(r)))
	case reflect.Struct:
		for i := range v.NumField() {
			fill(r, v.Field(i))
		}
	case reflect.Array:
		for i := range v.Len() {
			fill(r, v.Index(i))
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes(oddBytes(r, 255))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), r.IntN(21), 21))
		for i := range v.Len() {
			fill(r, v.Index(i))
		}
	default:
		panic("codec: no random value of kind " + v.Kind().String())
	}
}

// allocated is how many bytes do allocates: the least of several runs, because the runtime allocates beside
// it now and then.
func allocated(do func()) uint64 {
	least := ^uint64(0)
	for range 4 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		do()
		runtime.ReadMemStats(&after)
		least = min(least, after.TotalAlloc-before.TotalAlloc)
	}
	return least
}

// leastAllocs is how many allocations do makes: the least of several runs, since the runtime's own are counted too.
func leastAllocs(do func()) float64 {
	least := testing.AllocsPerRun(10, do)
	for range 3 {
		least = min(least, testing.AllocsPerRun(10, do))
	}
	return least
}
