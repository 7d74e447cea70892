package mmaplog

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"
)

// probeResult is the file <Dir>/io: what the first start of the directory measured, and chose. It stays, so that
// a broker does not change its ways from start to start; who moves a directory to another machine removes the file.
type probeResult struct {
	Mode   IOMode  `json:"mode"`
	Staged float64 `json:"stagedMBs"` // MB/s, written and flushed
	Mapped float64 `json:"mappedMBs"`
	Chunks int     `json:"chunksEach"` // of 1 MiB
}

func (p probeResult) String() string {
	return fmt.Sprintf("probe: staged %.0f MB/s, mapped %.0f MB/s, %d chunks of 1 MiB each, flushed one by one", p.Staged, p.Mapped, p.Chunks)
}

const (
	probeChunk  = 1 << 20
	probeChunks = 12 // a round
	probeRounds = 3
	probeTime   = time.Second // enough of it on a slow disk
	// mappedMargin is by how much mapped must win: at equal speed staged has no page faults to stall on.
	mappedMargin = 1.1
)

// chooseIO settles the mode: forced by the options, kept from the first start, or probed now.
func (l *Log) chooseIO() error {
	set := func(mode IOMode, why string) error {
		l.mode, l.recovery.IO, l.recovery.IOWhy = mode, mode, why
		return nil
	}
	if l.o.IO != IOAuto {
		return set(l.o.IO, "forced")
	}
	path := filepath.Join(l.o.Dir, ioName)
	if p, err := l.readProbe(path); err == nil {
		return set(p.Mode, p.String())
	} else if !os.IsNotExist(err) {
		l.o.Logger.Warn("the result of the io probe cannot be used; probing again", slog.String("file", path), slog.Any("error", err))
	}
	p, err := l.probe()
	if err == nil {
		err = l.writeProbe(path, p)
	}
	if IsShortage(err) {
		return set(IOStaged, "no room for a probe")
	}
	if err != nil {
		return fmt.Errorf("mmaplog: io probe: %w", err)
	}
	l.o.Logger.Info("io mode chosen", slog.String("mode", string(p.Mode)), slog.String("figures", p.String()))
	return set(p.Mode, p.String())
}

func (l *Log) readProbe(path string) (p probeResult, err error) {
	f, err := l.o.FS.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return p, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.NewSectionReader(f, 0, 4<<10))
	if err == nil {
		err = json.Unmarshal(b, &p)
	}
	if err == nil && p.Mode != IOMapped && p.Mode != IOStaged {
		err = fmt.Errorf("unknown mode %q", p.Mode)
	}
	return p, err
}

func (l *Log) writeProbe(path string, p probeResult) error {
	b, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	fs, tmp := l.o.FS, path+tmpSuffix
	f, err := fs.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(append(b, '\n'), 0)
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = fs.Rename(tmp, path)
	}
	if err != nil {
		return err
	}
	return fs.SyncDir(l.o.Dir)
}

// probe writes and flushes the same chunks through both kinds of segment, in turn, so that both meet the
// disk in the same moods, and compares the best rounds.
func (l *Log) probe() (probeResult, error) {
	const size = probeChunk * probeChunks * probeRounds
	feeders := map[IOMode]feeder{}
	for _, mode := range []IOMode{IOStaged, IOMapped} {
		path := filepath.Join(l.dir, "probe-"+string(mode)+tmpSuffix) // a crash leaves it to the next start to remove
		f, err := l.o.FS.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644)
		if err != nil {
			return probeResult{}, err
		}
		defer l.o.FS.Remove(path)
		if err := f.Allocate(0, size); err != nil {
			f.Close()
			return probeResult{}, err
		}
		if feeders[mode], err = newFeeder(mode, f, path, size); err != nil {
			return probeResult{}, err
		}
		defer feeders[mode].close()
	}
	chunk := make([]byte, probeChunk)
	for i := range chunk {
		chunk[i] = byte(i*7 + i>>8)
	}
	best := map[IOMode]float64{}
	began := time.Now()
	chunks := 0
	for round := range probeRounds {
		for _, mode := range []IOMode{IOStaged, IOMapped} {
			rate, err := probeRound(feeders[mode], chunk, int64(round*probeChunks*probeChunk))
			if err != nil {
				return probeResult{}, err
			}
			best[mode] = max(best[mode], rate)
		}
		chunks += probeChunks
		if time.Since(began) > probeTime {
			break
		}
	}
	p := probeResult{Mode: IOStaged, Staged: best[IOStaged], Mapped: best[IOMapped], Chunks: chunks}
	if p.Mapped > p.Staged*mappedMargin {
		p.Mode = IOMapped
	}
	return p, nil
}

// probeRound returns the MB/s of one round that begins at off.
func probeRound(f feeder, chunk []byte, off int64) (float64, error) {
	began := time.Now()
	for range probeChunks {
		end := off + int64(len(chunk))
		if _, err := f.ahead(end); err != nil {
			return 0, err
		}
		if err := f.write(chunk, off); err != nil {
			return 0, err
		}
		if err := f.sync(off, end); err != nil {
			return 0, err
		}
		off = end
	}
	return float64(probeChunks*len(chunk)) / 1e6 / max(time.Since(began).Seconds(), 1e-9), nil
}
