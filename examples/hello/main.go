// Command hello sends a message, takes it under a lease and acks it. It needs a broker: leasemq broker.
package main

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/leasemq/leasemq/client"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := hello(ctx, "127.0.0.1:7650"); err != nil {
		log.Fatal(err)
	}
}

func hello(ctx context.Context, broker string) error {
	c, err := client.Dial(ctx, broker, client.Options{})
	if err != nil {
		return err
	}
	defer c.Close()

	p := c.Producer(client.ProducerOptions{Create: true})
	sent, err := p.Send(ctx, &client.Message{Topic: "orders", Key: "4711", Body: []byte("two coffees")})
	if err != nil {
		return err // client.ErrOutcomeUnknown: it may be stored or not
	}
	fmt.Println("stored as", sent.ID) // on disk, with the broker's default policy

	s, err := c.Register(ctx, "billing", client.RegisterOptions{Create: true})
	if err != nil {
		return err
	}
	defer s.Close(ctx) // what is not acked by then is given back at once
	batch, err := s.Pop(ctx, client.PopOptions{Topic: "orders", Max: 16, Await: 5 * time.Second})
	if err != nil {
		return err
	}
	for _, d := range batch.Deliveries {
		body, err := d.Body()
		if err != nil {
			return err
		}
		fmt.Printf("attempt %d, fencing token %d: %s\n", d.Attempt, d.Token, body)
		if _, err := s.Ack(ctx, d); err != nil {
			return err // client.ErrStale: the lease is over and somebody else has the message
		}
	}
	return nil
}
