package main

// A comparison is one figure of ours beside the best of some of others, or beside a fixed value.
type comparison struct {
	ours   string
	beside []string // the best that was measured counts
	fixed  float64  // compared with when none of beside was measured, in the unit of ours
	text   string   // what fixed is
	// goal is the ratio to reach, later the one to reach in the end; 0 for none. Above 1 ours is better.
	goal, later float64
}

// comparisons are the lines of the second table. A figure that was not measured has no line.
var comparisons = []comparison{
	{ours: "verbena/write_bw/65536/poll", beside: []string{"iperf3/tcp_bw"}, goal: 1, later: 1.5},
	{ours: "verbena/write_bw/65536/poll", beside: []string{"ucx/put_bw/65536"}, goal: 1},
	{ours: "verbena/write_bw/65536/poll", beside: []string{"ucx/put_bw/65536", "ucx/tag_bw/65536"}, later: 2},
	{ours: "verbena/write_bw/65536/poll", beside: []string{"bareloop/bw/65536"}, later: 0.75},
	{ours: "verbena/send_bw/65536/poll", beside: []string{"ucx/tag_bw/65536"}},
	{ours: "verbena/send_bw/65536/poll", beside: []string{"iperf3/tcp_bw"}},
	{ours: "verbena/read_bw/65536/poll", beside: []string{"iperf3/tcp_bw"}},
	{ours: "verbena/write_lat/8/poll", beside: []string{"sockperf/udp_lat/14/poll"}, goal: 1 / 2.0, later: 1 / 1.6},
	{ours: "verbena/write_lat/8/sleep", beside: []string{"sockperf/udp_lat/14/sleep"}, goal: 1 / 1.5, later: 1 / 1.3},
	{ours: "verbena/write_lat/8/wait", beside: []string{"sockperf/udp_lat/14/sleep"}, goal: 1 / 1.5, later: 1 / 1.3},
	{ours: "verbena/write_lat/8/poll", beside: []string{"bareloop/lat/8/poll"}},
	{ours: "verbena/write_lat/8/poll", beside: []string{"ucx/put_lat/8"}},
	{ours: "verbena/send_lat/8/poll", beside: []string{"ucx/tag_lat/8"}},
	{ours: "verbena/send_lat/8/sleep", beside: []string{"sockperf/udp_lat/14/sleep"}},
	{ours: "verbena/write_rate/8/batch32", fixed: 1e6, text: "1 M/s", goal: 1, later: 3},
	{ours: "verbena/write_rate/8/batch32", beside: []string{"bareloop/rate/8/batch32"}},
	{ours: "verbena/write_rate/8/batch32", beside: []string{"ucx/put_rate/8"}},
	{ours: "verbena/write_rate/8/batch1", fixed: 0.25e6, text: "0.25 M/s", later: 1},
	{ours: "verbena/idle_qp/16", fixed: 8 << 10, text: "8 KiB", goal: 1, later: 2},
	{ours: "verbena/cm_cycles/64", fixed: 5000, text: "5,000 /s", goal: 1},
	// Processes that share an address beside two that have one each.
	{ours: "verbena/share_bw/65536/beside3/poll", beside: []string{"verbena/share_bw/65536/alone/poll"}, goal: 0.95},
	{ours: "verbena/share_bw/65536/beside3/sleep", beside: []string{"verbena/share_bw/65536/alone/sleep"}, goal: 0.95},
	{ours: "verbena/share_bw/65536/handed/poll", beside: []string{"verbena/share_bw/65536/alone/poll"}},
	{ours: "verbena/share_bw/65536/handed/sleep", beside: []string{"verbena/share_bw/65536/alone/sleep"}, goal: 0.7},
	{ours: "verbena/share_bw/65536/relayed/poll", beside: []string{"verbena/share_bw/65536/alone/poll"}},
	{ours: "verbena/share_bw/65536/relayed/sleep", beside: []string{"verbena/share_bw/65536/alone/sleep"}, goal: 0.7},
	// Contexts beside plain posts of the same transfers, by the ways that they may take.
	{ours: "verbena/rw_write/65536/16/single/of_plain", fixed: 1, text: "plain posts", goal: 0.95},
	{ours: "verbena/rw_read/65536/16/single/of_plain", fixed: 1, text: "plain posts", goal: 0.95},
	{ours: "verbena/rw_write/65536/64/single/of_plain", fixed: 1, text: "plain posts", goal: 0.95},
	{ours: "verbena/rw_read/65536/64/single/of_plain", fixed: 1, text: "plain posts", goal: 0.95},
	{ours: "verbena/rw_write/65536/16/multi/of_plain", fixed: 1, text: "plain posts"},
	{ours: "verbena/rw_read/65536/16/multi/of_plain", fixed: 1, text: "plain posts"},
	{ours: "verbena/rw_write/65536/16/mr/of_plain", fixed: 1, text: "plain posts"},
	{ours: "verbena/rw_read/65536/16/mr/of_plain", fixed: 1, text: "plain posts"},
	{ours: "verbena/rw_write/65536/16/iova/of_plain", fixed: 1, text: "plain posts"},
	{ours: "verbena/rw_read/65536/16/iova/of_plain", fixed: 1, text: "plain posts"},
	{ours: "verbena/rw_write/65536/16/sig/of_plain", fixed: 1, text: "plain posts"},
	{ours: "verbena/rw_read/65536/16/sig/of_plain", fixed: 1, text: "plain posts"},
	// The limit and the peers among themselves: what to expect of the machine.
	{ours: "bareloop/bw/65536", beside: []string{"iperf3/tcp_bw"}},
	{ours: "bareloop/lat/8/poll", beside: []string{"sockperf/udp_lat/14/poll"}},
	{ours: "bareloop/lat/8/sleep", beside: []string{"sockperf/udp_lat/14/sleep"}},
}
