package workload

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/verbena-rdma/verbena/bench"
	"github.com/verbena-rdma/verbena/ib"
)

const (
	roleRWClient = "verbena/rw_client"
	roleRWServer = "verbena/rw_server"
)

// rwJob is what the two sides of a measurement of contexts do.
type rwJob struct {
	Op       ib.WROpcode   `json:"op"` // ib.WRRDMAWrite or ib.WRRDMARead
	Size     int           `json:"size"`
	InFlight int           `json:"in_flight"`
	Random   bool          `json:"random"` // places in the peer's memory, else one behind the other
	Duration time.Duration `json:"duration"`
	Addr     string        `json:"addr"`
	Other    string        `json:"other"`
}

// rwResult is what the client saw of one way to move the data.
type rwResult struct {
	Way    string  `json:"way"`
	Rate   float64 `json:"rate"`   // bytes per second, the median of the rounds
	Ratio  float64 `json:"ratio"`  // to plain posts of the same round, the median; 0 for those
	Allocs float64 `json:"allocs"` // per transfer
}

// rwWorkloads are the measurements of contexts beside plain posts, by every way that a
// context can move data. short leaves out most.
func rwWorkloads(short bool) []bench.Workload {
	var list []bench.Workload
	for _, k := range []struct {
		size   int
		random bool
	}{{4096, true}, {65536, false}, {1 << 20, false}} {
		for _, op := range []ib.WROpcode{ib.WRRDMARead, ib.WRRDMAWrite} {
			for _, n := range []int{1, 4, 16, 64} {
				// The quick look has the goal, and one more of each size.
				if short && (n != 16 || k.size != 65536 && op == ib.WRRDMAWrite) {
					continue
				}
				name := fmt.Sprintf("verbena/rw_%s/%d/%d", map[ib.WROpcode]string{ib.WRRDMARead: "read", ib.WRRDMAWrite: "write"}[op], k.size, n)
				j := rwJob{Op: op, Size: k.size, InFlight: n, Random: k.random}
				list = append(list, bench.Workload{Name: name, Run: func(ctx context.Context, o bench.Options) ([]bench.Measurement, error) {
					return rwRun(ctx, o, name, j)
				}})
			}
		}
	}
	return list
}

// rwRun starts both sides and reads what the client saw.
func rwRun(ctx context.Context, o bench.Options, name string, j rwJob) (_ []bench.Measurement, err error) {
	ctx, cancel := context.WithTimeout(ctx, o.Duration+2*time.Minute)
	defer cancel()
	j.Duration = o.Duration
	a, b := addresses()
	sj, cj := j, j
	sj.Addr, sj.Other, cj.Addr, cj.Other = a, b, b, a
	s, err := bench.StartChild(ctx, roleRWServer, o.Cores[1], sj)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	c, err := bench.StartChild(ctx, roleRWClient, o.Cores[0], cj)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if err := introduce(s, c); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	var results []rwResult
	if err := c.Read(&results); err != nil {
		return nil, fmt.Errorf("%s: client: %w", name, err)
	}
	if err := s.Write("stop"); err != nil {
		return nil, fmt.Errorf("%s: server: %w", name, err)
	}
	var list []bench.Measurement
	for _, r := range results {
		list = append(list, bench.Measurement{Name: name + "/" + r.Way, Unit: bench.BytesPerSecond, Value: r.Rate})
		if r.Ratio != 0 {
			list = append(list, bench.Measurement{Name: name + "/" + r.Way + "/of_plain", Unit: bench.Ratio, Value: r.Ratio})
		}
		if r.Way == "single" {
			list = append(list, bench.Measurement{Name: name + "/" + r.Way + "/allocs", Unit: bench.Count, Value: r.Allocs})
		}
	}
	return list, nil
}
