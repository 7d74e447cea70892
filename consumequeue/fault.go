package consumequeue

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// storePieces copies pieces into mem, a part of a mapping. A fault there (the medium failed, the disk filled up under a
// file system that copies on write) becomes an error.
func storePieces(mem []byte, pieces []piece) (err error) {
	before := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(before)
		if r := recover(); r != nil {
			fault, ok := r.(interface{ Addr() uintptr })
			if _, isRuntime := r.(runtime.Error); !ok || !isRuntime {
				panic(r)
			}
			err = fmt.Errorf("store to a mapping faulted at %#x", fault.Addr())
		}
	}()
	for _, p := range pieces {
		encodeEntries(mem, p.entries)
		mem = mem[len(p.entries)*EntryBytes:]
	}
	return nil
}

// failOnPanic is deferred by the background goroutines: without one of them the index is dead, and the broker must not go on.
func (x *Index) failOnPanic(who string) {
	if r := recover(); r != nil {
		err := fmt.Errorf("consumequeue: panic in the %s: %v\n%s", who, r, debug.Stack())
		x.log.Error("index goroutine died", "goroutine", who, "error", err)
		x.mu.Lock()
		x.dead = err
		x.moved.Broadcast()
		x.mu.Unlock()
		x.opt.OnFail(err)
	}
}
