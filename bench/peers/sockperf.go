package peers

import (
	"context"
	"fmt"
	"math"
	"regexp"
	"strconv"

	"github.com/verbena-rdma/verbena/bench"
)

// sockperf measures half of a UDP round trip, with sockets that are polled or that sleep. Its smallest message is 14 bytes.
func sockperf(ctx context.Context, o bench.Options, poll bool) ([]bench.Measurement, error) {
	program, err := lookPath("sockperf")
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	p := strconv.Itoa(port)
	server := []string{"server", "-i", "127.0.0.1", "-p", p}
	client := []string{"ping-pong", "-i", "127.0.0.1", "-p", p, "-m", "14", "-t", seconds(o.Duration)}
	manner := "sleep"
	if poll {
		manner = "poll"
		server = append(server, "--nonblocked")
		client = append(client, "--nonblocked")
	}
	r, err := runPair(ctx, "udp", port,
		bench.Pinned(ctx, o.Cores[1], program, server...),
		bench.Pinned(ctx, o.Cores[0], program, client...),
		true)
	if err != nil {
		return nil, fmt.Errorf("sockperf: %w", err)
	}
	median, p99, err := parseSockperf(r.output)
	if err != nil {
		return nil, err
	}
	return []bench.Measurement{
		{Name: "sockperf/udp_lat/14/" + manner, Unit: bench.Nanoseconds, Value: median},
		{Name: "sockperf/udp_lat_p99/14/" + manner, Unit: bench.Nanoseconds, Value: p99},
	}, nil
}

var sockperfPercentile = regexp.MustCompile(`---> percentile (\d+\.\d+) =\s*(\d+\.\d+)`)

// parseSockperf reads the median and the 99th percentile of the latency, in nanoseconds.
func parseSockperf(output []byte) (median, p99 float64, err error) {
	for _, m := range sockperfPercentile.FindAllSubmatch(output, -1) {
		rank, err1 := strconv.ParseFloat(string(m[1]), 64)
		micros, err2 := strconv.ParseFloat(string(m[2]), 64)
		if err1 != nil || err2 != nil {
			continue
		}
		switch rank {
		case 50:
			median = math.Round(micros * 1e3)
		case 99:
			p99 = math.Round(micros * 1e3)
		}
	}
	if median <= 0 || p99 <= 0 {
		return 0, 0, fmt.Errorf("sockperf: no percentiles in its output: %q", output)
	}
	return median, p99, nil
}
