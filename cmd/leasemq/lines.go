package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
)

// lineReader cuts its input into lines, byte for byte: a line is what stands before a newline, and what stands behind
// the last one, unless that is nothing.
type lineReader struct {
	from *bufio.Reader
	most int // bytes of a line
	long []byte
	line int // number of the line that was returned last, from 1
}

func newLineReader(from io.Reader, most int) *lineReader {
	return &lineReader{from: bufio.NewReaderSize(from, 256<<10), most: most}
}

// next returns a line without its newline; it stays good until the next call. io.EOF: there is no more.
func (r *lineReader) next() ([]byte, error) {
	r.line++
	part, err := r.from.ReadSlice('\n')
	if err == nil {
		return part[:len(part)-1], r.check(len(part) - 1)
	}
	r.long = r.long[:0]
	for errors.Is(err, bufio.ErrBufferFull) {
		r.long = append(r.long, part...)
		if err := r.check(len(r.long)); err != nil {
			return nil, err
		}
		part, err = r.from.ReadSlice('\n')
	}
	r.long = append(r.long, part...)
	switch {
	case err == nil:
		r.long = r.long[:len(r.long)-1]
	case !errors.Is(err, io.EOF):
		return nil, fmt.Errorf("line %d: %w", r.line, err)
	case len(r.long) == 0:
		r.line--
		return nil, io.EOF
	}
	return r.long, r.check(len(r.long))
}

func (r *lineReader) check(n int) error {
	if n > r.most {
		return fmt.Errorf("line %d is longer than %d bytes", r.line, r.most)
	}
	return nil
}
