package peers

import (
	"bytes"
	"context"
	"encoding/csv"
	"fmt"
	"math"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/verbena-rdma/verbena/bench"
)

// ucxTest is one test of ucx_perftest.
type ucxTest struct {
	test      string // as ucx_perftest names it
	what      string // as we name it
	size      int
	latency   bool
	perSecond int // about how many iterations make a second; ucx_perftest cannot be told a time
}

var ucxTests = []ucxTest{
	{"ucp_put_bw", "put_bw", 65536, false, 15_000},
	{"tag_bw", "tag_bw", 65536, false, 25_000},
	{"ucp_put_bw", "put_rate", 8, false, 250_000},
	{"tag_bw", "tag_rate", 8, false, 500_000},
	{"ucp_put_lat", "put_lat", 8, true, 50_000},
	{"tag_lat", "tag_lat", 8, true, 100_000},
	{"ucp_put_lat", "put_lat", 65536, true, 10_000},
	{"tag_lat", "tag_lat", 65536, true, 15_000},
}

func (t ucxTest) name() string { return fmt.Sprintf("ucx/%s/%d", t.what, t.size) }

// ucx runs one test of ucx_perftest over TCP. UCX polls.
func ucx(ctx context.Context, o bench.Options, t ucxTest) ([]bench.Measurement, error) {
	program, err := lookPath("ucx_perftest")
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	iterations := max(1000, int(float64(t.perSecond)*o.Duration.Seconds()))
	warmUp := iterations / 10
	p := strconv.Itoa(port)
	// A run takes about the duration; one that hangs must not hang us.
	ctx, cancel := context.WithTimeout(ctx, 20*o.Duration+20*time.Second)
	defer cancel()
	server := bench.Pinned(ctx, o.Cores[1], program, "-p", p)
	client := bench.Pinned(ctx, o.Cores[0], program, "-p", p, "127.0.0.1", "-v",
		"-t", t.test, "-s", strconv.Itoa(t.size), "-n", strconv.Itoa(iterations), "-w", strconv.Itoa(warmUp))
	for _, cmd := range []*exec.Cmd{server, client} {
		cmd.Env = append(os.Environ(), "UCX_TLS=tcp", "UCX_NET_DEVICES=lo", "UCX_LOG_LEVEL=error")
	}
	r, err := runPair(ctx, "tcp", port, server, client, false)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", t.name(), err)
	}
	latency, rate, err := parseUCX(r.output)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", t.name(), err)
	}
	m := bench.Measurement{Name: t.name(), Unit: bench.Nanoseconds, Value: latency}
	if !t.latency {
		// ucx_perftest prints MB/s but means MiB/s; messages per second need no such knowledge.
		m.Unit, m.Value = bench.MessagesPerSecond, rate
		if t.size > 8 {
			m.Unit, m.Value = bench.BytesPerSecond, rate*float64(t.size)
			m.CPUPerByte = float64(r.cpu) / (float64(iterations+warmUp) * float64(t.size))
		}
	}
	return []bench.Measurement{m}, nil
}

// parseUCX reads the median latency in nanoseconds and the messages per second from the CSV form of ucx_perftest's output.
func parseUCX(output []byte) (latency, rate float64, err error) {
	r := csv.NewReader(bytes.NewReader(output))
	r.FieldsPerRecord = -1
	rows, err := r.ReadAll()
	if err != nil {
		return 0, 0, err
	}
	if len(rows) < 2 {
		return 0, 0, fmt.Errorf("no result in %q", output)
	}
	head, last := rows[0], rows[len(rows)-1]
	for i, name := range head {
		if i >= len(last) {
			break
		}
		v, err := strconv.ParseFloat(last[i], 64)
		if err != nil {
			continue
		}
		switch name {
		case "50.0_percentile_lat", "50.0_percentile_overhead":
			latency = math.Round(v * 1e3)
		case "overall_mr":
			rate = v
		}
	}
	if rate <= 0 {
		return 0, 0, fmt.Errorf("no result in %q", output)
	}
	return latency, rate, nil
}
