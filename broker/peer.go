package broker

import "github.com/leasemq/leasemq/protocol"

// Peer is a connection as the engine sees it; the network front implements it. Every method may be
// called only on the event loop that owns the connection.
type Peer interface {
	// Out is the connection's output buffer: append whole frames to it and hand the grown slice back with
	// SetOut before anything else runs on the loop. The front writes it out at the end of the network
	// batch, or of the wake-up, in which it grew: one write a connection.
	Out() []byte
	// Room is Out with room for at least n bytes more, taken from where the front keeps memory for that.
	Room(n int) []byte
	// SetOut replaces the output buffer. The slice belongs to the front afterwards: ask Out again.
	SetOut([]byte)
	// Fail sends what Out holds and a GOODBYE frame with status and reason, and closes the connection.
	Fail(status protocol.Status, reason string)
	// Backlogged tells whether bytes of the connection wait to be parsed: a frame was refused for now, its
	// answers are not read, or bytes lie in the socket.
	Backlogged() bool
	// Context is what SetContext stored; the engine keeps its state of the connection there.
	Context() any
	// SetContext stores the engine's state of the connection.
	SetContext(any)
	// Addr is the remote address, for logs.
	Addr() string
}
