package consumequeue

import (
	"cmp"
	"slices"
	"time"
)

// mostDelivery is how many blocks are loaded before they are passed on.
const mostDelivery = 64

// loader is the goroutine that loads blocks which were asked for. It is the only user of its fields.
type loader struct {
	x            *Index
	work, failed []*Block
	ready        []*Block
	pause        time.Duration
	retry        <-chan time.Time
}

func (x *Index) loadLoop() {
	defer x.wg.Done()
	defer x.failOnPanic("index loader")
	l := &loader{x: x}
	for {
		x.mu.Lock()
		l.work, x.requests = x.requests, l.work[:0]
		stopped := x.stopped
		x.mu.Unlock()
		if stopped {
			return
		}
		if len(l.work) == 0 {
			select {
			case <-x.signal[wakeLoader]:
				continue
			case <-l.retry:
				l.retry = nil
				l.work, l.failed = append(l.work, l.failed...), l.failed[:0]
			case <-x.stop:
				return
			}
		}
		// In the order of the files, so that the disk is read forward.
		slices.SortFunc(l.work, func(a, b *Block) int {
			if c := cmp.Compare(a.queue.id, b.queue.id); c != 0 {
				return c
			}
			return cmp.Compare(a.First, b.First)
		})
		for _, b := range l.work {
			l.load(b)
			if len(l.ready) == mostDelivery {
				l.deliver()
			}
		}
		l.deliver()
	}
}

func (l *loader) load(b *Block) {
	x := l.x
	q := b.queue
	// At a block of a dropped queue or below the begin nobody will look.
	if !q.dropped.Load() && b.From > q.begin.Load() {
		entries := b.Entries[:b.From-b.First]
		if err := x.files.read(q, b.First, entries); err != nil {
			l.failed = append(l.failed, b)
			l.again(err)
			return
		}
		x.stats.blocksLoaded.Add(1)
		x.reportHoles(q, b.First, entries)
	}
	l.ready = append(l.ready, b)
}

func (l *loader) again(err error) {
	if l.retry != nil {
		return
	}
	x := l.x
	l.pause = min(max(2*l.pause, leastPause), mostPause)
	l.retry = x.opt.after(l.pause)
	x.stats.loadErrors.Add(1)
	x.log.Warn("index entries could not be read", "retry_in", l.pause, "error", err)
}

func (l *loader) deliver() {
	if len(l.ready) == 0 {
		return
	}
	if l.retry == nil {
		l.pause = 0
	}
	x := l.x
	x.mu.Lock()
	x.loaded = append(x.loaded, l.ready...)
	x.countInbox()
	x.mu.Unlock()
	l.ready = l.ready[:0]
	x.opt.OnLoad()
}
