//go:build !linux

package udp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/port"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// Port carries datagrams over UDP sockets of package net, one datagram for
// each system call, with a goroutine for each local address that receives into
// a bounded queue. It implements port.Port and port.Waiter.
//
// Over IPv4 it cannot promise what an ICRC needs, DF and identification 0:
// that is the system's choice. Peers may find the ICRCs of IPv4 packets wrong
// and drop them; IPv6 has neither field.
type Port struct {
	cfg Config

	mu    sync.Mutex // adds sockets, closes
	done  bool
	socks atomic.Pointer[[]*socket]
	group sync.WaitGroup

	queue queue
	taken []*item // what the last Recv handed out; Recv's alone

	notify   chan struct{} // capacity 1: something arrived, or Kick
	closed   chan struct{}
	counters counters
	scratch  sync.Pool
}

var (
	_ port.Port   = (*Port)(nil)
	_ port.Waiter = (*Port)(nil)
)

// queued is how many datagrams wait for Recv before more are lost.
const queued = 512

type socket struct {
	conn  *net.UDPConn
	index int
	addr  netip.Addr
}

// item is a received datagram in the queue or on the way back to its pool.
type item struct {
	buf  []byte
	n    int
	src  netip.AddrPort
	sock *socket
}

// queue is the bounded queue between the receiving goroutines and Recv.
type queue struct {
	mu    sync.Mutex
	full  []*item // in order of arrival
	spare []*item
	items int
}

// get returns an empty item, or nil when too many datagrams wait.
func (q *queue) get(size int) *item {
	q.mu.Lock()
	defer q.mu.Unlock()
	if n := len(q.spare); n > 0 {
		it := q.spare[n-1]
		q.spare = q.spare[:n-1]
		return it
	}
	if q.items >= queued {
		return nil
	}
	q.items++
	return &item{buf: make([]byte, size)}
}

func (q *queue) put(it *item) {
	q.mu.Lock()
	q.full = append(q.full, it)
	q.mu.Unlock()
}

// Open opens a port without local addresses; AddLocal adds them.
func Open(cfg Config) (*Port, error) {
	cfg.setDefaults()
	p := &Port{cfg: cfg, notify: make(chan struct{}, 1), closed: make(chan struct{})}
	p.socks.Store(new([]*socket))
	p.scratch.New = func() any { return new([datagramMax]byte) }
	return p, nil
}

// AddLocal implements port.Port. EINVAL: not an address of one interface, or
// an IPv6 link-local one without zone. After Close it is ErrClosed of package
// net.
func (p *Port) AddLocal(addr netip.Addr) (int, error) {
	addr, err := checkLocal(addr)
	if err != nil {
		return 0, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done {
		return 0, errClosed
	}
	old := *p.socks.Load()
	for i, s := range old {
		if s.addr == addr {
			return i, nil
		}
	}
	network := "udp4"
	if addr.Is6() {
		network = "udp6"
	}
	at := netip.AddrPortFrom(addr, roce.Port)
	conn, err := net.ListenUDP(network, net.UDPAddrFromAddrPort(at))
	if err != nil {
		return 0, fmt.Errorf("udp: bind to %v (another program may have the port: stop it, or give this one another address with rdma.WithAddrs or VERBENA_ADDRS): %w", at, err)
	}
	_ = conn.SetReadBuffer(p.cfg.RecvBuf)
	_ = conn.SetWriteBuffer(p.cfg.SendBuf)
	s := &socket{conn: conn, index: len(old), addr: addr}
	set := append(old[:len(old):len(old)], s)
	p.socks.Store(&set)
	p.group.Add(1)
	go p.receive(s)
	return s.index, nil
}

// receive runs until the socket is closed.
func (p *Port) receive(s *socket) {
	defer p.group.Done()
	lost := &item{buf: make([]byte, p.cfg.bufBytes)}
	for {
		it := p.queue.get(p.cfg.bufBytes)
		if it == nil {
			it = lost
		}
		n, src, err := s.conn.ReadFromUDPAddrPort(it.buf)
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil || n == 0 || it == lost:
			// An ICMP error of an earlier packet, a datagram too large, or no room.
			p.counters.rxTrunc.Add(1)
			if it != lost {
				p.queue.mu.Lock()
				p.queue.spare = append(p.queue.spare, it)
				p.queue.mu.Unlock()
			}
			continue
		}
		it.n, it.sock = n, s
		it.src = netip.AddrPortFrom(src.Addr().Unmap(), src.Port())
		p.queue.put(it)
		p.Kick()
	}
}

// Send implements port.Port.
func (p *Port) Send(b *pkt.Tx) {
	if len(b.Msgs) == 0 {
		return
	}
	var s sent
	socks := *p.socks.Load()
	buf := p.scratch.Get().(*[datagramMax]byte)
	for i := range b.Msgs {
		m := &b.Msgs[i]
		local := m.Flow.Local
		if uint(local) >= uint(len(socks)) || m.Bytes > len(buf) || m.Segs > 1 {
			s.errors++
			continue
		}
		n := 0
		var err error
		for _, f := range b.Frags[m.First : m.First+m.Count] {
			if err = mem.Copy(buf[n:n+len(f)], f); err != nil {
				break
			}
			n += len(f)
		}
		if err != nil {
			s.fault++
			continue
		}
		if _, err := socks[local].conn.WriteToUDPAddrPort(buf[:n], m.Flow.To); err != nil {
			if errors.Is(err, syscall.ENOBUFS) {
				s.again++
			} else {
				s.errors++
			}
			continue
		}
		s.msgs++
		s.packets++
		s.bytes += uint64(n)
	}
	p.scratch.Put(buf)
	p.counters.add(&s)
	b.Caps.MaxSegs = 1
}

// Recv implements port.Port. It takes at most 64 datagrams.
func (p *Port) Recv(b *pkt.Rx) int {
	b.Dgrams = b.Dgrams[:0]
	q := &p.queue
	q.mu.Lock()
	q.spare = append(q.spare, p.taken...)
	n := min(len(q.full), cap(b.Dgrams), turn)
	p.taken = append(p.taken[:0], q.full[:n]...)
	q.full = q.full[:copy(q.full, q.full[n:])]
	q.mu.Unlock()
	bytes := 0
	for _, it := range p.taken {
		bytes += it.n
		b.Dgrams = append(b.Dgrams, pkt.Datagram{
			Data: it.buf[:it.n:it.n], SegSize: it.n,
			Src: it.src, Dst: it.sock.addr, Local: it.sock.index,
		})
	}
	add(&p.counters.rxDgrams, uint64(n))
	add(&p.counters.rxBytes, uint64(bytes))
	return n
}

// Wait implements port.Waiter. It may end for no reason, and ends at once after
// Close.
func (p *Port) Wait(d time.Duration) {
	p.queue.mu.Lock()
	ready := len(p.queue.full) > 0
	p.queue.mu.Unlock()
	switch {
	case ready:
	case d < 0:
		select {
		case <-p.notify:
		case <-p.closed:
		}
	default:
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-p.notify:
		case <-p.closed:
		case <-t.C:
		}
	}
}

// Look does nothing: addresses are not shared on this system.
func (p *Port) Look() {}

// Kick implements port.Waiter.
func (p *Port) Kick() {
	select {
	case p.notify <- struct{}{}:
	default:
	}
}

// Caps implements port.Port: no offloads, and a receive buffer that holds at
// least the datagrams in the queue.
func (p *Port) Caps() port.Caps {
	return port.Caps{MaxSegs: 1, RecvBuf: min(p.cfg.RecvBuf, 256<<10), Checksummed: true}
}

// Stats implements port.Port.
func (p *Port) Stats() port.Stats { return p.counters.stats() }

// Close closes all sockets, waits for their goroutines, and ends a Wait that is
// running. Closing again does nothing.
func (p *Port) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done {
		return nil
	}
	p.done = true
	for _, s := range *p.socks.Load() {
		_ = s.conn.Close()
	}
	p.group.Wait()
	close(p.closed)
	return nil
}
