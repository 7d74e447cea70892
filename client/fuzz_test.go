package client

import (
	"testing"
	"time"

	"github.com/leasemq/leasemq/codec"
)

// FuzzPopAnswer: whatever comes as a POP answer, it is refused or gives deliveries of which every part can be
// asked for.
func FuzzPopAnswer(f *testing.F) {
	packed := codec.Message{Body: body(5000), Properties: []Property{{Name: "a", Value: "b"}}}
	if err := packed.Compress(codec.Zstd); err != nil {
		f.Fatal(err)
	}
	f.Add(popAnswer(messageRecord(f, 0, codec.Message{Key: "k", Body: []byte("body")}), messageRecord(f, 1, packed)).Append(nil), true)
	f.Add(popAnswer([]byte("no record")).Append(nil), true)
	f.Add(popAnswer().Append(nil), false)
	s := &Session{}
	f.Fuzz(func(t *testing.T, b []byte, fix bool) {
		if fix {
			repairSums(b)
		}
		batch, err := newBatch(s, "t", b, popTimes{grantedAfter: time.Now(), arrivedAt: time.Now(), waited: true})
		if err != nil {
			return
		}
		for _, d := range batch.Deliveries {
			got, err := d.Body()
			if d.Err() != nil && err == nil || len(got) > codec.MaxDecompressed {
				t.Errorf("%d bytes, %v, %v", len(got), err, d.Err())
			}
			_, _, _, _, _ = d.Tag(), d.Key(), d.OrderKey(), d.UniqueKey(), d.Properties()
			_, _, _, _ = d.Deadline(), d.RenewalsLeft(), d.Budget(), d.ID.String()
		}
		batch.Release()
	})
}

// repairSums makes the checksums of the records in a POP answer right, so that what lies behind them is
// reached.
func repairSums(b []byte) {
	var probe Batch
	if probe.answer.Decode(b) != nil {
		return
	}
	for i := range probe.answer.Rows {
		record := probe.answer.Record(i)
		if len(record) < codec.HeaderBytes+codec.MessageAssignedBytes {
			continue
		}
		h := codec.ParseHeader(record)
		codec.Seal(record, &h, codec.MessageAssignedBytes, codec.Checksum(0, record[codec.HeaderBytes+codec.MessageAssignedBytes:]))
	}
}
