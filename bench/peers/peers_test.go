package peers

import "testing"

// The end of what iperf3 3.12 prints with -J, shortened.
const iperf3Output = `{"start": {}, "intervals": [], "end": {
	"sum_sent": {"start": 0, "end": 2.0, "seconds": 2.0, "bytes": 4006215680, "bits_per_second": 1.6e10},
	"sum_received": {"start": 0, "end": 2.0, "seconds": 2.0, "bytes": 4000000000, "bits_per_second": 1.6e10},
	"cpu_utilization_percent": {"host_total": 91.3}}}`

func TestParseIperf3(t *testing.T) {
	received, rate, err := parseIperf3([]byte(iperf3Output))
	if err != nil || received != 4e9 || rate != 2e9 {
		t.Errorf("received %v, rate %v, error %v; want 4e9, 2e9, none", received, rate, err)
	}
	for _, bad := range []string{"", "{}", `{"error": "unable to connect"}`} {
		if _, _, err := parseIperf3([]byte(bad)); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

// The end of what sockperf 3.7 prints, colours included.
const sockperfOutput = "sockperf: \x1b[2;35m====> avg-latency=5.379 (std-dev=18.860)\x1b[0m\n" +
	"sockperf: Summary: Latency is 5.379 usec\n" +
	"sockperf: ---> <MAX> observation = 5632.688\n" +
	"sockperf: ---> percentile 99.990 =  487.649\n" +
	"sockperf: ---> percentile 99.000 =   15.844\n" +
	"sockperf: ---> percentile 50.000 =    4.914\n" +
	"sockperf: ---> <MIN> observation =    3.821\n"

func TestParseSockperf(t *testing.T) {
	median, p99, err := parseSockperf([]byte(sockperfOutput))
	if err != nil || median != 4914 || p99 != 15844 {
		t.Errorf("median %v, p99 %v, error %v; want 4914, 15844, none", median, p99, err)
	}
	if _, _, err := parseSockperf([]byte("sockperf: ERROR: no reply")); err == nil {
		t.Error("an output without percentiles was accepted")
	}
}

// What ucx_perftest 1.13 prints with -v: with and without lines of progress.
const (
	ucxLatency = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n" +
		"20000,16.098,17.345,17.345,0.44,0.44,57652,57652\n"
	ucxBandwidth = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n" +
		"[thread 0]17716,9.649,56.393,56.393,1108.29,1108.29,17733,17733\n" +
		"100000,10.793,56.597,55.518,1104.30,1125.76,17669,18012\n"
)

func TestParseUCX(t *testing.T) {
	for _, c := range []struct {
		output        string
		latency, rate float64
	}{
		{ucxLatency, 16098, 57652},
		{ucxBandwidth, 10793, 18012},
	} {
		latency, rate, err := parseUCX([]byte(c.output))
		if err != nil || latency != c.latency || rate != c.rate {
			t.Errorf("latency %v, rate %v, error %v; want %v, %v", latency, rate, err, c.latency, c.rate)
		}
	}
	for _, bad := range []string{"", "iterations,overall_mr\n", "Failed to connect\nagain\n"} {
		if _, _, err := parseUCX([]byte(bad)); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

// Two lines of /proc/net/udp: an open socket on port 4791 and one that is connected from 4792.
const procTable = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n" +
	"  100: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000     0\n" +
	"  101: 0100007F:12B8 0100007F:0035 01 00000000:00000000 00:00000000 00000000     0\n"

func TestHasPort(t *testing.T) {
	for port, want := range map[int]bool{4791: true, 4792: false, 53: false} {
		if got := hasPort(procTable, port); got != want {
			t.Errorf("hasPort(%d) = %v, want %v", port, got, want)
		}
	}
}
