package verbs_test

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/port"
	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/port/simnet"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

type counts map[string]uint64

// provocation makes counters rise: those of a and of b that are named, by as much,
// and no other one.
type provocation struct {
	name string
	typ  ib.QPType // of the two queue pairs
	do   func(r *rig, qa, qb *verbs.QP)
	a, b counts
}

// traffic are the counters of packets, which only one row looks at.
var traffic = []string{"sent_pkts", "rcvd_pkts"}

func provocations() []provocation {
	return []provocation{
		{
			"a message", ib.RC, func(r *rig, qa, qb *verbs.QP) { r.recv(qb, 1); r.send(qa, 1); r.settle() },
			counts{"sent_pkts": 1, "rcvd_pkts": 1, "rdma_sends": 1},
			counts{"sent_pkts": 1, "rcvd_pkts": 1, "rdma_recvs": 1},
		},
		// Before a queue pair sees the packet.
		{"short", ib.RC, func(r *rig, _, _ *verbs.QP) { r.inject(make([]byte, 15)) }, nil, counts{"drop_short": 1}},
		{"empty", ib.RC, func(r *rig, _, _ *verbs.QP) { r.inject(nil) }, nil, counts{"drop_short": 1}},
		{"version", ib.RC, hit(roce.OpRCSendOnly, 4, func(b roce.BTH) { b.SetTVer(1) }), nil, counts{"drop_version": 1}},
		{"padding", ib.RC, hit(roce.OpRCSendOnly, 0, func(b roce.BTH) { b.SetPadCount(3) }), nil, counts{"drop_pad": 1}},
		{"unknown opcode", ib.RC, hit(roce.OpUCSendOnly, 4, func(b roce.BTH) { b.SetOpcode(0x3F) }), nil, counts{"drop_opcode": 1}},
		{"congestion notification", ib.RC, hit(roce.OpRCSendOnly, 16, func(b roce.BTH) { b.SetOpcode(roce.OpCNP) }), nil, counts{"rp_cnp_ignored": 1}},
		{"no queue pair", ib.RC, hit(roce.OpRCSendOnly, 4, func(b roce.BTH) { b.SetDestQP(0xABCDE) }), nil, counts{"drop_no_qp": 1}},
		{"queue pair 1", ib.RC, hit(roce.OpUDSendOnly, 256, func(b roce.BTH) { b.SetDestQP(1) }), nil, counts{"drop_gsi": 1}},
		{"multicast", ib.RC, hit(roce.OpUDSendOnly, 4, func(b roce.BTH) { b.SetDestQP(uint32(ib.QPNMulticast)) }), nil, counts{"drop_multicast": 1}},
		{"service", ib.RC, hit(roce.OpUCSendOnly, 4, nil), nil, counts{"drop_transport": 1}},
		{"ICRC", ib.RC, func(r *rig, _, qb *verbs.QP) {
			b := r.packet(r.a.addr, qb, roce.OpRCSendOnly, 4, nil)
			b[len(b)-1] ^= 1
			r.inject(b)
		}, nil, counts{"drop_icrc": 1}},
		{"source", ib.RC, func(r *rig, _, qb *verbs.QP) {
			other := netip.MustParseAddr("192.0.2.77")
			r.injectFrom(other, r.packet(other, qb, roce.OpRCSendOnly, 4, nil))
		}, nil, counts{"drop_source": 1}},
		{"INIT", ib.RC, func(r *rig, _, _ *verbs.QP) {
			q := r.b.qp(r.b.attr(ib.RC))
			r.b.to(q, ib.QPStateInit, nil, r.a.addr)
			r.inject(r.packet(r.a.addr, q, roce.OpRCSendOnly, 4, nil))
		}, nil, counts{"drop_state": 1}},
		// RC, responder.
		{"partition", ib.RC, hit(roce.OpRCSendOnly, 4, func(b roce.BTH) { b.SetPKey(0x8001) }), nil, counts{"drop_pkey": 1}},
		{"stale response", ib.RC, hit(roce.OpRCAcknowledge, 0, nil), nil, counts{"drop_stale": 1}},
		{
			"unknown READ again", ib.RC, hit(roce.OpRCReadRequest, 0, func(b roce.BTH) { b.SetPSN(firstPSN - 1) }),
			nil,
			counts{"duplicate_request": 1, "drop_duplicate": 1},
		},
		{
			"two gaps", ib.RC, func(r *rig, qa, qb *verbs.QP) {
				hit(roce.OpRCSendOnly, 4, func(b roce.BTH) { b.SetPSN(firstPSN + 5) })(r, qa, qb)
				hit(roce.OpRCSendOnly, 4, func(b roce.BTH) { b.SetPSN(firstPSN + 6) })(r, qa, qb)
			},
			counts{"drop_stale": 1},
			counts{"out_of_seq_request": 2, "send_seq_err": 1, "drop_after_nak": 1},
		},
		{
			"NAK behind READ responses", ib.RC, func(r *rig, qa, qb *verbs.QP) {
				mr := r.b.mem(128 << 10)
				read := r.packet(r.a.addr, qb, roce.OpRCReadRequest, 0, func(b roce.BTH) {
					roce.RETH(b[roce.BTHLen:]).Put(mr.Addr(), uint32(mr.RKey()), 128<<10)
				})
				gap := r.packet(r.a.addr, qb, roce.OpRCSendOnly, 4, func(b roce.BTH) { b.SetPSN(firstPSN + 1000) })
				r.inject(read, gap)
			},
			counts{"drop_stale": 129},
			counts{"out_of_seq_request": 1, "send_seq_err": 1, "ack_deferred": 1},
		},
		{"bad key to invalidate", ib.RC, func(r *rig, _, qb *verbs.QP) {
			r.recv(qb, 1)
			r.inject(r.packet(r.a.addr, qb, roce.OpRCSendOnlyInv, 4, func(b roce.BTH) { roce.IETH(b[roce.BTHLen:]).Put(0x12345678) }))
		}, nil, counts{"drop_invalidate": 1, "resp_cqe_error": 1}},
		{
			"too long", ib.RC, func(r *rig, qa, qb *verbs.QP) {
				r.recv(qb, 1)
				mr := r.a.mem(1000)
				r.post(qa, verbs.SendWR{Opcode: ib.WRSend, SGList: []verbs.SGE{mr.SGE(0, 1000)}})
				r.settle()
			},
			counts{"req_remote_invalid_request": 1, "req_cqe_error": 1},
			counts{"resp_local_length_error": 1, "resp_cqe_error": 1},
		},
		{
			"no right", ib.RC, func(r *rig, qa, qb *verbs.QP) {
				if err := qb.Modify(&ib.QPAttr{}, ib.QPAttrAccessFlags); err != nil {
					r.t.Fatal(err)
				}
				r.write(qa, 0x1234)
				r.settle()
			},
			counts{"req_remote_invalid_request": 1, "req_cqe_error": 1},
			counts{"resp_remote_invalid_error": 1},
		},
		{
			"bad key, and more behind it", ib.RC, func(r *rig, qa, qb *verbs.QP) {
				r.write(qa, 0x1234)
				r.settle()
				r.write(qa, 0x1234)
				r.settle()
			},
			counts{"req_remote_access_errors": 1, "req_cqe_error": 2, "req_cqe_flush_error": 1},
			counts{"resp_remote_access_errors": 1},
		},
		{"flushed receives", ib.RC, func(r *rig, _, qb *verbs.QP) {
			r.recv(qb, 2)
			r.b.to(qb, ib.QPStateErr, nil, r.a.addr)
		}, nil, counts{"resp_cqe_error": 2, "resp_cqe_flush_error": 2}},
		// RC, requester.
		{
			"RNR", ib.RC, func(r *rig, qa, qb *verbs.QP) {
				r.net.Sniff(func(e *simnet.Event) {
					if e.Op == roce.OpRCAcknowledge && e.AETH().Syndrome().IsRNRNAK() {
						r.net.After(1, func() { r.recv(qb, 1) })
					}
				})
				r.send(qa, 1)
				r.settle()
			},
			counts{"rcvd_rnr_err": 1, "retrans_pkts": 1, "rdma_sends": 1},
			counts{"send_rnr_err": 1, "rdma_recvs": 1},
		},
		{
			"RNR for ever", ib.RC, func(r *rig, qa, _ *verbs.QP) { r.send(qa, 1); r.settle() },
			counts{"rcvd_rnr_err": 7, "retrans_pkts": 6, "retry_rnr_exceeded_err": 1, "req_cqe_error": 1},
			counts{"send_rnr_err": 7},
		},
		{
			"a request is lost", ib.RC, func(r *rig, qa, qb *verbs.QP) {
				r.net.Filter(simnet.Nth(1, isOp(roce.OpRCSendOnly), simnet.Drop))
				r.recv(qb, 2)
				r.send(qa, 2)
				r.settle()
			},
			counts{"rcvd_seq_err": 1, "completer_retry_err": 1, "retrans_pkts": 2, "rdma_sends": 2},
			counts{"out_of_seq_request": 1, "send_seq_err": 1, "rdma_recvs": 2},
		},
		{
			"a response is lost", ib.RC, func(r *rig, qa, qb *verbs.QP) {
				r.net.Filter(simnet.Nth(1, isOp(roce.OpRCReadRespOnly), simnet.Drop))
				dst, src := r.a.mem(8), r.b.mem(8)
				wr := verbs.SendWR{Opcode: ib.WRRDMARead, SGList: []verbs.SGE{dst.SGE(0, 8)}, RemoteAddr: src.Addr(), RKey: src.RKey()}
				r.post(qa, wr, wr)
				r.settle()
			},
			counts{"implied_nak_seq_err": 1, "completer_retry_err": 1, "retrans_pkts": 2},
			counts{"duplicate_request": 2},
		},
		{
			"no answer", ib.RC, func(r *rig, qa, _ *verbs.QP) {
				r.net.Filter(simnet.Every(isOp(roce.OpRCSendOnly), simnet.Drop))
				r.send(qa, 1)
				r.settle()
			},
			counts{
				"local_ack_timeout_err": 8, "completer_retry_err": 7, "retrans_pkts": 7,
				"retry_exceeded_err": 1, "req_cqe_error": 1,
			},
			nil,
		},
		{"an answer to another request", ib.RC, func(r *rig, qa, qb *verbs.QP) {
			r.net.Filter(simnet.Every(isOp(roce.OpRCSendOnly), simnet.Drop))
			r.send(qb, 1)
			r.inject(r.packet(r.a.addr, qb, roce.OpRCReadRespOnly, 4, nil))
		}, nil, counts{"bad_response_err": 1, "req_cqe_error": 1}},
		// UC.
		{"middle without first", ib.UC, hit(roce.OpUCSendMiddle, 1024, nil), nil, counts{"drop_sequence": 1}},
		{"bad key", ib.UC, hit(roce.OpUCWriteOnly, 4, func(b roce.BTH) {
			roce.RETH(b[roce.BTHLen:]).Put(0, 0x1234, 4)
		}), nil, counts{"drop_access": 1}},
		// UD.
		{"Q_Key", ib.UD, hit(roce.OpUDSendOnly, 4, func(b roce.BTH) { roce.DETH(b[roce.BTHLen:]).Put(1, 2) }), nil, counts{"drop_qkey": 1}},
		{"no receive", ib.UD, hit(roce.OpUDSendOnly, 4, nil), nil, counts{"drop_no_recv": 1}},
		{"long datagram", ib.UD, func(r *rig, qa, qb *verbs.QP) {
			r.recv(qb, 1)
			hit(roce.OpUDSendOnly, 100, nil)(r, qa, qb)
		}, nil, counts{"drop_length": 1}},
		{"a member's own datagram", ib.UD, func(r *rig, _, _ *verbs.QP) {
			attr := r.b.attr(ib.UD)
			attr.BlockSelfMcastLB = true
			q := r.b.qp(attr)
			r.b.to(q, ib.QPStateRTS, nil, r.b.addr)
			group := ib.GIDFromAddr(netip.MustParseAddr("239.1.2.3"))
			if err := q.AttachMcast(group, 0); err != nil {
				r.t.Fatal(err)
			}
			ah := ok(r.b.pd.CreateAH(&ib.AHAttr{IsGlobal: true, DGID: group, PortNum: 1, HopLimit: 1}))(r.t)
			r.b.later(ah.Destroy)
			r.post(q, verbs.SendWR{Opcode: ib.WRSend, AH: ah, RemoteQPN: ib.QPNMulticast, RemoteQKey: qkey})
			r.settle()
			if err := q.DetachMcast(group, 0); err != nil {
				r.t.Fatal(err)
			}
		}, nil, counts{"rdma_sends": 1, "drop_own_multicast": 1}},
	}
}

// elsewhere names the tests of counters that need more than two plain devices, or
// a real socket. Each looks at its counter.
var elsewhere = map[string]string{
	"cq_overrun_err":                 "soft_queue_test.go:TestCase70_TooSmallCompletionQueue",
	"drop_ip_id":                     "counters_test.go:TestImplausibleIDIsCounted",
	"link_downed":                    "counters_test.go:TestLinkDownedIsCounted",
	"send_err":                       "counters_test.go:TestCountersOfPort",
	"tx_batches":                     "counters_test.go:TestCountersOfPort",
	"tx_bytes":                       "counters_test.go:TestCountersOfPort",
	"rx_bytes":                       "counters_test.go:TestCountersOfPort",
	"rx_datagrams":                   "counters_test.go:TestCountersOfPort",
	"out_of_buffer":                  "counters_test.go:TestOtherNames",
	"out_of_sequence":                "counters_test.go:TestOtherNames",
	"packet_seq_err":                 "counters_test.go:TestOtherNames",
	"rnr_nak_retry_err":              "counters_test.go:TestOtherNames",
	"req_transport_retries_exceeded": "counters_test.go:TestOtherNames",
	"req_rnr_retries_exceeded":       "counters_test.go:TestOtherNames",
	"rx_icrc_encapsulated":           "counters_test.go:TestOtherNames",
	"tx_would_block":                 "counters_test.go:TestCountersOfPort",
	"tx_memory_gone":                 "counters_test.go:TestCountersOfPort",
	"drop_truncated":                 "counters_test.go:TestCountersOfPort",
	"drop_other_interface":           "counters_test.go:TestCountersOfPort",
	"drop_socket_buffer":             "counters_test.go:TestCountersOfPort",
	"offload_failures":               "counters_test.go:TestCountersOfPort",
	"drop_mailbox":                   "counters_test.go:TestCountersOfPort",
	"relayed_datagrams":              "counters_test.go:TestCountersOfPort",
	"drop_relayed":                   "counters_test.go:TestCountersOfPort",
	"stray_pkts":                     "counters_share_test.go:TestStraysAreCounted",
	"drop_stray":                     "counters_share_test.go:TestStraysAreCounted",
	"relayed_mads":                   "counters_share_test.go:TestStraysAreCounted",
}

// Each counter is provoked, and rises alone: of the device, and of the queue pair
// that the packet was for.
func TestCounters(t *testing.T) {
	for _, p := range provocations() {
		t.Run(p.name, func(t *testing.T) {
			r := newRig(t, 1500)
			qa, qb := r.pair(p.typ)
			p.do(r, qa, qb)
			r.net.RunFor(1e6)
			for _, side := range []struct {
				n    *node
				want counts
			}{{r.a, p.a}, {r.b, p.b}} {
				got := side.n.counted()
				ofQPs := side.n.countedByQPs()
				if _, ok := side.want["sent_pkts"]; !ok {
					for _, c := range traffic {
						delete(got, c)
						delete(ofQPs, c)
					}
				}
				if d := cmp.Diff(counts{}.plus(side.want), got); d != "" {
					t.Errorf("device %s (-want +got):\n%s", side.n.ctx.Device().Name(), d)
				}
				for c := range got {
					if deviceScope(c) {
						delete(got, c)
					}
				}
				if d := cmp.Diff(got, ofQPs); d != "" {
					t.Errorf("device %s: its queue pairs counted otherwise (-device +queue pairs):\n%s", side.n.ctx.Device().Name(), d)
				}
				// What a queue pair counted stays when it goes.
				before := side.n.counted()
				for _, q := range side.n.qps {
					if err := q.Modify(&ib.QPAttr{QPState: ib.QPStateReset}, ib.QPAttrState); err != nil {
						t.Fatal(err)
					}
					if err := q.Destroy(); err != nil {
						t.Fatal(err)
					}
				}
				side.n.drop()
				if d := cmp.Diff(before, side.n.counted()); d != "" {
					t.Errorf("device %s: destroying changed (-before +after):\n%s", side.n.ctx.Device().Name(), d)
				}
			}
		})
	}
}

// Every counter has a test, every name is one that a monitor can use.
func TestEveryCounterIsProvoked(t *testing.T) {
	known := map[string]bool{}
	for _, p := range provocations() {
		for _, c := range []counts{p.a, p.b} {
			for name := range c {
				known[name] = true
			}
		}
	}
	for name, where := range elsewhere {
		file, fn, _ := strings.Cut(where, ":")
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(src), "func "+fn+"(") {
			t.Errorf("counter %s: there is no %s in %s", name, fn, file)
		}
		if known[name] {
			t.Errorf("counter %s is in the table of provocations already", name)
		}
		known[name] = true
	}
	r := newRig(t, 1500)
	list := ok(r.a.ctx.HWCounters(0))(t)
	good := regexp.MustCompile(`^[a-z][a-z0-9_]*[a-z0-9]$`)
	var names []string
	for _, c := range list {
		if slices.Contains(names, c.Name) {
			t.Errorf("two counters are named %s", c.Name)
		}
		names = append(names, c.Name)
		if !good.MatchString(c.Name) {
			t.Errorf("counter %s: not a name; a field of transport.Stats needs a tag `counter:\"...\"`", c.Name)
		}
		if !known[c.Name] {
			t.Errorf("counter %s: nothing provokes it; add a row to provocations, or the test that does to elsewhere", c.Name)
		}
	}
	for name := range known {
		if !slices.Contains(names, name) {
			t.Errorf("there is no counter %s", name)
		}
	}
	if again := ok(r.a.ctx.HWCounters(1))(t); !slices.Equal(list, again) {
		t.Error("port 1 is not the whole device")
	}
}

// The names of Linux's rdma_rxe are all there.
func TestCountersOfLinux(t *testing.T) {
	r := newRig(t, 1500)
	list := ok(r.a.ctx.HWCounters(1))(t)
	for _, name := range []string{
		"sent_pkts", "rcvd_pkts", "duplicate_request", "out_of_seq_request", "rcvd_rnr_err", "send_rnr_err", "rcvd_seq_err",
		"ack_deferred", "retry_exceeded_err", "retry_rnr_exceeded_err", "completer_retry_err", "send_err", "link_downed",
		"rdma_sends", "rdma_recvs",
	} {
		if !slices.ContainsFunc(list, func(c verbs.Counter) bool { return c.Name == name }) {
			t.Errorf("no %s", name)
		}
	}
}

// An identification that the sender would not have is counted, where the port
// does not tell it and the ICRC is solved for it.
func TestImplausibleIDIsCounted(t *testing.T) {
	r := &rig{t: t, net: simnet.New(1)}
	r.a = r.node("a", 1500, "192.0.2.1", "2001:db8::1")
	r.b = r.nodeOn(r.net.NewPort(simnet.Config{HideID: true}), "b", 1500, "192.0.2.2", "2001:db8::2")
	_, qb := r.pair(ib.UC)
	for i, id := range []uint16{1000, 50000} {
		b := r.packetID(r.a.addr, qb, roce.OpUCSendMiddle, 1024, id, nil)
		r.net.Inject(netip.AddrPortFrom(r.a.addr, 0xC000), r.b.addr, b, id)
		r.net.RunFor(1e6)
		if got := r.b.counted(); got["drop_ip_id"] != uint64(i) || got["rcvd_pkts"] != 1 || got["drop_icrc"] != 0 {
			t.Errorf("packet %d: %v", i, got)
		}
	}
}

// The counters of a port, in the units of the standard.
func TestPortCounters(t *testing.T) {
	r := &rig{t: t, net: simnet.New(1)}
	r.a = r.node("a", 1500, "192.0.2.1", "2001:db8::1")
	r.b = r.node("b", 1500, "192.0.2.2", "2001:db8::2")
	qa, _ := r.pair(ib.RC)
	const size = 100
	src, dst := r.a.mem(size), r.b.mem(size)
	r.post(qa, verbs.SendWR{Opcode: ib.WRRDMAWrite, SGList: []verbs.SGE{src.SGE(0, size)}, RemoteAddr: dst.Addr(), RKey: dst.RKey()})
	r.settle()
	const write, ack = roce.BTHLen + roce.RETHLen + size + roce.ICRCLen, roce.BTHLen + roce.AETHLen + roce.ICRCLen
	want := counts{"port_xmit_data": write / 4, "port_xmit_packets": 1, "port_rcv_data": ack / 4, "port_rcv_packets": 1}
	if d := cmp.Diff(want, toCounts(ok(r.a.ctx.Counters(1))(t))); d != "" {
		t.Errorf("sender (-want +got):\n%s", d)
	}
	hw := toCounts(ok(r.b.ctx.HWCounters(1))(t))
	if hw["rx_datagrams"] != 1 || hw["rx_bytes"] != write || hw["tx_batches"] != 1 || hw["tx_bytes"] != ack {
		t.Errorf("receiver: %v", hw)
	}
	// Errors.
	r.inject(make([]byte, 15))
	if c := toCounts(ok(r.b.ctx.Counters(1))(t)); c["port_rcv_errors"] != 1 || c["port_rcv_packets"] != 2 {
		t.Errorf("receiver: %v", c)
	}
	for _, p := range []uint8{2, 255} {
		if _, err := r.a.ctx.Counters(p); err == nil {
			t.Errorf("port %d has counters", p)
		}
		if _, err := r.a.ctx.HWCounters(p); err == nil {
			t.Errorf("port %d has counters", p)
		}
	}
	if _, err := r.a.ctx.Counters(0); err == nil {
		t.Error("port 0 has counters of a port")
	}
}

// A link that goes down is counted, once each time.
func TestLinkDownedIsCounted(t *testing.T) {
	r := newRig(t, 1500)
	var report func(soft.Netdev)
	dev, err := soft.NewDevice(soft.Config{
		Name: "c", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.3")}, Port: r.net.NewPort(simnet.Config{}), Clock: r.net.Now,
		Seed: 1, Manual: true, FixedAddrs: true,
		Watch: func(f func(soft.Netdev)) (func(), error) { report = f; return func() {}, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx := verbs.NewContext(dev)
	defer ctx.Close()
	for _, up := range []bool{true, false, false, true, false} {
		report(soft.Netdev{Up: up, Enabled: true, MTU: 1500, Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.3")}})
	}
	for _, list := range [][]verbs.Counter{ok(ctx.Counters(1))(t), ok(ctx.HWCounters(1))(t)} {
		if n := toCounts(list)["link_downed"]; n != 2 {
			t.Errorf("link_downed is %d", n)
		}
	}
}

// What the port counts, each under its name. The tests of port/udp look whether
// it counts right.
func TestCountersOfPort(t *testing.T) {
	r := newRig(t, 1500)
	p := &countingPort{Port: r.net.NewPort(simnet.Config{})}
	v := reflect.ValueOf(&p.stats).Elem()
	for i := range v.NumField() {
		v.Field(i).SetUint(1 << i)
	}
	dev, err := soft.NewDevice(soft.Config{
		Name: "c", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.3")}, Port: p, Clock: r.net.Now, Seed: 1, Manual: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx := verbs.NewContext(dev)
	defer ctx.Close()
	st := p.stats
	want := counts{
		"send_err": st.TxErrors + st.TxAgain + st.TxFault, "tx_would_block": st.TxAgain, "tx_memory_gone": st.TxFault,
		"tx_batches": st.TxMsgs, "tx_bytes": st.TxBytes, "rx_datagrams": st.RxDgrams, "rx_bytes": st.RxBytes,
		"drop_truncated": st.RxTrunc, "drop_other_interface": st.RxForeign, "drop_socket_buffer": st.RxOverflow,
		"drop_mailbox": st.RxGarbage, "relayed_datagrams": st.Relayed, "drop_relayed": st.RelayLost,
		"offload_failures": st.GSOOff,
	}
	if d := cmp.Diff(want, toCounts(ok(ctx.HWCounters(1))(t))); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if c := toCounts(ok(ctx.Counters(1))(t)); c["port_xmit_discards"] != want["send_err"] || c["port_xmit_packets"] != st.TxPackets {
		t.Errorf("%v", c)
	}
}

// countingPort is a port whose counters the test has set.
type countingPort struct {
	port.Port
	stats port.Stats
}

func (p *countingPort) Stats() port.Stats { return p.stats }

// Monitors that know mlx5's names find what they look for.
func TestOtherNames(t *testing.T) {
	for _, p := range []struct {
		row         string
		n           string
		name, other string
	}{
		{"RNR for ever", "a", "rnr_nak_retry_err", "rcvd_rnr_err"},
		{"RNR for ever", "a", "req_rnr_retries_exceeded", "retry_rnr_exceeded_err"},
		{"RNR for ever", "b", "out_of_buffer", "send_rnr_err"},
		{"no receive", "b", "out_of_buffer", "drop_no_recv"},
		{"no answer", "a", "req_transport_retries_exceeded", "retry_exceeded_err"},
		{"a request is lost", "a", "packet_seq_err", "rcvd_seq_err"},
		{"a request is lost", "b", "out_of_sequence", "out_of_seq_request"},
		{"ICRC", "b", "rx_icrc_encapsulated", "drop_icrc"},
	} {
		all := provocations()
		row := all[slices.IndexFunc(all, func(q provocation) bool { return q.name == p.row })]
		r := newRig(t, 1500)
		qa, qb := r.pair(row.typ)
		row.do(r, qa, qb)
		r.net.RunFor(1e6)
		n := r.a
		if p.n == "b" {
			n = r.b
		}
		if c := toCounts(ok(n.ctx.HWCounters(1))(t)); c[p.name] == 0 || c[p.name] != c[p.other] {
			t.Errorf("%s: %s %d, %s %d", p.row, p.name, c[p.name], p.other, c[p.other])
		}
	}
}

const firstPSN = 100 // as rig.step sets it, both ways

// packet makes a packet from an address to a queue pair of b, as its peer would
// send it; change is given the headers before the ICRC is made.
func (r *rig) packet(from netip.Addr, to *verbs.QP, op roce.Opcode, n int, change func(roce.BTH)) []byte {
	return r.packetID(from, to, op, n, 0, change)
}

func (r *rig) packetID(from netip.Addr, to *verbs.QP, op roce.Opcode, n int, id uint16, change func(roce.BTH)) []byte {
	hdr, pad := op.Info().HdrLen, roce.PadLen(n)
	b := make([]byte, hdr+n+pad+roce.ICRCLen)
	roce.BTH(b).Put(op, false, pad, uint16(ib.PKeyDefault), uint32(to.Num()), false, firstPSN)
	if o := op.Info().DETH; o != 0 {
		roce.DETH(b[o:]).Put(qkey, 7)
	}
	if o := op.Info().AETH; o != 0 {
		roce.AETH(b[o:]).Put(roce.AckNoCredit, 0)
	}
	if change != nil {
		change(b)
	}
	p := roce.NewPath(from, r.b.addr, 0xC000)
	roce.PutICRC(b[len(b)-roce.ICRCLen:], p.Compute(b, id))
	return b
}

func (r *rig) inject(packets ...[]byte) { r.injectFrom(r.a.addr, packets...) }

// injectFrom lets packets arrive at b together.
func (r *rig) injectFrom(from netip.Addr, packets ...[]byte) {
	for _, b := range packets {
		r.net.Inject(netip.AddrPortFrom(from, 0xC000), r.b.addr, b, 0)
	}
	r.net.RunFor(1e6)
}

// hit gives a provocation: one packet to the queue pair of b.
func hit(op roce.Opcode, n int, change func(roce.BTH)) func(*rig, *verbs.QP, *verbs.QP) {
	return func(r *rig, _, qb *verbs.QP) { r.inject(r.packet(r.a.addr, qb, op, n, change)) }
}

func isOp(op roce.Opcode) func(*simnet.Event) bool {
	return func(e *simnet.Event) bool { return e.Err == nil && e.Op == op }
}

func (r *rig) nodeOf(q *verbs.QP) *node {
	if q.Context() == r.a.ctx {
		return r.a
	}
	return r.b
}

// recv posts receives of 64 bytes.
func (r *rig) recv(q *verbs.QP, n int) {
	mr := r.nodeOf(q).mem(64)
	for range n {
		if err := q.PostRecvOne(&verbs.RecvWR{SGList: []verbs.SGE{mr.SGE(0, 64)}}); err != nil {
			r.t.Fatal(err)
		}
	}
}

// send posts SENDs of 8 bytes in one list.
func (r *rig) send(q *verbs.QP, n int) {
	mr := r.nodeOf(q).mem(8)
	r.post(q, slices.Repeat([]verbs.SendWR{{Opcode: ib.WRSend, SGList: []verbs.SGE{mr.SGE(0, 8)}}}, n)...)
}

// write posts a WRITE of 8 bytes to address 0 of a key.
func (r *rig) write(q *verbs.QP, key ib.RKey) {
	mr := r.nodeOf(q).mem(8)
	r.post(q, verbs.SendWR{Opcode: ib.WRRDMAWrite, SGList: []verbs.SGE{mr.SGE(0, 8)}, RKey: key})
}

func (r *rig) post(q *verbs.QP, wrs ...verbs.SendWR) {
	if err := q.PostSend(wrs); err != nil {
		r.t.Fatal(err)
	}
}

// counted gives what the device's protocol counted and is not 0.
func (n *node) counted() counts {
	c := counts{}
	st := n.soft.Stats()
	st.Each(func(name string, v uint64) {
		if v != 0 {
			c[name] = v
		}
	})
	return c
}

// countedByQPs adds up what the queue pairs counted.
func (n *node) countedByQPs() counts {
	c := counts{}
	for _, q := range n.qps {
		c = c.plus(toCounts(ok(q.Counters())(n.t)))
	}
	return c
}

func toCounts(list []verbs.Counter) counts {
	c := counts{}
	for _, x := range list {
		if x.Value != 0 {
			c[x.Name] = x.Value
		}
	}
	return c
}

func (c counts) plus(o counts) counts {
	sum := maps.Clone(c)
	for name, v := range o {
		sum[name] += v
	}
	return sum
}

// deviceScope tells whether a counter is none of a queue pair.
func deviceScope(name string) bool {
	t := reflect.TypeFor[transport.Stats]()
	for i := range t.NumField() {
		if f := t.Field(i); f.Tag.Get("counter") == name {
			return f.Tag.Get("scope") == "device"
		}
	}
	panic(fmt.Sprintf("no counter %s", name))
}
