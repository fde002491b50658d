//go:build interop && linux

package netns

import (
	"fmt"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// batches are the sizes of the sends of the packets from a that have payload, in order, before and after the first ACK of b.
func batches(packets [][]byte) (before, after []int) {
	acked := false
	for _, b := range packets {
		p, ok, err := parse(b)
		switch {
		case !ok || err != nil:
		case p.Op == roce.OpRCAcknowledge:
			acked = true
		case len(p.Payload) == 0:
		case acked:
			after = extend(after, p.id)
		default:
			before = extend(before, p.id)
		}
	}
	return before, after
}

func extend(list []int, id uint16) []int {
	if id > 0 && len(list) > 0 {
		list[len(list)-1]++
		return list
	}
	return append(list, 1)
}

// TestSegmentationProbe: to another host over IPv4 the first batches have two segments, and more once the second one of such a
// batch was acknowledged.
func TestSegmentationProbe(t *testing.T) {
	r := newRelay(t, 9000, true, nil)
	a, b := r.a.open(t, "a"), r.b.open(t, "b")
	c := connect(a, b, connArgs{typ: ib.RC, addr: is4, size: 4 << 20})
	c.write(128<<10, 1, 1, 1)
	first, rest := batches(r.captured())
	took := c.write(1<<20, 4, 4, 2)
	_, rest2 := batches(r.captured())
	tally := checkPackets(t, r.captured())
	t.Logf("4 MiB in %v; batches before the first ACK %v, after it %v, in the next message up to %d; %v", took, first, rest, maxOf(rest2), tally)
	if tally.partial > 0 {
		t.Errorf("%d UDP checksums are incomplete", tally.partial)
	}
	if maxOf(first) > 2 {
		t.Errorf("%d segments in a batch before anything was acknowledged", maxOf(first))
	}
	if off := a.counters()["offload_failures"]; off > 0 {
		t.Fatalf("this kernel does not segment for a device that cannot complete checksums (Linux 6.11 does): the test cannot see batches")
	}
	if len(first) == 0 || maxOf(first) != 2 || maxOf(rest2) < 8 {
		t.Errorf("largest batches: %d, then %d; want 2, then many", maxOf(first), maxOf(rest2))
	}
}

// TestSegmentationProbeSmall: messages of one packet prove nothing about segments, however many are acknowledged at once.
func TestSegmentationProbeSmall(t *testing.T) {
	r := newRelay(t, 9000, true, dropSegments)
	a, b := r.a.open(t, "a"), r.b.open(t, "b")
	c := connect(a, b, connArgs{typ: ib.RC, addr: is4, size: 4 << 20})
	c.message(64, 100, 20, 1)
	took := c.write(1<<20, 4, 2, 2)
	before, after := batches(r.captured())
	n := a.counters()
	t.Logf("4 MiB in %v; largest batch %d; %d retransmissions, %d timeouts", took, max(maxOf(before), maxOf(after)), n["retrans_pkts"], n["local_ack_timeout_err"])
	if n["retrans_pkts"] > 600 {
		t.Errorf("%d packets were sent again: segmentation stayed on", n["retrans_pkts"])
	}
}

func maxOf(list []int) (m int) {
	for _, v := range list {
		m = max(m, v)
	}
	return m
}

// dropSegments stands for a network that numbers segments anew, in front of a peer that checks the ICRC with the real header,
// as adapters and the Linux kernel do: the peer drops all but the first packet of each batch.
func dropSegments(_ int, ip []byte, forward func([]byte)) {
	if p, ok, err := parse(ip); ok && err == nil && p.id > 0 {
		return
	}
	forward(ip)
}

// TestRenumberedSegments: a middlebox that gives all segments but the first another identification breaks nothing between two of
// us, who do not see the identification, and with a peer that checks it segmentation goes off.
func TestRenumberedSegments(t *testing.T) {
	for _, box := range []struct {
		name string
		box  middlebox
	}{
		{"renumbered", func(_ int, ip []byte, forward func([]byte)) {
			if p, ok, err := parse(ip); ok && err == nil && p.id > 0 {
				setID(ip, p.id+7777)
			}
			forward(ip)
		}},
		{"strict peer", dropSegments},
	} {
		for _, mtu := range []int{1500, 9000} {
			t.Run(fmt.Sprintf("%s mtu%d", box.name, mtu), func(t *testing.T) {
				const size = 8 << 20
				r := newRelay(t, mtu, true, box.box)
				a, b := r.a.open(t, "a"), r.b.open(t, "b")
				c := connect(a, b, connArgs{typ: ib.RC, addr: is4, size: size})
				wrote := c.write(1<<20, 8, 4, 1)
				sent := len(r.captured())
				n := a.counters()
				before, after := batches(r.captured())
				t.Logf("MTU %d: WRITE 8 MiB in %v, %d packets, batches %v then up to %d, %d retransmissions, %d timeouts",
					mtu, wrote, sent, before[:min(len(before), 8)], maxOf(after), n["retrans_pkts"], n["local_ack_timeout_err"])
				if box.name == "strict peer" {
					if n["retrans_pkts"] > 600 {
						t.Errorf("%d packets were sent again", n["retrans_pkts"])
					}
					if last := after[max(0, len(after)-100):]; maxOf(last) > 1 {
						t.Errorf("segmentation is still on at the end: %v", last)
					}
				}
				read := c.read(1<<20, 8, 4, 2)
				c.message(100_000, 20, 4, 3)
				m := a.counters()
				repeated := m["retrans_pkts"] - n["retrans_pkts"]
				if repeated > 100 {
					t.Errorf("%d requests were repeated in READs and SENDs", repeated)
				}
				t.Logf("READ 8 MiB in %v, %d packets, %d repeated requests, %d timeouts; a %v; b %v", read, len(r.captured())-sent,
					repeated, m["local_ack_timeout_err"]-n["local_ack_timeout_err"], nonZero(m), nonZero(b.counters()))
			})
		}
	}
}
