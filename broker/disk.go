package broker

import (
	"fmt"
	"sync/atomic"

	"github.com/leasemq/leasemq/mmaplog"
	"github.com/leasemq/leasemq/protocol"
)

// diskSpace is what the file system of the data directory had free when the steward looked last.
type diskSpace struct {
	free, total atomic.Int64 // total 0: not known
}

func (d *diskSpace) look(l *mmaplog.Log) error {
	free, total, err := l.Space()
	if err != nil {
		return err
	}
	d.free.Store(free)
	d.total.Store(total)
	return nil
}

// Shares of the disk, in fractions of a segment, that are kept for what must never be refused when the next segment
// cannot be allocated. What is refused as space shrinks is refused in this order; acks, releases and session ends never are.
const (
	sendReserve  = 4 // a quarter: sends go first
	grantReserve = 8 // an eighth: then grants and renewals
)

// diskFor tells whether need bytes may be appended.
func (e *Engine) diskFor(need int, share int64) bool { return e.diskLack(need, share) == 0 }

// diskLack is how many bytes must become free before need bytes may be appended; 0: they may be.
func (e *Engine) diskLack(need int, share int64) int64 {
	if lack := e.reserveLack(share); lack > 0 {
		return lack
	}
	if !e.log.DiskFull() {
		return 0
	}
	keep := e.log.Recovery().SegmentBytes/share + e.owed()
	return max(keep+int64(need)+1-e.log.DiskFree(), 0)
}

// owed is what settling everything that is unsettled would take.
func (e *Engine) owed() int64 { return int64(e.fold.leases.Unsettled()) * perSettle / 2 }

// reserveLack is how many bytes the file system lacks of the reserve: what settling everything takes, a snapshot, and the copies
// of one segment. Grants and renewals keep it free; sends the segment after the next, too, and the watermark.
//
// So senders alone never bring it about that grants are refused, which would keep a full disk full: consuming is what lets old log go. They
// go beyond their mark by one segment at most, since the disk is looked at with each that is made.
func (e *Engine) reserveLack(share int64) int64 {
	total, free := e.disk.total.Load(), e.disk.free.Load()
	if total == 0 || e.o.Watermark <= 0 {
		return 0
	}
	segment := e.log.Recovery().SegmentBytes
	reserve := e.owed() + e.snapshotBytes.Load()*5/4 + segment/copyShare
	if share != sendReserve {
		return max(reserve-free, 0)
	}
	return max(reserve+segment-free, total/100*int64(100-e.o.Watermark)-free, 0)
}

// noSpace is the refusal of what there is no room for.
func (e *Engine) noSpace(what string, need int, share int64) protocol.ErrorBody {
	free, lack := e.disk.free.Load(), e.reserveLack(share)
	if lack == 0 { // what is allocated is what is short
		free, lack = e.log.DiskFree(), e.diskLack(need, share)
	}
	return protocol.ErrorBody{
		Message: fmt.Sprintf("no disk space for %s: %d bytes are free, %d more are needed", what, free, lack), Detail: uint64(lack),
	}
}
