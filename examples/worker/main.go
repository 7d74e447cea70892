// Command worker takes messages of a topic and works on them, until it is told to stop. It needs a broker (leasemq
// broker) and something to do (leasemq send --topic orders).
package main

import (
	"context"
	"log"
	"os/signal"
	"syscall"

	"github.com/leasemq/leasemq/client"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	c, err := client.Dial(ctx, "127.0.0.1:7650", client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	worker := c.Consumer("billing", "orders", client.ConsumerOptions{Workers: 8, Create: true})
	err = worker.Run(ctx, func(ctx context.Context, d *client.Delivery) error {
		order, err := d.Body()
		if err != nil {
			return err // any error gives the message back for another attempt
		}
		log.Printf("attempt %d at %s, fencing token %d: %s", d.Attempt, d.ID, d.Token, order)
		return nil // acked. ctx ends when the message may be with somebody else by now
	})
	if err != nil {
		log.Fatal(err)
	}
}
