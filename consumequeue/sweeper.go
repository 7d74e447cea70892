package consumequeue

// sweepLoop is the goroutine that removes files which are not needed any more: those of dropped topics, and those below the
// begin of a queue. If a crash comes first, recovery removes them.
func (x *Index) sweepLoop() {
	defer x.wg.Done()
	defer x.failOnPanic("index sweeper")
	for {
		x.mu.Lock()
		drops, begins := x.drops, x.begins
		x.drops, x.begins = nil, nil
		x.sweeping = len(drops)+len(begins) > 0
		for _, q := range begins {
			q.sweeping = false
		}
		stopped := x.stopped
		x.mu.Unlock()
		if stopped {
			return
		}
		if len(drops)+len(begins) == 0 {
			select {
			case <-x.signal[wakeSweeper]:
			case <-x.stop:
				return
			}
			continue
		}
		for _, topic := range drops {
			x.files.drop(topic)
			if err := x.files.removeTopic(topic); err != nil {
				x.log.Warn("index files of a deleted topic could not be removed; the next start tries again", "topic", topic, "error", err)
			}
		}
		for _, q := range begins {
			x.sweep(q)
		}
	}
}

// sweep removes the files below the begin of a queue. What fails is tried again the next time that a file comes to lie below.
func (x *Index) sweep(q *Queue) {
	var failure error
	first := q.firstFile
	for n := q.firstFile; n < q.begin.Load()/FileEntries; n++ {
		select {
		case <-x.stop:
			return
		default:
		}
		if q.dropped.Load() {
			return // the whole topic goes
		}
		if err := x.files.remove(q, n); err != nil {
			failure = err
		}
		if failure == nil {
			first = n + 1
		}
	}
	q.firstFile = first
	if failure != nil {
		x.log.Warn("index files below the begin of a queue could not be removed; the next start tries again", "topic", q.topic, "queue", q.queue, "begin", q.Begin(), "error", failure)
	}
}
