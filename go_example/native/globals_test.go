package native_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/build"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A checker type-checks the packages of the module as they are built with or without cgo.
type checker struct {
	cgo      bool
	files    *token.FileSet
	others   types.Importer // of the standard library and of other modules
	packages map[string]*checked
}

type checked struct {
	*types.Package
	info *types.Info
}

func newChecker(t *testing.T, cgo bool) *checker {
	t.Helper()
	list := exec.Command("go", "list", "-deps", "-export", "-f", "{{.ImportPath}} {{.Export}}", "./...")
	list.Dir = moduleRoot
	output, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	compiled := map[string]string{}
	for _, line := range strings.Split(string(output), "\n") {
		name, file, _ := strings.Cut(line, " ")
		compiled[name] = file
	}
	open := func(name string) (io.ReadCloser, error) { return os.Open(compiled[name]) }
	files := token.NewFileSet()
	return &checker{cgo, files, importer.ForCompiler(files, "gc", open), map[string]*checked{}}
}

// Import implements types.Importer.
func (c *checker) Import(path string) (*types.Package, error) {
	if path != modulePath && !strings.HasPrefix(path, modulePath+"/") {
		return c.others.Import(path)
	}
	if c.packages[path] == nil {
		context := build.Default
		context.CgoEnabled = c.cgo
		folder := filepath.Join(moduleRoot, strings.TrimPrefix(path, modulePath))
		listed, err := context.ImportDir(folder, 0)
		if err != nil {
			return nil, err
		}
		var parsed []*ast.File
		for _, name := range append(listed.GoFiles, listed.CgoFiles...) {
			file, err := parser.ParseFile(c.files, filepath.Join(folder, name), nil, 0)
			if err != nil {
				return nil, err
			}
			parsed = append(parsed, file)
		}
		if err := c.check(path, parsed...); err != nil {
			return nil, err
		}
	}
	return c.packages[path].Package, nil
}

func (c *checker) check(path string, files ...*ast.File) error {
	seesC := map[string]bool{} // files that see C, of which the checker knows nothing
	for _, file := range files {
		for _, spec := range file.Imports {
			if spec.Path.Value == `"C"` {
				seesC[c.files.Position(file.Pos()).Filename] = true
			}
		}
	}
	var wrong []error
	config := types.Config{Importer: c, FakeImportC: true, Error: func(err error) {
		if e, ok := err.(types.Error); !ok || !seesC[c.files.Position(e.Pos).Filename] {
			wrong = append(wrong, err)
		}
	}}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	pkg, _ := config.Check(path, c.files, files, info)
	c.packages[path] = &checked{pkg, info}
	return errors.Join(wrong...)
}

// faults says what in a package could register adapters behind a program's back.
func (c *checker) faults(path string) (out []string) {
	pkg := c.packages[path]
	reach := c.newReach()
	for _, name := range pkg.Scope().Names() {
		if variable, ok := pkg.Scope().Lookup(name).(*types.Var); ok && reach.from(variable.Type()) {
			out = append(out, fmt.Sprintf("the variable %s can hold adapters", name))
		}
	}
	if strings.HasPrefix(path, modulePath+"/cmd/") || path == modulePath+"/native/assembly" {
		return out
	}
	for identifier, object := range pkg.info.Uses {
		function, ok := object.(*types.Func)
		if !ok {
			continue
		}
		registers := function.Name() == "Assemble"
		if function.Name() == "Register" {
			parameters := function.Type().(*types.Signature).Params()
			registers = parameters.Len() == 1 && reach.from(parameters.At(0).Type())
		}
		if registers {
			out = append(out, fmt.Sprintf("%s is used at %s", function.Name(), c.files.Position(identifier.Pos())))
		}
	}
	return out
}

// A reach finds out which types can hold an adapter or a registry.
type reach struct {
	holders []types.Type // what is looked for
	seen    map[types.Type]bool
}

func (c *checker) newReach() *reach {
	named := func(path, name string) types.Type {
		pkg, err := c.Import(modulePath + path)
		if err != nil {
			panic(err)
		}
		return pkg.Scope().Lookup(name).Type()
	}
	return &reach{
		holders: []types.Type{
			named("/native", "BackendAdapter"),
			named("/native", "AdapterRegistry"),
			named("/native/libsemantic", "Adapter"),
		},
		seen: map[types.Type]bool{},
	}
}

// from follows what a value of a type can lead to: its parts, and what its functions
// and methods return. An interface leads to every type that implements it.
func (r *reach) from(t types.Type) bool {
	if r.seen[t] {
		return false
	}
	r.seen[t] = true
	defer delete(r.seen, t)
	if slices.ContainsFunc(r.holders, func(h types.Type) bool { return types.Identical(h, t) }) {
		return true
	}
	if named, ok := t.(*types.Named); ok {
		for i := range named.NumMethods() {
			if r.from(named.Method(i).Type()) {
				return true
			}
		}
	}
	switch u := t.Underlying().(type) {
	case *types.Pointer:
		return r.from(u.Elem())
	case *types.Slice:
		return r.from(u.Elem())
	case *types.Array:
		return r.from(u.Elem())
	case *types.Chan:
		return r.from(u.Elem())
	case *types.Map:
		return r.from(u.Key()) || r.from(u.Elem())
	case *types.Signature:
		return r.from(u.Results())
	case *types.Tuple:
		for i := range u.Len() {
			if r.from(u.At(i).Type()) {
				return true
			}
		}
	case *types.Struct:
		for i := range u.NumFields() {
			if r.from(u.Field(i).Type()) {
				return true
			}
		}
	case *types.Interface:
		for _, holder := range r.holders {
			if types.Implements(holder, u) || types.Implements(types.NewPointer(holder), u) {
				return true
			}
		}
		for i := range u.NumMethods() {
			if r.from(u.Method(i).Type()) {
				return true
			}
		}
	}
	return false
}

// folders are those of the module that hold packages.
func folders(t *testing.T) []string {
	t.Helper()
	found := map[string]bool{}
	for name := range sources(t) {
		if !strings.HasSuffix(name, "_test.go") {
			found[path.Dir(name)] = true
		}
	}
	var out []string
	for folder := range found {
		out = append(out, folder)
	}
	slices.Sort(out)
	return out
}

func TestNoPackageHoldsAdaptersByItself(t *testing.T) {
	for _, cgo := range []bool{true, false} {
		c := newChecker(t, cgo)
		for _, folder := range folders(t) {
			name := path.Join(modulePath, folder)
			if _, err := c.Import(name); err != nil {
				t.Fatal(err)
			}
			for _, fault := range c.faults(name) {
				t.Errorf("%s with cgo %v: %s", folder, cgo, fault)
			}
		}
	}
}

// What the test above must find, and what it must leave alone.
func TestPackagesThatHoldAdaptersAreFound(t *testing.T) {
	const imports = `package %s
		import ("context"; "io"; "sync"; "sync/atomic"
			"` + modulePath + `/native"; "` + modulePath + `/native/assembly"
			"` + modulePath + `/native/libsemantic")
		var _, _, _, _ = context.Background, io.EOF, sync.OnceFunc, atomic.AddInt32
		var _, _, _ = native.AllCapabilities, assembly.Config{}, libsemantic.New
		`
	c := newChecker(t, false)
	for i, test := range []struct {
		source string
		faults int
	}{
		{`var adapters = map[native.Backend]native.BackendAdapter{}`, 1},
		{`var registry native.AdapterRegistry`, 1},
		{`var registry = new(native.AdapterRegistry)`, 1},
		{`var defaultOnes = newOne(); func newOne() *native.AdapterRegistry { return nil }`, 1},
		{`var pointer **libsemantic.Adapter`, 1},
		{`var list []native.BackendAdapter; var array [2]native.BackendAdapter`, 2},
		{`var stream chan native.BackendAdapter`, 1},
		{`type store struct { inner struct { adapters map[string]*libsemantic.Adapter } }; var kept store`, 1},
		{`type list struct { next *list; a native.BackendAdapter }; var first *list`, 1},
		{`var shared atomic.Pointer[native.AdapterRegistry]`, 1},
		{`var anything any; var values sync.Map; var value atomic.Value`, 3},
		{`var closer io.Closer; var named interface{ Name() native.Backend }`, 2},
		{`var once = sync.OnceValue(func() *native.AdapterRegistry { return nil })`, 1},
		{`var lazy = func() (native.BackendAdapter, error) { return nil, nil }`, 1},
		{`var source interface{ Get() *native.AdapterRegistry }`, 1},
		{`var register = new(native.AdapterRegistry).Register`, 1},
		{`func f(r *native.AdapterRegistry) { _ = r.Register(nil) }`, 1},
		{`type R interface { Register(native.BackendAdapter) error }; func f(r R) { _ = r.Register(nil) }`, 1},
		{`func f() { _, _ = assembly.Assemble(context.Background(), assembly.Config{}) }`, 1},
		{`var _ native.BackendAdapter = (*libsemantic.Adapter)(nil); var _ = new(native.AdapterRegistry)`, 0},
		{`type list struct { next *list; err error }; var first *list; var count atomic.Uint64`, 0},
		{`var infer func(native.BackendAdapter) native.InferenceResponse`, 0},
		{`type other struct{}; func (other) Register(string) {}; func f() { other{}.Register("") }`, 0},
	} {
		name := fmt.Sprintf("case%d", i)
		file, err := parser.ParseFile(c.files, name+".go", fmt.Sprintf(imports, name)+test.source, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.check(name, file); err != nil {
			t.Fatalf("%s: %v", test.source, err)
		}
		if got := c.faults(name); len(got) != test.faults {
			t.Errorf("%s: found are %q, want %d", test.source, got, test.faults)
		}
	}
}
