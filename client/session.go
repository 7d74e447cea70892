package client

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasemq/leasemq/protocol"
)

// RegisterOptions of Client.Register. The zero value is right for most.
type RegisterOptions struct {
	// ConsumerID names the consumer in its group; a later registration of the same id fences the earlier
	// one. At most 255 bytes. Default: random.
	ConsumerID string
	// ClientInfo is shown to people beside the consumer id. Default: that of the client.
	ClientInfo string
	// Create makes the group if it is missing, with the broker's default rules.
	Create bool

	// After is a session that has ended and that this one comes after. It takes over the consumer id, unless
	// another process has registered that since: then the answer is ErrSessionFenced, where a registration without After would fence
	// the other one. ConsumerID counts where After is nil.
	After *Session
	// Reclaim are receipts of leases that have ended with their session. What nobody was granted since is leased
	// to the new session: see Session.Reclaimed. At most 4,096.
	Reclaim [][]byte
	// ReclaimFor is the length of the reclaimed leases; 0: the group's default.
	ReclaimFor time.Duration

	// nonce makes several calls attempts at one registration, for who tries again after an error that leaves
	// the outcome open. Zero: a random one.
	nonce [protocol.NonceBytes]byte
}

// Session is one registration of a consumer in a group. It is kept alive by a goroutine that sends heartbeats,
// over whatever connection there is, until the session is closed or lost. It may be used by any number of
// goroutines.
//
// Once lost, every call fails with the error of Err, and no message taken with the session may be worked on
// any more: others get them. ErrSessionNotFound: register again. ErrSessionFenced: another one took over under
// this consumer id; stop.
type Session struct {
	client *Client

	// Fixed by REGISTER.
	id          uint64
	generation  uint64
	group       string
	consumerID  string
	interval    time.Duration // between heartbeats
	timeout     time.Duration // of silence, after which the broker ends the session
	invisible   time.Duration
	most        time.Duration // the longest lease of the group
	reclaimed   []Reclaimed
	slots       chan uint8 // pop slots that are free
	lostSlots   chan uint8 // these, too; the answer to their last pop was lost
	slotStates  [protocol.MaxPopSlot + 1]popSlot
	ctx         context.Context // ends with the session; for the heartbeats
	cancel      context.CancelFunc
	lost        chan struct{}
	beatStopped chan struct{}
	answered    chan struct{} // room for one signal: a heartbeat was answered
	restarted   chan struct{} // room for one signal: the broker has been started anew
	brokerEpoch atomic.Uint32 // of that start

	// mu guards what follows, and the state of this session's deliveries.
	mu           sync.Mutex
	err          error
	closing      bool      // Close was called: whatever ends the session now, it was meant to end
	answeredAt   time.Time // send time of the newest heartbeat that was answered
	groupVersion uint64
	leasesLost   uint32
	draining     bool
	held         int       // messages taken and neither settled nor given back
	progressAt   time.Time // when one was taken, settled, changed or given back last
}

// Register opens a session in group.
func (c *Client) Register(ctx context.Context, group string, o RegisterOptions) (*Session, error) {
	request := protocol.RegisterRequest{Group: group, ConsumerID: o.ConsumerID, ClientInfo: o.ClientInfo}
	if o.After != nil {
		request.Previous, request.ConsumerID = o.After.id, o.After.consumerID
	}
	if request.ConsumerID == "" {
		request.ConsumerID = rand.Text()
	}
	if request.ClientInfo == "" {
		request.ClientInfo = c.link.opts.ClientInfo
	}
	if request.Nonce = o.nonce; o.nonce == [protocol.NonceBytes]byte{} {
		rand.Read(request.Nonce[:])
	}
	if err := reclaims(&request, &o); err != nil {
		return nil, err
	}
	if err := request.Validate(); err != nil {
		return nil, refused(protocol.OpRegister, err)
	}
	var flags protocol.Flags
	if o.Create {
		flags = protocol.FlagCreate
	}
	answer := new(protocol.RegisterAnswer)
	x := c.link.newCall(protocol.OpRegister, flags, 1<<10)
	x.frame.b = request.Append(x.frame.b)
	x.answer = answer
	x.orphan = func(*call) { c.unregister(answer.Session) }
	owned, err := c.link.do(ctx, x)
	if !owned {
		return nil, err
	}
	sentAt := x.sentAt
	c.link.free(x)
	if err != nil {
		return nil, err
	}
	if len(answer.Reclaimed) != len(request.Receipts) {
		c.unregister(answer.Session)
		return nil, fmt.Errorf("leasemq: broken answer of the broker: %d results for %d receipts", len(answer.Reclaimed), len(request.Receipts))
	}
	s := newSession(c, &request, answer, sentAt)
	if err := c.add(s); err != nil {
		s.cancel()
		return nil, err
	}
	return s, nil
}

// newSession is the session that answer tells of.
func newSession(c *Client, request *protocol.RegisterRequest, answer *protocol.RegisterAnswer, sentAt time.Time) *Session {
	s := &Session{
		client: c,
		id:     answer.Session, generation: answer.Generation,
		group: request.Group, consumerID: request.ConsumerID,
		interval:     max(milliseconds(answer.HeartbeatMs), protocol.MinHeartbeatMs*time.Millisecond),
		timeout:      max(milliseconds(answer.TimeoutMs), protocol.MinSessionTimeoutMs*time.Millisecond),
		invisible:    milliseconds(answer.InvisibleMs),
		most:         milliseconds(answer.MaxInvisibleMs),
		slots:        make(chan uint8, protocol.MaxPopSlot+1),
		lostSlots:    make(chan uint8, protocol.MaxPopSlot+1),
		lost:         make(chan struct{}),
		beatStopped:  make(chan struct{}),
		answered:     make(chan struct{}, 1),
		restarted:    make(chan struct{}, 1),
		answeredAt:   sentAt,
		groupVersion: answer.GroupVersion,
	}
	for i := range cap(s.slots) {
		s.slots <- uint8(i)
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.reclaimed = reclaimed(s, request, answer, sentAt)
	return s
}

func milliseconds(ms uint32) time.Duration { return time.Duration(ms) * time.Millisecond }

// ID is the number by which the broker knows the session.
func (s *Session) ID() uint64 { return s.id }

// Generation grows with each registration of the same consumer id.
func (s *Session) Generation() uint64 { return s.generation }

// Group is the name of the session's group.
func (s *Session) Group() string { return s.group }

// ConsumerID is the name of the consumer, as given or as made up.
func (s *Session) ConsumerID() string { return s.consumerID }

// Invisible is the group's default length of a lease.
func (s *Session) Invisible() time.Duration { return s.invisible }

// MaxInvisible is the longest lease that a pop or a renewal may ask for, as the group's rules were when the
// session began.
func (s *Session) MaxInvisible() time.Duration { return s.most }

// Timeout is how long the session may be silent before the broker ends it.
func (s *Session) Timeout() time.Duration { return s.timeout }

// Lost is closed when the session is over: lost, or closed.
func (s *Session) Lost() <-chan struct{} { return s.lost }

// Err is nil while the session lives. Then it is ErrSessionNotFound or ErrSessionFenced in a *StatusError
// with the reason, or ErrClosed.
func (s *Session) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// AliveUntil is the moment, by the local monotonic clock, after which the session may have ended at the
// broker without this side having heard of it: the send time of the newest answered heartbeat, plus
// the session's timeout, less max(200 ms, a tenth of it). Work that must not overlap with the next holder's
// stops there. It moves with each heartbeat.
func (s *Session) AliveUntil() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.answeredAt.Add(s.timeout - max(200*time.Millisecond, s.timeout/10))
}

// GroupVersion is the newest known version of the group; it grows with every session that comes or goes.
func (s *Session) GroupVersion() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.groupVersion
}

// LeasesLost is how many leases of this session had ended by expiry as of the newest heartbeat.
func (s *Session) LeasesLost() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int(s.leasesLost)
}

// Draining tells whether the broker has said that it is stopping in order.
func (s *Session) Draining() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.draining || s.client.Draining()
}

// Close unregisters the session, which releases every message that it holds, and stops its heartbeats. The
// heartbeats stop even when the broker could not be told; then the session ends by its timeout. A session
// that is over already is closed without an error.
func (s *Session) Close(ctx context.Context) error {
	s.mu.Lock()
	over := s.err != nil
	s.closing = true
	s.mu.Unlock()
	if over {
		return nil
	}
	request := protocol.UnregisterRequest{Session: s.id}
	err := s.client.link.simple(ctx, protocol.OpUnregister, 0, &request, nil)
	s.end(ErrClosed)
	<-s.beatStopped
	if sessionOver(err) {
		return nil // by an earlier transmission of this request, or by itself
	}
	return err
}

// unregister ends a session that nobody waited for.
func (c *Client) unregister(session uint64) {
	request := protocol.UnregisterRequest{Session: session}
	x := c.link.newCall(protocol.OpUnregister, 0, 1<<leastFrameClass)
	x.frame.b = request.Append(x.frame.b)
	c.link.forgetful(x)
}

// forgetful submits a call that nobody waits for.
func (l *link) forgetful(x *call) {
	x.notify = l.free
	if l.submit(x) != nil {
		l.free(x)
	}
}

// end makes the session over; only the first reason counts.
func (s *Session) end(why error) {
	s.mu.Lock()
	first := s.err == nil
	if first {
		if s.err = why; s.closing {
			s.err = ErrClosed
		}
		close(s.lost)
		s.cancel()
	}
	s.mu.Unlock()
	if first {
		s.client.forget(s)
	}
}

// heard looks at what a call of the session ended with: the end of the session is noticed by whichever call is
// told first.
func (s *Session) heard(err error) {
	if sessionOver(err) {
		s.end(err)
	}
}
