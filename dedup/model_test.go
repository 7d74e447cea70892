package dedup

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/leasemq/leasemq/codec"
)

var seedFlag = flag.Uint64("seed", 0, "seed of random tests; 0: by the clock")

func newRand(t testing.TB) *rand.Rand {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

const (
	secondMs = int64(1000)
	minuteMs = 60 * secondMs
	hourMs   = 60 * minuteMs
)

// placeOf is a place that tells n places apart in every field.
func placeOf(n uint64) Place {
	return Place{Queue: uint16(n * 7), Offset: n * 31, ID: codec.NewMessageID(uint32(n*3+1), n*1024)}
}

// model is the rules of the package in plain maps and slices, without regard to cost.
type model struct {
	limits    Limits
	producers map[uint64]*modelProducer
	queue     []*modelChunk // all chunks
	idle      []uint64
	topics    map[uint32][]modelKey // oldest first

	evictedFull, evictedOld, requeued, leapt, forgotten, expired int // what happened, to know that the test saw it
}

type modelProducer struct {
	floor, highest uint64
	lastMs         int64
	known          map[uint64]Place
}

type modelChunk struct {
	producer, number   uint64
	newestMs, queuedMs int64
}

type modelKey struct {
	hash      KeyHash
	place     Place
	expiresMs int64
}

func newModel(l Limits) *model {
	return &model{limits: l, producers: map[uint64]*modelProducer{}, topics: map[uint32][]modelKey{}}
}

func (m *model) sequences() (n int) {
	for _, p := range m.producers {
		n += len(p.known)
	}
	return n
}

func (m *model) keys() (n int) {
	for _, list := range m.topics {
		n += len(list)
	}
	return n
}

func (m *model) checkSequence(id, sequence uint64) (Verdict, Place) {
	p := m.producers[id]
	switch {
	case id == 0 || sequence == 0:
		return TooOld, Place{}
	case p == nil && len(m.producers) >= m.limits.Producers && len(m.idle) == 0:
		return Full, Place{}
	case p == nil:
		return Fresh, Place{}
	case sequence <= p.floor:
		return TooOld, Place{}
	}
	if place, ok := p.known[sequence]; ok {
		return Duplicate, place
	}
	return Fresh, Place{}
}

// in is the sequences of a chunk that are known, lowest first.
func (m *model) in(c *modelChunk) (known []uint64) {
	for k := range uint64(16) {
		if _, ok := m.producers[c.producer].known[c.number*16+k]; ok {
			known = append(known, c.number*16+k)
		}
	}
	return known
}

func (m *model) lowest(id uint64) (lowest *modelChunk) {
	for _, c := range m.queue {
		if c.producer == id && (lowest == nil || c.number < lowest.number) {
			lowest = c
		}
	}
	return lowest
}

func (m *model) toBack(c *modelChunk, nowMs int64) {
	m.queue = append(slices.DeleteFunc(m.queue, func(x *modelChunk) bool { return x == c }), c)
	c.queuedMs = nowMs
}

func (m *model) drop(c *modelChunk) {
	p := m.producers[c.producer]
	for _, sequence := range m.in(c) {
		p.floor = max(p.floor, sequence)
		delete(p.known, sequence)
	}
	m.queue = slices.DeleteFunc(m.queue, func(x *modelChunk) bool { return x == c })
	if len(p.known) == 0 {
		m.idle = append(m.idle, c.producer)
	}
}

func (m *model) forget() {
	delete(m.producers, m.idle[0])
	m.idle = m.idle[1:]
	m.forgotten++
}

func (m *model) applySequence(id, sequence uint64, place Place, nowMs int64) (fits bool) {
	if v, _ := m.checkSequence(id, sequence); v != Fresh {
		return false
	}
	p := m.producers[id]
	if p == nil {
		if len(m.producers) >= m.limits.Producers {
			m.forget()
		}
		p = &modelProducer{known: map[uint64]Place{}, lastMs: nowMs}
		m.producers[id] = p
	}
	m.idle = slices.DeleteFunc(m.idle, func(x uint64) bool { return x == id })
	p.known[sequence] = place
	p.lastMs = max(p.lastMs, nowMs)
	i := slices.IndexFunc(m.queue, func(c *modelChunk) bool { return c.producer == id && c.number == sequence/16 })
	if i < 0 {
		i = len(m.queue)
		m.queue = append(m.queue, &modelChunk{id, sequence / 16, nowMs, nowMs})
	}
	c := m.queue[i]
	c.newestMs = max(c.newestMs, nowMs)
	if len(m.in(c)) == 16 {
		m.toBack(c, nowMs)
	}
	if sequence > p.highest {
		p.highest = sequence
		if sequence > 65536 {
			p.floor = max(p.floor, sequence-65536)
		}
	}
	for range 4 {
		if c := m.lowest(id); c != nil && c.number*16+15 <= p.floor {
			m.drop(c)
			m.leapt++
		}
	}
	m.age(nowMs)
	return true
}

func (m *model) age(nowMs int64) {
	for range 4 {
		if len(m.queue) == 0 {
			break
		}
		head := m.queue[0]
		tooMany := m.sequences() > m.limits.Sequences || len(m.queue) > m.limits.Sequences/4
		if !tooMany && nowMs-head.queuedMs < 15*minuteMs {
			break
		}
		c := m.lowest(head.producer)
		top := m.in(c)[len(m.in(c))-1]
		switch {
		case tooMany:
			m.drop(c)
			m.evictedFull++
		case nowMs-c.newestMs >= 15*minuteMs || top <= m.producers[c.producer].floor:
			m.drop(c)
			m.evictedOld++
		default:
			m.toBack(head, nowMs)
			m.requeued++
		}
	}
	for range 4 {
		if len(m.idle) > 0 && nowMs-m.producers[m.idle[0]].lastMs >= 24*hourMs {
			m.forget()
		}
	}
}

// due is the topic whose oldest key expires first, if that has expired.
func (m *model) due(nowMs int64) (topic uint32, ok bool) {
	for id, list := range m.topics {
		if len(list) == 0 || list[0].expiresMs > nowMs {
			continue
		}
		best := m.topics[topic]
		if !ok || list[0].expiresMs < best[0].expiresMs || list[0].expiresMs == best[0].expiresMs && id < topic {
			topic, ok = id, true
		}
	}
	return topic, ok
}

func (m *model) find(topic uint32, h KeyHash) int {
	return slices.IndexFunc(m.topics[topic], func(k modelKey) bool { return k.hash == h })
}

func (m *model) checkKey(topic uint32, h KeyHash, nowMs int64) (Verdict, Place) {
	i := m.find(topic, h)
	if i >= 0 && m.topics[topic][i].expiresMs > nowMs {
		return Duplicate, m.topics[topic][i].place
	}
	if _, room := m.due(nowMs); i < 0 && m.keys() >= m.limits.Keys && !room {
		return Full, Place{}
	}
	return Fresh, Place{}
}

func (m *model) applyKey(topic uint32, h KeyHash, place Place, windowMs, nowMs int64) (fits bool) {
	if windowMs <= 0 {
		return true
	}
	if v, _ := m.checkKey(topic, h, nowMs); v != Fresh {
		return false
	}
	if i := m.find(topic, h); i >= 0 {
		m.topics[topic] = slices.Delete(m.topics[topic], i, i+1)
	}
	m.ageKeys(nowMs)
	m.topics[topic] = append(m.topics[topic], modelKey{h, place, nowMs + windowMs})
	return true
}

func (m *model) ageKeys(nowMs int64) {
	for range 4 {
		if topic, ok := m.due(nowMs); ok {
			m.topics[topic] = m.topics[topic][1:]
			m.expired++
		}
	}
}

// twins is a table, the model that it is held against, and at times a table that was loaded from a snapshot of the first.
type twins struct {
	t      *testing.T
	r      *rand.Rand
	table  *Table
	loaded *Table
	model  *model
	nowMs  int64
	places uint64

	// While the table is frozen: what was done to it since, and what its hash was after each.
	view   *View
	frozen uint64
	since  []func(*Table)
	hashes []uint64

	fulls, tooOlds, duplicates, snapshots int
}

// do changes the table, and its twin, which must stay equal.
func (w *twins) do(change func(*Table)) {
	change(w.table)
	if w.view != nil {
		w.since, w.hashes = append(w.since, change), append(w.hashes, w.table.Hash())
	}
	if w.loaded != nil {
		if change(w.loaded); w.loaded.Hash() != w.table.Hash() {
			w.t.Fatal("a table that was loaded came to another state by the same records")
		}
	}
}

func (w *twins) freeze() {
	w.frozen = w.table.Hash()
	w.view = w.table.Freeze()
}

// snapshot writes the view out and loads it, lets the new table catch up, and has it go on as the twin.
func (w *twins) snapshot() {
	w.loaded = load(w.t, w.view, w.table.limits)
	w.table.Thaw()
	w.view = nil
	if w.loaded.Hash() != w.frozen {
		w.t.Fatal("a table was loaded that is not the one that was frozen")
	}
	if err := w.loaded.Audit(); err != nil {
		w.t.Fatal(err)
	}
	for i, change := range w.since {
		if change(w.loaded); w.loaded.Hash() != w.hashes[i] {
			w.t.Fatalf("the %dth record of %d since the freeze led elsewhere", i, len(w.since))
		}
	}
	w.since, w.hashes = nil, nil
	w.snapshots++
}

type row struct {
	kind  codec.RowKind
	bytes []byte
}

func rowsOf(t testing.TB, v *View) (rows []row) {
	t.Helper()
	if err := v.Rows(func(kind codec.RowKind, b []byte) error {
		rows = append(rows, row{kind, slices.Clone(b)})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return rows
}

func load(t testing.TB, v *View, l Limits) *Table {
	t.Helper()
	loaded := New(l)
	for _, r := range rowsOf(t, v) {
		if err := loaded.Load(r.kind, r.bytes); err != nil {
			t.Fatal(err)
		}
	}
	if err := loaded.Loaded(); err != nil {
		t.Fatal(err)
	}
	return loaded
}

// sequence is one of a producer that a test may want to send next.
func (w *twins) sequence(id uint64) uint64 {
	p := w.model.producers[id]
	if p == nil {
		return 1 + w.r.Uint64N(20)
	}
	switch w.r.IntN(12) {
	case 0:
		return p.highest - min(p.highest, w.r.Uint64N(80))
	case 1:
		return p.floor + w.r.Uint64N(p.highest-p.floor+2)
	case 2:
		return p.floor + w.r.Uint64N(3)
	case 3:
		return p.highest + 1 + w.r.Uint64N(40)
	case 4:
		return p.highest + w.r.Uint64N(100_000)>>w.r.IntN(12)
	case 5:
		if w.r.IntN(40) == 0 {
			return w.r.Uint64() >> w.r.IntN(64)
		}
	}
	return p.highest + 1
}

func (w *twins) step() {
	switch op := w.r.IntN(1000); {
	case op < 550:
		id := w.r.Uint64N(9)
		w.send(id, w.sequence(id))
	case op < 900:
		w.sendKey(uint32(1+w.r.IntN(4)), Hash([]byte{byte(w.r.IntN(60))}))
	case op < 905:
		topic := uint32(1 + w.r.IntN(4))
		delete(w.model.topics, topic)
		w.do(func(t *Table) { t.DropTopic(topic) })
	case op < 920:
		nowMs := w.nowMs
		w.model.age(nowMs)
		w.model.ageKeys(nowMs)
		w.do(func(t *Table) { t.Age(nowMs) })
	case op < 970:
		w.nowMs += w.r.Int64N(2 * minuteMs)
	case op < 985:
		w.nowMs += w.r.Int64N(16 * minuteMs)
	case op < 987:
		w.nowMs += 25 * hourMs
	case op < 988:
		w.nowMs -= w.r.Int64N(minuteMs) // not that it should
	case op < 994:
		if w.view == nil {
			w.freeze()
		}
	default:
		if w.view != nil {
			w.snapshot()
		}
	}
}

func (w *twins) agree(what string, got Verdict, at Place, want Verdict, wantAt Place) {
	w.t.Helper()
	if got != want || at != wantAt {
		w.t.Fatalf("%s is %s, %+v; want %s, %+v", what, got, at, want, wantAt)
	}
	switch got {
	case Full:
		w.fulls++
	case TooOld:
		w.tooOlds++
	case Duplicate:
		w.duplicates++
	}
}

func (w *twins) send(id, sequence uint64) {
	got, at := w.table.CheckSequence(id, sequence)
	want, wantAt := w.model.checkSequence(id, sequence)
	w.agree(fmt.Sprintf("sequence %d of producer %d", sequence, id), got, at, want, wantAt)
	if got != Fresh && w.r.IntN(4) > 0 {
		return
	}
	w.places++
	place, nowMs := placeOf(w.places), w.nowMs
	w.apply(w.model.applySequence(id, sequence, place, nowMs), func(t *Table) { t.ApplySequence(id, sequence, place, nowMs) })
}

func (w *twins) sendKey(topic uint32, h KeyHash) {
	got, at := w.table.CheckKey(topic, h, w.nowMs)
	want, wantAt := w.model.checkKey(topic, h, w.nowMs)
	w.agree(fmt.Sprintf("key %x of topic %d", h, topic), got, at, want, wantAt)
	if got != Fresh && w.r.IntN(4) > 0 {
		return
	}
	w.places++
	place, nowMs, windowMs := placeOf(w.places), w.nowMs, w.r.Int64N(10*minuteMs)>>w.r.IntN(20)
	w.apply(w.model.applyKey(topic, h, place, windowMs, nowMs), func(t *Table) { t.ApplyKey(topic, h, place, windowMs, nowMs) })
}

// apply applies a record; one that does not fit must do nothing and be counted.
func (w *twins) apply(fits bool, change func(*Table)) {
	before, hash := w.table.Violations(), uint64(0)
	if !fits {
		hash = w.table.Hash()
	}
	w.do(change)
	if n := w.table.Violations() - before; n == 0 != fits {
		w.t.Fatalf("%d violations by a record that fits: %t", n, fits)
	}
	if !fits && w.table.Hash() != hash {
		w.t.Fatal("a record that does not fit changed something")
	}
}

func (w *twins) counts() {
	w.t.Helper()
	got := [3]int{w.table.Sequences(), w.table.Producers(), w.table.Keys()}
	want := [3]int{w.model.sequences(), len(w.model.producers), w.model.keys()}
	if got != want {
		w.t.Fatalf("%d sequences, producers, keys; want %d", got, want)
	}
	if got[0] > w.table.limits.Sequences || got[1] > w.table.limits.Producers || w.table.keys.Len() > w.table.limits.Keys {
		w.t.Fatalf("%d sequences, producers, keys (%d in memory), limits %+v", got, w.table.keys.Len(), w.table.limits)
	}
}

// compare asks the table and its twin about everything that the model knows, and of what lies beside it.
func (w *twins) compare() {
	w.t.Helper()
	for _, table := range []*Table{w.table, w.loaded} {
		if table == nil {
			continue
		}
		if err := table.Audit(); err != nil {
			w.t.Fatal(err)
		}
		for id := range uint64(10) {
			probes := []uint64{0, 1, 17, ^uint64(0)}
			if p := w.model.producers[id]; p != nil {
				probes = append(probes, p.floor, p.floor+1, p.highest, p.highest+1)
				for sequence := range p.known {
					probes = append(probes, sequence, sequence-1, sequence+1, sequence+16)
				}
			}
			for _, sequence := range probes {
				got, at := table.CheckSequence(id, sequence)
				want, wantAt := w.model.checkSequence(id, sequence)
				w.agree(fmt.Sprintf("sequence %d of producer %d", sequence, id), got, at, want, wantAt)
			}
		}
		for topic := range uint32(6) {
			for k := range byte(61) {
				got, at := table.CheckKey(topic, Hash([]byte{k}), w.nowMs)
				want, wantAt := w.model.checkKey(topic, Hash([]byte{k}), w.nowMs)
				w.agree(fmt.Sprintf("key %d of topic %d", k, topic), got, at, want, wantAt)
			}
		}
	}
}

// TestHistories: by any history of records, at small limits, the table does what the rules say; and a table that was
// loaded from a snapshot, taken at any time and written while the table went on, does the same for ever after.
func TestHistories(t *testing.T) {
	r := newRand(t)
	rounds := 40
	if testing.Short() {
		rounds = 8
	}
	var seen [10]int
	for round := range rounds {
		limits := Limits{Sequences: 4 + r.IntN(300), Producers: 1 + r.IntN(8), Keys: 1 + r.IntN(100)}
		w := &twins{t: t, r: r, table: New(limits), model: newModel(limits), nowMs: r.Int64N(1e12)}
		for step := range 2000 {
			w.step()
			w.counts()
			if step%50 == 0 {
				w.compare()
			}
			if t.Failed() {
				t.Fatalf("round %d step %d", round, step)
			}
		}
		m := w.model
		for i, n := range [...]int{m.evictedFull, m.evictedOld, m.requeued, m.leapt, m.forgotten, m.expired, w.fulls, w.tooOlds, w.duplicates, w.snapshots} {
			seen[i] += n
		}
	}
	t.Logf("evicted: %d for room, %d for age, %d after a leap; %d found too young; %d producers forgotten; %d keys expired; "+
		"answers: %d full, %d too old, %d duplicate; %d snapshots", seen[0], seen[1], seen[3], seen[2], seen[4], seen[5], seen[6], seen[7], seen[8], seen[9])
	if slices.Contains(seen[:], 0) {
		t.Error("something never happened")
	}
}
