package main

import (
	"os"
	"strings"
	"testing"
)

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// codeBlocks are the fenced blocks of a language in a Markdown text.
func codeBlocks(text, language string) []string {
	var blocks []string
	for _, part := range strings.Split(text, "\n```"+language+"\n")[1:] {
		block, _, _ := strings.Cut(part, "\n```")
		blocks = append(blocks, block+"\n")
	}
	return blocks
}

// The Go example of the README is from the program that is compiled.
func TestReadmeExampleIsTheProgram(t *testing.T) {
	program := read(t, "../../examples/worker/main.go")
	blocks := codeBlocks(read(t, "../../README.md"), "go")
	if len(blocks) != 1 || !strings.HasSuffix(program, blocks[0]) || !strings.HasPrefix(blocks[0], "func main() {\n") {
		t.Error("README.md and examples/worker/main.go differ")
	}
}

// Every leasemq command in the README exists and knows its flags.
func TestReadmeCommandsExist(t *testing.T) {
	commands := 0
	for _, block := range codeBlocks(read(t, "../../README.md"), "sh") {
		for _, line := range strings.Split(block, "\n") {
			line, _, _ = strings.Cut(line, "#")
			_, line, found := strings.Cut(line, "leasemq ")
			if !found {
				continue
			}
			commands++
			command, rest, err := (&app{}).rootCommand().Find(strings.Fields(line))
			if err == nil {
				err = command.ParseFlags(rest)
			}
			if err == nil {
				err = command.ValidateArgs(command.Flags().Args())
			}
			if err != nil {
				t.Errorf("leasemq %s: %v", line, err)
			}
		}
	}
	if commands < 8 {
		t.Errorf("only %d commands were found in the README", commands)
	}
}

// The exit codes are the same in the help text and in the README.
func TestExitCodesAreDocumented(t *testing.T) {
	readme := read(t, "../../README.md")
	for code, words := range map[string]string{
		"0": "done", "1": "an error; standard error says which", "2": "the command line is wrong",
		"3": "the store failed", "4": "outcome unknown: the connection was lost before the answer came",
	} {
		if !strings.Contains(exitHelp, "\n  "+code+"  "+words) {
			t.Errorf("the help text does not say %q of %s", words, code)
		}
		if !strings.Contains(readme, "\n| "+code+" | "+words) {
			t.Errorf("the README does not say %q of %s", words, code)
		}
	}
}
