package main

import (
	"context"
	"database/sql"
	"errors"
)

// This file is the part to take along. A lease keeps others from working on a message at the same time only as
// long as its holder knows the time. A holder that was suspended, swapped out or cut off goes on where it stopped,
// when somebody else has had the message for long. The broker refuses its ack; nobody but the database can refuse
// its writes. The fencing token of a delivery is what the database needs for that: it strictly grows with each grant
// of a message, so the writer with the greater token is the newer holder.
//
// The rules:
//
//  1. There is a row a message, with the token of the newest holder that has written. It is compared only with
//     tokens of the same message.
//  2. Every write says "WHERE fence <= ?" and leaves its own token. "<=", not "<": a holder writes more than once.
//  3. No row changed: the message is somebody else's, and the holder stops.
//  4. What belongs to the write, such as the balance, is changed in the same transaction, after the fenced row:
//     that one is locked then, and no newer holder comes between the two.
//  5. A newer holder repeats what an older one may have done. So the effect is keyed by the message id as well:
//     the fence says who may write, the key that it is done once.
//
// An effect outside of the database, such as a call to a payment provider, cannot be in the transaction. It takes
// the message id along as the provider's idempotency key.
//
// Tokens are below 2^63 and fit a BIGINT. The rows belong to one group: each group grants a message for itself, with
// tokens of its own. Where several write to one table, the group is part of the key.

const schema = `
CREATE TABLE payments (
	message_id TEXT    NOT NULL PRIMARY KEY,
	fence      INTEGER NOT NULL,             -- the token of the newest holder that has written
	state      TEXT    NOT NULL              -- started, charged, done
) STRICT;

CREATE TABLE bookings (
	message_id TEXT    NOT NULL PRIMARY KEY, -- a message is booked once, whoever does it
	account    TEXT    NOT NULL,
	amount     INTEGER NOT NULL,
	booked_by  INTEGER NOT NULL              -- the token of who did, for the curious
) STRICT;

CREATE TABLE accounts (
	account TEXT    NOT NULL PRIMARY KEY,
	balance INTEGER NOT NULL                 -- no fence here: the row belongs to many messages
) STRICT;
`

// errLost: a newer holder has written. The message is not to be worked on any more.
var errLost = errors.New("a newer holder has the message")

// claim makes the row of a message the caller's, before the work, and tells how far an earlier holder came: after
// "done" only the ack is missing. From here on every older holder is refused.
func claim(ctx context.Context, db *sql.DB, messageID string, fence uint64) (state string, err error) {
	err = db.QueryRowContext(ctx, `
		INSERT INTO payments (message_id, fence, state) VALUES (?, ?, 'started')
		ON CONFLICT (message_id) DO UPDATE SET fence = excluded.fence
			WHERE payments.fence <= excluded.fence
		RETURNING state`, messageID, fence).Scan(&state)
	if errors.Is(err, sql.ErrNoRows) {
		return "", errLost
	}
	return state, err
}

// write sets the state of a claimed message and has the effect, if there is one: both, or none.
func write(ctx context.Context, db *sql.DB, messageID string, fence uint64, state string, effect func(*sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // without effect after the commit

	result, err := tx.ExecContext(ctx, `
		UPDATE payments SET fence = ?, state = ?
		WHERE message_id = ? AND fence <= ?`, fence, state, messageID, fence)
	if err != nil {
		return err
	}
	rows, err := result.RowsAffected()
	if err != nil {
		return err
	}
	if rows == 0 {
		return errLost
	}
	if effect != nil {
		if err := effect(tx); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// finish is the last write. The ack comes after it: what is acked before is lost if the holder dies between the two.
func finish(ctx context.Context, db *sql.DB, messageID string, fence uint64) error {
	return write(ctx, db, messageID, fence, "done", nil)
}

// book is the effect of a payment, for write. It tells whether this call booked it; if not, an earlier holder had.
func book(ctx context.Context, tx *sql.Tx, messageID string, fence uint64, p payment) (booked bool, err error) {
	result, err := tx.ExecContext(ctx, `
		INSERT INTO bookings (message_id, account, amount, booked_by) VALUES (?, ?, ?, ?)
		ON CONFLICT (message_id) DO NOTHING`, messageID, p.Account, p.Amount, fence)
	if err != nil {
		return false, err
	}
	if rows, err := result.RowsAffected(); err != nil || rows == 0 {
		return false, err
	}
	_, err = tx.ExecContext(ctx, `
		UPDATE accounts SET balance = balance - ? WHERE account = ?`, p.Amount, p.Account)
	return err == nil, err
}
