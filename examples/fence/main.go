// Command fence shows what the fencing token of a lease is for, with two holders, a broker and an SQLite file: a
// holder that was too late does not spoil the work of the one after it. fence.go is the part to take along; this
// file is the story. It starts a broker of its own, and exits with 1 if something is not as it should be.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/leasemq/leasemq/client"
)

const (
	shortLease = 500 * time.Millisecond // of a holder that will not renew it in time
	longLease  = 30 * time.Second
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	err := demo(ctx, os.Stdout)
	cancel()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "fence:", err)
		os.Exit(1)
	}
}

func demo(ctx context.Context, out io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "leasemq-fence-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	checks, err := run(ctx, out, dir)
	if err != nil {
		return err
	}
	return verdict(out, checks)
}

// run tells the story with a broker and a database in dir, and returns what was to be seen and what was seen.
func run(ctx context.Context, out io.Writer, dir string) (checks []check, err error) {
	b, err := startBroker(filepath.Join(dir, "broker"))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.stop()) }()

	db, err := openDatabase(ctx, filepath.Join(dir, "fence.db"))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()

	c, err := client.Dial(ctx, b.addr(), client.Options{})
	if err != nil {
		return nil, err
	}
	defer c.Close()

	s := newStory(ctx, out, db, c)
	err = s.tell(func() {
		// Two services, to the broker and to the database. That they take turns in one goroutine is the story's
		// way to have each of them stop and go on at the moments that matter.
		a, b := s.register("A"), s.register("B")
		s.tooLateAltogether(a, b)
		s.tooLateButFirst(a, b)
		s.sharedRowWithAFence(a, b)
		s.sharedRowWithNothing(a, b)
		s.sharedRowDoneRight(a, b)
		s.leave(a, b)
	})
	return s.checks, err
}

// tooLateAltogether: A stalls, and when it goes on B has done everything.
func (s *story) tooLateAltogether(a, b *holder) {
	s.title("1. A stalls; B does the work; A goes on", `
There is a row a message, and every write says "WHERE message_id = ? AND fence <= ?".`)
	s.open("ada", 100)
	id := s.send("late", "M1", payment{"ada", 30})

	old := s.pop(a, "late", shortLease)
	s.claim(a, old)
	s.say(a, "stalls: a pause of its process, a network that hangs. It renews nothing, and its lease ends")

	// The pop waits at the broker until the message is visible again: the lease, and the back-off of a second that
	// follows an expiry.
	d := s.pop(b, "late", longLease)
	s.claim(b, d)
	s.charge(b, d)
	s.finish(b, d)
	s.ack(b, d)

	s.say(a, "goes on as if nothing had been")
	s.expect("1: A's write, with the older token, is", s.charge(a, old), refused)
	s.expect("1: A's late ack is", s.ack(a, old), "ALREADY_SETTLED (SETTLED)")

	s.show("payments", `SELECT message_id, fence, state FROM payments WHERE message_id = ?`, id)
	s.show("bookings", `SELECT message_id, account, amount, booked_by FROM bookings WHERE message_id = ?`, id)
	s.expect("1: B's token is greater than A's", d.Token > old.Token, true)
	s.expect("1: the row has B's token", s.fence(id), short(d.Token))
	s.expect("1: the row says", s.state(id), "done")
	s.expect("1: ada, of 100, after one payment of 30", s.balance("accounts", "ada"), 70)
}

// tooLateButFirst: A goes on after B was granted the message and before B has written anything. The database cannot
// know of B yet, so A's writes stand; and B repeats them without effect.
func (s *story) tooLateButFirst(a, b *holder) {
	s.title("2. The other order: A goes on before B has written", `
The database cannot know of B's token before B has written, so A's write goes through. That does no harm:
B takes the row over, and what is booked is keyed by the message id.`)
	s.open("ben", 100)
	id := s.send("close", "M2", payment{"ben", 30})

	old := s.pop(a, "close", shortLease)
	s.claim(a, old)
	s.say(a, "stalls, and its lease ends")

	d := s.pop(b, "close", longLease)

	s.say(a, "goes on")
	s.expect("2: A's write, before B's first, is", s.charge(a, old), done)
	s.show("payments, of A so far", `SELECT message_id, fence, state FROM payments WHERE message_id = ?`, id)

	s.expect("2: B finds the row", s.claim(b, d), "charged")
	s.expect("2: A's next write is", s.finish(a, old), refused)
	s.expect("2: A's late ack is", s.ack(a, old), "STALE (REGRANTED as "+short(d.Token)+")")

	// The state would tell B that it need not charge. It does so all the same: nothing depends on it.
	s.expect("2: B's charge, the second for the message, is", s.charge(b, d), doneBefore)
	s.finish(b, d)
	s.ack(b, d)

	s.show("payments", `SELECT message_id, fence, state FROM payments WHERE message_id = ?`, id)
	s.show("bookings", `SELECT message_id, account, amount, booked_by FROM bookings WHERE message_id = ?`, id)
	s.expect("2: the row has B's token", s.fence(id), short(d.Token))
	s.expect("2: the row says", s.state(id), "done")
	s.expect("2: ben, of 100, after one payment of 30", s.balance("accounts", "ben"), 70)
}

// sharedRowWithAFence is wrong: the tokens of different messages say nothing about each other. M3 was granted before
// M4, but nothing says that it is written before.
func (s *story) sharedRowWithAFence(a, b *holder) {
	s.title("3. WRONG: a fence on a row that several messages share", `
The row of the account has the fence. M3 and M4, for one account, are granted in this order and done in the other.
M3's token is the lesser one then, and still the newest of its message.`)
	s.exec(`CREATE TABLE fenced_accounts (
		account TEXT    NOT NULL PRIMARY KEY,
		balance INTEGER NOT NULL,
		fence   INTEGER NOT NULL
	) STRICT`)
	s.exec(`INSERT INTO fenced_accounts (account, balance, fence) VALUES ('cora', 100, 0)`)
	s.send("shared", "M3", payment{"cora", 30})
	s.send("shared", "M4", payment{"cora", 20})
	m3 := s.pop(a, "shared", longLease)
	m4 := s.pop(b, "shared", longLease)

	const wrong = `
		UPDATE fenced_accounts SET balance = balance - ?, fence = ?
		WHERE account = ? AND fence <= ?`
	s.expect("3: B's deduction for M4 changes", s.update(b, m4, wrong, 20, m4.Token, "cora", m4.Token), "1 row")
	s.ack(b, m4)
	s.expect("3: A's deduction for M3 changes", s.update(a, m3, wrong, 30, m3.Token, "cora", m3.Token), "0 rows")

	s.say(a, "takes it that a newer holder has M3. There is none: %s is of M4 and says nothing of M3", short(m4.Token))
	s.expect("3: A's ack of M3, which it held all the time, is", s.ack(a, m3), "OK")
	s.show("fenced_accounts", `SELECT account, balance, fence FROM fenced_accounts`)
	s.expect("3: cora, of 100, after 30 and 20 (should be 50)", s.balance("fenced_accounts", "cora"), 80)
	s.note(`
The broker accepts A's ack, since A held M3 all the time; so the 30 are never deducted. Had A dropped M3 instead, it
would come back when the lease ends, to be refused again whenever a later message of the account is quicker. And
when a holder dies between its write and its ack, the next one deducts again, with a greater token: the row does
not know which messages it has seen.

A fence on a shared row is right only if the messages of the row are granted one at a time, in order: with an order
key, in an ordered group, which does not exist yet. Even then it keeps late writers out and no more: that nothing
is booked twice takes the message id.`)
}

// sharedRowWithNothing is what the fence on the shared row was to prevent.
func (s *story) sharedRowWithNothing(a, b *holder) {
	s.title("4. WRONG: no check at all", `
A reads the balance, stalls, and writes what it had worked out.`)
	s.open("dan", 100)
	s.send("unchecked", "M5", payment{"dan", 30})

	const wrong = `UPDATE accounts SET balance = ? WHERE account = ?`
	old := s.pop(a, "unchecked", shortLease)
	read := s.balance("accounts", "dan")
	s.say(a, "reads a balance of %d, stalls, and its lease ends", read)

	m5 := s.pop(b, "unchecked", longLease)
	s.update(b, m5, wrong, s.balance("accounts", "dan")-30, "dan")
	s.ack(b, m5)
	s.send("unchecked", "M6", payment{"dan", 20})
	m6 := s.pop(b, "unchecked", longLease)
	s.update(b, m6, wrong, s.balance("accounts", "dan")-20, "dan")
	s.ack(b, m6)
	s.show("accounts", `SELECT account, balance FROM accounts WHERE account = 'dan'`)

	s.say(a, "goes on, with %d - 30", read)
	s.expect("4: A's late write changes", s.update(a, old, wrong, read-30, "dan"), "1 row")
	s.expect("4: A's late ack, which is too late to help, is", s.ack(a, old), "ALREADY_SETTLED (SETTLED)")
	s.show("accounts", `SELECT account, balance FROM accounts WHERE account = 'dan'`)
	s.expect("4: dan, of 100, after 30 and 20 (should be 50)", s.balance("accounts", "dan"), 70)
	s.note(`
M6 was done and acked, and is undone: its 20 are lost. "SET balance = balance - 30" would keep them, and deduct the 30
twice.`)
}

// sharedRowDoneRight is the order of sharedRowWithAFence with the tables of fence.go.
func (s *story) sharedRowDoneRight(a, b *holder) {
	s.title("5. RIGHT: a row a message, and the shared row in the same transaction", `
The order of 3 again: M7 is granted before M8, and M8 is done first. Their tokens never meet.`)
	s.open("eve", 100)
	first := s.send("right", "M7", payment{"eve", 30})
	second := s.send("right", "M8", payment{"eve", 20})
	m7 := s.pop(a, "right", longLease)
	m8 := s.pop(b, "right", longLease)

	s.claim(b, m8)
	s.expect("5: B's charge for M8 is", s.charge(b, m8), done)
	s.finish(b, m8)
	s.expect("5: B's ack is", s.ack(b, m8), "OK")

	s.claim(a, m7)
	s.expect("5: A's charge for M7, with the lesser token, is", s.charge(a, m7), done)
	s.finish(a, m7)
	s.expect("5: A's ack is", s.ack(a, m7), "OK")

	s.show("payments", `
		SELECT message_id, fence, state FROM payments
		WHERE message_id IN (?, ?) ORDER BY message_id`, first, second)
	s.show("accounts", `SELECT account, balance FROM accounts WHERE account = 'eve'`)
	s.expect("5: eve, of 100, after 30 and 20", s.balance("accounts", "eve"), 50)
}
