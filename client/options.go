package client

import (
	"context"
	"log/slog"
	"net"
	"time"
)

const (
	defaultConnectTimeout = 10 * time.Second
	defaultStallTimeout   = 30 * time.Second
	leastConnectTimeout   = time.Second
	minBackOff            = 50 * time.Millisecond
	maxBackOff            = 5 * time.Second
)

// Options of Dial. The zero value is right for most.
type Options struct {
	// ClientInfo tells people at the broker who connects; at most 255 bytes are kept. Default: "leasemq-go".
	ClientInfo string

	// Dialer makes a connection, for TLS, a proxy or a test. Default: TCP.
	Dialer func(ctx context.Context, addr string) (net.Conn, error)

	// ConnectTimeout limits one attempt to connect, HELLO included. Default: 10 s. A live session shortens it to half
	// its timeout, but not below 1 s.
	ConnectTimeout time.Duration

	// StallTimeout is how long a request other than POP may stay unanswered on a connection on which
	// nothing moves, before the connection is given up and made anew. A live session shortens it to a third
	// more than its heartbeat interval. Default: 30 s.
	StallTimeout time.Duration

	// Logger is told of lost and of new connections. Default: silence.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.ClientInfo == "" {
		o.ClientInfo = "leasemq-go"
	}
	if o.Dialer == nil {
		var d net.Dialer
		o.Dialer = func(ctx context.Context, addr string) (net.Conn, error) { return d.DialContext(ctx, "tcp", addr) }
	}
	if o.ConnectTimeout <= 0 {
		o.ConnectTimeout = defaultConnectTimeout
	}
	if o.StallTimeout <= 0 {
		o.StallTimeout = defaultStallTimeout
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}
