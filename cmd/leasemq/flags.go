package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// choice is a flag that takes one of a few words.
type choice struct {
	value string
	from  []string
}

// oneOf makes a choice; the first word is the default.
func oneOf(words ...string) choice { return choice{words[0], words} }

func (c *choice) word() *word        { return &word{&c.value, c.from} }
func (c *choice) String() string     { return c.value }
func (c *choice) Type() string       { return c.word().Type() }
func (c *choice) Set(s string) error { return c.word().Set(s) }

// word is a choice whose value lies elsewhere.
type word struct {
	value *string
	from  []string
}

func (w *word) String() string { return *w.value }
func (w *word) Type() string   { return strings.Join(w.from, "|") }

func (w *word) Set(s string) error {
	if !slices.Contains(w.from, s) {
		return fmt.Errorf("one of %s is needed", strings.Join(w.from, ", "))
	}
	*w.value = s
	return nil
}

// byteSize is a flag that takes a number of bytes, as 67108864, 64MiB or 64M (the units are powers of 1,024).
type byteSize int64

var byteUnits = []struct {
	name string
	size int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"G", 1 << 30}, {"M", 1 << 20}, {"K", 1 << 10}, {"B", 1}}

func (b *byteSize) Type() string { return "SIZE" }

func (b *byteSize) String() string {
	for _, u := range byteUnits[:3] {
		if *b != 0 && int64(*b)%u.size == 0 {
			return strconv.FormatInt(int64(*b)/u.size, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(*b), 10)
}

func (b *byteSize) Set(s string) error {
	number, unit := s, int64(1)
	for _, u := range byteUnits {
		if rest, found := strings.CutSuffix(s, u.name); found {
			number, unit = rest, u.size
			break
		}
	}
	n, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64/unit {
		return fmt.Errorf("a size like 1048576, 64KiB, 256MiB or 1GiB is needed")
	}
	*b = byteSize(n * unit)
	return nil
}
