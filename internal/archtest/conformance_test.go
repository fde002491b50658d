package archtest

import (
	"fmt"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const conformancePage = "CONFORMANCE.md"

// The statements of the pages that have to be met to the letter; each has a test that
// carries its number.
var toTheLetter = map[string]int{"W": 9, "U": 10, "R": 5, "C": 5}

// TestConformance holds the table of what manual pages promise to the tree: each
// statement has a test that is there, or says why it has none.
func TestConformance(t *testing.T) {
	root := moduleRoot(t)
	text, err := fs.ReadFile(root, conformancePage)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range checkConformance(string(text), newSourceTree(t, root)) {
		t.Error(e)
	}
}

var (
	statementNumber = regexp.MustCompile(`^([A-Z]+)([1-9][0-9]*)$`)
	numberedTest    = regexp.MustCompile(`^Test([WURC][1-9][0-9]*)_`)
)

func checkConformance(text string, tree *sourceTree) (errs []string) {
	testsOf := map[string][]string{}
	list, lines := cells(text, "#")
	for i, c := range list {
		bad := func(format string, args ...any) {
			errs = append(errs, at(conformancePage, lines[i], fmt.Sprintf(format, args...)))
		}
		if len(c) != 3 {
			bad("want the columns #, Statement and Tests")
			continue
		}
		n, tests := c[0], names(c[2])
		switch {
		case !statementNumber.MatchString(n):
			bad("%q is no number", n)
			continue
		case testsOf[n] != nil:
			bad("%s has a row already", n)
			continue
		case c[1] == "":
			bad("%s says nothing", n)
		case len(tests) == 0 && !strings.HasPrefix(c[2], "not yet: ") && !strings.HasPrefix(c[2], "not offered: "):
			bad(`%s has no test, and does not say "not yet: " or "not offered: " and why`, n)
		}
		testsOf[n] = append([]string{}, tests...)
		for _, test := range tests {
			if !tree.hasTest(test) {
				bad("there is no test %s", test)
			}
		}
		if toTheLetter[strings.TrimRight(n, "0123456789")] > 0 && !slices.ContainsFunc(tests, func(test string) bool {
			_, fn := splitTest(test)
			return strings.HasPrefix(fn, "Test"+n+"_")
		}) {
			bad("%s has no test that carries its number", n)
		}
	}
	for _, page := range slices.Sorted(maps.Keys(toTheLetter)) {
		for i := range toTheLetter[page] {
			if n := fmt.Sprint(page, i+1); testsOf[n] == nil {
				errs = append(errs, conformancePage+": no row for "+n)
			}
		}
	}
	// What carries a number stands in its row.
	for _, dir := range slices.Sorted(maps.Keys(tree.tests)) {
		for _, fn := range slices.Sorted(maps.Keys(tree.tests[dir])) {
			if m := numberedTest.FindStringSubmatch(fn); m != nil && !slices.Contains(testsOf[m[1]], dir+"."+fn) {
				errs = append(errs, conformancePage+": "+m[1]+" does not name "+dir+"."+fn)
			}
		}
	}
	return errs
}

// The check finds what is wrong.
func TestConformanceFindsErrors(t *testing.T) {
	tree := &sourceTree{tests: map[string]map[string][]string{"a": {"TestW1_x": {}, "TestW1_y": {}, "TestOther": {}, "helper": {}}}}
	for _, c := range []struct{ row, want string }{
		{"| W1 | is so | `a.TestW1_x`, `a.TestW1_y` |", ""},
		{"| W1 | is so | `a.TestW1_x`, `a.TestW1_y`, `a.TestOther` |", ""},
		{"| W1 | is so | `a.TestW1_x` |", "W1 does not name a.TestW1_y"},
		{"| W1 | is so | `a.TestOther` |", "no test that carries its number"},
		{"| W1 | is so | `a.TestW1_z` |", "there is no test a.TestW1_z"},
		{"| W1 | is so | `a.helper` |", "there is no test a.helper"},
		{"| W1 | is so | |", "W1 has no test, and"},
		{"| W1 | | `a.TestW1_x`, `a.TestW1_y` |", "W1 says nothing"},
		{"| W1 | is so | not yet: nobody did it |", "no test that carries its number"},
		{"| X1 | is so | not yet: nobody did it |", "no row for W1"},
		{"| X1 | is so | not yet |", "X1 has no test, and"},
		{"| 1 | is so | `a.TestOther` |", `"1" is no number`},
		{"| X1 | is so |", "want the columns"},
		{"| X1 | is so | `a.TestOther` |\n| X1 | is so | `a.TestOther` |", "X1 has a row already"},
	} {
		text := "| # | Statement | Tests |\n|---|---|---|\n" + c.row + "\n"
		errs := checkConformance(text, tree)
		if c.want == "" {
			errs = slices.DeleteFunc(errs, func(e string) bool { return strings.Contains(e, "no row for") && !strings.HasSuffix(e, " W1") })
			if len(errs) != 0 {
				t.Errorf("%s: %v", c.row, errs)
			}
		} else if !slices.ContainsFunc(errs, func(e string) bool { return strings.Contains(e, c.want) }) {
			t.Errorf("%s: %v, want %q", c.row, errs, c.want)
		}
	}
}
