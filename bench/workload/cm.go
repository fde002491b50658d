package workload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/bench"
)

const (
	roleCMClient = "verbena/cm_client"
	roleCMServer = "verbena/cm_server"
)

const (
	// cmPort is where the server listens.
	cmPort = 7471
	// cmWindow is how many connections are being made at a time, where it is not one.
	cmWindow = 64
	// cmPhased is how many connections go through each phase together.
	cmPhased = 500
	// cmWarmUp is how many cycles are not counted.
	cmWarmUp = 500
)

// cmJob is what the two sides of a measurement of connections do.
type cmJob struct {
	Kind     string        `json:"kind"`   // "cycles", "phases", "hold"
	Window   int           `json:"window"` // connections under way
	Count    int           `json:"count"`  // connections in all; 0: as many as the duration allows
	Duration time.Duration `json:"duration"`
	Addr     string        `json:"addr"`
	Other    string        `json:"other"` // the server's address
}

// cmResult is what the client saw.
type cmResult struct {
	Cycles  int           `json:"cycles"`
	Elapsed time.Duration `json:"elapsed"`
	CPU     time.Duration `json:"cpu"`
	Phases  []cmPhase     `json:"phases,omitempty"`
	Before  cmUse         `json:"before"`
	After   cmUse         `json:"after"`
}

// cmPhase is a step of a connection's life.
type cmPhase struct {
	Name  string        `json:"name"`
	Total time.Duration `json:"total"` // for all connections
	Max   time.Duration `json:"max"`   // for one
}

// cmUse is what a process has.
type cmUse struct {
	Heap       uint64        `json:"heap"`
	Goroutines int           `json:"goroutines"`
	Files      int           `json:"files"`
	CPU        time.Duration `json:"cpu"`
}

// cmWorkloads are the measurements of connections. short leaves out the long ones.
func cmWorkloads(short bool) []bench.Workload {
	var list []bench.Workload
	add := func(name string, j cmJob) {
		list = append(list, bench.Workload{Name: name, Run: func(ctx context.Context, o bench.Options) ([]bench.Measurement, error) {
			return cmRun(ctx, o, name, j)
		}})
	}
	add("verbena/cm_cycles/1", cmJob{Kind: "cycles", Window: 1})
	add(fmt.Sprintf("verbena/cm_cycles/%d", cmWindow), cmJob{Kind: "cycles", Window: cmWindow})
	add("verbena/cm_phase", cmJob{Kind: "phases", Count: cmPhased})
	add("verbena/cm_held/10000", cmJob{Kind: "hold", Window: cmWindow, Count: 10000})
	if !short {
		add("verbena/cm_leak/100000", cmJob{Kind: "leak", Window: cmWindow, Count: 100000})
	}
	return list
}

// cmRun starts both sides and reads what they saw.
func cmRun(ctx context.Context, o bench.Options, name string, j cmJob) (_ []bench.Measurement, err error) {
	ctx, cancel := context.WithTimeout(ctx, o.Duration+4*time.Minute)
	defer cancel()
	j.Duration = o.Duration
	sj := j
	j.Addr, j.Other = addresses()
	sj.Addr = j.Other
	s, err := bench.StartChild(ctx, roleCMServer, o.Cores[1], sj, procs)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	var ready cmUse
	if err := s.Read(&ready); err != nil {
		return nil, fmt.Errorf("%s: server: %w", name, err)
	}
	c, err := bench.StartChild(ctx, roleCMClient, o.Cores[0], j, procs)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	// The client says when there is nothing but what is made once, and when it is done.
	var served [2]cmUse
	for i := range served {
		var word string
		if err := c.Read(&word); err != nil {
			return nil, fmt.Errorf("%s: client: %w", name, err)
		}
		if err := errors.Join(s.Write("measure"), s.Read(&served[i])); err != nil {
			return nil, fmt.Errorf("%s: server: %w", name, err)
		}
		if err := c.Write("go"); err != nil {
			return nil, fmt.Errorf("%s: client: %w", name, err)
		}
	}
	var r cmResult
	if err := c.Read(&r); err != nil {
		return nil, fmt.Errorf("%s: client: %w", name, err)
	}
	if r.Cycles == 0 {
		return nil, fmt.Errorf("%s: there was no connection", name)
	}
	return cmMeasurements(name, j, &r, served), nil
}

func cmMeasurements(name string, j cmJob, r *cmResult, served [2]cmUse) (list []bench.Measurement) {
	add := func(what, unit string, v float64) {
		list = append(list, bench.Measurement{Name: name + what, Unit: unit, Value: v})
	}
	n := float64(r.Cycles)
	grown := func(a, b cmUse) float64 { return float64(int64(b.Heap)-int64(a.Heap)) / n }
	rate := n / r.Elapsed.Seconds()
	switch j.Kind {
	case "cycles":
		add("", bench.PerSecond, rate)
		add("/cpu", bench.Nanoseconds, float64(r.CPU+served[1].CPU-served[0].CPU)/n)
	case "phases":
		for _, p := range r.Phases {
			add("/"+p.Name, bench.Nanoseconds, float64(p.Total)/n)
			add("/"+p.Name+"/max", bench.Nanoseconds, float64(p.Max))
		}
	case "hold":
		add("/client", bench.Bytes, grown(r.Before, r.After))
		add("/server", bench.Bytes, grown(served[0], served[1]))
		add("/made", bench.PerSecond, rate)
	case "leak":
		add("", bench.PerSecond, rate)
		for i, u := range [2][2]cmUse{{r.Before, r.After}, served} {
			side := [...]string{"/client", "/server"}[i]
			add(side, bench.Bytes, grown(u[0], u[1])) // of each
			add(side+"/goroutines", bench.Count, float64(u[1].Goroutines-u[0].Goroutines))
			add(side+"/files", bench.Count, float64(u[1].Files-u[0].Files))
		}
	}
	return list
}

// cmTarget is the server's address and port.
func (j *cmJob) target() (netip.AddrPort, error) {
	a, err := netip.ParseAddr(j.Other)
	return netip.AddrPortFrom(a, cmPort), err
}

// exchange tells the parent a word and waits for its answer.
func exchange(word string, in *json.Decoder, out *json.Encoder) error {
	if err := out.Encode(word); err != nil {
		return err
	}
	return in.Decode(&word)
}
