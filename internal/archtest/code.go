package archtest

import (
	"go/ast"
	"go/token"
	"go/types"
	"path"
	"regexp"
	"slices"
	"strings"
)

// code holds what the package's files do, as opposed to what they import, to the rules of the floor.
func (c *checker) code(pkg string, floor int, files []*source) {
	pure, stateless := floor <= c.rules.Pure, floor <= c.rules.Stateless
	if !stateless {
		return
	}
	info := c.resolve(pkg, files)
	for _, f := range files {
		c.declarations(pkg, f.ast)
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				if pure {
					c.report(n.Pos(), RuleGoroutine, "floor %d starts no goroutine", floor)
				}
			case *ast.SelectorExpr:
				if pure {
					c.selector(floor, info, n)
				}
			case *ast.AssignStmt:
				if n.Tok != token.DEFINE {
					for _, lhs := range n.Lhs {
						c.changes(pkg, info, lhs, "is assigned to")
					}
				}
			case *ast.IncDecStmt:
				c.changes(pkg, info, n.X, "is changed")
			case *ast.CallExpr:
				if f, ok := n.Fun.(*ast.Ident); ok && (f.Name == "delete" || f.Name == "clear") && len(n.Args) > 0 {
					c.changes(pkg, info, n.Args[0], "is changed")
				}
			}
			return true
		})
	}
}

// resolve finds out what each identifier means within the package. Imported packages are empty stand-ins, and files for different
// systems declare the same names twice, so errors are expected and of no interest.
func (c *checker) resolve(pkg string, files []*source) *types.Info {
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{}}
	conf := types.Config{Importer: standIns{}, Error: func(error) {}, FakeImportC: true}
	trees := make([]*ast.File, len(files))
	for i, f := range files {
		trees[i] = f.ast
	}
	_, _ = conf.Check(path.Join(c.rules.Module, pkg), c.fset, trees, info)
	return info
}

// standIns imports every package as an empty one, so that a selector still tells which package it reaches into.
type standIns struct{}

var version = regexp.MustCompile(`^v[0-9]+$`)

// Import returns an empty package with the name that the path suggests.
func (standIns) Import(imported string) (*types.Package, error) {
	if imported == "unsafe" {
		return types.Unsafe, nil
	}
	elements := strings.Split(imported, "/")
	name := elements[len(elements)-1]
	if version.MatchString(name) && len(elements) > 1 {
		name = elements[len(elements)-2]
	}
	p := types.NewPackage(imported, name)
	p.MarkComplete()
	return p, nil
}

// declarations looks for func init and for globals whose only use is to change.
func (c *checker) declarations(pkg string, file *ast.File) {
	for _, decl := range file.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			if decl.Recv == nil && decl.Name.Name == "init" {
				c.report(decl.Pos(), RuleInit, "no func init: whoever needs a thing makes it")
			}
		case *ast.GenDecl:
			if decl.Tok != token.VAR {
				continue
			}
			for _, spec := range decl.Specs {
				spec := spec.(*ast.ValueSpec)
				if t := stateful(spec); t != "" && !c.excused(pkg, spec.Names[0].Name) {
					c.report(spec.Pos(), RuleGlobal, "global %s is a %s, which exists to change", spec.Names[0].Name, t)
				}
			}
		}
	}
}

// stateful returns the type of a variable that is made of sync, sync/atomic or a channel, and "" for others.
func stateful(spec *ast.ValueSpec) string {
	t := spec.Type
	if t == nil && len(spec.Values) == 1 {
		v := spec.Values[0]
		if u, ok := v.(*ast.UnaryExpr); ok && u.Op == token.AND {
			v = u.X
		}
		switch v := v.(type) {
		case *ast.CompositeLit:
			t = v.Type
		case *ast.CallExpr: // make(chan T), new(sync.Mutex)
			if f, ok := v.Fun.(*ast.Ident); ok && (f.Name == "make" || f.Name == "new") && len(v.Args) > 0 {
				t = v.Args[0]
			}
		}
	}
	for {
		switch x := t.(type) {
		case *ast.ChanType:
			return "channel"
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr: // atomic.Pointer[T]
			t = x.X
		case *ast.ArrayType:
			t = x.Elt
		case *ast.SelectorExpr:
			if p, ok := x.X.(*ast.Ident); ok && (p.Name == "sync" || p.Name == "atomic") {
				return p.Name + "." + x.Sel.Name
			}
			return ""
		default:
			return ""
		}
	}
}

// changes reports an expression that changes a global of the package, whole or in part.
func (c *checker) changes(pkg string, info *types.Info, e ast.Expr, how string) {
	for {
		switch x := e.(type) {
		case *ast.ParenExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.SliceExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		case *ast.SelectorExpr:
			// A field of a global is the global; a variable of another package is that package's affair, and vet's.
			e = x.X
		case *ast.Ident:
			v, ok := info.Uses[x].(*types.Var)
			if ok && v.Pkg() != nil && v.Parent() == v.Pkg().Scope() && !c.excused(pkg, v.Name()) {
				c.report(x.Pos(), RuleGlobal, "global %s %s", v.Name(), how)
			}
			return
		default:
			return
		}
	}
}

func (c *checker) excused(pkg, name string) bool {
	_, ok := c.rules.Globals[pkg+"."+name]
	return ok
}

// What of time is forbidden on pure floors; durations and their constants are values.
var clockFuncs = []string{
	"Now", "Since", "Until", "After", "AfterFunc", "Sleep", "Tick", "NewTimer", "NewTicker",
}

// What of math/rand is allowed on pure floors: generators that somebody seeds. All else is the process's own generator.
var seededRand = []string{
	"New", "NewPCG", "NewChaCha8", "NewSource", "NewZipf", "Rand", "Source", "Source64", "PCG", "ChaCha8", "Zipf",
}

// selector holds one use of another package to the rules of the pure floors.
func (c *checker) selector(floor int, info *types.Info, sel *ast.SelectorExpr) {
	id, ok := sel.X.(*ast.Ident)
	if !ok {
		return
	}
	p, ok := info.Uses[id].(*types.PkgName)
	if !ok {
		return
	}
	name := sel.Sel.Name
	switch p.Imported().Path() {
	case "time":
		if slices.Contains(clockFuncs, name) {
			c.report(sel.Pos(), RuleClock, "floor %d uses time.%s: now is an argument there", floor, name)
		}
	case "math/rand", "math/rand/v2":
		if !slices.Contains(seededRand, name) {
			c.report(sel.Pos(), RuleRandom, "floor %d uses rand.%s: randomness is an argument there, so that seeds replay", floor, name)
		}
	case "syscall":
		if name != "Errno" && !isErrno(name) {
			c.report(sel.Pos(), RuleOutside, "floor %d uses syscall.%s: only error numbers there", floor, name)
		}
	}
}

// isErrno reports whether a name of package syscall is an error number: E and capitals or digits, as EINVAL and E2BIG.
func isErrno(name string) bool {
	rest, ok := strings.CutPrefix(name, "E")
	if !ok || rest == "" || strings.Contains(name, "_") {
		return false
	}
	return strings.ToUpper(rest) == rest
}
