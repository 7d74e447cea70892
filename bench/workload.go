package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leasemq/leasemq/client"
	"github.com/leasemq/leasemq/protocol"
)

// Workload is one kind of load. To add one: write a file with a type that has these methods, and name it in Workloads. A value
// serves one run.
type Workload interface {
	About() About
	// Flags says which of the shared settings the workload has, with which defaults, and adds flags of its own.
	Flags(f *Flags)
	// Run makes the load. It names its lanes with run.Lane, calls run.Begin, which starts the clock, and returns when the load
	// has ended. An error does not void what was recorded before.
	Run(ctx context.Context, run *Run) error
}

// About is what help says of a workload.
type About struct {
	Name, Short, Long string
	// Alone: it needs no broker, or starts what it needs by itself.
	Alone bool
}

// Workloads makes one of each.
func Workloads() []Workload {
	return []Workload{&sendWorkload{}, &consumeWorkload{}, &e2eWorkload{}, &mixedWorkload{}, &coldWorkload{}, &workWorkload{}, &ceilingWorkload{}, &diskWorkload{}}
}

// Settings are what workloads have in common.
type Settings struct {
	Embedded  bool
	Dir       string // where directories are made; "": the system's place for temporary files
	Fsync, IO string // of the embedded broker

	Topic       string // made with Queues queues if it is missing; with several topics the first, the others have -2, -3 .. behind it
	Topics      int    // the load is spread over so many
	Queues      int    // of each topic that is made
	Size, Batch int    // bytes of a body, messages of a request
	Producers   int    // connections that send
	Consumers   int    // connections that consume
	Window      int    // requests that a connection has in flight
	Compression string
	Leases      int // that sessions of another group hold meanwhile

	Rate     int // messages a second in all, sent when they are due; 0: as fast as the answers come
	Duration time.Duration
	Messages uint64        // 0: until Duration has passed
	WarmUp   time.Duration // before Duration; not counted
}

// DefaultSettings are where a workload's own begin.
func DefaultSettings() Settings {
	return Settings{
		Fsync: "always", IO: "auto", Topic: "bench", Topics: 1, Queues: 8, Size: 1024, Batch: 64,
		Producers: 4, Consumers: 4, Window: 1, Compression: "none",
	}
}

// FlagSet is a command line, as the caller's library has it.
type FlagSet interface {
	BoolVar(p *bool, name string, value bool, usage string)
	StringVar(p *string, name, value, usage string)
	IntVar(p *int, name string, value int, usage string)
	Uint64Var(p *uint64, name string, value uint64, usage string)
	Float64Var(p *float64, name string, value float64, usage string)
	DurationVar(p *time.Duration, name string, value time.Duration, usage string)
	WordVar(p *string, name string, words []string, usage string) // one of a few words; the default is what p has
	BytesVar(p *int64, name, usage string)                        // a number of bytes, as 1MiB; the default is what p has
	Changed(name string) bool                                     // it was given
	All() map[string]string                                       // all, with their values
}

// Flags are the command line of a workload.
type Flags struct {
	FlagSet
	Settings Settings
}

// brokerSettings are the flags of every workload that has a broker.
var brokerSettings = []string{"embedded", "dir", "fsync", "io", "topic", "topics", "queues", "size"}

// Share adds flags of the shared settings, by their names; the defaults are what f.Settings has.
func (f *Flags) Share(names ...string) {
	s := &f.Settings
	for _, name := range names {
		switch name {
		case "embedded":
			f.BoolVar(&s.Embedded, name, s.Embedded, "start a broker as a child process, on a directory that is removed afterwards, instead of using the one at --addr")
		case "dir":
			f.StringVar(&s.Dir, name, s.Dir, "where directories are made (default: the system's place for temporary files)")
		case "fsync":
			f.WordVar(&s.Fsync, name, []string{"always", "interval", "never"}, "of the embedded broker")
		case "io":
			f.WordVar(&s.IO, name, []string{"auto", "mapped", "staged"}, "of the embedded broker")
		case "topic":
			f.StringVar(&s.Topic, name, s.Topic, "topic, made if it is missing")
		case "topics":
			f.IntVar(&s.Topics, name, s.Topics, "topics that the load is spread over; the further ones are named TOPIC-2, TOPIC-3 ..")
		case "queues":
			f.IntVar(&s.Queues, name, s.Queues, "queues of a topic that is made")
		case "size":
			f.IntVar(&s.Size, name, s.Size, "bytes of a body")
		case "batch":
			f.IntVar(&s.Batch, name, s.Batch, "messages of a request")
		case "producers":
			f.IntVar(&s.Producers, name, s.Producers, "connections that send")
		case "consumers":
			f.IntVar(&s.Consumers, name, s.Consumers, "connections that consume, each with a session")
		case "window":
			f.IntVar(&s.Window, name, s.Window, "requests that each connection has in flight")
		case "compression":
			f.WordVar(&s.Compression, name, []string{"none", "zstd", "s2"}, "of bodies, which can then be shortened to about a half")
		case "leases":
			f.IntVar(&s.Leases, name, s.Leases, "leases that sessions of another group hold meanwhile, of a topic of their own")
		case "rate":
			f.IntVar(&s.Rate, name, s.Rate, "messages a second in all, each sent when it is due, from when its latency counts; 0: as fast as the answers come")
		case "duration":
			f.DurationVar(&s.Duration, name, s.Duration, "how long, after the warm-up")
		case "messages":
			f.Uint64Var(&s.Messages, name, s.Messages, "how many messages at most")
		case "warm-up":
			f.DurationVar(&s.WarmUp, name, s.WarmUp, "at the beginning; what begins in it is not counted")
		default:
			panic("bench: no shared setting is called " + name)
		}
	}
}

// check says what cannot be.
func (s *Settings) check() error {
	for _, x := range []struct {
		name        string
		value, most int
	}{
		{"topics", s.Topics, 10_000}, {"queues", s.Queues, protocol.MaxQueuesPerTopic}, {"batch", s.Batch, protocol.MaxSendEntries},
		{"producers", s.Producers, 10_000}, {"consumers", s.Consumers, 10_000}, {"window", s.Window, 10_000}, {"size", s.Size + 1, protocol.MaxBodyBytes + 1},
	} {
		if x.value < 1 || x.value > x.most {
			return &SettingError{fmt.Errorf("--%s is out of range", x.name)}
		}
	}
	if s.Leases < 0 || s.Leases > 16_000_000 {
		return &SettingError{errors.New("--leases is out of range")}
	}
	if s.Rate < 0 || s.Duration < 0 || s.WarmUp < 0 {
		return &SettingError{errors.New("--rate, --duration or --warm-up is negative")}
	}
	return nil
}

// SettingError is a setting that cannot be.
type SettingError struct{ Err error }

func (e *SettingError) Error() string { return e.Err.Error() }
func (e *SettingError) Unwrap() error { return e.Err }

// topics are the names of the topics.
func (s *Settings) topics() []string {
	names := []string{s.Topic}
	for i := 2; i <= s.Topics; i++ {
		names = append(names, fmt.Sprintf("%s-%d", s.Topic, i))
	}
	return names
}

// producerOptions are those of the clients' producers.
func (s *Settings) producerOptions() client.ProducerOptions {
	o := client.ProducerOptions{Compression: client.CompressNone, CompressAbove: 1}
	switch s.Compression {
	case "zstd":
		o.Compression = client.CompressZstd
	case "s2":
		o.Compression = client.CompressS2
	}
	return o
}

// body is what messages carry: noise that nothing shortens, or, with compression, noise of which every second 32 bytes are zeroes.
func (s *Settings) body(size int, seed uint64) []byte {
	b := noise(size, seed)
	if s.Compression != "none" {
		for i := range b {
			if i%64 >= 32 {
				b[i] = 0
			}
		}
	}
	return b
}
