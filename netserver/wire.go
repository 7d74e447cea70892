package netserver

// wire is a connection's byte stream as the dispatcher uses it. All methods belong to the connection's
// loop. After the end of the connection (the loop's closed has run) they do nothing.
type wire interface {
	// write sends b, or keeps what can't be sent at once and sends it later; b is free again on return.
	// false: the connection is gone, and the loop's closed has run inside the call.
	write(b []byte) bool
	// buffered is the number of bytes that write has kept and that are not sent yet.
	buffered() int
	// unacked is the number of bytes that were sent and that the client's side has not acknowledged, as far as it
	// can be known. (A socket accepts bytes again only when much of its buffer is free, so the bytes that leave
	// buffered come in leaps of a megabyte, and would make a slow but steady reader look as if it took none.)
	unacked() int
	// waiting tells whether the client's bytes lie in the socket and were not handed to the loop yet.
	waiting() bool
	// closeWrite tells the client that nothing follows (FIN); reading goes on.
	closeWrite()
	// close ends the connection at once; the loop's closed runs inside the call.
	close()
}
