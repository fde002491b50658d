package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/bench"
)

// figure returns one measurement of a workload.
func figure(name, unit string, v float64) []bench.Measurement {
	return []bench.Measurement{{Name: name, Unit: unit, Value: v}}
}

func TestReport(t *testing.T) {
	r := newReport(bench.Options{Duration: time.Second, Cores: [2]int{0, 1}}, 3)
	for _, v := range []float64{2e9, 9e9, 3e9} { // the median is 3
		r.add("w", []bench.Measurement{{Name: "verbena/write_bw/65536/poll", Unit: bench.BytesPerSecond, Value: v, CPUPerByte: v / 1e9}}, nil)
	}
	r.add("i", figure("iperf3/tcp_bw", bench.BytesPerSecond, 4e9), nil)
	r.add("u1", figure("ucx/put_bw/65536", bench.BytesPerSecond, 1e9), nil)
	r.add("u2", figure("ucx/tag_bw/65536", bench.BytesPerSecond, 2e9), nil)
	r.add("l", figure("verbena/write_lat/8/poll", bench.Nanoseconds, 6000), nil)
	r.add("s", figure("sockperf/udp_lat/14/poll", bench.Nanoseconds, 3300), nil)
	r.add("q", figure("verbena/idle_qp/16", bench.Bytes, 4096), nil)
	r.add("n", nil, fmt.Errorf("sockperf is not installed: %w", bench.ErrUnavailable))
	r.add("once", nil, errors.New("a bad moment\nwith detail"))
	r.add("once", figure("x", bench.Count, 1), nil)

	var out bytes.Buffer
	r.print(&out)
	for _, want := range []string{
		`verbena/write_bw/65536/poll +3\.00 GB/s +2\.00 GB/s +9\.00 GB/s +3\.00 ns/B`,
		`iperf3/tcp_bw +4\.00 GB/s +0\.75 \(below\) +1\.00 +1\.50`,
		`ucx/put_bw/65536 +1\.00 GB/s +3\.00 +1\.00`,
		`ucx/tag_bw/65536 +2\.00 GB/s +1\.50 +2\.00`, // the better of the two
		`verbena/write_lat/8/poll +6\.00 us +sockperf/udp_lat/14/poll +3\.30 us +0\.55 +0\.50 +0\.62`,
		`verbena/idle_qp/16 +4096 B +8 KiB +8192 B +2\.00 +1\.00 +2\.00`,
		`verbena/write_lat/8/poll +6\.00 us +ucx/put_lat/8 +- +-`, // not measured
		`left out: n: sockperf is not installed`,
		`FAILED 1 of 3 runs: once: a bad moment\n`,
	} {
		if !regexp.MustCompile(want).Match(out.Bytes()) {
			t.Errorf("nothing matches %q in:\n%s", want, &out)
		}
	}
	if !r.unavailable("n") || r.unavailable("w") {
		t.Error("n is missing here and w is not")
	}

	if err := r.failure(); err != nil {
		t.Errorf("a workload that worked once failed the run: %v", err)
	}
	r.add("never", nil, errors.New("broken"))
	if err := r.failure(); err == nil || !strings.Contains(err.Error(), "never: broken") {
		t.Errorf("failure is %v, want never: broken", err)
	}
}

func TestSave(t *testing.T) {
	r := newReport(bench.Options{Duration: time.Second}, 1)
	r.add("w", figure("a/b", bench.Nanoseconds, 5), nil)
	name, err := r.save(t.TempDir() + "/out")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var got saved
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Results) != 1 || got.Results[0].Name != "a/b" || got.Results[0].Value != 5 || len(got.Results[0].Runs) != 1 {
		t.Errorf("saved %s", text)
	}
}

func TestComparisonsNameWhatIsMeasured(t *testing.T) {
	var workloadNames []string
	for _, w := range workloads(false) {
		workloadNames = append(workloadNames, strings.Split(w.Name, "/")[0])
	}
	for _, c := range comparisons {
		for _, name := range append([]string{c.ours}, c.beside...) {
			who, _, _ := strings.Cut(name, "/")
			if who != "verbena" && !slices.Contains(workloadNames, who) {
				t.Errorf("%s: nobody measures for %s", name, who)
			}
		}
	}
}

func TestChoose(t *testing.T) {
	all := workloads(false)
	if got, err := choose(all, ""); err != nil || len(got) != len(all) {
		t.Errorf("an empty expression chose %d of %d, error %v", len(got), len(all), err)
	}
	got, err := choose(all, "^iperf3$")
	if err != nil || len(got) != 1 {
		t.Errorf("iperf3 chose %d, error %v", len(got), err)
	}
	for _, bad := range []string{"(", "no such thing"} {
		if _, err := choose(all, bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestBadArguments(t *testing.T) {
	for _, args := range [][]string{{"extra"}, {"-runs", "-1"}, {"-no-such-flag"}, {"-only", "("}} {
		var out bytes.Buffer
		if err := run(t.Context(), args, &out, &out); err == nil {
			t.Errorf("%v was accepted", args)
		}
	}
}
