package main

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

func TestLines(t *testing.T) {
	long := strings.Repeat("0123456789", 60_000) // longer than the reader's buffer
	for _, c := range []struct {
		input string
		want  []string
	}{
		{"", nil},
		{"\n", []string{""}},
		{"\n\n", []string{"", ""}},
		{"a", []string{"a"}},
		{"a\n", []string{"a"}},
		{"a\r\nb", []string{"a\r", "b"}},
		{"\x00\xff\n\n\n c ", []string{"\x00\xff", "", "", " c "}},
		{long + "\n" + long, []string{long, long}},
		{long + "\n\n", []string{long, ""}},
	} {
		for name, from := range map[string]io.Reader{
			"whole": strings.NewReader(c.input), "in pieces": iotest.HalfReader(strings.NewReader(c.input)),
			"end with data": iotest.DataErrReader(strings.NewReader(c.input)),
		} {
			r := newLineReader(from, 1<<20)
			var got []string
			for {
				line, err := r.next()
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, string(line))
			}
			if !slices.Equal(got, c.want) || r.line != len(c.want) {
				t.Errorf("%.20q read %s: %d lines, the last has number %d, want %d", c.input, name, len(got), r.line, len(c.want))
			}
		}
	}
}

func TestLinesHaveALimit(t *testing.T) {
	const most = 300 << 10
	for _, c := range []struct {
		input string
		line  string
	}{
		{"a\n" + strings.Repeat("x", most+1) + "\n", "line 2 is longer"},
		{strings.Repeat("x", most+1), "line 1 is longer"},
		{"\n" + strings.Repeat("x", 10*most), "line 2 is longer"},
	} {
		r := newLineReader(strings.NewReader(c.input), most)
		var err error
		for err == nil {
			_, err = r.next()
		}
		if !strings.Contains(err.Error(), c.line) {
			t.Errorf("got %v, want %s", err, c.line)
		}
	}
	r := newLineReader(strings.NewReader(strings.Repeat("x", most)+"\n"), most)
	if line, err := r.next(); err != nil || len(line) != most {
		t.Errorf("a line of the longest length: %d bytes, %v", len(line), err)
	}
}

func TestLinesTellOfAnInputThatBreaks(t *testing.T) {
	broken := errors.New("the cable was pulled")
	r := newLineReader(io.MultiReader(strings.NewReader("a\nhalf a li"), iotest.ErrReader(broken)), 1<<20)
	if line, err := r.next(); err != nil || string(line) != "a" {
		t.Fatalf("%q, %v", line, err)
	}
	if _, err := r.next(); !errors.Is(err, broken) || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("got %v: half a line must not pass for a whole one", err)
	}
}

func TestByteSize(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "65536": 65536, "64KiB": 64 << 10, "64K": 64 << 10, "256MiB": 256 << 20, "1G": 1 << 30, "10B": 10,
	} {
		var b byteSize
		if err := b.Set(text); err != nil || int64(b) != want {
			t.Errorf("%s is %d, %v", text, int64(b), err)
		}
	}
	for _, text := range []string{"", "x", "-1", "1.5MiB", "1TiB", "9223372036854775807KiB", "MiB"} {
		var b byteSize
		if err := b.Set(text); err == nil {
			t.Errorf("%q passes for %d bytes", text, int64(b))
		}
	}
	for size, want := range map[byteSize]string{256 << 20: "256MiB", 1 << 30: "1GiB", 1000: "1000", 0: "0"} {
		if got := size.String(); got != want {
			t.Errorf("%d prints as %s", int64(size), got)
		}
	}
}
