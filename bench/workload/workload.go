// Package workload measures Verbena itself: two processes on the loopback interface, each pinned to its core, over real RoCEv2
// packets.
//
// Latency is half of a ping-pong, in which each side waits for the other's message: polling by looking at its memory (WRITE) or
// its completion queue (SEND), sleeping in CQ.Wait (WRITE with immediate, SEND). READ is timed from post to completion, and so is
// WRITE as "write_post", which needs the acknowledgement.
package workload

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/bench"
	"github.com/verbena-rdma/verbena/ib"
)

const (
	roleClient = "verbena/client"
	roleServer = "verbena/server"
	roleIdle   = "verbena/idle"
)

// job is what the two sides do.
type job struct {
	Kind     string        `json:"kind"` // "bw", "lat", "post"
	Op       ib.WROpcode   `json:"op"`
	Size     int           `json:"size"`
	Batch    int           `json:"batch"` // requests in one post; the last is signaled
	QPs      int           `json:"qps"`
	RecvBuf  int           `json:"recv_buf"` // 0: the default
	Sleep    bool          `json:"sleep"`    // wait with CQ.Wait, which sleeps at once
	Spin     bool          `json:"spin"`     // ... which spins before, as it does unless told otherwise
	Duration time.Duration `json:"duration"`
	Addr     string        `json:"addr"`
	Other    string        `json:"other"` // the peer's address
	Share    string        `json:"share"` // see share.go; "": a port of one's own
}

// peerInfo is what a side tells the other.
type peerInfo struct {
	QPNs []uint32 `json:"qpns"`
	Addr uint64   `json:"addr"`
	RKey uint32   `json:"rkey"`
}

// result is what the client saw.
type result struct {
	Messages uint64        `json:"messages"`
	Elapsed  time.Duration `json:"elapsed"`
	CPU      time.Duration `json:"cpu"`
	Median   int64         `json:"median"` // ns
	P99      int64         `json:"p99"`
	Allocs   float64       `json:"allocs"` // per message
}

// depth is the most requests under way.
const depth = 128

// Roles returns what this program can be started for.
func Roles() map[string]bench.Role {
	return map[string]bench.Role{
		roleClient: client, roleServer: server, roleIdle: idle, roleCMClient: cmClient, roleCMServer: cmServer,
		roleRWClient: rwClient, roleRWServer: rwServer, roleMember: member,
	}
}

// Workloads returns the measurements of this package. short leaves out sizes.
func Workloads(short bool) []bench.Workload {
	sizes := []int{8, 64, 512, 4096, 32768, 65536, 1 << 20, 8 << 20}
	latSizes := []int{8, 512, 4096, 65536}
	if short {
		sizes, latSizes = []int{4096, 65536, 1 << 20}, []int{8}
	}
	var list []bench.Workload
	add := func(name string, j job) {
		list = append(list, bench.Workload{Name: name, Run: func(ctx context.Context, o bench.Options) ([]bench.Measurement, error) {
			return run(ctx, o, name, j)
		}})
	}
	ops := []struct {
		name string
		op   ib.WROpcode
	}{{"write", ib.WRRDMAWrite}, {"read", ib.WRRDMARead}, {"send", ib.WRSend}}
	for _, o := range ops {
		for _, n := range sizes {
			add(fmt.Sprintf("verbena/%s_bw/%d/poll", o.name, n), job{Kind: "bw", Op: o.op, Size: n, Batch: batchFor(n)})
		}
	}
	for _, n := range latSizes {
		add(fmt.Sprintf("verbena/write_lat/%d/poll", n), job{Kind: "lat", Op: ib.WRRDMAWrite, Size: n})
		add(fmt.Sprintf("verbena/write_lat/%d/sleep", n), job{Kind: "lat", Op: ib.WRRDMAWriteWithImm, Size: n, Sleep: true})
		add(fmt.Sprintf("verbena/write_lat/%d/wait", n), job{Kind: "lat", Op: ib.WRRDMAWriteWithImm, Size: n, Sleep: true, Spin: true})
		add(fmt.Sprintf("verbena/send_lat/%d/poll", n), job{Kind: "lat", Op: ib.WRSend, Size: n})
		add(fmt.Sprintf("verbena/send_lat/%d/sleep", n), job{Kind: "lat", Op: ib.WRSend, Size: n, Sleep: true})
		add(fmt.Sprintf("verbena/send_lat/%d/wait", n), job{Kind: "lat", Op: ib.WRSend, Size: n, Sleep: true, Spin: true})
		add(fmt.Sprintf("verbena/read_post/%d/poll", n), job{Kind: "post", Op: ib.WRRDMARead, Size: n})
		add(fmt.Sprintf("verbena/write_post/%d/poll", n), job{Kind: "post", Op: ib.WRRDMAWrite, Size: n})
	}
	add("verbena/write_rate/8/batch32", job{Kind: "bw", Op: ib.WRRDMAWrite, Size: 8, Batch: 32})
	add("verbena/write_rate/8/batch1", job{Kind: "bw", Op: ib.WRRDMAWrite, Size: 8, Batch: 1})
	add("verbena/write_bw_rcvbuf212992/65536/poll", job{Kind: "bw", Op: ib.WRRDMAWrite, Size: 65536, Batch: 1, RecvBuf: 212992 / 2})
	add("verbena/write_bw_1000qps/65536/poll", job{Kind: "bw", Op: ib.WRRDMAWrite, Size: 65536, Batch: 1, QPs: 1000})
	for name, n := range map[string]int{"verbena/idle_qp/16": 100, "verbena/idle_qp/16/10000": 10000} {
		list = append(list, bench.Workload{Name: name, Run: func(ctx context.Context, o bench.Options) ([]bench.Measurement, error) {
			return idleMemory(ctx, o, name, n)
		}})
	}
	return slices.Concat(list, shareWorkloads(), rwWorkloads(short), cmWorkloads(short))
}

// procs gives programs that sleep two processors of the runtime, as one that is not
// pinned has: the only one would be taken away in every system call of 20 us.
const procs = "GOMAXPROCS=2"

// batchFor keeps about 64 KiB in one post.
func batchFor(size int) int { return min(max(65536/size, 1), 32) }

// run starts both sides, introduces them to each other, and reads what the client saw.
func run(ctx context.Context, o bench.Options, name string, j job) ([]bench.Measurement, error) {
	a, b := addresses()
	return runAt(ctx, o, name, j, a, b)
}

// runAt is run at given addresses, of the server and the client.
func runAt(ctx context.Context, o bench.Options, name string, j job, a, b string) (_ []bench.Measurement, err error) {
	ctx, cancel := context.WithTimeout(ctx, o.Duration+30*time.Second)
	defer cancel()
	j.Duration = o.Duration
	j.QPs, j.Batch = max(j.QPs, 1), max(j.Batch, 1)
	sj, cj := j, j
	sj.Addr, sj.Other, cj.Addr, cj.Other = a, b, b, a
	if j.Share == shareRelayed {
		cj.Share = shareAlone // members would hand each other what they send
	}
	var env []string
	if j.Sleep {
		env = append(env, procs)
	}
	s, err := bench.StartChild(ctx, roleServer, o.Cores[1], sj, env...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	c, err := bench.StartChild(ctx, roleClient, o.Cores[0], cj, env...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	// Each side sends its numbers, gets the other's, and says when it is connected; then both start.
	if err := introduce(s, c); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	var r, served result
	if err := c.Read(&r); err != nil {
		return nil, fmt.Errorf("%s: client: %w", name, err)
	}
	if err := s.Write("stop"); err != nil {
		return nil, fmt.Errorf("%s: server: %w", name, err)
	}
	if err := s.Read(&served); err != nil {
		return nil, fmt.Errorf("%s: server: %w", name, err)
	}
	if r.Messages == 0 {
		return nil, fmt.Errorf("%s: nothing was transferred", name)
	}
	return measurements(name, j, r, served), nil
}

func introduce(s, c *bench.Child) error {
	var si, ci peerInfo
	if err := errors.Join(s.Read(&si), c.Read(&ci)); err != nil {
		return err
	}
	if err := errors.Join(s.Write(ci), c.Write(si)); err != nil {
		return err
	}
	var ready string
	if err := errors.Join(s.Read(&ready), c.Read(&ready)); err != nil {
		return err
	}
	return errors.Join(s.Write("go"), c.Write("go"))
}

func measurements(name string, j job, r, served result) []bench.Measurement {
	perMessage := r.Elapsed.Seconds() / float64(r.Messages)
	cpu := float64(r.CPU+served.CPU) / (float64(r.Messages) * float64(j.Size))
	switch {
	case j.Kind != "bw":
		return []bench.Measurement{
			{Name: name, Unit: bench.Nanoseconds, Value: float64(r.Median)},
			{Name: name + "/p99", Unit: bench.Nanoseconds, Value: float64(r.P99)},
			{Name: name + "/allocs", Unit: bench.Count, Value: r.Allocs},
		}
	case strings.HasPrefix(name, "verbena/write_rate"):
		return []bench.Measurement{
			{Name: name, Unit: bench.MessagesPerSecond, Value: 1 / perMessage},
			{Name: name + "/allocs", Unit: bench.Count, Value: r.Allocs},
		}
	}
	return []bench.Measurement{{Name: name, Unit: bench.BytesPerSecond, Value: float64(j.Size) / perMessage, CPUPerByte: cpu}}
}

// addresses are two loopback addresses that nobody else uses.
func addresses() (a, b string) {
	n := time.Now().UnixNano() / 1000
	x, y := n%250+1, n/250%250+1
	return fmt.Sprintf("127.77.%d.%d", x, y), fmt.Sprintf("127.78.%d.%d", x, y)
}
