package dissect

import (
	"context"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/trace"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/layers"
	"github.com/verbena-rdma/verbena/port/simnet"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

// wanted lists the opcodes that must be in each capture: all that RC, UC and UD
// have and Wireshark knows.
func wanted() (list []roce.Opcode) {
	for o := range 256 {
		op := roce.Opcode(o)
		switch op.Transport() {
		case roce.TransportRC, roce.TransportUC, roce.TransportUD:
			if op.Info().Valid && !isUnknown(op) {
				list = append(list, op)
			}
		}
	}
	return list
}

// Every opcode of RC, UC and UD, through real sockets on the loopback interface:
// tshark agrees with our headers on every field, and on every checksum. The ICRC
// is checked by package layers, whose calculation is not the device's.
func TestDissectUDP(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs a loopback interface with all of 127.0.0.0/8")
	}
	addrs := [2]netip.Addr{netip.MustParseAddr("127.47.91.1"), netip.MustParseAddr("127.47.91.2")}
	file := keep(t, "udp.pcapng")
	dev, err := rdma.Open(t.Context(), "lo", rdma.WithAddrs("lo", addrs[:]...), rdma.WithCapture(file))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	run(t, dev, addrs, file, func(cq *verbs.CQ) {
		short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		if err := cq.Wait(short); err != nil && ctx.Err() != nil {
			t.Fatal(err)
		}
	})
}

// The same over the simulated network: IPv6, and IPv4 with identifications that
// are told.
func TestDissectSimulated(t *testing.T) {
	for _, c := range []struct{ name, a, b string }{{"IPv6", "2001:db8::1", "2001:db8::2"}, {"IPv4", "192.0.2.1", "192.0.2.2"}} {
		t.Run(c.name, func(t *testing.T) {
			addrs := [2]netip.Addr{netip.MustParseAddr(c.a), netip.MustParseAddr(c.b)}
			net := simnet.New(1)
			port := net.NewPort(simnet.Config{})
			file := keep(t, c.name+".pcapng")
			traced := 0
			dev, err := soft.NewDevice(soft.Config{
				Trace: func(*trace.Packet) { traced++ }, // who looks besides is shown the same packets
				Name:  "soft_sim", LinkMTU: 4200, Port: port, Clock: net.Now, Seed: 1, Manual: true, Addrs: addrs[:], Capture: &soft.Capture{Path: file},
			})
			if err != nil {
				t.Fatal(err)
			}
			net.Attach(port, dev.Turn)
			run(t, verbs.NewContext(dev), addrs, file, func(*verbs.CQ) {
				net.Kick(port)
				net.RunFor(1e6)
			})
			if n := len(readCapture(t, file)); n != traced {
				t.Errorf("%d packets captured of %d", n, traced)
			}
		})
	}
}

// run makes the traffic and compares.
func run(t *testing.T, dev *verbs.Context, addrs [2]netip.Addr, file string, wait func(*verbs.CQ)) {
	t.Helper()
	b := newBench(t, dev, addrs, wait)
	b.connected(ib.RC)
	b.connected(ib.UC)
	b.reliable()
	b.datagrams()
	b.close()

	packets := readCapture(t, file)
	said := tshark(t, file, packetFields)
	if len(said) != len(packets) {
		t.Fatalf("tshark sees %d packets of %d", len(said), len(packets))
	}
	seen := [2]map[roce.Opcode]int{{}, {}}
	var syndromes []roce.Syndrome
	segments := 0
	for i := range packets {
		c := &packets[i]
		dir := 0
		if c.sent {
			dir = 1
		}
		seen[dir][c.Op]++
		if c.bad {
			t.Errorf("packet %d, %v: its ICRC is said to be wrong", i, c)
		}
		if ok, err := layers.CheckICRC(c.ip); !ok || err != nil {
			t.Errorf("packet %d, %v: ICRC wrong: %v %x", i, c, err, c.ip)
		}
		if !isUnknown(c.Op) {
			c.expected().compare(t, c.String(), said[i])
		}
		if h := c.AETH(); h != nil && !slices.Contains(syndromes, h.Syndrome()) {
			syndromes = append(syndromes, h.Syndrome())
		}
		if !c.is6() && (c.ip[4] != 0 || c.ip[5] != 0) {
			segments++
		}
		ttl, tos := c.ip[8], c.ip[1]
		if c.is6() {
			ttl, tos = c.ip[7], c.ip[0]<<4|c.ip[1]>>4
		}
		if ttl != hops || tos != tclass {
			t.Errorf("packet %d, %v: TTL %d, TOS %#x, want %d, %#x", i, c, ttl, tos, hops, tclass)
		}
	}
	for dir, name := range []string{"received", "sent"} {
		for _, op := range wanted() {
			if seen[dir][op] == 0 {
				t.Errorf("no %v was %s", op, name)
			}
		}
	}
	for _, s := range []roce.Syndrome{roce.AckNoCredit, roce.RNRNAK(14), roce.NAKRemAccess} {
		if !slices.Contains(syndromes, s) {
			t.Errorf("no syndrome %v (%#x): %v", s, uint8(s), syndromes)
		}
	}
	if addrs[0].Is4() && segments == 0 {
		t.Error("no packet was a later segment of a send: the identifications are all 0")
	}
	t.Logf("%d packets of %d opcodes", len(packets), len(seen[1]))
}
