package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// The whole story, with its broker and its database: what the holders were told, and what is in the tables after it.
func TestStory(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	dir := t.TempDir()
	var out strings.Builder
	checks, err := run(ctx, &out, dir)
	if err == nil {
		err = verdict(&out, checks)
	}
	if err != nil || testing.Verbose() {
		t.Log("\n" + out.String())
	}
	if err != nil {
		t.Fatal(err)
	}

	var seen []string
	for _, c := range checks {
		seen = append(seen, c.what+" "+c.got)
	}
	for _, want := range []string{
		"1: A's write, with the older token, is refused, 0 rows changed",
		"1: A's late ack is ALREADY_SETTLED (SETTLED)",
		"1: ada, of 100, after one payment of 30 70",
		"2: A's write, before B's first, is done",
		"2: A's next write is refused, 0 rows changed",
		"2: A's late ack is STALE (REGRANTED as #4)",
		"2: B's charge, the second for the message, is done, and had been booked before",
		"2: ben, of 100, after one payment of 30 70",
		"3: A's deduction for M3 changes 0 rows",
		"3: A's ack of M3, which it held all the time, is OK",
		"3: cora, of 100, after 30 and 20 (should be 50) 80",
		"4: A's late write changes 1 row",
		"4: A's late ack, which is too late to help, is ALREADY_SETTLED (SETTLED)",
		"4: dan, of 100, after 30 and 20 (should be 50) 70",
		"5: A's charge for M7, with the lesser token, is done",
		"5: eve, of 100, after 30 and 20 50",
	} {
		if !slices.Contains(seen, want) {
			t.Errorf("the story did not show: %s", want)
		}
	}

	// The broker gives each grant the next number, and every message here is popped by itself: M1 to A as #1, to B as
	// #2, and so on.
	db := reopen(t, filepath.Join(dir, "fence.db"))
	expectRows(t, db, `SELECT fence & 0xffffffff, state FROM payments ORDER BY fence`,
		"2 done", "4 done", "10 done", "11 done")
	expectRows(t, db, `SELECT account, amount, booked_by & 0xffffffff FROM bookings ORDER BY booked_by`,
		"ada 30 2", "ben 30 3", "eve 30 10", "eve 20 11")
	expectRows(t, db, `SELECT account, balance FROM accounts ORDER BY account`,
		"ada 70", "ben 70", "dan 70", "eve 50")
	expectRows(t, db, `SELECT account, balance, fence & 0xffffffff FROM fenced_accounts`, "cora 80 6")
	expectRows(t, db, `SELECT message_id FROM bookings EXCEPT SELECT message_id FROM payments`)
}

func TestVerdict(t *testing.T) {
	var out strings.Builder
	right, wrong := check{"one", "1", "1"}, check{"two", "3", "2"}
	if err := verdict(&out, []check{right}); err != nil || strings.Contains(out.String(), "WRONG") {
		t.Errorf("a story that went well: %v\n%s", err, &out)
	}
	if err := verdict(&out, []check{right, wrong}); err == nil || !strings.Contains(out.String(), "WRONG, should be 2") {
		t.Errorf("a story that did not: %v\n%s", err, &out)
	}
}

// Once a newer holder has claimed a message, the older one can do nothing to it.
func TestOlderHolderIsRefused(t *testing.T) {
	ctx, db := t.Context(), newDatabase(t)
	mustClaim(t, db, "m", 1, "started")
	mustClaim(t, db, "m", 2, "started")
	mustClaim(t, db, "other", 1, "started") // the token of another message is nothing to it

	if _, err := claim(ctx, db, "m", 1); !errors.Is(err, errLost) {
		t.Errorf("claim: %v", err)
	}
	effect := func(*sql.Tx) error { t.Error("the effect of a refused write"); return nil }
	if err := write(ctx, db, "m", 1, "charged", effect); !errors.Is(err, errLost) {
		t.Errorf("write: %v", err)
	}
	if err := finish(ctx, db, "m", 1); !errors.Is(err, errLost) {
		t.Errorf("finish: %v", err)
	}
	expectRows(t, db, `SELECT * FROM payments ORDER BY message_id`, "m 2 started", "other 1 started")
}

// A holder writes several times with one token, and may repeat each step.
func TestHolderWritesAgain(t *testing.T) {
	ctx, db := t.Context(), newDatabase(t)
	for range 2 {
		mustClaim(t, db, "m", 7, "started")
	}
	for i := range 2 {
		err := write(ctx, db, "m", 7, "charged", func(tx *sql.Tx) error {
			booked, err := book(ctx, tx, "m", 7, payment{"ada", 30})
			if booked != (i == 0) {
				t.Errorf("time %d: booked is %v", i, booked)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	mustClaim(t, db, "m", 7, "charged")
	for range 2 {
		if err := finish(ctx, db, "m", 7); err != nil {
			t.Error(err)
		}
	}
	mustClaim(t, db, "m", 7, "done")
	expectRows(t, db, `SELECT * FROM payments`, "m 7 done")
	expectRows(t, db, `SELECT balance FROM accounts`, "70")
}

// A write whose effect fails has not happened.
func TestWriteFailsWithItsEffect(t *testing.T) {
	ctx, db := t.Context(), newDatabase(t)
	mustClaim(t, db, "m", 1, "started")
	failure := errors.New("no")
	err := write(ctx, db, "m", 2, "charged", func(tx *sql.Tx) error {
		_, err := book(ctx, tx, "m", 2, payment{"ada", 30})
		return errors.Join(failure, err)
	})
	if !errors.Is(err, failure) {
		t.Error(err)
	}
	expectRows(t, db, `SELECT * FROM payments`, "m 1 started")
	expectRows(t, db, `SELECT * FROM bookings`)
	expectRows(t, db, `SELECT balance FROM accounts`, "100")
}

// The greatest token there can be is stored as it is.
func TestGreatestToken(t *testing.T) {
	db := newDatabase(t)
	mustClaim(t, db, "m", math.MaxInt64-1, "started")
	mustClaim(t, db, "m", math.MaxInt64, "started")
	expectRows(t, db, `SELECT fence FROM payments`, fmt.Sprint(math.MaxInt64))
}

// Many holders of one message at once, in whatever order: it is booked once, and the newest holder is not refused.
func TestHoldersAtOnce(t *testing.T) {
	ctx, db := t.Context(), newDatabase(t)
	const newest = 8
	results := make([]error, newest+1) // by token
	start := make(chan struct{})
	var holders sync.WaitGroup
	for token := uint64(1); token <= newest; token++ {
		holders.Go(func() {
			<-start
			_, err := claim(ctx, db, "m", token)
			if err == nil {
				err = write(ctx, db, "m", token, "charged", func(tx *sql.Tx) error {
					_, err := book(ctx, tx, "m", token, payment{"ada", 30})
					return err
				})
			}
			if err == nil {
				err = finish(ctx, db, "m", token)
			}
			results[token] = err
		})
	}
	close(start)
	holders.Wait()

	if results[newest] != nil {
		t.Errorf("the newest holder: %v", results[newest])
	}
	for token, err := range results {
		if err != nil && !errors.Is(err, errLost) {
			t.Errorf("holder %d: %v", token, err)
		}
	}
	expectRows(t, db, `SELECT * FROM payments`, fmt.Sprintf("m %d done", newest))
	expectRows(t, db, `SELECT count(*) FROM bookings`, "1")
	expectRows(t, db, `SELECT balance FROM accounts`, "70")
}

// The SQL of the README is that of fence.go.
func TestReadmeSQL(t *testing.T) {
	words := func(path string) string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(strings.Fields(string(text)), " ")
	}
	program := words("fence.go")
	blocks := regexp.MustCompile("(?s)```sql (.*?) ```").FindAllStringSubmatch(words("README.md"), -1)
	if len(blocks) == 0 {
		t.Fatal("no SQL in the README")
	}
	for _, block := range blocks {
		for statement := range strings.SplitSeq(block[1], ";") {
			statement = strings.TrimSpace(statement)
			if !strings.Contains(program, statement) {
				t.Errorf("not in fence.go: %s", statement)
			}
		}
	}
}

func newDatabase(t *testing.T) *sql.DB {
	t.Helper()
	db, err := openDatabase(t.Context(), filepath.Join(t.TempDir(), "fence.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	if _, err := db.Exec(`INSERT INTO accounts (account, balance) VALUES ('ada', 100)`); err != nil {
		t.Fatal(err)
	}
	return db
}

func reopen(t *testing.T, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func mustClaim(t *testing.T, db *sql.DB, messageID string, fence uint64, want string) {
	t.Helper()
	state, err := claim(t.Context(), db, messageID, fence)
	if err != nil || state != want {
		t.Errorf("claim of %s by %d: %q, %v, not %q", messageID, fence, state, err, want)
	}
}

// expectRows compares the rows of a query, their columns separated by blanks.
func expectRows(t *testing.T, db *sql.DB, query string, want ...string) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), query)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for rows.Next() {
		values := make([]string, len(columns))
		cells := make([]any, len(columns))
		for i := range cells {
			cells[i] = &values[i]
		}
		if err := rows.Scan(cells...); err != nil {
			t.Fatal(err)
		}
		got = append(got, strings.Join(values, " "))
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s\ngives %q\nnot   %q", query, got, want)
	}
}
