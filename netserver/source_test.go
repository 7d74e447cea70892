package netserver

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strings"
	"testing"
)

// sources parses the files of the package that are not tests.
func sources(t *testing.T) map[string]*ast.File {
	t.Helper()
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string]*ast.File)
	for _, e := range entries {
		if name := e.Name(); strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") {
			f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			files[name] = f
		}
	}
	return files
}

// There is one way to write to a connection, the one with the latch. A vector of more than 1,024 slices closes a
// connection, ReadFrom stalls it, and AsyncWrite passes by the latch: none of them is used.
func TestOnlyTheSocketWrites(t *testing.T) {
	banned := []string{"Write", "Writev", "AsyncWrite", "AsyncWritev", "ReadFrom", "SendTo", "Flush", "WriteTo", "Wake"}
	var found []string
	for name, file := range sources(t) {
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !slices.Contains(banned, sel.Sel.Name) {
				return true
			}
			if on, ok := sel.X.(*ast.SelectorExpr); ok && on.Sel.Name == "handler" {
				return true // Handler.Flush
			}
			found = append(found, name+": "+sel.Sel.Name)
			return true
		})
	}
	if !slices.Equal(found, []string{"socket.go: Write"}) {
		t.Errorf("calls that write: %q, want the one in socket.go", found)
	}
}

// The dispatcher knows no gnet type, so that another front can feed it.
func TestOnlyTheGlueKnowsGnet(t *testing.T) {
	var found []string
	for name, file := range sources(t) {
		for _, imp := range file.Imports {
			if strings.Contains(imp.Path.Value, "gnet") {
				found = append(found, name)
			}
		}
	}
	slices.Sort(found)
	if want := []string{"engine.go", "socket.go"}; !slices.Equal(found, want) {
		t.Errorf("gnet is imported by %q, want %q", found, want)
	}
}
