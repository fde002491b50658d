package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// sourceTree is what the packages declare and what their tests use.
type sourceTree struct {
	decls  map[string]bool                // "verbs.QP.PostSend"
	alias  map[string]string              // "verbs.WC": "driver.WC"
	consts map[string]map[string][]string // package, type: names
	cNames map[string]string              // "WRSend": "IBV_WR_SEND"
	tests  map[string]map[string][]string // directory, function of a test file: names that it has
}

func newSourceTree(t *testing.T, root fs.FS) *sourceTree {
	tree := &sourceTree{
		decls: map[string]bool{}, alias: map[string]string{}, cNames: map[string]string{},
		consts: map[string]map[string][]string{}, tests: map[string]map[string][]string{},
	}
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || len(name) > 1 && strings.HasPrefix(d.Name(), ".")):
			return fs.SkipDir
		case path.Ext(name) != ".go":
			return nil
		}
		src, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, src, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if strings.HasSuffix(name, "_test.go") {
			tree.addTests(path.Dir(name), file)
		} else {
			tree.add(path.Base(path.Dir(name)), file)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func (s *sourceTree) add(pkg string, file *ast.File) {
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			name := d.Name.Name
			if d.Recv != nil {
				name = receiver(d) + "." + name
			}
			s.decls[pkg+"."+name] = true
		case *ast.GenDecl:
			s.addDecl(pkg, d)
		}
	}
}

func receiver(d *ast.FuncDecl) string {
	t := d.Recv.List[0].Type
	if p, ok := t.(*ast.StarExpr); ok {
		t = p.X
	}
	if g, ok := t.(*ast.IndexExpr); ok {
		t = g.X
	}
	id, _ := t.(*ast.Ident)
	return id.Name
}

func (s *sourceTree) addDecl(pkg string, d *ast.GenDecl) {
	typ := ""
	for _, spec := range d.Specs {
		switch spec := spec.(type) {
		case *ast.TypeSpec:
			name := pkg + "." + spec.Name.Name
			s.decls[name] = true
			s.addMembers(name, spec)
		case *ast.ValueSpec:
			if id, ok := spec.Type.(*ast.Ident); ok {
				typ = id.Name
			} else if len(spec.Values) > 0 {
				typ = ""
			}
			for _, id := range spec.Names {
				s.decls[pkg+"."+id.Name] = true
				if d.Tok == token.CONST && typ != "" {
					if s.consts[pkg] == nil {
						s.consts[pkg] = map[string][]string{}
					}
					s.consts[pkg][typ] = append(s.consts[pkg][typ], id.Name)
				}
			}
			for _, v := range spec.Values {
				s.addNames(v)
			}
		}
	}
}

// addMembers notes fields, methods of an interface, and of what a type is an alias.
func (s *sourceTree) addMembers(name string, spec *ast.TypeSpec) {
	var list *ast.FieldList
	switch t := spec.Type.(type) {
	case *ast.StructType:
		list = t.Fields
	case *ast.InterfaceType:
		list = t.Methods
	case *ast.SelectorExpr:
		if id, ok := t.X.(*ast.Ident); ok && spec.Assign.IsValid() {
			s.alias[name] = id.Name + "." + t.Sel.Name
		}
	}
	if list == nil {
		return
	}
	for _, f := range list.List {
		for _, id := range f.Names {
			s.decls[name+"."+id.Name] = true
		}
		if len(f.Names) == 0 { // embedded
			t := f.Type
			if p, ok := t.(*ast.StarExpr); ok {
				t = p.X
			}
			if id, ok := t.(*ast.Ident); ok {
				s.decls[name+"."+id.Name] = true
			}
		}
	}
}

// addNames reads the tables of ib that give a value its two names.
func (s *sourceTree) addNames(v ast.Expr) {
	lit, ok := v.(*ast.CompositeLit)
	if !ok {
		return
	}
	for _, e := range lit.Elts {
		kv, ok := e.(*ast.KeyValueExpr)
		if !ok {
			continue
		}
		key, _ := kv.Key.(*ast.Ident)
		word, _ := kv.Value.(*ast.CompositeLit)
		if key == nil || word == nil || len(word.Elts) != 2 {
			continue
		}
		if c, ok := word.Elts[1].(*ast.BasicLit); ok {
			s.cNames[key.Name], _ = strconv.Unquote(c.Value)
		}
	}
}

// has reports whether the tree declares the name.
func (s *sourceTree) has(name string) bool {
	if s.decls[name] {
		return true
	}
	i := strings.LastIndexByte(name, '.')
	of := s.alias[name[:max(i, 0)]]
	return of != "" && s.decls[of+name[i:]]
}

// addTests notes the names that each function, method and variable of a test
// file has.
func (s *sourceTree) addTests(dir string, file *ast.File) {
	if s.tests[dir] == nil {
		s.tests[dir] = map[string][]string{}
	}
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			s.note(dir, d.Name.Name, d)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				if v, ok := spec.(*ast.ValueSpec); ok {
					for _, id := range v.Names {
						s.note(dir, id.Name, v)
					}
				}
			}
		}
	}
}

func (s *sourceTree) note(dir, name string, n ast.Node) {
	ast.Inspect(n, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			s.tests[dir][name] = append(s.tests[dir][name], id.Name)
		}
		return true
	})
}

func splitTest(test string) (dir, fn string) {
	i := strings.LastIndexByte(test, '.')
	return test[:max(i, 0)], test[i+1:]
}

func (s *sourceTree) hasTest(test string) bool {
	dir, fn := splitTest(test)
	_, ok := s.tests[dir][fn]
	return ok && (strings.HasPrefix(fn, "Test") || strings.HasPrefix(fn, "Example") || strings.HasPrefix(fn, "Fuzz"))
}

// uses reports whether a test, or a helper that it uses, has the last part of a
// name.
func (s *sourceTree) uses(test, name string) bool {
	_, last := splitTest(name)
	dir, fn := splitTest(test)
	seen := map[string]bool{}
	var look func(string) bool
	look = func(fn string) bool {
		if seen[fn] {
			return false
		}
		seen[fn] = true
		list, ok := s.tests[dir][fn]
		if !ok {
			return false
		}
		return slices.Contains(list, last) || slices.ContainsFunc(list, look)
	}
	return look(fn)
}
