package client

import (
	"context"
	"sync"
	"time"

	"github.com/leasemq/leasemq/protocol"
)

// Client is a connection to one broker that is made anew whenever it is lost. It may be used by any number
// of goroutines.
type Client struct {
	link *link

	mu       sync.Mutex
	closed   bool
	sessions map[uint64]*Session // live, by id
	beating  sync.WaitGroup      // heartbeat goroutines
}

// Dial connects to the broker at addr ("host:port"). It tries once, within ctx; once it has succeeded, the
// client connects again by itself until Close. A broker that refuses HELLO gives a *StatusError.
func Dial(ctx context.Context, addr string, o Options) (*Client, error) {
	c := &Client{sessions: make(map[uint64]*Session)}
	l, err := newLink(ctx, addr, o.withDefaults(), c.sessionEnded, c.brokerBegan)
	if err != nil {
		return nil, err
	}
	c.link = l
	return c, nil
}

// Close ends the client and returns when its goroutines have ended, but for callbacks of SendAsync. Calls that wait fail with ErrClosed; of
// those that were sent, SEND and the changes of topics and groups with ErrOutcomeUnknown, also where they wait to be sent again. Close does not
// flush: see Producer.Flush. It does not unregister: a session that is still open lives on at the broker
// until its timeout; see Session.Close.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	open := make([]*Session, 0, len(c.sessions))
	for _, s := range c.sessions {
		open = append(open, s)
	}
	c.mu.Unlock()
	for _, s := range open {
		s.end(ErrClosed)
	}
	c.link.close()
	c.beating.Wait()
	return nil
}

// Draining tells whether the broker has said on the current connection that it is stopping in order.
func (c *Client) Draining() bool { return c.link.draining.Load() }

// sessionEnded is the broker's word, unasked, that a session is over.
func (c *Client) sessionEnded(p protocol.SessionEnded) {
	c.mu.Lock()
	s := c.sessions[p.Session]
	c.mu.Unlock()
	if s == nil {
		return
	}
	e := &StatusError{Op: protocol.OpSessionEnded, Status: protocol.SessionNotFound, Reason: p.Reason}
	if p.Reason == protocol.ReasonSessionFenced {
		e.Status = protocol.SessionFenced
	}
	s.end(e)
}

// brokerBegan tells the sessions that the broker has been started anew.
func (c *Client) brokerBegan(epoch uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.sessions {
		s.brokerEpoch.Store(epoch)
		select {
		case s.restarted <- struct{}{}:
		default:
		}
	}
}

// add makes s known and starts its heartbeats.
func (c *Client) add(s *Session) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrClosed
	}
	c.sessions[s.id] = s
	c.setPatience()
	c.beating.Go(s.beat)
	return nil
}

func (c *Client) forget(s *Session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sessions[s.id] == s {
		delete(c.sessions, s.id)
		c.setPatience()
	}
}

// setPatience makes a silent connection be given up while there is still time to save every session over a
// new one: a third of an interval after the answer to the next heartbeat is missing. (No sooner, since
// between two heartbeats a broker whose disk stalls may have nothing to say.)
func (c *Client) setPatience() {
	patience, haste := c.link.opts.StallTimeout, time.Duration(0)
	for _, s := range c.sessions {
		patience = min(patience, s.interval+s.interval/3)
		if haste == 0 || s.timeout < haste {
			haste = s.timeout
		}
	}
	c.link.haste.Store(int64(haste))
	if time.Duration(c.link.patience.Load()) != patience {
		c.link.setPatience(patience)
	}
}
