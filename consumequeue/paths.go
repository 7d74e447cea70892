package consumequeue

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// The names are part of the on-disk format: <dir>/<topic id>/<queue>/<first offset, 20 digits>.cq

const suffix = ".cq"

// fileKey names one file.
type fileKey struct {
	topic  uint32
	queue  uint16
	number uint64 // first offset / FileEntries
}

func keyOf(q *Queue, offset uint64) fileKey {
	return fileKey{topic: q.topic, queue: q.queue, number: offset / FileEntries}
}

func topicDir(dir string, topic uint32) string {
	return filepath.Join(dir, strconv.FormatUint(uint64(topic), 10))
}

func queueDir(dir string, topic uint32, queue uint16) string {
	return filepath.Join(topicDir(dir, topic), strconv.FormatUint(uint64(queue), 10))
}

func (k fileKey) path(dir string) string {
	return filepath.Join(queueDir(dir, k.topic, k.queue), fmt.Sprintf("%020d%s", k.number*FileEntries, suffix))
}

// parseNumber reads a directory's name; ok is false for any other than the one we would give.
func parseNumber(name string, bits int) (n uint64, ok bool) {
	n, err := strconv.ParseUint(name, 10, bits)
	return n, err == nil && strconv.FormatUint(n, 10) == name
}

// parseFile reads the first offset from a file's name.
func parseFile(name string) (first uint64, ok bool) {
	digits, found := strings.CutSuffix(name, suffix)
	if !found || len(digits) != 20 {
		return 0, false
	}
	first, err := strconv.ParseUint(digits, 10, 64)
	return first, err == nil && first%FileEntries == 0
}
