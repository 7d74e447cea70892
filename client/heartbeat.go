package client

import (
	"context"
	"errors"
	"runtime/pprof"
	"strconv"
	"time"

	"github.com/leasemq/leasemq/protocol"
)

// leastBeat is the shortest time between two heartbeats, however late the last one was.
const leastBeat = protocol.MinHeartbeatMs * time.Millisecond

// beat is the heartbeat goroutine of s. It does nothing else, and no handler can hold it up. There is at most
// one heartbeat unanswered: one that is lost with its connection goes out again on the next, and a
// connection that swallows it is given up by its watchdog.
func (s *Session) beat() {
	defer close(s.beatStopped)
	labels := pprof.Labels("group", s.group, "consumer", s.consumerID, "session", strconv.FormatUint(s.id, 10))
	pprof.Do(s.ctx, labels, s.beatUntilLost)
}

func (s *Session) beatUntilLost(ctx context.Context) {
	timer := time.NewTimer(s.interval)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		began := time.Now()
		s.heartbeat(ctx)
		timer.Reset(max(s.interval-time.Since(began), leastBeat))
	}
}

// heartbeat sends one heartbeat and waits for its answer.
func (s *Session) heartbeat(ctx context.Context) {
	l := s.client.link
	request := s.vitals()
	answer := new(protocol.HeartbeatAnswer)
	x := l.newCall(protocol.OpHeartbeat, 0, 1<<leastFrameClass)
	x.frame.b = request.Append(x.frame.b)
	x.answer = answer
	owned, err := l.do(ctx, x)
	if !owned {
		return
	}
	sentAt := x.sentAt
	l.free(x)
	if err != nil {
		s.heard(err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answeredAt = sentAt
	s.groupVersion = max(s.groupVersion, answer.GroupVersion)
	s.leasesLost = answer.LeasesLost
	s.draining = answer.Draining
	select {
	case s.answered <- struct{}{}:
	default:
	}
}

// vitals is what a heartbeat says. Progress is whatever happens to a message that the session holds.
func (s *Session) vitals() protocol.HeartbeatRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	h := protocol.HeartbeatRequest{
		Session: s.id, GroupVersion: s.groupVersion,
		Held: uint32(s.held), Timestamp: uint64(now.UnixMilli()),
	}
	if s.held > 0 {
		h.ProgressMs = uint32(min(now.Sub(s.progressAt).Milliseconds(), 1<<32-1))
	}
	return h
}

// sessionOver tells whether err says that the session it is about has ended.
func sessionOver(err error) bool {
	return errors.Is(err, ErrSessionNotFound) || errors.Is(err, ErrSessionFenced)
}
