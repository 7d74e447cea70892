package bench

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"
)

// Both loops count what is in the file, and end with an error where it cannot be written.
func TestWriteLoops(t *testing.T) {
	type loop = func(context.Context, *os.File, []byte, int, *Lane, time.Time) error
	for name, x := range map[string]struct {
		loop   loop
		beside bool // flushes are no part of a write's latency
	}{"one after the other": {writeLoop, false}, "beside one another": {writeAhead, true}} {
		const chunk, size = 64 << 10, 1000
		bytes := make([]byte, chunk)
		dir := t.TempDir()
		err := onFile(dir, func(f *os.File) error {
			lane := newLane("write", size)
			if err := x.loop(t.Context(), f, bytes, size, lane, time.Now().Add(200*time.Millisecond)); err != nil {
				return err
			}
			info, err := f.Stat()
			if err != nil {
				return err
			}
			r := lane.rate()
			if n := r.Messages; n == 0 || int64(n) != info.Size()/chunk*(chunk/size) {
				t.Errorf("%s: %d messages in %d bytes", name, n, info.Size())
			}
			if (r.Answered > 0) != x.beside {
				t.Errorf("%s: %+v", name, r)
			}
			cancelled, cancel := context.WithCancel(t.Context())
			cancel()
			if err := x.loop(cancelled, f, bytes, size, lane, time.Now().Add(time.Hour)); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: cancelled, it ends with %v", name, err)
			}
			f.Close()
			if err := x.loop(t.Context(), f, bytes, size, lane, time.Now().Add(time.Hour)); !errors.Is(err, os.ErrClosed) {
				t.Errorf("%s: of a closed file it ends with %v", name, err)
			}
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%s: left behind: %v, %v", name, left, err)
		}
	}
}

// A flush that fails ends the writing beside it.
func TestWriteAheadOfAFlushThatFails(t *testing.T) {
	f, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	want := syncData(f)
	if want == nil {
		t.Skip("this system flushes " + os.DevNull)
	}
	err = writeAhead(t.Context(), f, make([]byte, 4096), 1000, newLane("write", 1000), time.Now().Add(time.Hour))
	if !errors.Is(err, want) {
		t.Errorf("it ends with %v, not %v", err, want)
	}
}
