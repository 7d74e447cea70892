package main

import (
	"context"
	"os"
)

// rocketMQ is RocketMQ 5 with a proxy and a SimpleConsumer. It is not measured yet: see missing.
type rocketMQ struct{}

func (rocketMQ) name() string           { return "RocketMQ 5 SimpleConsumer" }
func (rocketMQ) version() string        { return "" }
func (rocketMQ) ways(workload) []string { return nil }

func (rocketMQ) missing() string {
	if _, err := os.Stat("/opt/rocketmq"); err != nil {
		return "its name server, broker and proxy are published as Java libraries and as an archive on the project's own servers; " +
			"there is no package from which this program could start them"
	}
	return "this program cannot start it yet"
}

func (rocketMQ) start(context.Context, string, bool) (broker, error) { return nil, errNotHere }
