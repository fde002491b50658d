package cmtime

import (
	"fmt"
	"io"
	"time"
)

// step is what is timed.
type step int

const (
	createID step = iota
	bindAddr
	resolveAddr
	resolveRoute
	createQP
	connect
	disconnect
	destroy
	steps
)

// names are the steps' in the table.
var names = [steps]string{
	"create id", "bind addr", "resolve addr", "resolve route", "create qp", "connect", "disconnect", "destroy",
}

// span is when something began and ended.
type span struct{ begin, end time.Time }

// done tells whether it has ended.
func (s span) done() bool { return !s.end.IsZero() }

// micros is how long it took, in us; 0 if it has not ended.
func (s span) micros() float64 {
	if !s.done() {
		return 0
	}
	return float64(s.end.Sub(s.begin)) / 1e3
}

// times has the spans of all steps, of one connection or of all together.
type times [steps]span

// table prints the times: of all connections together, the longest and the shortest of one
// connection, and the share of each. Connections that failed have no end of some steps and
// do not count there.
func table(w io.Writer, all *times, each []times, skip func(step) bool) error {
	if _, err := fmt.Fprintf(w, "step              total ms     max ms     min us  us / conn\n"); err != nil {
		return err
	}
	for s := range steps {
		if skip(s) {
			continue
		}
		var longest, shortest float64
		first := true
		for i := range each {
			if t := each[i][s]; t.done() {
				us := t.micros()
				longest = max(longest, us)
				if first || us < shortest {
					shortest = us
				}
				first = false
			}
		}
		us := all[s].micros()
		_, err := fmt.Fprintf(w, "%-13s: %11.2f%11.2f%11.2f%11.2f\n", names[s], us/1e3, longest/1e3, shortest, us/float64(len(each)))
		if err != nil {
			return err
		}
	}
	return nil
}
