// Package bench holds what every measurement of Verbena and of its peers has in common: what a result is, how a workload is run,
// and how a second process is started on another core.
package bench

import (
	"context"
	"errors"
	"slices"
	"time"
)

// Units of a [Measurement].
const (
	BytesPerSecond    = "B/s"
	MessagesPerSecond = "msg/s"
	PerSecond         = "1/s" // for instance connections
	Nanoseconds       = "ns"
	Bytes             = "B"
	Count             = "count" // for instance allocations per operation
	Ratio             = "x"     // of a rate to another one of the same minute
)

// A Measurement is one figure.
type Measurement struct {
	// Name is made of who, what, message size in bytes and manner, as in "bareloop/lat/8/poll".
	Name string `json:"name"`
	// Unit is one of the constants above. Latency is half of a round trip, the median of its run.
	Unit  string  `json:"unit"`
	Value float64 `json:"value"`
	// CPUPerByte is the processor time that both sides together spent per byte of payload, in nanoseconds; 0 when it was not measured.
	CPUPerByte float64 `json:"cpu_ns_per_byte,omitempty"`
}

// HigherIsBetter reports whether more of the unit is the better result.
func HigherIsBetter(unit string) bool {
	return unit == BytesPerSecond || unit == MessagesPerSecond || unit == PerSecond || unit == Ratio
}

// Options are the same for every workload of one run, so that results can be compared.
type Options struct {
	// Duration is how long each measurement lasts, without start and warm-up.
	Duration time.Duration
	// Cores are the processors of the two sides: [0] starts the transfer or asks, [1] serves.
	Cores [2]int
}

// A Workload measures one thing, once per call of Run. It returns an error that matches [ErrUnavailable] where this machine cannot
// run it at all.
type Workload struct {
	Name string
	Run  func(ctx context.Context, o Options) ([]Measurement, error)
}

// ErrUnavailable is matched by the error of a workload that cannot run on this machine: a program that is not installed, another
// operating system. It is no failure.
var ErrUnavailable = errors.New("not available here")

// Median returns the middle of the values (the mean of the middle two when their number is even), and 0 for none.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(values))
	n := len(s)
	return (s[(n-1)/2] + s[n/2]) / 2
}

// Percentile returns the smallest sample that is at least as large as p percent of the samples, which it sorts; 0 for none.
func Percentile(samples []int64, p float64) int64 {
	if len(samples) == 0 {
		return 0
	}
	slices.Sort(samples)
	i := int(float64(len(samples))*p/100+0.999999) - 1
	return samples[min(max(i, 0), len(samples)-1)]
}
