package netserver

import (
	"github.com/panjf2000/gnet/v2"
	"golang.org/x/sys/unix"
)

// socket is the wire of a gnet connection and the only code that writes to one. Loop-only.
//
// Invariant: once dead is set no method touches the connection any more. It is set in OnClose and on the first
// error of a write, whichever comes first. gnet has closed the descriptor then, its number may belong to a
// segment file already, and gnet itself would write there without an error.
type socket struct {
	conn gnet.Conn
	dead bool
}

var _ wire = (*socket)(nil)

func (s *socket) write(b []byte) bool {
	if s.dead {
		return false
	}
	if _, err := s.conn.Write(b); err != nil {
		s.dead = true
	}
	return !s.dead
}

func (s *socket) buffered() int {
	if s.dead {
		return 0
	}
	return s.conn.OutboundBuffered()
}

func (s *socket) unacked() int {
	if s.dead {
		return 0
	}
	return unackedBytes(s.conn.Fd())
}

func (s *socket) waiting() bool {
	if s.dead {
		return false
	}
	var b [1]byte
	n, _, err := unix.Recvfrom(s.conn.Fd(), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	return err == nil && n > 0
}

func (s *socket) closeWrite() {
	if !s.dead {
		// An error means that the client is gone; the poller will say so.
		_ = unix.Shutdown(s.conn.Fd(), unix.SHUT_WR)
	}
}

func (s *socket) close() {
	if !s.dead {
		// gnet runs OnClose inside, which sets dead. What it can't send at once is dropped.
		_ = s.conn.EventLoop().Close(s.conn)
		s.dead = true
	}
}
