package consumequeue

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
)

// mostProbes bounds how many directories are looked through at the same time.
const mostProbes = 8

// reconcile brings the directory in line with the queues, see FinishRecovery. It goes through it once, and asks nothing
// about queues that have no directory: most queues of most topics may be empty.
func (x *Index) reconcile() error {
	found, err := x.files.list(x.log)
	if err != nil {
		return fmt.Errorf("consumequeue: %w", err)
	}
	withFiles := make(map[*Queue]struct{}, len(found))
	for _, key := range found {
		withFiles[x.queues[key]] = struct{}{}
	}
	for _, q := range x.all {
		if q == nil || q.begin.Load() >= q.recoveredFrom {
			continue
		}
		if _, ok := withFiles[q]; !ok {
			return q.incomplete(q.begin.Load())
		}
	}
	if err := x.reconcileFiles(found); err != nil {
		if _, incomplete := errors.AsType[*IncompleteError](err); incomplete {
			return err
		}
		return fmt.Errorf("consumequeue: %w", err)
	}
	x.files.removeEmpty(found)
	return nil
}

// reconcileFiles goes through the directories of queues, several at a time: it is nothing but system calls. Of several errors it
// gives the one of the first queue.
func (x *Index) reconcileFiles(found []queueKey) error {
	var next atomic.Int64
	var failed atomic.Int64 // the first
	failed.Store(int64(len(found)))
	var mu sync.Mutex
	var failure error
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), mostProbes, len(found)) {
		wg.Go(func() {
			p := new(probe)
			for {
				i := next.Add(1) - 1
				if i >= failed.Load() {
					return
				}
				key := found[i]
				var err error
				if q := x.queues[key]; q != nil {
					err = x.files.reconcile(q, p, x.log)
				} else {
					x.log.Info("index of an unknown queue; removed", "topic", key.topic, "queue", key.queue)
					err = x.files.removeQueue(key.topic, key.queue)
				}
				if err != nil {
					mu.Lock()
					if i < failed.Load() {
						failed.Store(i)
						failure = err
					}
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return failure
}

func (q *Queue) incomplete(offset uint64) error {
	return &IncompleteError{q.topic, q.queue, offset, q.recoveredFrom}
}

// list gives the queues that have a directory. What has another name than we give is left alone.
func (f *files) list(log *slog.Logger) (found []queueKey, err error) {
	topics, err := os.ReadDir(f.dir)
	if err != nil {
		return nil, err
	}
	for _, t := range topics {
		dir := filepath.Join(f.dir, t.Name())
		topic, ok := parseNumber(t.Name(), 32)
		if !ok || !t.IsDir() {
			log.Warn("not a directory of the queue index; left alone", "path", dir)
			continue
		}
		queues, err := os.ReadDir(dir)
		if err != nil {
			return nil, err
		}
		for _, name := range queues {
			if queue, ok := parseNumber(name.Name(), 16); ok {
				found = append(found, queueKey{uint32(topic), uint16(queue)})
			}
		}
		if len(queues) == 0 {
			os.Remove(dir)
		}
	}
	return found, nil
}

// removeEmpty removes the directories of the topics of found, which is in order, that are empty.
func (f *files) removeEmpty(found []queueKey) {
	for i, key := range found {
		if i == 0 || found[i-1].topic != key.topic {
			os.Remove(topicDir(f.dir, key.topic))
		}
	}
}

// reconcile looks whether the files of a queue have the entries that were not replayed, removes what lies outside of its
// bounds, and gives the files their size.
func (f *files) reconcile(q *Queue, p *probe, log *slog.Logger) error {
	begin, end := q.begin.Load(), q.end.Load()
	dir := queueDir(f.dir, q.topic, q.queue)
	names, err := p.names(dir)
	if err != nil {
		return err
	}
	due := begin // the first offset that no file was looked through for
	for _, name := range names {
		first, ok := parseFile(name)
		if !ok {
			log.Warn("not a file of the queue index; left alone", "path", filepath.Join(dir, name))
			continue
		}
		key := keyOf(q, first)
		if first >= end || first+FileEntries <= begin {
			f.unmap(key)
			log.Info("index file lies outside of the queue; removed", "path", key.path(f.dir), "begin", begin, "end", end)
			if err := f.unlink(key); err != nil {
				return err
			}
			continue
		}
		if first > due && due < q.recoveredFrom {
			return q.incomplete(due)
		}
		if err := f.reconcileFile(q, key, p, log); err != nil {
			return err
		}
		due = first + FileEntries
	}
	if due < q.recoveredFrom {
		return q.incomplete(due)
	}
	return nil
}

// reconcileFile does that for a file that has a part of [Begin, End).
func (f *files) reconcileFile(q *Queue, key fileKey, p *probe, log *slog.Logger) error {
	path := key.path(f.dir)
	if err := p.open(path); err != nil {
		return err
	}
	defer p.close()
	first := key.number * FileEntries
	if from, to := max(q.begin.Load(), first), min(q.recoveredFrom, first+FileEntries); from < to {
		place, missing, err := p.firstMissing(int64(from-first), int64(to-first))
		if err != nil {
			log.Warn("index file can't be read; its entries count as missing", "path", path, "error", err)
		}
		if missing {
			return q.incomplete(first + uint64(place))
		}
	}
	end := int64(min(q.end.Load()-first, FileEntries))
	behind, err := p.dataFrom(end)
	if err != nil || !behind && p.size == FileBytes {
		return err
	}
	f.unmap(key) // a mapping must not outlive a cut of its file
	if behind {
		log.Info("index file reaches behind the end of the queue; cut", "path", path, "bytes", end*EntryBytes)
		if err := os.Truncate(path, end*EntryBytes); err != nil {
			return err
		}
	}
	return os.Truncate(path, FileBytes)
}

// removeTopic removes the files of all queues of a topic.
func (f *files) removeTopic(topic uint32) error {
	dir := topicDir(f.dir, topic)
	queues, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, name := range queues {
		if queue, ok := parseNumber(name.Name(), 16); ok {
			err = errors.Join(err, f.removeQueue(topic, uint16(queue)))
		}
	}
	os.Remove(dir) // if it is empty
	return err
}

// removeQueue removes the index files of a queue, and its directory if nothing else is in it.
func (f *files) removeQueue(topic uint32, queue uint16) error {
	dir := queueDir(f.dir, topic, queue)
	names, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if first, ok := parseFile(name.Name()); ok {
			key := fileKey{topic, queue, first / FileEntries}
			f.unmap(key)
			err = errors.Join(err, f.unlink(key))
		}
	}
	os.Remove(dir)
	return err
}
