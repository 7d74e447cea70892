package dedup

import (
	"math/bits"
	"math/rand/v2"
)

// index finds the keys: a hash table by linear hashing, which grows by two buckets with each key, so that no insertion
// stalls and nothing is allocated but pages. (A Go map allocates as keys come and go.)
//
// It lies beside the keys, not in them: what is done to a chain changes no page of keys while those are frozen, and a
// search that finds nothing reads no key.
//
// The hash of a unique key is no secret, so where a key goes is salted: nobody can choose keys that share a bucket.
// The salt changes nothing that anybody can see.
type index struct {
	salt    [2]uint64
	buckets [][]uint32 // pages: first key of each chain
	links   [][]link   // pages, by key
	used    uint32     // buckets
	half    uint32     // highest power of two that is not above used
	count   uint32     // keys
}

// link is the place of one key in its chain.
type link struct {
	tag  uint32 // salted hash of the key
	next uint32 // 0: the chain ends
}

const (
	bucketBits = 14 // buckets and
	linkBits   = 13 // links in a page of 64 KiB
)

func newIndex() index {
	return index{
		salt: [2]uint64{rand.Uint64(), rand.Uint64()}, buckets: [][]uint32{make([]uint32, 1<<bucketBits)}, used: 1, half: 1,
	}
}

// tag is what stands for a key of the topic in slot.
func (x *index) tag(slot uint32, h KeyHash) uint32 {
	high, low := bits.Mul64(h[0]^x.salt[0], h[1]^x.salt[1]+uint64(slot))
	return uint32(high ^ low)
}

func (x *index) bucket(tag uint32) *uint32 {
	b := tag & (2*x.half - 1)
	if b >= x.used {
		b &= x.half - 1
	}
	return x.at(b)
}

func (x *index) at(b uint32) *uint32 { return &x.buckets[b>>bucketBits][b&(1<<bucketBits-1)] }

func (x *index) link(i uint32) *link { return &x.links[i>>linkBits][i&(1<<linkBits-1)] }

// add puts the key i into the chain of its tag.
func (x *index) add(i, tag uint32) {
	for int(i>>linkBits) >= len(x.links) {
		x.links = append(x.links, make([]link, 1<<linkBits))
	}
	first := x.bucket(tag)
	*x.link(i) = link{tag: tag, next: *first}
	*first = i
	x.count++
	for x.used < 2*x.count {
		x.grow()
	}
}

// grow adds a bucket, which takes its keys from the one that has the same tail of bits.
func (x *index) grow() {
	added := x.used
	if int(added>>bucketBits) == len(x.buckets) {
		x.buckets = append(x.buckets, make([]uint32, 1<<bucketBits))
	}
	from, to := x.at(added-x.half), x.at(added)
	for *from != 0 {
		i := *from
		l := x.link(i)
		if l.tag&(2*x.half-1) != added {
			from = &l.next
			continue
		}
		*from = l.next
		l.next, *to = *to, i
	}
	if x.used++; x.used == 2*x.half {
		x.half = x.used
	}
}

// remove takes the key i out of its chain.
func (x *index) remove(i uint32) {
	l := x.link(i)
	at := x.bucket(l.tag)
	for *at != i {
		at = &x.link(*at).next
	}
	*at = l.next
	*l = link{}
	x.count--
}
