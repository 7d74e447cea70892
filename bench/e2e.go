package bench

import (
	"context"
	"time"
)

// e2eWorkload is `bench e2e`.
type e2eWorkload struct{ h handling }

func (*e2eWorkload) About() About {
	return About{
		Name: "e2e", Short: "Measure the time from sending until the handler, at a fixed rate",
		Long: `Sends at a fixed rate, however slow the answers are, and has consumers with workers (client.Consumer) take what comes. A
latency is the time from the moment at which a message was to be sent until its handler begins: a stall of the broker, or
of the sender, is not hidden. Each message is numbered and checked: what is lost, damaged, handled more than once or settled
twice is counted.`,
	}
}

func (w *e2eWorkload) Flags(f *Flags) {
	f.Settings.Rate, f.Settings.Duration, f.Settings.WarmUp = 20_000, 10*time.Second, time.Second
	f.Share(brokerSettings...)
	f.Share("producers", "consumers", "compression", "rate", "duration", "warm-up")
	w.h.patience = 30 * time.Second
	f.IntVar(&w.h.workers, "workers", 64, "handlers at once of each consumer")
	f.IntVar(&w.h.prefetch, "prefetch", 64, "messages taken beyond those that are being handled")
}

func (w *e2eWorkload) Run(ctx context.Context, run *Run) error { return run.load(ctx, w.h) }
