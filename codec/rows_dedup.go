package codec

import "math/bits"

// The rows of the table that deduplicates sends. Like the records of state they have Append and Decode, and their
// layouts are part of the on-disk format: fields in the order of the struct. Times are wall milliseconds of records.

// ProducerRow is one producer. Those without sequences come in the order in which they will be forgotten.
//
//	 0  u64  id, not zero
//	 8  u64  floor: it and every sequence below are too old to be known
//	16  u64  highest sequence stored
//	24  i64  stamp of the newest message
type ProducerRow struct {
	ID      uint64
	Floor   uint64
	Highest uint64
	LastMs  int64
}

func (r *ProducerRow) Append(dst []byte) []byte {
	dst = le.AppendUint64(dst, r.ID)
	dst = le.AppendUint64(dst, r.Floor)
	dst = le.AppendUint64(dst, r.Highest)
	return le.AppendUint64(dst, uint64(r.LastMs))
}

func (r *ProducerRow) Decode(b []byte) error {
	f := fields{b: b}
	r.ID, r.Floor, r.Highest, r.LastMs = f.u64(), f.u64(), f.u64(), f.i64()
	return f.end()
}

// StoredPlace is where a message was stored: queue and offset, and the epoch and position of its id.
//
//	 0  u16  queue
//	 2  u32  epoch at birth
//	 6  u64  queue offset
//	14  u64  position at birth
type StoredPlace struct {
	Queue    uint16
	Epoch    uint32
	Offset   uint64
	Position uint64
}

func (p *StoredPlace) append(dst []byte) []byte {
	dst = le.AppendUint16(dst, p.Queue)
	dst = le.AppendUint32(dst, p.Epoch)
	dst = le.AppendUint64(dst, p.Offset)
	return le.AppendUint64(dst, p.Position)
}

func (f *fields) storedPlace() StoredPlace {
	return StoredPlace{Queue: f.u16(), Epoch: f.u32(), Offset: f.u64(), Position: f.u64()}
}

// SequencesRow is up to 16 neighbouring sequences of a producer whose row came before. These rows come in the order in
// which age is looked at.
//
//	 0  u64  producer id
//	 8  u64  first sequence that the row could hold, a multiple of 16
//	16  i64  stamp of the newest message among them
//	24  i64  stamp of when the row was put at the end of the order
//	32  u16  which are known: bit k stands for first + k
//	34       a StoredPlace of 22 bytes for each bit that is set, from bit 0 on
type SequencesRow struct {
	Producer uint64
	First    uint64
	NewestMs int64
	QueuedMs int64
	Known    uint16
	Places   [16]StoredPlace // zero where Known has no bit
}

func (r *SequencesRow) Append(dst []byte) []byte {
	dst = le.AppendUint64(dst, r.Producer)
	dst = le.AppendUint64(dst, r.First)
	dst = le.AppendUint64(dst, uint64(r.NewestMs))
	dst = le.AppendUint64(dst, uint64(r.QueuedMs))
	dst = le.AppendUint16(dst, r.Known)
	for left := r.Known; left != 0; left &= left - 1 {
		dst = r.Places[bits.TrailingZeros16(left)].append(dst)
	}
	return dst
}

func (r *SequencesRow) Decode(b []byte) error {
	f := fields{b: b}
	*r = SequencesRow{Producer: f.u64(), First: f.u64(), NewestMs: f.i64(), QueuedMs: f.i64(), Known: f.u16()}
	for left := r.Known; left != 0; left &= left - 1 {
		r.Places[bits.TrailingZeros16(left)] = f.storedPlace()
	}
	return f.end()
}

// UniqueKeyRow is one unique key of a topic. The rows of a topic come in the order in which they were stored.
//
//	 0  u32     topic id
//	 4  2 u64   siphash-128 of the key, with a key of zeroes; the lower half first
//	20  i64     from this stamp on the key is free again
//	28          StoredPlace, 22 bytes
type UniqueKeyRow struct {
	Topic     uint32
	Hash      [2]uint64
	ExpiresMs int64
	Place     StoredPlace
}

func (r *UniqueKeyRow) Append(dst []byte) []byte {
	dst = le.AppendUint32(dst, r.Topic)
	dst = le.AppendUint64(dst, r.Hash[0])
	dst = le.AppendUint64(dst, r.Hash[1])
	dst = le.AppendUint64(dst, uint64(r.ExpiresMs))
	return r.Place.append(dst)
}

func (r *UniqueKeyRow) Decode(b []byte) error {
	f := fields{b: b}
	r.Topic, r.Hash, r.ExpiresMs, r.Place = f.u32(), [2]uint64{f.u64(), f.u64()}, f.i64(), f.storedPlace()
	return f.end()
}
