package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/leasemq/leasemq/broker"
	"github.com/leasemq/leasemq/netserver"
)

// localBroker is a broker in this process, so that the example needs nothing that runs. A service dials one that
// was started with "leasemq broker".
type localBroker struct {
	engine *broker.Engine
	server *netserver.Server
}

func startBroker(dir string) (*localBroker, error) {
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	engine, err := broker.Open(broker.Options{Dir: dir, SegmentBytes: 4 << 20, Logger: logger})
	if err != nil {
		return nil, err
	}
	server, err := netserver.Listen(netserver.Options{
		Listen: "127.0.0.1:0", Logger: logger,
		NewHandler: func(wake func()) netserver.Handler { return engine.NewLoop(wake) },
	})
	if err != nil {
		return nil, errors.Join(err, engine.Close())
	}
	return &localBroker{engine: engine, server: server}, nil
}

func (b *localBroker) addr() string { return b.server.Addr().String() }

func (b *localBroker) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return errors.Join(b.server.Shutdown(ctx), b.engine.Close())
}
