package dedup

// oldest is a topic in the heap of topics that have keys, by when the first key on the list of each expires. Ties go
// by topic id, so that the order says nothing of how the heap came about.
type oldest struct {
	expiresMs int64
	topic     uint32
	slot      uint32
}

func (o oldest) before(p oldest) bool {
	return o.expiresMs < p.expiresMs || o.expiresMs == p.expiresMs && o.topic < p.topic
}

// enter puts the topic in slot, which has keys now, into the heap.
func (t *Table) enter(slot uint32) {
	k := t.topics.At(slot)
	t.expiry = append(t.expiry, oldest{t.keys.At(k.list.head).expiresMs, k.id, slot})
	t.rise(len(t.expiry) - 1)
}

// moved tells the heap that the first key of a topic is another one now.
func (t *Table) moved(slot uint32) {
	k := t.topics.At(slot)
	i := int(k.heapPlace)
	t.expiry[i].expiresMs = t.keys.At(k.list.head).expiresMs
	t.settle(i)
}

// leave takes a topic out of the heap.
func (t *Table) leave(slot uint32) {
	i, last := int(t.topics.At(slot).heapPlace), len(t.expiry)-1
	moved := t.expiry[last]
	t.expiry = t.expiry[:last]
	if i != last {
		t.expiry[i] = moved
		t.settle(i)
	}
}

// settle finds the place of the topic at i, which may be too high or too low.
func (t *Table) settle(i int) {
	if i > 0 && t.expiry[i].before(t.expiry[(i-1)/2]) {
		t.rise(i)
	} else {
		t.sink(i)
	}
}

func (t *Table) rise(i int) {
	o := t.expiry[i]
	for i > 0 {
		parent := (i - 1) / 2
		if !o.before(t.expiry[parent]) {
			break
		}
		t.put(i, t.expiry[parent])
		i = parent
	}
	t.put(i, o)
}

func (t *Table) sink(i int) {
	o := t.expiry[i]
	for {
		child := 2*i + 1
		if child >= len(t.expiry) {
			break
		}
		if child+1 < len(t.expiry) && t.expiry[child+1].before(t.expiry[child]) {
			child++
		}
		if !t.expiry[child].before(o) {
			break
		}
		t.put(i, t.expiry[child])
		i = child
	}
	t.put(i, o)
}

func (t *Table) put(i int, o oldest) {
	t.expiry[i] = o
	if t.topics.At(o.slot).heapPlace != uint32(i) {
		t.topics.Mut(o.slot).heapPlace = uint32(i)
	}
}
