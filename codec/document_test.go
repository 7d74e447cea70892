package codec

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"unicode"
)

const formatDocument = "../docs/FORMAT.md"

// documented are the payloads and rows whose layouts docs/FORMAT.md lists, in its order. Where a layout is not the fields
// of its struct in their order, lines says it.
var documented = []struct {
	name  string
	value any
	lines []string
}{
	{name: "TOPIC, type 32", value: Topic{}},
	{name: "GROUP, type 33", value: Group{}},
	{name: "SUBSCRIBE, type 34", value: Subscribe{}},
	{name: "RETAIN, type 35", value: Retain{}},
	{name: "GRANT, type 48", value: Grant{}},
	{name: "SETTLE, type 49", value: Settle{}},
	{name: "CHANGE, type 50", value: Change{}},
	{name: "EXPIRE, type 51", value: Expire{}},
	{name: "UNREADABLE, type 52", value: Unreadable{}},
	{name: "SESSION_START, type 64", value: SessionStart{}},
	{name: "SESSION_END, type 65", value: SessionEnd{}},
	{name: "row 1, STATE", value: StateRow{}},
	{name: "row 2, EPOCH", value: EpochRow{}},
	{name: "row 3, TOPIC", value: TopicRow{}},
	{name: "row 4, COPY", value: CopyRow{}},
	{name: "row 5, GROUP", value: GroupRow{}},
	{name: "row 6, SESSION", value: SessionRow{}},
	{name: "row 7, SUBSCRIPTION", value: SubscriptionRow{}},
	{name: "row 8, CURSOR", value: CursorRow{}},
	{name: "row 9, MESSAGE", value: MessageRow{}},
	{name: "row 10, MEMORY; row 12, READY", value: MemoryRow{}},
	{name: "row 11, POP_MARK", value: PopMarkRow{}},
	{name: "row 32, PRODUCER", value: ProducerRow{}},
	{name: "row 33, SEQUENCES", lines: []string{
		"u64 producer", "u64 first", "i64 newest ms", "i64 queued ms", "u16 known", "place for each bit of known: u16 queue, u32 epoch, u64 offset, u64 position",
	}},
	{name: "row 34, UNIQUE_KEY", value: UniqueKeyRow{}},
}

// words is a field's name as the document has it.
func words(name string) string {
	var b strings.Builder
	for i, r := range name {
		if unicode.IsUpper(r) && i > 0 && (!unicode.IsUpper(rune(name[i-1])) || i+1 < len(name) && unicode.IsLower(rune(name[i+1]))) {
			b.WriteByte(' ')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// layoutLines are the fields of a struct as they follow each other on the disk.
func layoutLines(t reflect.Type) (lines []string) {
	for i := range t.NumField() {
		f := t.Field(i)
		name := words(f.Name)
		switch f.Type.Kind() {
		case reflect.Struct:
			lines = append(lines, layoutLines(f.Type)...)
		case reflect.Slice:
			switch f.Type.Elem().Kind() {
			case reflect.Uint8:
				lines = append(lines, "short "+name)
			case reflect.Struct:
				lines = append(lines, fmt.Sprintf("list %s: %s", name, strings.Join(layoutLines(f.Type.Elem()), ", ")))
			default:
				lines = append(lines, fmt.Sprintf("list %s: %s", name, scalar(f.Type.Elem())))
			}
		case reflect.Array:
			if f.Type.Elem().Kind() == reflect.Uint8 {
				lines = append(lines, fmt.Sprintf("%d bytes %s", f.Type.Len(), name))
			} else {
				lines = append(lines, fmt.Sprintf("%d %s %s", f.Type.Len(), scalar(f.Type.Elem()), name))
			}
		default:
			lines = append(lines, scalar(f.Type)+" "+name)
		}
	}
	return lines
}

func scalar(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Uint8:
		return "u8"
	case reflect.Uint16:
		return "u16"
	case reflect.Uint32:
		return "u32"
	case reflect.Uint64:
		return "u64"
	case reflect.Int64:
		return "i64"
	case reflect.Bool:
		return "bool"
	}
	panic("codec: no word for " + t.String())
}

const (
	layoutsBegin = "<!-- layouts: written by go test ./codec -update -->\n"
	layoutsEnd   = "<!-- end of layouts -->\n"
)

// TestDocumentHasEveryLayout: docs/FORMAT.md lists the fields of every record of state and of every row, as they are.
func TestDocumentHasEveryLayout(t *testing.T) {
	var want strings.Builder
	for _, d := range documented {
		lines := d.lines
		if d.value != nil {
			lines = layoutLines(reflect.TypeOf(d.value))
		}
		fmt.Fprintf(&want, "\n%s\n\n```\n%s\n```\n", d.name, strings.Join(lines, "\n"))
	}
	want.WriteString("\n")
	text, err := os.ReadFile(formatDocument)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), layoutsBegin)
	have, after, ended := strings.Cut(rest, layoutsEnd)
	if !ok || !ended {
		t.Fatalf("%s has no place for the layouts", formatDocument)
	}
	if *update {
		have = want.String()
		if err := os.WriteFile(formatDocument, []byte(before+layoutsBegin+have+layoutsEnd+after), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if have != want.String() {
		t.Errorf("the layouts in %s are not those of the code; -update writes them:\n%s", formatDocument, want.String())
	}
}

// TestLayoutsAreTheFieldsInTheirOrder: what the document says of a layout is how long its encoding is.
func TestLayoutsAreTheFieldsInTheirOrder(t *testing.T) {
	size := map[string]int{"u8": 1, "u16": 2, "u32": 4, "u64": 8, "i64": 8, "bool": 1, "short": 1, "list": 4}
	for _, d := range documented {
		if d.value == nil {
			continue
		}
		n := 0
		for _, line := range layoutLines(reflect.TypeOf(d.value)) {
			word, rest, _ := strings.Cut(line, " ")
			count := 0
			if _, err := fmt.Sscan(word, &count); err == nil { // an array
				unit, _, _ := strings.Cut(rest, " ")
				n += count * max(size[unit], 1)
				continue
			}
			n += size[word]
		}
		empty := reflect.New(reflect.TypeOf(d.value)).Interface().(stateRecord).Append(nil)
		if len(empty) != n {
			t.Errorf("%s: %d bytes when empty, by its layout %d", d.name, len(empty), n)
		}
	}
}
