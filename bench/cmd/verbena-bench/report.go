package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/verbena-rdma/verbena/bench"
)

// report collects the results of all runs.
type report struct {
	options bench.Options
	runs    int
	started time.Time
	load    float64  // of the machine before the first run
	order   []string // names of measurements as they came
	series  map[string]*series
	missing map[string]string  // workloads that this machine does not have, with the reason
	failed  map[string][]error // workloads that failed in some run
	worked  map[string]bool    // workloads that gave a result in some run
}

// series is one figure over the runs.
type series struct {
	unit   string
	values []float64
	cpu    []float64
}

func newReport(o bench.Options, runs int) *report {
	return &report{
		options: o, runs: runs, started: time.Now(),
		series: map[string]*series{}, missing: map[string]string{}, failed: map[string][]error{}, worked: map[string]bool{},
	}
}

// unavailable reports whether an earlier run found that this machine cannot run the workload.
func (r *report) unavailable(workload string) bool {
	_, ok := r.missing[workload]
	return ok
}

// add takes what one run of a workload gave.
func (r *report) add(workload string, results []bench.Measurement, err error) {
	switch {
	case errors.Is(err, bench.ErrUnavailable):
		r.missing[workload] = err.Error()
		return
	case err != nil:
		r.failed[workload] = append(r.failed[workload], err)
		return
	}
	r.worked[workload] = true
	for _, m := range results {
		s := r.series[m.Name]
		if s == nil {
			s = &series{unit: m.Unit}
			r.series[m.Name] = s
			r.order = append(r.order, m.Name)
		}
		s.values = append(s.values, m.Value)
		if m.CPUPerByte > 0 {
			s.cpu = append(s.cpu, m.CPUPerByte)
		}
	}
}

// failure returns an error for every workload that failed in all of its runs. One bad run among good ones is printed, no more: the
// peers are not ours to fix.
func (r *report) failure() error {
	var all []error
	for name, errs := range r.failed {
		if !r.worked[name] {
			all = append(all, fmt.Errorf("%s: %w", name, errs[0]))
		}
	}
	return errors.Join(all...)
}

// median returns the middle value of a figure, and whether there is one.
func (r *report) median(name string) (float64, bool) {
	s := r.series[name]
	if s == nil {
		return 0, false
	}
	return bench.Median(s.values), true
}

// print writes the figures and the ratios.
func (r *report) print(w io.Writer) {
	fmt.Fprintf(w, "\n%s, %s/%s, cores %d and %d, loopback; median of %d runs of %v.\n", runtime.Version(), runtime.GOOS, runtime.GOARCH,
		r.options.Cores[0], r.options.Cores[1], r.runs, r.options.Duration)
	if r.load > busy {
		fmt.Fprintf(w, "THE MACHINE WAS BUSY (load %.1f): compare nothing with figures of another run.\n", r.load)
	}
	fmt.Fprint(w, "Latency is half of a round trip, the median of its run. CPU is that of both sides, per byte of payload.\n\n")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "measurement\tmedian\tlowest\thighest\tCPU\t")
	for _, name := range r.order {
		s := r.series[name]
		cpu := ""
		if len(s.cpu) > 0 {
			cpu = fmt.Sprintf("%.2f ns/B", bench.Median(s.cpu))
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t\n", name, quantity(bench.Median(s.values), s.unit),
			quantity(slices.Min(s.values), s.unit), quantity(slices.Max(s.values), s.unit), cpu)
	}
	_ = t.Flush()

	fmt.Fprint(w, "\nRatios. Above 1 ours is better; what is to be reached stands behind it.\n\n")
	t = tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "ours\t\tbeside\t\tratio\tgoal\tlater\t")
	for _, c := range comparisons {
		r.compare(t, c)
	}
	_ = t.Flush()

	for _, name := range slices.Sorted(mapKeys(r.missing)) {
		fmt.Fprintf(w, "left out: %s: %s\n", name, r.missing[name])
	}
	for _, name := range slices.Sorted(mapKeys(r.failed)) {
		fmt.Fprintf(w, "FAILED %d of %d runs: %s: %s\n", len(r.failed[name]), r.runs, name, firstLine(r.failed[name][0]))
	}
}

// compare writes one line of ratios.
func (r *report) compare(t io.Writer, c comparison) {
	ours, have := r.median(c.ours)
	if !have {
		return
	}
	unit := r.series[c.ours].unit
	better := bench.HigherIsBetter(unit)
	beside, reference, ok := c.text, c.fixed, c.fixed > 0
	for _, name := range c.beside {
		v, have := r.median(name)
		if have && (!ok || (v > reference) == better) {
			beside, reference, ok = name, v, true
		}
	}
	if !ok || reference <= 0 || ours <= 0 {
		fmt.Fprintf(t, "%s\t%s\t%s\t-\t-\t%s\t%s\t\n", c.ours, quantity(ours, unit), strings.Join(c.beside, ", "), times(c.goal), times(c.later))
		return
	}
	ratio := ours / reference
	if !better {
		ratio = reference / ours
	}
	mark := ""
	if c.goal > 0 && ratio < c.goal {
		mark = " (below)"
	}
	fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%.2f%s\t%s\t%s\t\n",
		c.ours, quantity(ours, unit), beside, quantity(reference, unit), ratio, mark, times(c.goal), times(c.later))
}

func times(goal float64) string {
	if goal == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f", goal)
}

// saved is the form of a report in a file.
type saved struct {
	Started  time.Time           `json:"started"`
	Go       string              `json:"go"`
	System   string              `json:"system"`
	Cores    [2]int              `json:"cores"`
	Load     float64             `json:"load"`
	Runs     int                 `json:"runs"`
	Duration string              `json:"duration"`
	Results  []savedResult       `json:"results"`
	Missing  map[string]string   `json:"missing,omitempty"`
	Failed   map[string][]string `json:"failed,omitempty"`
}

type savedResult struct {
	bench.Measurement           // the medians
	Runs              []float64 `json:"runs"`
}

// save writes the report to a new file and returns its name.
func (r *report) save(dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return "", err
	}
	s := saved{
		Started: r.started, Go: runtime.Version(), System: runtime.GOOS + "/" + runtime.GOARCH, Cores: r.options.Cores, Load: r.load,
		Runs: r.runs, Duration: r.options.Duration.String(), Missing: r.missing, Failed: map[string][]string{},
	}
	for _, name := range r.order {
		f := r.series[name]
		s.Results = append(s.Results, savedResult{
			Measurement: bench.Measurement{Name: name, Unit: f.unit, Value: bench.Median(f.values), CPUPerByte: bench.Median(f.cpu)},
			Runs:        f.values,
		})
	}
	for name, errs := range r.failed {
		for _, err := range errs {
			s.Failed[name] = append(s.Failed[name], err.Error())
		}
	}
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, r.started.UTC().Format("20060102T150405.000")+".json")
	return name, os.WriteFile(name, append(text, '\n'), 0o666)
}

// quantity prints a value with its unit, for a person.
func quantity(v float64, unit string) string {
	switch unit {
	case bench.Nanoseconds:
		return fmt.Sprintf("%.2f us", v/1e3)
	case bench.BytesPerSecond:
		return fmt.Sprintf("%.2f GB/s", v/1e9)
	case bench.MessagesPerSecond:
		return fmt.Sprintf("%.2f M/s", v/1e6)
	case bench.PerSecond:
		return fmt.Sprintf("%.0f /s", v)
	case bench.Bytes:
		return fmt.Sprintf("%.0f B", v)
	}
	return fmt.Sprintf("%.2f %s", v, unit)
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// mapKeys yields the keys of a map.
func mapKeys[V any](m map[string]V) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}
