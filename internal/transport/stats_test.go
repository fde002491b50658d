package transport

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/pkt"
)

// Every counter has a name, and only one has it. That each is provoked is tested
// in package verbs (counters_test.go), where whole devices are.
func TestStatsHaveNames(t *testing.T) {
	good := regexp.MustCompile(`^[a-z][a-z0-9_]*[a-z0-9]$`)
	seen := map[string]string{}
	for f := range fields() {
		name := f.Tag.Get("counter")
		switch {
		case f.Type.Kind() != reflect.Uint64:
			t.Errorf("%s is a %v: counters are uint64", f.Name, f.Type)
		case !good.MatchString(name):
			t.Errorf("%s has no name or a bad one, %q: give it a tag `counter:\"...\"`", f.Name, name)
		case seen[name] != "":
			t.Errorf("%s and %s have the same name %s", seen[name], f.Name, name)
		case strings.HasPrefix(f.Name, "Drop") != strings.HasPrefix(name, "drop_"):
			t.Errorf("%s is named %s: counters of dropped packets, and no others, begin with drop_", f.Name, name)
		}
		if s, has := f.Tag.Lookup("scope"); has && s != "device" {
			t.Errorf("%s: scope %q", f.Name, s)
		}
		seen[name] = f.Name
	}
}

func fields() func(func(reflect.StructField) bool) {
	return func(yield func(reflect.StructField) bool) {
		t := reflect.TypeFor[Stats]()
		for i := range t.NumField() {
			if !yield(t.Field(i)) {
				return
			}
		}
	}
}

// Lists and sums have every counter, in order.
func TestStatsListsAndSums(t *testing.T) {
	var s Stats
	v := reflect.ValueOf(&s).Elem()
	var all, ofQP []string
	for i := range v.NumField() {
		v.Field(i).SetUint(uint64(i + 1))
	}
	for f := range fields() {
		all = append(all, f.Tag.Get("counter"))
		if f.Tag.Get("scope") == "" {
			ofQP = append(ofQP, f.Tag.Get("counter"))
		}
	}
	sum := s
	sum.Add(&s)
	sum.Add(&Stats{})
	list := sum.Counters(false)
	for i, c := range list {
		if c.Name != all[i] || c.Value != 2*uint64(i+1) {
			t.Errorf("counter %d is %+v, want %s %d", i, c, all[i], 2*(i+1))
		}
	}
	if len(list) != len(all) {
		t.Errorf("%d of %d counters", len(list), len(all))
	}
	i := 0
	for _, c := range s.Counters(true) {
		if i >= len(ofQP) || c.Name != ofQP[i] {
			t.Fatalf("counter %d of a queue pair is %s", i, c.Name)
		}
		i++
	}
	if i != len(ofQP) {
		t.Errorf("%d of %d counters of a queue pair", i, len(ofQP))
	}
}

// Packets are counted for the queue pair whose step put them into the batch,
// whenever it leaves.
func TestSentPacketsOfEach(t *testing.T) {
	var own, a, b Stats
	e := Env{Tx: pkt.NewTx(pkt.TxCaps{MaxSegs: 1}), Stats: &own}
	f := &pkt.Flow{}
	put := func(n int) {
		for range n {
			e.Tx.Begin(f, 12, 0)
			e.Tx.End()
		}
	}
	leave := func() {
		e.Sent()
		e.Tx.Reset()
	}
	e.Count(&a)
	put(2)
	e.Count(&b)
	put(3)
	leave()
	put(4)
	e.Count(&b)
	e.Count(&a)
	put(5)
	e.Count(&own)
	leave()
	if a.SentPackets != 7 || b.SentPackets != 7 || own.SentPackets != 0 {
		t.Errorf("a %d, b %d, own %d", a.SentPackets, b.SentPackets, own.SentPackets)
	}
	// Violations count for the device too, which a port is asked for often.
	e.Count(&a)
	e.BadPKey()
	e.Count(&b)
	e.BadPKey()
	e.BadQKey()
	if a.DropPKey != 1 || b.DropPKey != 1 || b.DropQKey != 1 || e.PKeyDrops != 2 || e.QKeyDrops != 1 {
		t.Errorf("a %d, b %d %d, all %d %d", a.DropPKey, b.DropPKey, b.DropQKey, e.PKeyDrops, e.QKeyDrops)
	}
}

// Nobody counts a violation without BadPKey and BadQKey.
func TestViolationsAreCountedInOnePlace(t *testing.T) {
	for _, dir := range []string{"../rc", "../ud", "../shard", "."} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatal(dir, err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") || name == "env.go" {
				continue
			}
			src, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, src, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if s, ok := n.(*ast.IncDecStmt); ok {
					if x, ok := s.X.(*ast.SelectorExpr); ok && (x.Sel.Name == "DropPKey" || x.Sel.Name == "DropQKey") {
						t.Errorf("%s counts %s itself: use Env.BadPKey or Env.BadQKey", name, x.Sel.Name)
					}
				}
				return true
			})
		}
	}
}

// Each status of a completion counts where it belongs.
func TestStatusesAreCounted(t *testing.T) {
	for st := ib.WCSuccess + 1; st <= ib.WCTMRndvIncomplete; st++ {
		var s Stats
		s.sendFailed(st)
		want := Stats{ReqCQEError: 1}
		switch st {
		case ib.WCWRFlushErr:
			want.ReqCQEFlush = 1
		case ib.WCRemInvReqErr:
			want.ReqRemoteInvalid = 1
		case ib.WCRemAccessErr:
			want.ReqRemoteAccess = 1
		}
		if s != want {
			t.Errorf("send, %v: %+v", st, s)
		}
		s.recvFailed(st)
		want.RespCQEError = 1
		switch st {
		case ib.WCWRFlushErr:
			want.RespCQEFlush = 1
		case ib.WCLocLenErr:
			want.RespLocalLength = 1
		}
		if s != want {
			t.Errorf("receive, %v: %+v", st, s)
		}
	}
}
