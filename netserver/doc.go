// Package netserver is the network front of the broker: bytes in, frames out. It accepts connections, cuts
// what they send into frames, hands the frames to the engine's half of an event loop (Handler), writes the
// answers, and keeps every connection inside its limits of time and memory. It knows frame headers and
// nothing of what is in a body.
//
// # Parts
//
//	Server    listens, stops in order or at once, counts
//	engine    the glue to gnet: its callbacks, nothing else
//	socket    the one way to write to a gnet connection
//	loop      the dispatcher of one event loop: frames, batches, wakes, timeouts
//	peer      one connection as loop and Handler see it (broker.Peer)
//	ticker    the one goroutine of ours: it puts ticks onto loops that have something to watch
//
// Only engine and socket know gnet. The dispatcher reaches a connection through the interface wire, so
// that another front (TLS, with a goroutine a connection) can feed the same dispatcher.
//
// # Concurrency
//
// A loop, its peers and its Handler belong to one goroutine, the event loop's, and need no lock. What
// crosses threads is in atomics (counters, the wake state, the pace of ticks) or behind small mutexes, which
// are held one at a time and never while a Handler runs. Each entry into a loop (traffic, open, close,
// wake, tick) ends with one write for each connection whose output grew in it.
//
// # A batch
//
// gnet reads up to 1 MiB from a readable socket and calls us once. All of it is taken at once, so nothing of
// ours ever lies in gnet's inbound buffer: complete frames are handed over as slices of gnet's read
// buffer, a half frame and frames that must wait are kept in the peer's own buffer (inbound). Both stay as
// they are until Flush has returned. So gnet's rules on when a peeked slice dies never meet a frame, and
// frames that wait need no more bytes from the network to be looked at again.
//
// # Hazards of gnet v2.9.7
//
// Measured or read in its source; each has a test named after it.
//
//   - A second Write after a failed one goes to whatever file has reused the descriptor number: socket
//     latches dead on the first error and in OnClose, and nothing else writes.
//   - A failing Write closes the connection inside the call, OnClose included: the loop is in a consistent
//     state at every write, and writes happen only when no Handler method is on the stack.
//   - The same stray write exists in Execute: an engine that stops closes its event descriptor before it
//     says so, and a late Execute writes 8 bytes to that number. Nothing is executed once the stop began.
//   - The outbound buffer is unbounded and tells nobody when it drains: high-water mark, hard cap, and a
//     tick that looks.
//   - Reading can't be paused: what may not be parsed now is kept by us, up to the credit and one frame.
//   - Close drops what the socket does not take at once, and closing a socket with unread input resets the
//     connection and destroys what the client had not read: a closing connection waits until its output
//     is out, then sends FIN and discards input until the client closes or a short time is over.
//   - The end of a client's input closes the connection: a half close is a disconnect, and answers that come
//     later are dropped.
//   - EMFILE in accept ends the engine silently: the number of connections is capped, and an engine that
//     ends by itself is reported by Done and Err.
//   - Tasks run until their queue is empty, before any socket is looked at: a wake that arrives while the
//     wake of the same loop runs is never put into the queue by that loop (see wake.go).
//   - TCPKeepAlive of gnet hides the reason of a failed bind, and sets options on a closed descriptor:
//     keep-alive is set on each connection instead.
//   - A panic ends the process: every call of a Handler recovers, and closes one connection.
//   - LeastConnections counts a connection only after its loop has registered it, so that a burst lands on one
//     loop: connections go round robin.
package netserver
