package cmtime

import (
	"strings"
	"testing"
	"time"
)

// The table as cmtime of rdma-core 44 prints it: %-13s: and four columns of %11.2f.
func TestTable(t *testing.T) {
	base := time.Unix(1000, 0)
	took := func(us int) span { return span{base, base.Add(time.Duration(us) * time.Microsecond)} }
	var all times
	for s := range steps {
		all[s] = took(1000 * (int(s) + 1))
	}
	each := make([]times, 4)
	for i := range each {
		for s := range steps {
			each[i][s] = took(10*(i+1) + int(s))
		}
	}
	each[0][connect] = span{begin: base} // failed
	each[2][createID] = took(1_234_567)
	var out strings.Builder
	if err := table(&out, &all, each, func(s step) bool { return s == bindAddr }); err != nil {
		t.Fatal(err)
	}
	want := "" +
		"step              total ms     max ms     min us  us / conn\n" +
		"create id    :        1.00    1234.57      10.00     250.00\n" +
		"resolve addr :        3.00       0.04      12.00     750.00\n" +
		"resolve route:        4.00       0.04      13.00    1000.00\n" +
		"create qp    :        5.00       0.04      14.00    1250.00\n" +
		"connect      :        6.00       0.04      25.00    1500.00\n" +
		"disconnect   :        7.00       0.05      16.00    1750.00\n" +
		"destroy      :        8.00       0.05      17.00    2000.00\n"
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	out.Reset()
	if err := table(&out, &all, make([]times, 1), func(step) bool { return false }); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "bind addr    :        2.00       0.00       0.00    2000.00\n") {
		t.Errorf("nothing ended:\n%s", out.String())
	}
}
