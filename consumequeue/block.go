package consumequeue

// Block is a piece of a queue's index in memory: the entries of offsets First to First+BlockEntries-1, of which those
// in [From, To) are valid; the others hold anything. There is one Block for a piece of a queue at most.
//
// # Who may touch what
//
// The section reads and writes the struct. Entries have several owners, told apart by their index, so that nobody
// waits for anybody:
//
//   - [First, From) belongs to the loader while loading is set, to nobody otherwise;
//   - [From, To) is never written again while the block holds this piece, but by Poll for a repair (see below). The
//     section, the index writer (the part that was handed to it), Read and Sync (under Index.mu) read it;
//   - from To on it belongs to the section, which appends there if the block is the tail of its queue.
//
// So a tail goes on being appended to while an earlier part of it is being written, and while what came before a
// restart or an idle time is being loaded below it.
//
// What lies below the begin of the queue may be in [From, To), and holds anything even there: nobody asks for it.
//
// From, the queue, First and the links of the table change under Index.mu, because Read looks at them there; the section reads
// them without.
//
// # Repair
//
// What a file has lost is loaded as zeroes, into [From, To). Repair stores the right entries to the file first, then leaves them in
// a list for the section, whose next Poll copies them over those in the block, under Index.mu. Nobody reads them there
// at that time:
//
//   - the section does it itself, and has no block in its hands when it calls Poll;
//   - Read and Sync look under Index.mu;
//   - the index writer reads parts that were handed to it. A repair has only entries below what had been handed over when it began
//     (Queue.flushed), and begins when the writer is done with all that; what is handed over later lies behind.
//
// A load can have read the file before the repair and be taken over after it. So a repair of a block that is loading waits in its
// list for the Poll that takes over the load, which comes first there. A load that begins after the repair reads what it stored.
//
// # Life
//
// A block is in the table from when it is taken from the free list to when it is given back. It may be given back
// only when it is idle: not the tail, not loading, no hand-over outstanding. Then it is in the ring.
type Block struct {
	First    uint64
	From, To uint64
	Entries  *[BlockEntries]Entry

	queue   *Queue
	writes  int32 // hand-overs that the section has not seen finished
	loading bool  // asked for, and not yet taken over
	inRing  bool
	used    bool   // looked up since the hand of the ring passed
	lent    uint64 // Index.visit when it was looked up last

	chain      *Block // next in the table's bucket
	prev, next *Block // in the ring
}

func (b *Block) contains(offset uint64) bool { return offset >= b.From && offset < b.To }

func firstOf(offset uint64) uint64 { return offset &^ (BlockEntries - 1) }

const chunkBlocks = 256

// newChunk makes blocks whose memory was touched, so that appending to them takes no page fault. The entries
// have no pointers: the collector skips them.
func newChunk() []Block {
	entries := make([][BlockEntries]Entry, chunkBlocks)
	clear(entries)
	blocks := make([]Block, chunkBlocks)
	for i := range blocks {
		blocks[i].Entries = &entries[i]
	}
	return blocks
}
