// Package archtest checks the rules of the module's architecture: packages import lower floors only, the protocol reads no
// clock and opens no socket, unsafe stands in a few named files, nothing needs cgo, and files stay readable.
//
// It reads the source rather than asking the build, so that files for every operating system and build tag are held to the rules.
package archtest

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// The rules, as Violation.Rule names them.
const (
	RuleUnplaced  = "unplaced"  // a package without a floor
	RuleUp        = "up"        // an import of a higher floor
	RuleSideways  = "sideways"  // an import within a floor that is not listed
	RuleForeign   = "foreign"   // a module outside the standard library where none is allowed
	RuleOutside   = "outside"   // os, net, syscall, log on a pure floor
	RuleClock     = "clock"     // the clock is read or a timer started on a pure floor
	RuleRandom    = "random"    // random numbers that no seed governs on a pure floor
	RuleGoroutine = "goroutine" // a go statement on a pure floor
	RuleUnsafe    = "unsafe"    // unsafe outside the files made for it
	RuleCgo       = "cgo"       // import "C"
	RuleDot       = "dot"       // a dot import, which would hide the others
	RuleInit      = "init"      // func init
	RuleGlobal    = "global"    // a global variable that changes
	RuleLines     = "lines"     // a file that is too long
	RuleDoc       = "doc"       // a package without a package comment
)

// A Violation is one breach of one rule.
type Violation struct {
	File string // relative to the root of the module, with slashes
	Line int
	Rule string // one of the Rule constants
	Text string // what is wrong, for a person
}

// String returns the violation as compilers print errors.
func (v Violation) String() string {
	return fmt.Sprintf("%s:%d: %s: %s", v.File, v.Line, v.Rule, v.Text)
}

// Check holds every Go file below root to the rules and returns what breaks them, in order of file and line. The error tells of
// a tree that cannot be read or parsed.
func Check(root fs.FS, rules Rules) ([]Violation, error) {
	c := &checker{rules: &rules, fset: token.NewFileSet()}
	dirs, err := c.read(root)
	if err != nil {
		return nil, err
	}
	for _, d := range dirs {
		c.dir(d)
	}
	slices.SortFunc(c.found, func(a, b Violation) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Rule, b.Rule))
	})
	return c.found, nil
}

type checker struct {
	rules *Rules
	fset  *token.FileSet
	found []Violation
}

// directory is one package with its tests.
type directory struct {
	pkg   string // relative to the module
	files []*source
}

// source is one file.
type source struct {
	name  string // relative to the root
	test  bool
	lines int
	ast   *ast.File
}

func (c *checker) report(pos token.Pos, rule, format string, args ...any) {
	p := c.fset.Position(pos)
	c.found = append(c.found, Violation{File: p.Filename, Line: p.Line, Rule: rule, Text: fmt.Sprintf(format, args...)})
}

// read parses the module's Go files. Like the go command it leaves out testdata, names that begin with a dot or an underscore, and
// modules nested in this one.
func (c *checker) read(root fs.FS) ([]*directory, error) {
	var dirs []*directory
	byPkg := map[string]*directory{}
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := path.Base(name)
		if d.IsDir() {
			if name == "." {
				return nil
			}
			if base == "testdata" || base == "vendor" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") {
				return fs.SkipDir
			}
			if _, err := fs.Stat(root, path.Join(name, "go.mod")); err == nil {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(base, ".go") || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") {
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(c.fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		pkg := path.Dir(name)
		dir := byPkg[pkg]
		if dir == nil {
			dir = &directory{pkg: pkg}
			byPkg[pkg] = dir
			dirs = append(dirs, dir)
		}
		dir.files = append(dir.files, &source{
			name: name, test: strings.HasSuffix(base, "_test.go"), lines: bytes.Count(text, []byte("\n")), ast: file,
		})
		return nil
	})
	return dirs, err
}

// dir holds one package to the rules.
func (c *checker) dir(d *directory) {
	floor := c.rules.floor(d.pkg)
	if floor < 0 {
		c.report(d.files[0].ast.Package, RuleUnplaced, "package %s has no floor: give it one in internal/archtest/rules.go", d.pkg)
	}
	var plain []*source
	commented := false
	for _, f := range d.files {
		if f.lines > c.rules.MaxLines {
			c.report(f.ast.Package, RuleLines, "%d lines, at most %d: split it by role", f.lines, c.rules.MaxLines)
		}
		c.imports(d.pkg, floor, f)
		if !f.test {
			plain = append(plain, f)
			commented = commented || f.ast.Doc != nil
		}
	}
	if len(plain) == 0 {
		return
	}
	if !commented {
		c.report(plain[0].ast.Package, RuleDoc, "package %s has no package comment", d.pkg)
	}
	if floor < 0 {
		return
	}
	c.code(d.pkg, floor, plain)
}

// imports holds the imports of one file to the floors.
func (c *checker) imports(pkg string, floor int, f *source) {
	for _, spec := range f.ast.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue // the parser has checked it
		}
		if spec.Name != nil && spec.Name.Name == "." {
			c.report(spec.Pos(), RuleDot, "dot import of %s", imported)
		}
		switch {
		case imported == "C":
			c.report(spec.Pos(), RuleCgo, "this module must build without cgo")
		case imported == "unsafe":
			c.unsafe(pkg, f, spec)
		case imported == c.rules.Module || strings.HasPrefix(imported, c.rules.Module+"/"):
			to := strings.TrimPrefix(strings.TrimPrefix(imported, c.rules.Module), "/")
			c.edge(pkg, floor, f, spec, cmp.Or(to, "."))
		case f.test || floor < 0:
		case isForeign(imported):
			c.foreign(floor, spec, imported)
		case floor <= c.rules.Pure && isOutside(imported):
			c.report(spec.Pos(), RuleOutside, "floor %d imports %s: what comes from outside is an argument there", floor, imported)
		case floor <= c.rules.Pure && imported == "crypto/rand":
			c.report(spec.Pos(), RuleRandom, "floor %d imports crypto/rand: randomness is an argument there, so that seeds replay", floor)
		}
	}
}

// edge holds an import of one package of the module by another to the floors.
func (c *checker) edge(from string, floor int, f *source, spec *ast.ImportSpec, to string) {
	target := c.rules.floor(to)
	if floor < 0 || target < 0 || from == to {
		return // unplaced is reported where the package is; an external test imports its own package
	}
	switch {
	case target > floor:
		if !f.test || !listed(c.rules.TestsUp, from, to) {
			c.report(spec.Pos(), RuleUp, "%s (floor %d) imports %s (floor %d)", from, floor, to, target)
		}
	case target == floor && !f.test:
		if !listed(c.rules.Sideways, from, to) {
			c.report(spec.Pos(), RuleSideways, "%s and %s are both on floor %d and this import is not listed", from, to, floor)
		}
	}
}

// unsafe holds an import of unsafe to the packages and files made for it.
func (c *checker) unsafe(pkg string, f *source, spec *ast.ImportSpec) {
	allowed := slices.ContainsFunc(c.rules.Unsafe, func(p string) bool { return match(p, pkg) })
	switch {
	case !allowed:
		c.report(spec.Pos(), RuleUnsafe, "package %s may not import unsafe", pkg)
	case !isUnsafeFile(path.Base(f.name)):
		c.report(spec.Pos(), RuleUnsafe, "unsafe stands only in files named *_unsafe.go")
	}
}

// foreign holds an import from another module to the list.
func (c *checker) foreign(floor int, spec *ast.ImportSpec, imported string) {
	switch {
	case floor <= c.rules.Pure:
		c.report(spec.Pos(), RuleForeign, "floor %d imports %s: only the standard library there", floor, imported)
	case floor <= c.rules.Stateless:
		if !slices.ContainsFunc(c.rules.Foreign, func(p string) bool {
			return imported == p || strings.HasPrefix(imported, p+"/")
		}) {
			c.report(spec.Pos(), RuleForeign, "floor %d imports %s, which is not listed", floor, imported)
		}
	}
}

// isUnsafeFile reports whether a file's name ends in _unsafe, before the suffixes that mean a system or a test.
func isUnsafeFile(base string) bool {
	stem := strings.TrimSuffix(strings.TrimSuffix(base, ".go"), "_test")
	i := strings.LastIndex(stem, "_unsafe")
	if i < 0 {
		return false
	}
	rest := stem[i+len("_unsafe"):]
	return rest == "" || rest[0] == '_'
}

// isForeign reports whether an import path is outside the standard library, whose first elements have no dot.
func isForeign(imported string) bool {
	first, _, _ := strings.Cut(imported, "/")
	return strings.Contains(first, ".")
}

// isOutside reports whether a package of the standard library reaches the world outside the process. Of net only the plain values
// of net/netip do not; syscall is judged by what is used of it.
func isOutside(imported string) bool {
	if imported == "net/netip" {
		return false
	}
	first, _, _ := strings.Cut(imported, "/")
	switch first {
	case "net", "os", "log", "plugin", "testing", "flag":
		return true
	}
	return imported == "runtime/pprof" || imported == "runtime/trace"
}
