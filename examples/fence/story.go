package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"text/tabwriter"
	"time"

	_ "modernc.org/sqlite"

	"github.com/leasemq/leasemq/client"
	"github.com/leasemq/leasemq/protocol"
)

// payment is the body of a message.
type payment struct {
	Account string `json:"account"`
	Amount  int64  `json:"amount"`
}

// What became of a fenced write.
const (
	done       = "done"
	doneBefore = "done, and had been booked before"
	refused    = "refused, 0 rows changed"
)

func openDatabase(ctx context.Context, path string) (*sql.DB, error) {
	// A transaction takes the write lock when it begins, and waits for that of another one.
	const settings = "_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)"
	dsn := url.URL{Scheme: "file", Path: path, RawQuery: settings}
	db, err := sql.Open("sqlite", dsn.String())
	if err != nil {
		return nil, err
	}
	if _, err := db.ExecContext(ctx, schema); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// holder is a service that works on messages.
type holder struct {
	name    string
	session *client.Session
}

// check is something that was to be seen.
type check struct{ what, got, want string }

// verdict prints what was to be seen, and is an error if it was not.
func verdict(out io.Writer, checks []check) error {
	fmt.Fprint(out, "\nWhat was to be seen\n\n")
	wrong := 0
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, c := range checks {
		mark := "ok"
		if c.got != c.want {
			mark, wrong = "WRONG, should be "+c.want, wrong+1
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\n", c.what, c.got, mark)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if wrong > 0 {
		return fmt.Errorf("%d of %d are not as they should be", wrong, len(checks))
	}
	_, err := fmt.Fprintf(out, `
All %d are as they should be: with a row a message, each was booked once; without, one was lost.
`, len(checks))
	return err
}

// story does the steps of the holders and prints them. Its methods end the story at the first error, which tell
// returns, so that the story itself is not half error handling. They are called by one goroutine, inside tell.
type story struct {
	ctx    context.Context
	out    io.Writer
	db     *sql.DB
	client *client.Client
	names  map[string]string // of the messages, by id
	began  time.Time
	apart  bool // the last line printed is empty
	checks []check
}

func newStory(ctx context.Context, out io.Writer, db *sql.DB, c *client.Client) *story {
	return &story{ctx: ctx, out: out, db: db, client: c, names: map[string]string{}, began: time.Now()}
}

// ending is what must panics with.
type ending struct{ err error }

func must(err error) {
	if err != nil {
		panic(ending{err})
	}
}

func (s *story) tell(story func()) (err error) {
	defer func() {
		switch e := recover().(type) {
		case nil:
		case ending:
			err = e.err
		default:
			panic(e)
		}
	}()
	s.note(`
A fencing token is epoch << 32 | number of the grant. Here all are of one epoch, and only the numbers are printed.`)
	story()
	return nil
}

func (s *story) register(name string) *holder {
	session, err := s.client.Register(s.ctx, "billing", client.RegisterOptions{ConsumerID: name, Create: true})
	must(err)
	return &holder{name, session}
}

func (s *story) leave(holders ...*holder) {
	for _, h := range holders {
		must(h.session.Close(s.ctx))
	}
}

// open opens an account.
func (s *story) open(account string, balance int64) {
	s.exec(`INSERT INTO accounts (account, balance) VALUES (?, ?)`, account, balance)
}

func (s *story) send(topic, name string, p payment) (id string) {
	body, err := json.Marshal(p)
	must(err)
	if err := s.client.CreateTopic(s.ctx, topic, 1); !isStatus(err, protocol.TopicExists) {
		must(err)
	}
	sent, err := s.client.Producer(client.ProducerOptions{}).Send(s.ctx, &client.Message{Topic: topic, Body: body})
	must(err)
	id = sent.ID.String()
	s.names[id] = name
	s.say(nil, "%s is sent: %s", name, body)
	return id
}

func (s *story) pop(h *holder, topic string, lease time.Duration) *client.Delivery {
	batch, err := h.session.Pop(s.ctx, client.PopOptions{Topic: topic, Invisible: lease, Await: 30 * time.Second})
	must(err)
	if len(batch.Deliveries) == 0 {
		must(fmt.Errorf("%s was given no message of %s", h.name, topic))
	}
	d := batch.Deliveries[0]
	s.say(h, "is granted %s: attempt %d, token %s, lease %v", s.name(d), d.Attempt, short(d.Token), lease)
	return d
}

// claim, charge and finish are the steps of a holder that does it right. They tell the state that was found, or what
// became of the write.
func (s *story) claim(h *holder, d *client.Delivery) (outcome string) {
	state, err := claim(s.ctx, s.db, d.ID.String(), d.Token)
	if errors.Is(err, errLost) {
		state, err = refused, nil
	}
	must(err)
	s.say(h, "claims the row of %s with %s: %s", s.name(d), short(d.Token), state)
	return state
}

func (s *story) charge(h *holder, d *client.Delivery) (outcome string) {
	body, err := d.Body()
	must(err)
	var p payment
	must(json.Unmarshal(body, &p))

	id, booked := d.ID.String(), false
	err = write(s.ctx, s.db, id, d.Token, "charged", func(tx *sql.Tx) (err error) {
		booked, err = book(s.ctx, tx, id, d.Token, p)
		return err
	})
	outcome = outcomeOf(err)
	if err == nil && !booked {
		outcome = doneBefore
	}
	s.say(h, "charges %d for %s with %s: %s", p.Amount, s.name(d), short(d.Token), outcome)
	return outcome
}

func (s *story) finish(h *holder, d *client.Delivery) (outcome string) {
	outcome = outcomeOf(finish(s.ctx, s.db, d.ID.String(), d.Token))
	s.say(h, "finishes %s with %s: %s", s.name(d), short(d.Token), outcome)
	return outcome
}

func outcomeOf(err error) string {
	if errors.Is(err, errLost) {
		return refused
	}
	must(err)
	return done
}

// ack tells the broker's answer.
func (s *story) ack(h *holder, d *client.Delivery) (answer string) {
	results, err := h.session.Ack(s.ctx, d)
	answer = "OK"
	var refusal *client.StatusError
	if errors.As(err, &refusal) {
		answer, err = fmt.Sprintf("%v (%v)", refusal.Status, refusal.Reason), nil
		if refusal.Reason == protocol.ReasonRegranted {
			answer = fmt.Sprintf("%v (%v as %s)", refusal.Status, refusal.Reason, short(results[0].Token))
		}
	}
	must(err)
	s.say(h, "acks %s: %s", s.name(d), answer)
	return answer
}

// update runs one of the wrong statements.
func (s *story) update(h *holder, d *client.Delivery, statement string, args ...any) (changed string) {
	rows := s.exec(statement, args...)
	changed = fmt.Sprintf("%d rows", rows)
	if rows == 1 {
		changed = "1 row"
	}
	s.say(h, "updates the account for %s, holding %s: %s", s.name(d), short(d.Token), changed)
	return changed
}

func (s *story) exec(statement string, args ...any) (rows int64) {
	result, err := s.db.ExecContext(s.ctx, statement, args...)
	must(err)
	rows, err = result.RowsAffected()
	must(err)
	return rows
}

func (s *story) balance(table, account string) (balance int64) {
	must(s.db.QueryRowContext(s.ctx, `SELECT balance FROM `+table+` WHERE account = ?`, account).Scan(&balance))
	return balance
}

func (s *story) state(id string) (state string) {
	must(s.db.QueryRowContext(s.ctx, `SELECT state FROM payments WHERE message_id = ?`, id).Scan(&state))
	return state
}

func (s *story) fence(id string) string {
	var fence uint64
	must(s.db.QueryRowContext(s.ctx, `SELECT fence FROM payments WHERE message_id = ?`, id).Scan(&fence))
	return short(fence)
}

// expect notes what was to be seen.
func (s *story) expect(what string, got, want any) {
	s.checks = append(s.checks, check{what, fmt.Sprint(got), fmt.Sprint(want)})
}

// say prints a step of a holder, or of nobody's.
func (s *story) say(h *holder, format string, args ...any) {
	who := " "
	if h != nil {
		who = h.name
	}
	s.printf("%6.2f s  %s  %s\n", time.Since(s.began).Seconds(), who, fmt.Sprintf(format, args...))
}

func (s *story) title(title, text string) {
	s.gap()
	s.printf("\n%s\n%s\n", title, strings.Repeat("-", len(title)))
	s.note(text)
}

func (s *story) note(text string) {
	s.gap()
	s.printf("%s\n", strings.TrimSpace(text))
	s.gap()
}

// show prints the rows of a query. Messages and tokens are printed by their short names.
func (s *story) show(title, query string, args ...any) {
	rows, err := s.db.QueryContext(s.ctx, query, args...)
	must(err)
	defer rows.Close()
	columns, err := rows.Columns()
	must(err)

	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 1, ' ', 0)
	fmt.Fprintf(w, "\t| %s\n", strings.Join(columns, "\t| "))
	for rows.Next() {
		values := make([]any, len(columns))
		for i := range values {
			values[i] = new(any)
		}
		must(rows.Scan(values...))
		cells := make([]string, len(columns))
		for i, column := range columns {
			switch v := *values[i].(*any); column {
			case "message_id":
				cells[i] = s.names[v.(string)]
			case "fence", "booked_by":
				cells[i] = short(uint64(v.(int64)))
			default:
				cells[i] = fmt.Sprint(v)
			}
		}
		fmt.Fprintf(w, "\t| %s\n", strings.Join(cells, "\t| "))
	}
	must(rows.Err())
	must(w.Flush())

	s.gap()
	s.printf("           %s\n", title)
	for line := range strings.Lines(table.String()) {
		s.printf("          %s", line)
	}
	s.gap()
}

// gap sets what follows apart from what was before.
func (s *story) gap() {
	if !s.apart {
		s.printf("\n")
		s.apart = true
	}
}

func (s *story) printf(format string, args ...any) {
	_, err := fmt.Fprintf(s.out, format, args...)
	must(err)
	s.apart = false
}

func (s *story) name(d *client.Delivery) string { return s.names[d.ID.String()] }

// short is the number of a token in its epoch.
func short(token uint64) string { return fmt.Sprintf("#%d", token&(1<<32-1)) }

func isStatus(err error, status protocol.Status) bool {
	var e *client.StatusError
	return errors.As(err, &e) && e.Status == status
}
