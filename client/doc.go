// Package client is the Go client of leasemq: it sends messages, takes them under leases, settles them,
// and administers topics and groups.
//
//	c, err := client.Dial(ctx, "localhost:7400", client.Options{})
//	p := c.Producer(client.ProducerOptions{Create: true})
//	_, err = p.Send(ctx, &client.Message{Topic: "orders", Key: "4711", Body: body})
//
//	s, err := c.Register(ctx, "billing", client.RegisterOptions{Create: true})
//	batch, err := s.Pop(ctx, client.PopOptions{Topic: "orders", Max: 16, Await: 20 * time.Second})
//	for _, d := range batch.Deliveries {
//		body, err := d.Body()
//		...
//		_, err = s.Ack(ctx, d)
//	}
//
// # Parts
//
//	Client     what Dial returns; hands out producers and sessions, carries the admin calls
//	Producer   Send, SendBatch, SendAsync; encodes, compresses and numbers
//	Session    one registration in a group; heartbeats, Pop, Ack, ChangeInvisible
//	Delivery   one message under a lease
//	Consumer   Run: sessions, pops, workers, renewals, acks, shutdown
//	link       the calls: what waits, what is unanswered, what happens to both when a connection is lost
//	conn       one TCP connection: HELLO, a reader and a writer goroutine
//	call       one request and its answer
//	frame      the bytes of a request, counted references, pooled
//
// # Calls
//
// A call is queued in the link and never blocks anybody but its own caller. The writer goroutine takes
// calls from the queue as far as the credit reaches that HELLO granted (never more unanswered request
// bytes than that; one frame may always go when nothing is unanswered) and puts those of several callers
// into one write. The reader goroutine matches answers by request id, in whatever order they come. A
// frame longer than the whole credit therefore waits until everything else on the connection has been
// answered, waiting pops included; whoever sends such messages and pops gives each a Client.
//
// A call waits for a connection as long as its context lets it. When a connection is lost the link
// makes a new one in the background, with jittered back-off. What was unanswered on the lost one:
//
//	create, update, purge, delete    fails with ErrOutcomeUnknown; never repeated
//	SEND                             is repeated on the next connection, until ProducerOptions.RetryFor is over or its
//	                                 context ends; then it fails with ErrOutcomeUnknown
//	SEND of a NotIdempotent producer fails with ErrOutcomeUnknown; never repeated
//	everything else                  is repeated on the next connection, until its context ends
//
// Repeating is safe because those calls are idempotent: a message carries the id of its producer and a number, an ack names a lease by its receipt, a change of
// the invisible time carries an ordinal, REGISTER a nonce, POP its number in a slot (pop id). A session is named in the body of each call, so
// nothing is to be done for it on a new connection.
//
// A call whose context ends while its answer is under way returns at once, and still counts against the
// credit until the answer comes. What a late answer brings is given back: messages that nobody waits for
// are released, a session that nobody waits for is unregistered.
//
// A SEND that is answered with DRAINING, STORE_FAILED or INTERNAL is repeated on the next connection, too; until then all
// SENDs that may be repeated are held back, so that none overtakes another. Other answers are final. See retry.go for the order
// and for what is certain afterwards, and window.go for how far the numbers of a producer may lie apart.
//
// # Concurrency
//
// Client, Producer, Session and the methods of Delivery may be used by any number of goroutines. Client.mu and
// async.mu, which also guards the producer's window, are taken before link.mu; consumerRun.mu before Session.mu, which is held together with no other lock. Nothing
// of the user's is called under a lock, and callbacks of SendAsync run on a goroutine that no other part of the client
// depends on.
//
// # Consumer
//
// Most programs need neither Session nor Delivery's lease:
//
//	k := c.Consumer("billing", "orders", client.ConsumerOptions{Workers: 8})
//	err = k.Run(ctx, func(ctx context.Context, d *client.Delivery) error {
//		body, err := d.Body()
//		...
//		return nil // acked; an error gives the message back
//	})
//
// A Consumer is built on Session and knows nothing that the broker does not check: what it settles, renews or gives
// back is named by the receipt of its lease. What it adds is when: a keeper looks at one heap of moments, so that
// leases are renewed in time, and that a handler's context ends with its lease or its session by this side's clock,
// whatever the network does. When its session is lost it registers again and reclaims what is still being
// handled; when it is fenced it ends.
//
// # Time
//
// Deadlines are by this process's monotonic clock. The broker tells durations only, and they are counted
// from a moment that lies before the broker's own, so that this side believes a lease or a session over
// before the broker does.
package client
