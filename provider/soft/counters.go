package soft

import (
	"fmt"
	"syscall"

	"github.com/verbena-rdma/verbena/internal/port"
	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

var (
	_ driver.DeviceCounter = (*Device)(nil)
	_ driver.QPCounter     = (*qp)(nil)
)

// PortCounters implements driver.DeviceCounter. Linux shows these under
// ports/1/counters; those of an InfiniBand link that Ethernet does not have are
// left out. Data are counted in units of four bytes (IBA 16.1.3.5), and here
// without the headers of Ethernet, IP and UDP.
func (d *Device) PortCounters(p uint8) ([]driver.Counter, error) {
	if err := checkPort(p); err != nil {
		return nil, err
	}
	st, ps := d.eng.Stats(), d.cfg.Port.Stats()
	return []driver.Counter{
		{Name: "port_xmit_data", Value: ps.TxBytes / 4},
		{Name: "port_xmit_packets", Value: ps.TxPackets},
		{Name: "port_rcv_data", Value: ps.RxBytes / 4},
		{Name: "port_rcv_packets", Value: received(&st)},
		{Name: "port_rcv_errors", Value: st.DropShort + st.DropVersion + st.DropOpcode + st.DropPad + st.DropICRC + st.DropID + ps.RxTrunc},
		{Name: "port_xmit_discards", Value: unsent(&ps)},
		{Name: "link_downed", Value: d.linkDowned.Load()},
	}, nil
}

// HWCounters implements driver.DeviceCounter. The device has one port: what it
// counts is what port 1 counts.
func (d *Device) HWCounters(p uint8) ([]driver.Counter, error) {
	if p != 0 {
		if err := checkPort(p); err != nil {
			return nil, err
		}
	}
	st, ps := d.eng.Stats(), d.cfg.Port.Stats()
	list := st.Counters(false)
	for _, f := range portCounters {
		list = append(list, driver.Counter{Name: f.name, Value: f.get(&ps)})
	}
	list = append(list, driver.Counter{Name: "link_downed", Value: d.linkDowned.Load()})
	for _, f := range otherNames {
		list = append(list, driver.Counter{Name: f.name, Value: f.get(&st)})
	}
	return list, nil
}

// portCounters are those of the port, which no queue pair has.
var portCounters = [...]struct {
	name string
	get  func(*port.Stats) uint64
}{
	{"send_err", unsent},
	{"tx_would_block", func(s *port.Stats) uint64 { return s.TxAgain }},
	{"tx_memory_gone", func(s *port.Stats) uint64 { return s.TxFault }},
	{"tx_batches", func(s *port.Stats) uint64 { return s.TxMsgs }},
	{"tx_bytes", func(s *port.Stats) uint64 { return s.TxBytes }},
	{"rx_datagrams", func(s *port.Stats) uint64 { return s.RxDgrams }},
	{"rx_bytes", func(s *port.Stats) uint64 { return s.RxBytes }},
	{"drop_truncated", func(s *port.Stats) uint64 { return s.RxTrunc }},
	{"drop_socket_buffer", func(s *port.Stats) uint64 { return s.RxOverflow }},
	{"drop_other_interface", func(s *port.Stats) uint64 { return s.RxForeign }},
	{"drop_mailbox", func(s *port.Stats) uint64 { return s.RxGarbage }},
	{"relayed_datagrams", func(s *port.Stats) uint64 { return s.Relayed }},
	{"drop_relayed", func(s *port.Stats) uint64 { return s.RelayLost }},
	{"offload_failures", func(s *port.Stats) uint64 { return s.GSOOff }},
}

// otherNames are the names that mlx5 has for what Linux's rdma_rxe, whose names
// are ours, calls otherwise or does not have: monitors look for either.
var otherNames = [...]struct {
	name string
	get  func(*transport.Stats) uint64
}{
	{"out_of_buffer", func(s *transport.Stats) uint64 { return s.SentRNR + s.DropNoRecv }},
	{"out_of_sequence", func(s *transport.Stats) uint64 { return s.OutOfSeq }},
	{"packet_seq_err", func(s *transport.Stats) uint64 { return s.RcvdSeqNAK }},
	{"rnr_nak_retry_err", func(s *transport.Stats) uint64 { return s.RcvdRNR }},
	{"req_transport_retries_exceeded", func(s *transport.Stats) uint64 { return s.RetryExceeded }},
	{"req_rnr_retries_exceeded", func(s *transport.Stats) uint64 { return s.RNRRetryExceed }},
	{"rx_icrc_encapsulated", func(s *transport.Stats) uint64 { return s.DropICRC }},
}

// unsent counts what the port was given and could not send.
func unsent(s *port.Stats) uint64 { return s.TxErrors + s.TxAgain + s.TxFault }

// received counts the packets that came, good or not: segments, where the port
// counts datagrams that may hold several.
func received(s *transport.Stats) uint64 {
	return s.RcvdPackets + s.DropShort + s.DropVersion + s.DropOpcode + s.DropPad + s.DropICRC + s.DropID + s.DropNoQP +
		s.DropSource + s.DropTransport + s.DropGSI + s.DropMulticast + s.CNPIgnored + s.DropStray
}

// Counters gives by name what HWCounters lists.
func (d *Device) Counters() map[string]uint64 {
	list, _ := d.HWCounters(0)
	m := make(map[string]uint64, len(list))
	for _, c := range list {
		m[c.Name] = c.Value
	}
	return m
}

// Counters implements driver.QPCounter.
func (q *qp) Counters() ([]driver.Counter, error) {
	var st transport.Stats
	dead := false
	q.sh.Inspect(func() { st, dead = q.Stats, q.dead })
	if dead {
		return nil, fmt.Errorf("queue pair was destroyed: %w", syscall.EINVAL)
	}
	return st.Counters(true), nil
}
