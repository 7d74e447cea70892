package dedup

import (
	"fmt"
	"math"
	"testing"
)

func (t *Table) keyVerdict(topic uint32, key string, nowMs int64) Verdict {
	v, _ := t.CheckKey(topic, Hash([]byte(key)), nowMs)
	return v
}

func (t *Table) store(topic uint32, key string, n uint64, windowMs, nowMs int64) {
	t.ApplyKey(topic, Hash([]byte(key)), placeOf(n), windowMs, nowMs)
}

// TestHashOfAKey: what is stored must be found by every later version.
func TestHashOfAKey(t *testing.T) {
	if h := Hash([]byte("order-9")); h != (KeyHash{0xb5f679199f3a97d5, 0x1c0904819ff89f58}) {
		t.Fatalf("%#x", h)
	}
}

func TestAKeyIsKnownForItsWindow(t *testing.T) {
	table := strict(t, Limits{})
	table.store(1, "a", 100, 5000, 1000)
	for _, test := range []struct {
		topic uint32
		key   string
		nowMs int64
		want  Verdict
	}{
		{1, "a", 1000, Duplicate}, {1, "a", 5999, Duplicate}, {1, "a", 6000, Fresh},
		{1, "b", 1000, Fresh}, {2, "a", 1000, Fresh},
	} {
		if v := table.keyVerdict(test.topic, test.key, test.nowMs); v != test.want {
			t.Errorf("key %s of topic %d at %d is %s, want %s", test.key, test.topic, test.nowMs, v, test.want)
		}
	}
	if _, at := table.CheckKey(1, Hash([]byte("a")), 2000); at != placeOf(100) {
		t.Errorf("the first is at %+v", at)
	}
	// Stored again when it is free, it is another message.
	table.store(1, "a", 200, 5000, 6000)
	if v, at := table.CheckKey(1, Hash([]byte("a")), 10_999); v != Duplicate || at != placeOf(200) || table.Keys() != 1 {
		t.Errorf("%s at %+v, %d keys", v, at, table.Keys())
	}
	audit(t, table)
}

// TestAKeyBehindOneThatIsKnownForLonger is free when its time has come, though its memory is not.
func TestAKeyBehindOneThatIsKnownForLonger(t *testing.T) {
	table := strict(t, Limits{})
	table.store(1, "long", 1, hourMs, 0)
	table.store(1, "short", 2, 1000, 0)
	if v := table.keyVerdict(1, "short", 1000); v != Fresh {
		t.Fatalf("the short one is %s", v)
	}
	table.store(1, "short", 3, 1000, 1000)
	if v := table.keyVerdict(1, "short", 1999); v != Duplicate || table.Keys() != 2 {
		t.Fatalf("the short one is %s, %d keys", v, table.Keys())
	}
	table.Age(hourMs)
	if n := table.Keys(); n != 0 {
		t.Fatalf("%d keys are left", n)
	}
	audit(t, table)
}

func TestTooManyKeys(t *testing.T) {
	table := New(Limits{Keys: 3})
	table.store(1, "a", 1, 3000, 0)
	table.store(2, "b", 2, 1000, 0)
	table.store(3, "c", 3, 2000, 0)
	// Given three keys, there is no room for a fourth; nothing is forgotten to make some.
	if v := table.keyVerdict(4, "d", 999); v != Full {
		t.Fatalf("a fourth key is %s", v)
	}
	before := table.Hash()
	table.store(4, "d", 4, 1000, 999)
	if table.Violations() != 1 || table.Hash() != before {
		t.Fatal("a record that did not fit was applied")
	}
	// When one has expired, of whichever topic, there is room, though no record came since.
	if v := table.keyVerdict(4, "d", 1000); v != Fresh {
		t.Fatalf("a fourth key is %s, although one has expired", v)
	}
	table.store(4, "d", 4, 1000, 1000)
	if v, w := table.keyVerdict(2, "b", 1000), table.keyVerdict(1, "a", 1000); table.Keys() != 3 || v != Full || w != Duplicate {
		t.Fatalf("%d keys, %s, %s", table.Keys(), v, w)
	}
	audit(t, table)
}

func TestKeysThatDoNotFitOrNeedNotBeKept(t *testing.T) {
	table := New(Limits{})
	table.store(1, "a", 1, 1000, 0)
	before := table.Hash()
	table.store(1, "a", 2, 1000, 999)
	if table.Violations() != 1 || table.Hash() != before {
		t.Fatal("a key was stored that was known")
	}
	table.store(1, "b", 2, 0, 0)
	if table.Violations() != 1 || table.Hash() != before {
		t.Fatal("a window of zero was taken for one")
	}
	// A window beyond the end of time is as long as can be.
	table.store(1, "c", 2, math.MaxInt64, 100)
	if v := table.keyVerdict(1, "c", math.MaxInt64-1); v != Duplicate {
		t.Fatal(v)
	}
	audit(t, table)
}

// TestADroppedTopic: its keys cannot be seen from then on, also when the topic comes back; their memory is freed by
// the records that follow, a few at a time, and never takes more than the limit together with what is stored anew.
func TestADroppedTopic(t *testing.T) {
	const many = 1000
	table := strict(t, Limits{Keys: many})
	for n := range many {
		table.store(1+uint32(n%2), fmt.Sprint(n), uint64(n), hourMs, 0)
	}
	table.DropTopic(1)
	table.DropTopic(7) // of which nothing is known
	if v := table.keyVerdict(1, "0", 0); v != Fresh || table.Keys() != many/2 {
		t.Fatalf("a key of a dropped topic is %s, %d keys", v, table.Keys())
	}
	if v := table.keyVerdict(2, "1", 0); v != Duplicate {
		t.Fatalf("a key of another topic is %s", v)
	}
	audit(t, table)
	for n := range many / 2 {
		before := table.keys.Len()
		table.store(1, fmt.Sprint("again ", n), 1, hourMs, 0)
		if freed := before + 1 - table.keys.Len(); freed > evictPerRecord {
			t.Fatalf("a record freed %d keys", freed)
		}
		if table.keys.Len() > many {
			t.Fatalf("%d keys in memory", table.keys.Len())
		}
	}
	if v := table.keyVerdict(1, "one too many", 0); v != Full || table.keys.Len() != many || table.Keys() != many {
		t.Fatalf("%s, %d keys in memory", v, table.keys.Len())
	}
	table.DropTopic(1)
	table.DropTopic(2)
	for range many / evictPerRecord {
		table.Age(0)
	}
	if table.keys.Len() != 0 || table.topics.Len() != 0 || table.Hash() != New(Limits{}).Hash() {
		t.Fatalf("%d keys of %d topics are left", table.keys.Len(), table.topics.Len())
	}
	audit(t, table)
}

// TestTheOldestOfManyTopics: whichever topic a key is of, it is evicted when its time has come.
func TestTheOldestOfManyTopics(t *testing.T) {
	r := newRand(t)
	table := strict(t, Limits{})
	const topics = 300
	for n := range 20 * topics {
		table.store(uint32(r.IntN(topics)), fmt.Sprint(n), 1, 1+r.Int64N(minuteMs), int64(n/100))
	}
	audit(t, table)
	for range topics / 3 {
		table.DropTopic(uint32(r.IntN(topics)))
		audit(t, table)
	}
	// What is due is no more than what lies behind a key that is not: the heads of all lists are young.
	for nowMs := int64(0); nowMs < 2*minuteMs; nowMs += 500 {
		for before := -1; before != table.Keys(); {
			before = table.Keys()
			table.Age(nowMs)
		}
		for slot := range table.topics.End() {
			if table.topics.Used(slot) && table.topics.At(slot).count > 0 && !table.topics.At(slot).dropped {
				if k := table.keys.At(table.topics.At(slot).list.head); k.expiresMs <= nowMs {
					t.Fatalf("a key that expired at %d is there at %d", k.expiresMs, nowMs)
				}
			}
		}
	}
	if table.Keys() != 0 {
		t.Fatalf("%d keys are left", table.Keys())
	}
	audit(t, table)
}
