package native_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/libsemantic/libsemantic/go_example/native"

	// Importing registers nothing: the tests here see every package of the module.
	_ "github.com/libsemantic/libsemantic/go_example/cmd/load/generate"
	_ "github.com/libsemantic/libsemantic/go_example/internal/program"
	_ "github.com/libsemantic/libsemantic/go_example/native/assembly"
	_ "github.com/libsemantic/libsemantic/go_example/native/libsemantic"
	_ "github.com/libsemantic/libsemantic/go_example/semantic"
	_ "github.com/libsemantic/libsemantic/go_example/semantic/metrics"
)

const (
	moduleRoot = ".."
	modulePath = "github.com/libsemantic/libsemantic/go_example"
)

func TestImportingThePackagesRegistersNothing(t *testing.T) {
	if got := new(native.AdapterRegistry).List(); len(got) != 0 {
		t.Errorf("a fresh registry has %q", got)
	}
	imported := map[string]bool{}
	for name, file := range sources(t) {
		if name == "native/module_test.go" {
			for _, spec := range file.Imports {
				imported[strings.Trim(spec.Path.Value, `"`)] = true
			}
		}
	}
	for name, file := range sources(t) {
		if file.Name.Name != "main" && !imported[path.Join(modulePath, path.Dir(name))] {
			t.Errorf("this test does not import the package of %s", name)
		}
	}
}

func TestNoPackageRegistersItself(t *testing.T) {
	for name, file := range sources(t) {
		test := strings.HasSuffix(name, "_test.go")
		for _, declaration := range file.Decls {
			d, ok := declaration.(*ast.FuncDecl)
			if ok && d.Recv == nil && d.Name.Name == "init" && (!test || mentions(d, "Register")) {
				t.Errorf("%s has an init function", name)
			}
		}
	}
}

func mentions(node ast.Node, names ...string) (found bool) {
	ast.Inspect(node, func(n ast.Node) bool {
		if identifier, ok := n.(*ast.Ident); ok {
			for _, name := range names {
				found = found || identifier.Name == name
			}
		}
		return !found
	})
	return found
}

// The contract knows no backend, so that every backend can import it.
func TestTheContractImportsNoBackend(t *testing.T) {
	for name, file := range sources(t) {
		if path.Dir(name) != "native" || strings.HasSuffix(name, "_test.go") {
			continue
		}
		for _, spec := range file.Imports {
			if p, err := strconv.Unquote(spec.Path.Value); err != nil || strings.Contains(p, ".") || p == "C" {
				t.Errorf("%s imports %s", name, spec.Path.Value)
			}
		}
	}
}

// sources parses the Go files of the module, by their path in it.
func sources(t *testing.T) map[string]*ast.File {
	t.Helper()
	out := map[string]*ast.File{}
	err := filepath.WalkDir(moduleRoot, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(file) != ".go" {
			return err
		}
		name, err := filepath.Rel(moduleRoot, file)
		if err != nil {
			return err
		}
		out[filepath.ToSlash(name)], err = parser.ParseFile(token.NewFileSet(), file, nil, 0)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out) < 10 {
		t.Fatalf("only %d files in the module", len(out))
	}
	return out
}
