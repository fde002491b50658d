package archtest

import (
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// page is a page of tables that tell, for the names of a C interface, what stands for
// them in Go, and the tests.
type page struct {
	name  string   // of the file
	known []string // the names of C that it has to speak of, in lists

	// Each value that Go has of these types stands in the row of its C name.
	pkg   string
	types []string
	cName func(tree *sourceTree, typ, value string) string // empty: unknown
}

// row is a row of a table: names of C, what stands for them in Go, the tests, and
// what else is to be said.
type row struct {
	line   int
	c      []string
	golang []string // empty: not offered
	tests  []string
	notes  string
}

// moduleRoot opens the source tree around the test.
func moduleRoot(t *testing.T) fs.FS {
	t.Helper()
	const dir = "../.."
	if _, err := os.Stat(dir + "/go.mod"); err != nil {
		t.Skipf("no source tree around the test: %v", err)
	}
	return os.DirFS(dir)
}

// test holds the page to the tree.
func (p *page) test(t *testing.T) {
	t.Helper()
	root := moduleRoot(t)
	text, err := fs.ReadFile(root, p.name)
	if err != nil {
		t.Fatal(err)
	}
	rows, errs := p.parse(string(text))
	for _, e := range errs {
		t.Error(e)
	}
	for _, e := range p.check(rows, newSourceTree(t, root)) {
		t.Error(e)
	}
}

var quoted = regexp.MustCompile("`([^`]+)`")

// names are what stands between backquotes.
func names(cell string) (list []string) {
	for _, m := range quoted.FindAllStringSubmatch(cell, -1) {
		list = append(list, m[1])
	}
	return list
}

// cells reads the rows of all tables of a page whose first column has the title, and tells
// their lines.
func cells(text, title string) (rows [][]string, lines []int) {
	in := false
	for i, line := range strings.Split(text, "\n") {
		if !strings.HasPrefix(line, "|") {
			in = false
			continue
		}
		line = strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(line), "|"), "|")
		list := strings.Split(line, "|")
		for k := range list {
			list[k] = strings.TrimSpace(list[k])
		}
		switch {
		case list[0] == title:
			in = true
		case in && !strings.HasPrefix(list[0], "---"):
			rows, lines = append(rows, list), append(lines, i+1)
		}
	}
	return rows, lines
}

// at names a line of a file.
func at(file string, line int, what string) string {
	return file + ":" + strconv.Itoa(line) + ": " + what
}

// parse reads all tables of the page whose first column is "C".
func (p *page) parse(text string) (rows []row, errs []string) {
	list, lines := cells(text, "C")
	for i, cells := range list {
		bad := func(what string) { errs = append(errs, at(p.name, lines[i], what)) }
		if len(cells) < 3 || len(cells) > 4 {
			bad("want the columns C, Go, Test and, where there is something to say, Note")
			continue
		}
		r := row{line: lines[i], c: names(cells[0]), golang: names(cells[1]), tests: names(cells[2])}
		if len(cells) == 4 {
			r.notes = cells[3]
		}
		if len(r.c) == 0 {
			bad("no name of C")
		}
		if len(r.golang) == 0 {
			if cells[1] != "not offered" {
				bad(`want a name of Go or "not offered"`)
			} else if r.notes == "" {
				bad("not offered, but not said why")
			}
		} else if len(r.tests) == 0 {
			bad("no test")
		}
		rows = append(rows, r)
	}
	return rows, errs
}

func (p *page) check(rows []row, tree *sourceTree) (errs []string) {
	bad := func(r *row, what string) { errs = append(errs, at(p.name, r.line, what)) }
	rowOf := map[string]*row{}
	known := map[string]bool{}
	for _, list := range p.known {
		for name := range strings.FieldsSeq(list) {
			known[name] = true
		}
	}
	for i := range rows {
		r := &rows[i]
		for _, c := range r.c {
			if rowOf[c] != nil {
				bad(r, c+" has a row already")
			}
			if !known[c] {
				bad(r, c+" is no name of the C interface")
			}
			rowOf[c] = r
		}
		for _, test := range r.tests {
			if !tree.hasTest(test) {
				bad(r, "there is no test "+test)
			}
		}
		for _, g := range r.golang {
			if !tree.has(g) {
				bad(r, "there is no "+g)
			} else if !slices.ContainsFunc(r.tests, func(test string) bool { return tree.uses(test, g) }) {
				bad(r, "no test of the row uses "+g)
			}
		}
	}
	for _, c := range slices.Sorted(maps.Keys(known)) {
		if rowOf[c] == nil {
			errs = append(errs, p.name+": no row for "+c)
		}
	}
	for _, typ := range p.types {
		values := tree.consts[p.pkg][typ]
		if len(values) == 0 {
			errs = append(errs, "package "+p.pkg+" has no constants of type "+typ)
		}
		for _, v := range values {
			c, g := p.cName(tree, typ, v), p.pkg+"."+v
			switch r := rowOf[c]; {
			case c == "":
				errs = append(errs, g+" does not tell its C name")
			case r == nil:
				errs = append(errs, p.name+": no row for "+c)
			case len(r.golang) > 0 && !slices.Contains(r.golang, g):
				bad(r, c+" is "+g)
			}
		}
	}
	return errs
}
