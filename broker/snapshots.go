package broker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/leasemq/leasemq/mmaplog"
	"github.com/leasemq/leasemq/snapshot"
)

// Snapshots. A snapshot at position P is the fold of the log below P. It is taken without stopping anybody: inside the
// section the state is frozen, which copies page tables; everything else happens beside it, and pages that change meanwhile
// are copied (package slab). It is published when the log is durable up to P and the index files are, too.
//
// The newest two are kept. The log begins at or before the older one, so that a start still has what it needs when
// the newest turns out to be damaged.
const keptSnapshots = 2

// keptSnapshot is a published snapshot that a start could begin with.
type keptSnapshot struct {
	position uint64
	last     uint64 // of the last record below position: it must stay readable
}

// snapshots is the engine's part in them. mu is held while one is taken; kept is changed under it.
type snapshots struct {
	store *snapshot.Store
	mu    sync.Mutex
	kept  []keptSnapshot // newest first
	unfit []uint64       // found at the start and no good: set aside when the start has gone well
	// durable is the newest position up to which the log was durable once, as one of those says.
	durable uint64
}

// SnapshotReport is what one snapshot came to.
type SnapshotReport struct {
	Position uint64
	Bytes    int64
	Rows     uint64
	Took     time.Duration
	Frozen   time.Duration // how long the section was held for it
}

// Snapshot takes and publishes one, from any goroutine. One at a time: others wait. An error leaves the ones before as
// they were.
func (e *Engine) Snapshot() (SnapshotReport, error) { return e.snapshotWithin(e.ctx) }

func (e *Engine) snapshotWithin(ctx context.Context) (SnapshotReport, error) {
	s := &e.snaps
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := e.snapshot(ctx)
	if err != nil {
		e.stats.snapshotsFailed.Add(1)
		return r, fmt.Errorf("broker: snapshot: %w", err)
	}
	e.stats.snapshots.Add(1)
	e.stats.snapshotUs.Store(r.Took.Microseconds())
	e.stats.frozenUsMax.Store(max(e.stats.frozenUsMax.Load(), r.Frozen.Microseconds()))
	e.snapped.Store(r.Position)
	e.snapshotBytes.Store(r.Bytes)
	e.logger.Info("snapshot taken", "position", r.Position, "bytes", r.Bytes, "rows", r.Rows, "took", r.Took, "frozen", r.Frozen)
	return r, nil
}

func (e *Engine) snapshot(ctx context.Context) (r SnapshotReport, err error) {
	began := time.Now()
	head, view := e.freeze(&r)
	if view == nil {
		return r, e.Err()
	}
	w, err := e.snaps.store.Create(head)
	if err == nil {
		err = view.rows(w.Row)
	}
	e.thaw()
	if w == nil {
		return r, err
	}
	if err == nil {
		err = w.Finish()
	}
	if err == nil {
		err = e.index.Sync()
	}
	if err == nil {
		err = e.log.SyncTo(ctx, head.Position)
	}
	if err == nil && e.failed.Load() {
		err = e.Err()
	}
	if err != nil {
		return r, errors.Join(err, w.Abort())
	}
	if err := w.Publish(); err != nil {
		return r, errors.Join(err, w.Abort())
	}
	r.Position, r.Bytes, r.Rows, r.Took = head.Position, w.Bytes(), w.Rows(), time.Since(began)
	e.keep(keptSnapshot{head.Position, head.LastPosition})
	return r, nil
}

// freeze takes a view of the state. It is nil when the engine has failed.
func (e *Engine) freeze(r *SnapshotReport) (head snapshot.Head, view *stateView) {
	e.enter()
	defer e.leave()
	if e.failed.Load() {
		return head, nil
	}
	began := time.Now()
	e.dropView()
	last, crc := e.log.Last()
	head = snapshot.Head{
		Position: e.log.Appended(), LastPosition: last, LastCRC: crc,
		Epoch: e.fold.epoch, LeaseMs: e.fold.leaseMs, WallMs: e.fold.wallMs,
	}
	e.writing = true
	view = e.fold.freeze()
	r.Frozen = time.Since(began)
	return head, view
}

func (e *Engine) thaw() {
	e.enter()
	defer e.leave()
	e.fold.thaw()
	e.writing = false
}

// keep notes a published snapshot and removes those that are no longer needed.
func (e *Engine) keep(k keptSnapshot) {
	s := &e.snaps
	if len(s.kept) > 0 && s.kept[0].position == k.position {
		s.kept[0] = k // the same state again
	} else {
		s.kept = append([]keptSnapshot{k}, s.kept...)
	}
	if len(s.kept) > keptSnapshots {
		s.kept = s.kept[:keptSnapshots]
	}
	list, err := s.store.List()
	if err != nil {
		e.logger.Warn("old snapshots stay", "error", err)
		return
	}
	for _, p := range list {
		if p < s.kept[len(s.kept)-1].position && len(s.kept) == keptSnapshots {
			if err := s.store.Remove(p); err != nil {
				e.logger.Warn("an old snapshot stays", "error", err)
			}
		}
	}
}

// pinned is the position from which on the log must stay for the kept snapshots: nothing may go while there are fewer
// than keptSnapshots. Each of them is read back before the answer, because what goes can be had from nowhere else.
func (e *Engine) pinned() (position uint64, ok bool) {
	s := &e.snaps
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.kept) < keptSnapshots {
		return 0, false
	}
	for i, k := range s.kept {
		if err := s.store.Verify(k.position); err != nil {
			e.logger.Error("a snapshot is no good: no log is removed until there are newer ones", "position", k.position, "error", err)
			if _, damaged := errors.AsType[*snapshot.DamagedError](err); damaged {
				s.kept = append(s.kept[:i:i], s.kept[i+1:]...)
				e.setAside(k.position)
				e.snapped.Store(0) // another one, soon
			}
			return 0, false
		}
	}
	return s.kept[len(s.kept)-1].last, true
}

func (e *Engine) setAside(position uint64) {
	name, err := e.snaps.store.SetAside(position)
	if err != nil {
		e.logger.Warn("a snapshot that is no good stays", "position", position, "error", err)
		return
	}
	e.logger.Warn("a snapshot that is no good was set aside", "position", position, "name", name)
}

// begin chooses the snapshot that recovery begins with: the newest that is good and belongs to this log. It fills the
// fold from it. Without one the whole log is replayed, if all of it is there.
func (e *Engine) begin(found *mmaplog.Found) (mmaplog.From, error) {
	s := &e.snaps
	if err := s.store.Open(); err != nil {
		return mmaplog.From{}, err
	}
	list, err := s.store.List()
	if err != nil {
		return mmaplog.From{}, err
	}
	var from mmaplog.From
	var why []string
	if found.First == 0 && len(list) > 0 {
		return from, fmt.Errorf("%w: %s", ErrLogGone, s.store.Path(list[0]))
	}
	for _, position := range list {
		if len(s.kept) == keptSnapshots {
			break
		}
		head, err := e.tryBegin(found, position, from.Position == 0)
		switch {
		case err == nil && from.Position == 0:
			from = mmaplog.From{
				Position: head.Position, LastPosition: head.LastPosition, LastCRC: head.LastCRC,
				Epoch: head.Epoch, LeaseMs: head.LeaseMs, WallMs: head.WallMs,
			}
			fallthrough
		case err == nil:
			s.kept = append(s.kept, keptSnapshot{position, head.LastPosition})
		case isNewer(err):
			return from, err
		case isUnfit(err):
			e.logger.Error("a snapshot cannot be used: the one before is tried", "position", position, "error", err)
			why = append(why, err.Error())
			s.unfit = append(s.unfit, position) // it stays where it is until it is sure that nobody needs it
		default: // it cannot be read now; it may be read another time
			e.logger.Error("a snapshot cannot be read: the one before is tried", "position", position, "error", err)
			why = append(why, err.Error())
		}
	}
	if from.Position == 0 && found.First > firstPosition {
		return from, &UncoveredError{First: found.First, Snapshots: why}
	}
	from.Durable = s.durable
	e.snapped.Store(from.Position)
	if len(s.kept) > 0 {
		e.snapshotBytes.Store(s.store.Size(s.kept[0].position))
	}
	return from, nil
}

// ErrLogGone says that there is a snapshot, which is taken of a log, and not a single segment of one: a volume that was not mounted,
// mostly. A start would begin an empty log.
var ErrLogGone = errors.New("broker: the log has no segment files, but there is a snapshot of one: bring the log directory back, " +
	"or move the snapshots away if its messages are to be given up")

// firstPosition is that of the first record of a log from which nothing was removed.
const firstPosition = 64

// UncoveredError says that the beginning of the log is gone and that no snapshot stands for it: the state cannot be had.
type UncoveredError struct {
	First     uint64   // position at which the log begins
	Snapshots []string // why those that there are do not do
}

func (e *UncoveredError) Error() string {
	what := "there is no snapshot"
	if len(e.Snapshots) > 0 {
		what = strings.Join(e.Snapshots, "; ")
	}
	return fmt.Sprintf("broker: the log begins at position %d and no good snapshot stands for what lay before: %s. "+
		"Restore the snapshots directory from a backup.", e.First, what)
}

// unfitError says that a snapshot does not belong to the log that is there.
type unfitError struct{ error }

func isUnfit(err error) bool {
	if _, unfit := errors.AsType[unfitError](err); unfit {
		return true
	}
	if _, row := errors.AsType[*snapshot.RowError](err); row {
		return true
	}
	_, damaged := errors.AsType[*snapshot.DamagedError](err)
	return damaged
}

func isNewer(err error) bool {
	_, newer := errors.AsType[*snapshot.VersionError](err)
	return newer
}

// tryBegin looks whether a snapshot is good and of this log. With load the fold is made from it.
func (e *Engine) tryBegin(found *mmaplog.Found, position uint64, load bool) (head snapshot.Head, err error) {
	store := e.snaps.store
	if head, err = store.Head(position); err != nil {
		return head, err
	}
	h, err := found.ReadHeader(head.LastPosition)
	switch {
	case errors.Is(err, mmaplog.ErrRemoved) && head.Position == found.First: // the record went with its segment
	case head.Position < found.First, errors.Is(err, mmaplog.ErrRemoved):
		return head, unfitError{fmt.Errorf("the snapshot at position %d is older than the log, which begins at %d", head.Position, found.First)}
	case err != nil:
		if _, bad := errors.AsType[*mmaplog.RecordError](err); !bad {
			return head, err
		}
		if err := store.Verify(position); err != nil {
			return head, err
		}
		// It was published when the log was durable up to there. If the log ends before that, some of it is gone.
		e.snaps.durable = max(e.snaps.durable, head.Position)
		return head, unfitError{fmt.Errorf("the snapshot at position %d reaches beyond the log: %w", head.Position, err)}
	case h.CRC != head.LastCRC:
		return head, unfitError{fmt.Errorf("the snapshot at position %d is of another log: the record at %d is another one", head.Position, head.LastPosition)}
	}
	if !load {
		return head, store.Verify(position)
	}
	began := time.Now()
	f, err := e.loadFold(position, head)
	if err != nil {
		return head, err
	}
	if e.shadow != nil {
		shadow, err := e.loadFold(position, head)
		if err != nil {
			return head, err
		}
		e.shadow = shadow
	}
	e.fold = f
	e.logger.Info("snapshot loaded", "position", position, "unsettled", e.fold.leases.Unsettled(), "took", time.Since(began))
	return head, nil
}

func (e *Engine) loadFold(position uint64, head snapshot.Head) (*fold, error) {
	f := newFold(e.fold.onViolation)
	l := f.load(head.Epoch, head.LeaseMs, head.WallMs)
	if _, err := e.snaps.store.Read(position, l.row); err != nil {
		return nil, err
	}
	if err := l.finish(); err != nil {
		return nil, unfitError{fmt.Errorf("the snapshot at position %d: %w", position, err)}
	}
	return f, nil
}
