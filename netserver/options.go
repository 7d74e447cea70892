package netserver

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"time"

	"github.com/leasemq/leasemq/protocol"
)

// Defaults of Options.
const (
	DefaultMaxConnections = 10_000
	DefaultHelloTimeout   = 10 * time.Second
	DefaultFrameTimeout   = 10 * time.Second
	DefaultSlowTimeout    = 10 * time.Second
	DefaultHighWater      = 4 << 20
	DefaultHardCap        = 64 << 20
	DefaultCreditBytes    = 4 << 20
)

const (
	// readBufferBytes is the most that one read takes from a socket; there is one such buffer a loop.
	// Measured with 64 KiB frames: 64 KiB 0.79 M sends/s, 256 KiB 1.15 M, 1 MiB 1.51 M.
	readBufferBytes = 1 << 20
	// maxLoops is gnet's own limit.
	maxLoops = 256
	// reservedFiles is what stays of RLIMIT_NOFILE for segments, index files and connections that are
	// accepted only to be refused. gnet accepts faster than the loops can refuse: with a limit near the cap, a
	// burst of more connections than this, above the cap, still ends the engine (ErrEnded). Limits of 16,384
	// files and more leave room for a full accept queue.
	reservedFiles = 1024
	// lingerTimeout is how long a connection whose last byte is out waits for the client to close.
	lingerTimeout = 2 * time.Second
	// maxLingeringRefusals bounds the connections over the cap that wait like that.
	maxLingeringRefusals = 64
	// Keep-alive only clears dead sockets; silence of a client is judged by heartbeats.
	keepAliveIdle     = 30 * time.Second
	keepAliveInterval = 10 * time.Second
	keepAliveCount    = 3
)

// Options says what to listen on, whom to serve, and within which limits. Zero fields take the default.
type Options struct {
	Listen string // host:port; port 0 takes a free one
	Loops  int    // event loops; 0: max(1, GOMAXPROCS/2)
	// NewHandler makes the engine's half of a loop. It runs on that loop, before its first connection. wake
	// may be called from any goroutine, is cheap when a wake is already due, and does nothing after the stop.
	NewHandler func(wake func()) Handler

	// MaxConnections; 0: min(10,000, RLIMIT_NOFILE - 1,024). One more is told TOO_MANY_CONNECTIONS.
	MaxConnections int

	HelloTimeout time.Duration // from the opening of a connection to its HELLO
	FrameTimeout time.Duration // from the first byte of a frame to its last
	SlowTimeout  time.Duration // output waits and the client takes no byte of it; also: time for the last output

	HighWater int // output bytes that wait; above, the connection's requests are not parsed
	HardCap   int // above, the connection is closed

	// CreditBytes is what a connection may have unanswered. More than that and one frame, received but not
	// yet parsed, is a FLOW_VIOLATION.
	CreditBytes   int
	MaxFrameBytes int // 0: protocol.MaxFrameBytes; never more

	// Clock is read for timeouts; nil: time.Now. Ticks replaces the ticker: the timeouts of all loops are
	// looked at once for each value received. Both are for tests.
	Clock func() time.Time
	Ticks <-chan time.Time

	Logger *slog.Logger // nil: slog.Default()
	// Fatal is called with the value of a panic of a Handler. true means that the engine's state is void
	// and the process must end: no Handler is called again, and Done is closed. It may itself end the process.
	Fatal func(any) bool
}

// withDefaults fills in what is zero and says what is impossible.
func (o Options) withDefaults() (Options, error) {
	if o.NewHandler == nil {
		return o, errors.New("netserver: Options.NewHandler is missing")
	}
	if _, _, err := net.SplitHostPort(o.Listen); err != nil {
		return o, fmt.Errorf("netserver: listen address %q: %w", o.Listen, err)
	}
	if _, err := net.ResolveTCPAddr("tcp", o.Listen); err != nil {
		return o, fmt.Errorf("netserver: listen address %q: %w", o.Listen, err)
	}
	if o.MaxConnections <= 0 {
		o.MaxConnections = connectionCap(raiseFileLimit())
	}
	if o.MaxFrameBytes <= 0 || o.MaxFrameBytes > protocol.MaxFrameBytes {
		o.MaxFrameBytes = protocol.MaxFrameBytes
	}
	if o.Loops <= 0 {
		o.Loops = max(1, runtime.GOMAXPROCS(0)/2)
	}
	o.Loops = min(o.Loops, maxLoops)
	setDefault(&o.HelloTimeout, DefaultHelloTimeout)
	setDefault(&o.FrameTimeout, DefaultFrameTimeout)
	setDefault(&o.SlowTimeout, DefaultSlowTimeout)
	setDefault(&o.HighWater, DefaultHighWater)
	setDefault(&o.HardCap, DefaultHardCap)
	setDefault(&o.CreditBytes, DefaultCreditBytes)
	if o.HardCap < o.HighWater {
		return o, fmt.Errorf("netserver: hard cap %d is below the high-water mark %d", o.HardCap, o.HighWater)
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return o, nil
}

func setDefault[T int | time.Duration](v *T, def T) {
	if *v <= 0 {
		*v = def
	}
}
