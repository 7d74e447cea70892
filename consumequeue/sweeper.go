package consumequeue

// sweepLoop is the goroutine that removes the files of dropped topics.
func (x *Index) sweepLoop() {
	defer x.wg.Done()
	defer x.failOnPanic("index sweeper")
	for {
		x.mu.Lock()
		drops := x.drops
		x.drops = nil
		stopped := x.stopped
		x.mu.Unlock()
		if stopped {
			return // recovery removes what belongs to no topic
		}
		if len(drops) == 0 {
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
	}
}
