package protocol

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The document is tested like code: its layout blocks are parsed and used, in place of the decoders, to take
// the golden vectors apart. What comes out must be what went into the vectors.

func document(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(documentFile)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

const vectorsBegin, vectorsEnd = "<!-- vectors: begin -->\n", "<!-- vectors: end -->"

// TestDocumentHasTheVectors: the vectors of the document are those of the file.
func TestDocumentHasTheVectors(t *testing.T) {
	text := document(t)
	before, rest, ok1 := strings.Cut(text, vectorsBegin)
	_, after, ok2 := strings.Cut(rest, vectorsEnd)
	if !ok1 || !ok2 {
		t.Fatal("the marks around the vectors are missing")
	}
	file, err := os.ReadFile(vectorsFile)
	if err != nil {
		t.Fatal(err)
	}
	want := before + vectorsBegin + "```\n" + string(file) + "```\n" + vectorsEnd + after
	if *update {
		if err := os.WriteFile(documentFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if text != want {
		t.Errorf("the vectors in %s are not those of %s; -update writes both", documentFile, vectorsFile)
	}
}

// TestDocumentHasEveryNumber: tables of opcodes, statuses and reasons are complete and say the same as the code.
func TestDocumentHasEveryNumber(t *testing.T) {
	text := document(t)
	want := func(line string) {
		if !strings.Contains(text, "\n"+line) {
			t.Errorf("missing: %s", line)
		}
	}
	for _, o := range Opcodes() {
		want(fmt.Sprintf("| 0x%02x | %s |", uint8(o), o))
	}
	for _, s := range Statuses() {
		want(fmt.Sprintf("| %d | %s | %s |\n", uint16(s), s, s.Advice()))
	}
	for _, r := range Reasons() {
		want(fmt.Sprintf("| %d | %s |", uint8(r), r))
	}
	for _, c := range []Cause{CauseRenew, CauseFailed, CausePostponed} {
		want(fmt.Sprintf("| %d | %s |", uint8(c), c))
	}
	for _, b := range []BackOff{BackOffExponential, BackOffNone, BackOffFixed, BackOffLevels} {
		want(fmt.Sprintf("| %d | %s |", uint8(b), b))
	}
}

// TestDocumentHasTheLimits: each limit of the code is that of the document.
func TestDocumentHasTheLimits(t *testing.T) {
	text := document(t)
	for what, limit := range map[string]string{
		"frame, header included":                                            fmt.Sprintf("%d bytes", MaxFrameBytes),
		"body of a message, as stored":                                      fmt.Sprintf("%d bytes", MaxBodyBytes),
		"messages in a SEND":                                                fmt.Sprint(MaxSendEntries),
		"entries in an ACK or CHANGE_INVISIBLE":                             fmt.Sprint(MaxAckEntries),
		"messages in a POP answer":                                          fmt.Sprint(MaxPopMessages),
		"record bytes in a POP answer, one message excepted":                fmt.Sprintf("%d bytes", MaxPopBytes),
		"messages in a PEEK answer":                                         fmt.Sprint(MaxPeekMessages),
		"filter tags":                                                       fmt.Sprint(MaxFilterTags),
		"name of a topic or a group":                                        fmt.Sprintf("%d bytes", MaxNameBytes),
		"tag, key, order key, unique key, consumer id, client info, reason": fmt.Sprintf("%d bytes", MaxFieldBytes),
		"checkpoint":                                                        fmt.Sprintf("%d bytes", MaxCheckpointBytes),
		"await time":                                                        fmt.Sprintf("%d ms", MaxAwaitMs),
		"invisible time, least":                                             fmt.Sprintf("%d ms", MinInvisibleMs),
		"invisible time, most":                                              fmt.Sprintf("%d ms", MaxInvisibleMs),
		"session timeout, least":                                            fmt.Sprintf("%d ms", MinSessionTimeoutMs),
		"session timeout, most":                                             fmt.Sprintf("%d ms", MaxSessionTimeoutMs),
		"heartbeat interval, least":                                         fmt.Sprintf("%d ms", MinHeartbeatMs),
		"hold of a group, least":                                            fmt.Sprintf("%d ms", MinHoldMs),
		"unique key time, most":                                             fmt.Sprintf("%d ms", MaxUniqueKeyMs),
		"pop slots":                                                         fmt.Sprintf("0 to %d", MaxPopSlot),
		"queues of a topic":                                                 fmt.Sprint(MaxQueuesPerTopic),
		"leases of a group on a queue":                                      fmt.Sprint(MaxInFlightPerQueue),
	} {
		if line := fmt.Sprintf("\n| %s | %s |\n", what, limit); !strings.Contains(text, line) {
			t.Errorf("missing: %s", strings.TrimSpace(line))
		}
	}
}

// layoutLine is one field of a layout block.
type layoutLine struct {
	entry  bool // a field of the entries of the list above
	offset int  // -1: depends on what came before
	kind   string
	field  string
}

var layoutRow = regexp.MustCompile(`^ *(\+?)(\d*)(-?) +(\S+)(?: +(.*))?$`)

// layouts parses the layout blocks of the document, by the names in their first lines.
func layouts(t *testing.T) map[string][]layoutLine {
	t.Helper()
	found := map[string][]layoutLine{}
	names := []string(nil)
	for line := range strings.Lines(document(t)) {
		line = strings.TrimSuffix(line, "\n")
		if info, ok := strings.CutPrefix(line, "```layout "); ok {
			names = strings.Split(info, ", ")
			for _, name := range names {
				if _, twice := found[name]; twice {
					t.Errorf("two layouts of %s", name)
				}
				found[name] = []layoutLine{}
			}
			continue
		}
		if strings.HasPrefix(line, "```") {
			names = nil
		}
		if names == nil || line == "empty" {
			continue
		}
		m := layoutRow.FindStringSubmatch(line)
		if m == nil {
			t.Fatalf("%s: not a line of a layout: %q", names[0], line)
		}
		field, _, _ := strings.Cut(m[5], "  ")
		l := layoutLine{entry: m[1] == "+", offset: -1, kind: m[4], field: field}
		if m[2] != "" {
			l.offset, _ = strconv.Atoi(m[2])
		}
		for _, name := range names {
			found[name] = append(found[name], l)
		}
	}
	return found
}

// walker takes bytes apart by a layout and notes every field under the name that describe gives it.
type walker struct {
	t       *testing.T
	layouts map[string][]layoutLine
	what    string
	b       []byte
	at      int
	values  map[string][]string // more than one way to write a value
}

func (w *walker) take(n int) []byte {
	if w.at+n > len(w.b) {
		w.t.Fatalf("%s: the layout wants %d bytes at %d of %d", w.what, n, w.at, len(w.b))
	}
	w.at += n
	return w.b[w.at-n : w.at]
}

func (w *walker) number(n int) uint64 {
	var b [8]byte
	copy(b[:], w.take(n))
	return binary.LittleEndian.Uint64(b[:])
}

func (w *walker) note(name string, values ...string) {
	if w.values[name] != nil {
		w.t.Errorf("%s: two fields are called %q", w.what, name)
	}
	w.values[name] = values
}

func (w *walker) noteBytes(name string, b []byte) {
	w.note(name, fmt.Sprintf("bytes 0x%x", b), strconv.Quote(string(b)))
}

// walk follows lines; the offsets they state count from base.
func (w *walker) walk(lines []layoutLine, prefix string, base int) {
	list := ""
	rows := 0
	for i := 0; i < len(lines); i++ {
		l := lines[i]
		if l.offset >= 0 && l.offset != w.at-base {
			w.t.Errorf("%s: %s%s is said to be at %d and lies at %d", w.what, prefix, l.field, l.offset, w.at-base)
		}
		name := prefix + l.field
		switch l.kind {
		case "u8", "u16", "u32", "u64":
			size, _ := strconv.Atoi(l.kind[1:])
			w.note(name, fmt.Sprint(w.number(size/8)))
		case "i32":
			w.note(name, fmt.Sprint(int32(w.number(4))))
		case "bool":
			w.note(name, fmt.Sprint(w.number(1) == 1))
		case "zero":
			if w.number(1) != 0 {
				w.t.Errorf("%s: the byte at %d is not zero", w.what, w.at-1)
			}
		case "bytes16":
			w.noteBytes(name, w.take(16))
		case "bytes80":
			w.noteBytes(name, w.take(80))
		case "short":
			w.noteBytes(name, w.take(int(w.number(1))))
		case "medium":
			w.noteBytes(name, w.take(int(w.number(2))))
		case "long":
			w.noteBytes(name, w.take(int(w.number(4))))
		case "rules":
			w.walk(w.layouts["rules"], prefix+"rules ", w.at)
		case "rest":
			// Strings of the rows of the list before, whose lengths stand in the rows.
			for row := range rows {
				entry := fmt.Sprintf("%s[%d] %s", list, row, l.field)
				n, _ := strconv.Atoi(w.values[entry+" length"][0])
				w.noteBytes(entry, w.take(n))
			}
		case "list":
			entries := lines[i+1:]
			if end := slices.IndexFunc(entries, func(l layoutLine) bool { return !l.entry }); end >= 0 {
				entries = entries[:end]
			}
			list, rows = name, int(w.number(4))
			w.note(name+" count", fmt.Sprint(rows))
			for row := range rows {
				entryPrefix := fmt.Sprintf("%s[%d] ", name, row)
				if len(entries) == 1 {
					w.walkSingle(entries[0], fmt.Sprintf("%s[%d]", name, row))
					continue
				}
				w.walk(entries, entryPrefix, w.at)
			}
			i += len(entries)
		default:
			w.t.Fatalf("%s: unknown type %q of %s", w.what, l.kind, l.field)
		}
	}
}

// walkSingle reads an entry that is nothing but one string.
func (w *walker) walkSingle(l layoutLine, name string) {
	l.field = ""
	w.walk([]layoutLine{l}, name, w.at)
}

// TestDocumentIsEnough takes every vector apart by the document alone.
func TestDocumentIsEnough(t *testing.T) {
	all := layouts(t)
	frames := readVectors(t)
	used := map[string]bool{"rules": true, "record header": true, "message place": true, "frame header": true}
	for _, v := range vectors() {
		layout := strings.Replace(v.name, "empty ", "", 1)
		if v.header.Status != OK && v.header.Status != Empty {
			layout = "error body"
		}
		lines, ok := all[layout]
		if !ok {
			t.Errorf("%s: no layout", v.name)
			continue
		}
		used[layout] = true
		frame := frames[v.name]
		w := &walker{t, all, v.name, frame, 0, map[string][]string{}}
		w.walk(all["frame header"], "header ", 0)
		if w.at != HeaderBytes {
			t.Fatalf("the layout of the header has %d bytes", w.at)
		}
		w.what = v.name + " body"
		w.b, w.at = frame[HeaderBytes:], 0
		w.walk(lines, "", 0)
		if w.at != len(w.b) {
			t.Errorf("%s: the layout ends at %d of %d bytes", v.name, w.at, len(w.b))
		}
		compareWithDescription(t, v, w.values)
	}
	for name := range all {
		if !used[name] {
			t.Errorf("the layout of %s is used by no vector", name)
		}
	}
}

// compareWithDescription checks the values that the document's layout found against those that the vector
// was made of.
func compareWithDescription(t *testing.T, v vector, values map[string][]string) {
	described := map[string]bool{}
	for line := range strings.Lines(v.text()) {
		line, isField := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "# ")
		name, value, ok := strings.Cut(line, " = ")
		if !ok {
			name, value, ok = strings.Cut(line, ": ")
			name += " count"
		}
		if !isField || !ok {
			continue
		}
		described[name] = true
		got := values[name]
		number, _, _ := strings.Cut(value, " ")
		if !slices.Contains(got, value) && !slices.Contains(got, number) {
			t.Errorf("%s: %s is %s, by the document %q", v.name, name, value, got)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if !described[name] && !strings.HasPrefix(name, "header ") && !strings.HasSuffix(name, "checkpoint length") {
			t.Errorf("%s: the document has %s, the code does not", v.name, name)
		}
	}
}

// TestDocumentedRecord: the layout of records fits the record in the POP vector.
func TestDocumentedRecord(t *testing.T) {
	var answer PopAnswer
	if err := answer.Decode(readVectors(t)["POP answer"][HeaderBytes:]); err != nil {
		t.Fatal(err)
	}
	record := answer.Record(0)
	all := layouts(t)
	w := &walker{t, all, "record", record, 0, map[string][]string{}}
	w.walk(all["record header"], "", 0)
	place := all["message place"]
	if last := place[len(place)-1]; last.offset != 104 {
		t.Fatalf("the message is said to begin at %d", last.offset)
	}
	w.walk(place[:len(place)-1], "place ", 0)
	if w.at != 104 {
		t.Errorf("the layout says that the message begins at %d", w.at)
	}
	for name, want := range map[string]uint64{
		"length": uint64(len(record)), "type": 16, "epoch": vectorEpoch, "position": vectorPosition, "wall ms": 1_700_000_000_000,
		"place topic": 3, "place queue": 5, "place offset": 41, "place tag hash": vectorTagHash,
	} {
		if got := w.values[name]; len(got) == 0 || got[0] != fmt.Sprint(want) {
			t.Errorf("%s is %q, want %d", name, got, want)
		}
	}
	if !bytes.Equal(record[w.at:], vectorPayload()) {
		t.Error("what follows is not the message")
	}
}
