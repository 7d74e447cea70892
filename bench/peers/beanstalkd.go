package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

type beanstalkd struct{}

func (beanstalkd) name() string           { return "beanstalkd" }
func (beanstalkd) missing() string        { return installed("beanstalkd", "beanstalkd") }
func (beanstalkd) version() string        { return firstLine("beanstalkd", "-v") }
func (beanstalkd) ways(workload) []string { return []string{"pipelined"} }

func (beanstalkd) warms() bool { return false }

func (beanstalkd) install(ctx context.Context) error { return aptInstall(ctx, "beanstalkd") }

func (beanstalkd) durability(flushed bool) string {
	if flushed {
		return "before the answer"
	}
	return "every 50 ms"
}

// start runs beanstalkd with its log: synced every 50 ms, its default, or at each write. A job is answered before the sync of the
// default, and deletes are written without one.
func (beanstalkd) start(ctx context.Context, dir string, flushed bool) (broker, error) {
	addr, port, err := freeAddr()
	if err != nil {
		return nil, err
	}
	policy := "-f50"
	if flushed {
		policy = "-f0"
	}
	p, err := launch(ctx, addr, nil, "beanstalkd", "-l", "127.0.0.1", "-p", fmt.Sprint(port), "-b", dir, policy)
	if err != nil {
		return nil, err
	}
	return &beanRunning{p, addr}, nil
}

type beanRunning struct {
	*process
	addr string
}

func (r *beanRunning) prepare(context.Context, string) error { return nil } // a tube is made by its first use

// left adds up the states of the tube's jobs.
func (r *beanRunning) left(_ context.Context, queue string) (n int64, ok bool, err error) {
	b, err := r.dial("use", queue, "USING")
	if err != nil {
		return 0, true, err
	}
	defer b.close()
	fmt.Fprintf(b.out, "stats-tube %s\r\n", queue)
	if err := b.out.Flush(); err != nil {
		return 0, true, err
	}
	size, err := b.expect("OK")
	if err != nil {
		return 0, true, err
	}
	length, err := strconv.Atoi(size)
	if err != nil {
		return 0, true, fmt.Errorf("beanstalkd: stats-tube: %w", err)
	}
	stats := make([]byte, length)
	if _, err := io.ReadFull(b.in, stats); err != nil {
		return 0, true, err
	}
	for line := range strings.Lines(string(stats)) {
		switch key, value, _ := strings.Cut(strings.TrimSpace(line), ": "); key {
		case "current-jobs-ready", "current-jobs-reserved", "current-jobs-delayed", "current-jobs-buried":
			count, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				return 0, true, fmt.Errorf("beanstalkd: %s: %w", key, err)
			}
			n += count
		}
	}
	return n, true, nil
}

// beanConn speaks beanstalkd's protocol (protocol.txt of its sources), pipelined: no client that is kept does that.
type beanConn struct {
	net net.Conn
	in  *bufio.Reader
	out *bufio.Writer

	posted int // puts that are not confirmed
}

func (r *beanRunning) dial(command, tube, want string) (*beanConn, error) {
	c, err := net.Dial("tcp", r.addr)
	if err != nil {
		return nil, err
	}
	b := &beanConn{net: c, in: bufio.NewReaderSize(c, 256<<10), out: bufio.NewWriterSize(c, 256<<10)}
	fmt.Fprintf(b.out, "%s %s\r\n", command, tube)
	b.out.Flush()
	_, err = b.expect(want)
	return b, err
}

// expect reads a line that begins with word and returns the rest of it.
func (b *beanConn) expect(word string) (rest string, err error) {
	line, err := b.in.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimSuffix(line, "\r\n")
	rest, ok := strings.CutPrefix(line, word)
	if !ok {
		return "", fmt.Errorf("beanstalkd: %q where %q was expected", line, word)
	}
	return strings.TrimSpace(rest), nil
}

func (b *beanConn) close() { b.net.Close() }

func (r *beanRunning) producer(_ context.Context, queue, _ string) (producer, error) {
	return r.dial("use", queue, "USING")
}

func (b *beanConn) put(body []byte) {
	b.out.WriteString("put 0 0 300 ")
	b.out.WriteString(strconv.Itoa(len(body)))
	b.out.WriteString("\r\n")
	b.out.Write(body)
	b.out.WriteString("\r\n")
	b.posted++
}

func (b *beanConn) post(bodies [][]byte) error {
	for _, body := range bodies {
		b.put(body)
	}
	if err := b.out.Flush(); err != nil {
		return err
	}
	return b.confirm(postWindow - postBatch)
}

// confirm reads answers until at most so many are missing.
func (b *beanConn) confirm(most int) error {
	for b.posted > most {
		if _, err := b.expect("INSERTED"); err != nil {
			return err
		}
		b.posted--
	}
	return nil
}

func (b *beanConn) flush() error { return b.confirm(0) }

func (b *beanConn) one(body []byte) error {
	b.put(body)
	if err := b.out.Flush(); err != nil {
		return err
	}
	return b.confirm(0)
}

type beanConsumer struct{ *beanConn }

func (r *beanRunning) consumer(_ context.Context, queue, _ string) (consumer, error) {
	b, err := r.dial("watch", queue, "WATCHING")
	return &beanConsumer{b}, err
}

// drain sends the deletes of a batch together with the reserves of the next one. A reserve waits on the server for 1 s at most,
// and the ones behind it wait for it. It makes twice as many reserves as got a job before: one that gets none costs as much.
func (c *beanConsumer) drain(ctx context.Context, take func([]byte)) error {
	var done []string
	for ctx.Err() == nil {
		for _, id := range done {
			fmt.Fprintf(c.out, "delete %s\r\n", id)
		}
		reserves := min(max(1, 2*len(done)), takeBatch)
		c.out.WriteString("reserve-with-timeout 1\r\n")
		for range reserves - 1 {
			c.out.WriteString("reserve-with-timeout 0\r\n")
		}
		if err := c.out.Flush(); err != nil {
			return err
		}
		c.net.SetReadDeadline(time.Now().Add(time.Minute))
		for range done {
			if _, err := c.expect("DELETED"); err != nil {
				return err
			}
		}
		done = done[:0]
		for range reserves {
			id, body, err := c.reserved()
			if err != nil {
				return err
			}
			if id != "" {
				take(body)
				done = append(done, id)
			}
		}
	}
	for _, id := range done {
		fmt.Fprintf(c.out, "delete %s\r\n", id)
	}
	if err := c.out.Flush(); err != nil {
		return err
	}
	for range done {
		if _, err := c.expect("DELETED"); err != nil {
			return err
		}
	}
	return nil
}

// reserved reads the answer of a reserve; id is empty when its time was over.
func (c *beanConsumer) reserved() (id string, body []byte, err error) {
	line, err := c.in.ReadString('\n')
	if err != nil {
		return "", nil, err
	}
	if line == "TIMED_OUT\r\n" {
		return "", nil, nil
	}
	var n int
	if _, err := fmt.Sscanf(line, "RESERVED %s %d\r\n", &id, &n); err != nil {
		return "", nil, fmt.Errorf("beanstalkd: %q: %w", line, err)
	}
	body = make([]byte, n+2)
	if _, err := io.ReadFull(c.in, body); err != nil {
		return "", nil, err
	}
	return id, body[:n], nil
}
