package mmaplog

import (
	"fmt"

	"github.com/leasemq/leasemq/codec"
)

// The section side: what runs under the caller's sequencing lock. Nothing here blocks, makes a system call,
// wakes anybody or touches a file mapping. A broken precondition is a panic: it is the caller's mistake,
// and a log with that record in it would not pass the next recovery.

// SetEpoch makes epoch the epoch of the records that follow; the caller appends the EPOCH record next.
func (l *Log) SetEpoch(epoch uint32) {
	if epoch <= l.section.epoch {
		panic(fmt.Sprintf("mmaplog: epoch %d after epoch %d", epoch, l.section.epoch))
	}
	l.section.epoch = epoch
}

// MaxRecord is the longest record, header included, that can be appended.
func (l *Log) MaxRecord() int { return min(l.geo.maxRecord(), l.RingBytes()) }

// Next is the position that a record of so many bytes (header included) has if it is appended now. If the
// segment has no room for it, the segment is ended first, by a SEGMENT_END record with h's clocks. Append that record
// next, or at least a smaller one: a segment ended for nothing is wasted.
func (l *Log) Next(h *codec.Header, bytes int) uint64 {
	if bytes < codec.HeaderBytes || bytes > l.geo.maxRecord() {
		panic(fmt.Sprintf("mmaplog: record of %d bytes, the limits are %d and %d", bytes, codec.HeaderBytes, l.geo.maxRecord()))
	}
	if !l.geo.fits(l.section.head, bytes) {
		end := codec.Header{Type: codec.TypeSegmentEnd, LeaseMs: h.LeaseMs, WallMs: h.WallMs}
		l.putRecord(&end, nil, nil, 0)
		l.openPlace(l.geo.segment(l.section.head-1) + 1)
		l.publishAppended(l.section.quiet)
	}
	return l.section.head
}

// Append seals the record and copies it into the ring; the caller has checked RingFree. It fills in h's Position,
// Epoch, Synced, Length and CRC; Type, Flags and the clocks are the caller's. payloadCRC is
// codec.Checksum(0, payload). It returns the record's position.
func (l *Log) Append(h *codec.Header, assigned, payload []byte, payloadCRC uint32) uint64 {
	pos := l.appendRecord(h, assigned, payload, payloadCRC)
	l.publishAppended(false)
	return pos
}

// AppendQuiet is Append for a record that nobody waits for: it is written, and flushed with the next
// record that asks for it, or by WantSync.
func (l *Log) AppendQuiet(h *codec.Header, assigned, payload []byte, payloadCRC uint32) uint64 {
	pos := l.appendRecord(h, assigned, payload, payloadCRC)
	l.publishAppended(true)
	return pos
}

func (l *Log) appendRecord(h *codec.Header, assigned, payload []byte, payloadCRC uint32) uint64 {
	pos := l.Next(h, codec.HeaderBytes+len(assigned)+len(payload))
	l.putRecord(h, assigned, payload, payloadCRC)
	return pos
}

// putRecord copies one sealed record to the head of the ring, which has the room for it.
func (l *Log) putRecord(h *codec.Header, assigned, payload []byte, payloadCRC uint32) {
	s := &l.section
	n := codec.HeaderBytes + len(assigned) + len(payload)
	padded := codec.Padded(n)
	end := s.ringHead + uint64(padded)
	switch {
	case s.closed:
		panic("mmaplog: append to a closed log")
	case h.LeaseMs < s.leaseMs:
		panic(fmt.Sprintf("mmaplog: lease clock %d ms after %d ms", h.LeaseMs, s.leaseMs))
	case end > l.ring.tail.Load()+uint64(l.ring.usable()):
		panic(fmt.Sprintf("mmaplog: record of %d bytes, the ring has %d free", n, l.RingFree()))
	}
	h.Length = uint32(n)
	h.Position = s.head
	h.Epoch = s.epoch
	h.Synced = l.synced.Load()
	h.CRC = 0
	h.Put(s.scratch[:])
	h.CRC = codec.Checksum(codec.Checksum(payloadCRC, assigned), s.scratch[:])
	h.Put(s.scratch[:])

	at := s.ringHead
	l.ring.reserve(end)
	l.ring.put(at, s.scratch[:])
	l.ring.put(at+codec.HeaderBytes, assigned)
	l.ring.put(at+codec.HeaderBytes+uint64(len(assigned)), payload)
	l.ring.zero(at+uint64(n), padded-n)

	s.ringHead = end
	s.head += uint64(padded)
	s.leaseMs, s.wallMs = h.LeaseMs, h.WallMs
	s.last, s.lastCRC = h.Position, h.CRC
}

// Last is the newest appended record, a SEGMENT_END of the log's own included; 0 and 0 if the log has none. With
// Appended it makes a From. Section only; also after Open, before Start.
func (l *Log) Last() (position uint64, crc uint32) { return l.section.last, l.section.lastCRC }

// publishAppended makes the head visible. quietFrom is stored before appended, so that the writer, which loads them
// in the other order, never takes a record that asks for a flush for a quiet one.
func (l *Log) publishAppended(quiet bool) {
	s := &l.section
	if quiet != s.quiet {
		s.quiet = quiet
		if quiet {
			l.quietFrom.Store(l.appended.Load())
		} else {
			l.quietFrom.Store(noQuiet)
		}
	}
	l.appended.Store(s.head)
}

// openPlace moves the head to the start of a segment. The new place is known before anybody can see a
// position in that segment.
func (l *Log) openPlace(segment uint64) {
	// The slot that is overwritten belongs to a segment that has left the ring.
	if oldest := l.geo.segment(l.written.Load()); segment >= oldest+uint64(len(l.places))-1 {
		panic(fmt.Sprintf("mmaplog: segments %d to %d are in the ring at once", oldest, segment))
	}
	s := &l.section
	s.head = l.geo.first(segment)
	l.places[l.placeSlot(segment)].Store(s.head - s.ringHead)
}

func (l *Log) placeSlot(segment uint64) uint64 { return segment & uint64(len(l.places)-1) }

// place is the ring position of pos; false if it is certainly no longer in the ring.
func (l *Log) place(pos uint64) (uint64, bool) {
	if pos < l.begin {
		return 0, false
	}
	segment := l.geo.segment(pos)
	delta := l.places[l.placeSlot(segment)].Load()
	// The slot was good when it was loaded if its next user has not yet been near: the section stores there
	// only after it has published a position in the segment before.
	if l.geo.segment(l.appended.Load())+1 >= segment+uint64(len(l.places)) {
		return 0, false
	}
	return pos - delta, true
}

// RingBytes is how many bytes of records the empty ring takes.
func (l *Log) RingBytes() int { return l.ring.usable() - int(l.slack) }

// RingFree is how many bytes of records, padding included, can be appended now. Whatever SEGMENT_END records that
// takes has been subtracted. Any goroutine may ask; inside the section the answer only grows.
func (l *Log) RingFree() int {
	for tail := l.ring.tail.Load(); ; { // first the tail: the head is then not behind it
		if head, ok := l.place(l.appended.Load()); ok { // else the head moved on by a whole table of segments
			return max(0, l.RingBytes()-int(head-tail))
		}
	}
}

// DiskFree is how many bytes can be appended before the end of the segments that exist. A record that does
// not fit into a segment leaves the segment's rest unused: when it matters, leave room for the longest record.
// Any goroutine may ask.
func (l *Log) DiskFree() int64 {
	head, segments := l.appended.Load(), l.prepared.Load()
	segment := l.geo.segment(head)
	if segment >= segments {
		return 0
	}
	size := int64(l.geo.segmentBytes)
	free := max(0, size-endBytes-l.geo.offset(head))
	return free + int64(segments-1-segment)*(size-segmentHeaderBytes-endBytes)
}

// DiskFull says that the next segment could not be allocated. It is tried again in the background.
func (l *Log) DiskFull() bool { return l.full.Load() }

// Kick sets the log's goroutines to work on what was appended. Call it after leaving the section; it is a few
// loads when they are awake.
func (l *Log) Kick() {
	l.wakeWriter()
	if l.ring.wantsFill(l.ring.reserved.Load(), ringAheadBytes) {
		l.fillRing.raise()
	}
	if l.appended.Load() >= l.prepareAt.Load() {
		l.prepare.raise()
	}
}

// WantSync says that an answer waits for pos to be committed. Only quiet records under SyncAlways need it.
func (l *Log) WantSync(pos uint64) {
	if l.o.Policy != SyncAlways {
		return
	}
	l.demandSync(pos)
	l.wakeWriter()
}

func (l *Log) wakeWriter() {
	if l.asleep.Load() && l.asleep.CompareAndSwap(true, false) {
		l.wake.raise()
	}
}
