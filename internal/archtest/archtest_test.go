package archtest

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
)

// TestModule holds this module to its rules.
func TestModule(t *testing.T) {
	const root = "../.."
	if _, err := os.Stat(root + "/go.mod"); err != nil {
		t.Skipf("no source tree around the test: %v", err)
	}
	found, err := Check(os.DirFS(root), Verbena())
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range found {
		t.Error(v)
	}
}

// fixtureRules are the rules of the module in testdata/bad.txtar.
func fixtureRules() Rules {
	return Rules{
		Module: "example.com/m",
		Floors: [][]string{
			{"values", "raw"}, {"io/*"}, {"api"}, {"product/..."},
		},
		Sideways: []Edge{{"io/one", "io/two"}, {"product/...", "product/..."}},
		TestsUp:  []Edge{{"values", "api"}},
		Pure:     0, Stateless: 2,
		Globals:  map[string]string{"io/one.allowed": "the fixture says so"},
		Foreign:  []string{"golang.org/x/sys"},
		Unsafe:   []string{"raw"},
		MaxLines: 800,
	}
}

// TestEveryRule shows that each rule reports its breach, at its line, and nothing else.
func TestEveryRule(t *testing.T) {
	archive, err := txtar.ParseFile("testdata/bad.txtar")
	if err != nil {
		t.Fatal(err)
	}
	tree := fstest.MapFS{}
	var want []string
	wanted := map[string]bool{RuleLines: true} // TestLines has that one
	marker := regexp.MustCompile(`// want ([a-z ]+)$`)
	for _, f := range archive.Files {
		tree[f.Name] = &fstest.MapFile{Data: f.Data}
		for i, line := range strings.Split(string(f.Data), "\n") {
			if m := marker.FindStringSubmatch(line); m != nil {
				for rule := range strings.FieldsSeq(m[1]) {
					want = append(want, fmt.Sprintf("%s:%d %s", f.Name, i+1, rule))
					wanted[rule] = true
				}
			}
		}
	}
	found, err := Check(tree, fixtureRules())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, v := range found {
		got = append(got, fmt.Sprintf("%s:%d %s", v.File, v.Line, v.Rule))
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("reported (-want +got):\n%s\nin full: %v", diff, found)
	}

	all := []string{
		RuleUnplaced, RuleUp, RuleSideways, RuleForeign, RuleOutside, RuleClock, RuleRandom, RuleGoroutine,
		RuleUnsafe, RuleCgo, RuleDot, RuleInit, RuleGlobal, RuleLines, RuleDoc,
	}
	slices.Sort(all)
	if diff := cmp.Diff(all, slices.Sorted(maps.Keys(wanted))); diff != "" {
		t.Errorf("the fixture does not break every rule (-rules +fixture):\n%s", diff)
	}
}

// TestLines shows where a file becomes too long, tests included.
func TestLines(t *testing.T) {
	for _, name := range []string{"values/long.go", "values/long_test.go"} {
		for lines, want := range map[int]int{800: 0, 801: 1} {
			text := "// Package values is long.\npackage values\n" + strings.Repeat("\n", lines-2)
			found, err := Check(fstest.MapFS{name: {Data: []byte(text)}}, fixtureRules())
			if err != nil {
				t.Fatal(err)
			}
			if len(found) != want {
				t.Errorf("%s of %d lines: %v, want %d violations", name, lines, found, want)
			}
			for _, v := range found {
				if v.Rule != RuleLines {
					t.Errorf("%s of %d lines: %v, want rule %s", name, lines, v, RuleLines)
				}
			}
		}
	}
}

// TestUnreadable shows that a file that does not parse is an error and not a pass.
func TestUnreadable(t *testing.T) {
	tree := fstest.MapFS{"values/broken.go": {Data: []byte("package values\nfunc {")}}
	if _, err := Check(tree, fixtureRules()); err == nil {
		t.Error("a file that does not parse was accepted")
	}
	if _, err := Check(fstest.MapFS{"values/x.go": {Mode: fs.ModeDir}}, fixtureRules()); err != nil {
		t.Errorf("a directory that ends in .go: %v", err)
	}
}

// TestMatch pins the patterns.
func TestMatch(t *testing.T) {
	for _, c := range []struct {
		pattern, pkg string
		want         bool
	}{
		{"ib", "ib", true},
		{"ib", "ib/x", false},
		{"ib", "ibx", false},
		{"port/*", "port", false},
		{"port/*", "port/udp", true},
		{"port/*", "port/udp/x", false},
		{"port/*", "portable/udp", false},
		{"cmd/...", "cmd", true},
		{"cmd/...", "cmd/a/b", true},
		{"cmd/...", "cmdx/a", false},
	} {
		if got := match(c.pattern, c.pkg); got != c.want {
			t.Errorf("match(%q, %q) = %v, want %v", c.pattern, c.pkg, got, c.want)
		}
	}
}

// TestFloorsAreDisjoint shows that no example package of the module has two floors.
func TestFloorsAreDisjoint(t *testing.T) {
	rules := Verbena()
	seen := map[string]int{}
	for n, patterns := range rules.Floors {
		for _, p := range patterns {
			if other, twice := seen[p]; twice {
				t.Errorf("%s is on floors %d and %d", p, other, n)
			}
			seen[p] = n
			example := strings.NewReplacer("/...", "/x", "/*", "/x").Replace(p)
			if got := rules.floor(example); got != n {
				t.Errorf("%s is on floor %d, found on %d", example, n, got)
			}
		}
	}
	for _, e := range rules.Sideways {
		from, to := strings.NewReplacer("/...", "/x", "/*", "/x").Replace(e.From), strings.NewReplacer("/...", "/x", "/*", "/x").Replace(e.To)
		if rules.floor(from) != rules.floor(to) {
			t.Errorf("%v leads from floor %d to floor %d, which is not sideways", e, rules.floor(from), rules.floor(to))
		}
	}
}
