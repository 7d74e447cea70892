package mmaplog

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
)

// keepTail copies what lies behind the end of the log in its segment aside, if there are good records in it, before it is zeroed. Nobody
// was told that they are safe; but they may be what somebody looks for after a power cut. A disk without room for that does not keep
// the log from opening.
//
// The copy is a file as moveAside leaves them, but for what lies before the end: that is zero, and takes no space.
func (v *recoverer) keepTail(index uint64, b behind) error {
	if b.records == 0 {
		return nil
	}
	fs, path := v.l.o.FS, v.path(index)
	names, err := fs.ReadDir(v.l.dir)
	if err != nil {
		return fmt.Errorf("mmaplog: %w", err)
	}
	aside := filepath.Join(v.l.dir, asideName(filepath.Base(path), names))
	err = v.copyRanges(index, aside+tmpSuffix, [2]int64{0, segmentHeaderBytes}, [2]int64{v.stop.off, max(b.used, b.end)})
	if err == nil {
		err = fs.Rename(aside+tmpSuffix, aside)
	}
	if err == nil {
		err = fs.SyncDir(v.l.dir)
	}
	if IsShortage(err) {
		v.l.o.Logger.Warn("what lies behind the end of the log could not be copied aside before it was cut off",
			slog.Int("goodRecords", b.records), slog.Any("error", err))
		return nil
	}
	if err != nil {
		return fmt.Errorf("mmaplog: copy what lies behind the end of the log to %s: %w", aside, bare(err))
	}
	v.r.RecordsCut = b.records
	v.r.Aside = append(v.r.Aside, filepath.Base(aside))
	return nil
}

// copyRanges makes a durable file of parts of a segment, each where it lies there. On an error there is no file, or one that the next
// start removes.
func (v *recoverer) copyRanges(index uint64, path string, ranges ...[2]int64) error {
	w, err := v.l.o.FS.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	err = func() error {
		buf := make([]byte, lookBuffer)
		for _, r := range ranges {
			for off := r[0]; off < r[1]; {
				b := buf[:min(int64(len(buf)), r[1]-off)]
				if err := readFull(v.files[index-v.first].file, v.path(index), b, off); err != nil {
					return err
				}
				if _, err := w.WriteAt(b, off); err != nil {
					return err
				}
				off += int64(len(b))
			}
		}
		return w.Sync()
	}()
	if closeErr := w.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		v.l.o.FS.Remove(path)
	}
	return err
}
