package peers

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/verbena-rdma/verbena/bench"
)

// iperf3 measures the bandwidth of one TCP connection.
func iperf3(ctx context.Context, o bench.Options) ([]bench.Measurement, error) {
	program, err := lookPath("iperf3")
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	p := strconv.Itoa(port)
	r, err := runPair(ctx, "tcp", port,
		bench.Pinned(ctx, o.Cores[1], program, "-s", "-1", "-B", "127.0.0.1", "-p", p),
		bench.Pinned(ctx, o.Cores[0], program, "-c", "127.0.0.1", "-p", p, "-J", "-t", seconds(o.Duration)),
		false)
	if err != nil {
		return nil, fmt.Errorf("iperf3: %w", err)
	}
	received, rate, err := parseIperf3(r.output)
	if err != nil {
		return nil, err
	}
	return []bench.Measurement{{
		Name: "iperf3/tcp_bw", Unit: bench.BytesPerSecond, Value: rate, CPUPerByte: float64(r.cpu) / received,
	}}, nil
}

// parseIperf3 reads the bytes that were received, and bytes per second, from the JSON of an iperf3 client.
func parseIperf3(output []byte) (received, rate float64, err error) {
	var report struct {
		Error string `json:"error"`
		End   struct {
			Received struct {
				Bytes   float64 `json:"bytes"`
				Seconds float64 `json:"seconds"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	if err := json.Unmarshal(output, &report); err != nil {
		return 0, 0, fmt.Errorf("iperf3: %w", err)
	}
	sum := report.End.Received
	if report.Error != "" || sum.Bytes <= 0 || sum.Seconds <= 0 {
		return 0, 0, fmt.Errorf("iperf3: no result: %s", report.Error)
	}
	return sum.Bytes, sum.Bytes / sum.Seconds, nil
}

// seconds returns a duration in whole seconds, at least one, as the peers want it.
func seconds(d time.Duration) string {
	return strconv.Itoa(max(1, int((d+time.Second/2)/time.Second)))
}
