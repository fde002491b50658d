package udp

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/internal/port"
)

// Port carries datagrams over UDP sockets. It implements port.Port and
// port.Waiter.
type Port struct {
	cfg     Config
	recvBuf int
	maxSegs atomic.Int32 // segments in one send; 1 once offload failed
	noMMsg  atomic.Bool  // sendmmsg and recvmmsg are off, or not there

	mu       sync.Mutex                // adds sockets
	socks    atomic.Pointer[[]*socket] // by Flow.Local; copied on write
	sources  atomic.Pointer[[]*socket] // by Flow.Source - 1; copied on write
	sourceOf map[sourceKey]int         // Flow.Source

	// state counts the calls that are using descriptors. Who takes it to zero
	// after Close closes them, so none is ever closed, and its number given to
	// another file, under a call.
	state   atomic.Int64
	destroy sync.Once
	closed  chan struct{} // closed when no descriptor is left

	share *sharing     // nil: nobody shares the addresses
	side  atomic.Int32 // what the last Wait said of the epoll descriptor
	more  atomic.Bool  // there is more of a message that was read
	// renewed counts the sockets that were opened again.
	renewed atomic.Uint32
	// Messages to mailboxes that were full are left.
	unsent atomic.Bool
	// A local address is not steered: what is for other members of it goes to their mailboxes.
	handing atomic.Bool

	groups   groups
	counters counters
	free     [4]atomic.Pointer[scratch]
	rx       receiver
	wait     waiter
}

var (
	_ port.Port    = (*Port)(nil)
	_ port.Waiter  = (*Port)(nil)
	_ port.Sourcer = (*Port)(nil)
)

// closing is the bit of Port.state that Close sets.
const closing = 1 << 62

// Open opens a port without local addresses; AddLocal adds them. It fails only
// when the process has no descriptor left (EMFILE, ENFILE, ENOMEM).
func Open(cfg Config) (*Port, error) {
	cfg.setDefaults()
	p := &Port{cfg: cfg, closed: make(chan struct{}), sourceOf: make(map[sourceKey]int)}
	p.socks.Store(new([]*socket))
	p.sources.Store(new([]*socket))
	p.noMMsg.Store(cfg.NoMMsg)
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("udp: eventfd: %w", err)
	}
	p.wait.event, p.wait.set, p.wait.noEpoll = event, -1, cfg.NoEpoll
	probe, err := probe(&cfg)
	if err != nil {
		_ = unix.Close(event)
		return nil, err
	}
	p.recvBuf = probe.recvBuf
	p.maxSegs.Store(int32(probe.maxSegs))
	if cfg.Share != nil {
		if err := p.openSharing(); err != nil {
			_ = unix.Close(event)
			return nil, err
		}
	}
	return p, nil
}

// enter begins the use of descriptors; false: the port is closed.
func (p *Port) enter() bool {
	// Those who keep calling after Close must not keep the count from zero.
	if p.state.Load()&closing != 0 {
		return false
	}
	if p.state.Add(1)&closing != 0 {
		p.leave()
		return false
	}
	return true
}

// leave ends it.
func (p *Port) leave() {
	if p.state.Add(-1) == closing {
		p.destroy.Do(p.closeAll)
	}
}

func (p *Port) closeAll() {
	p.countDrops()
	for _, s := range *p.socks.Load() {
		_ = unix.Close(s.fd)
	}
	for _, s := range *p.sources.Load() {
		_ = unix.Close(s.fd)
	}
	p.groups.close()
	p.closeSharing()
	_ = unix.Close(p.wait.event)
	if p.wait.set >= 0 {
		_ = unix.Close(p.wait.set)
	}
	close(p.closed)
}

// Close closes all sockets and ends a Wait that is running. When it returns no
// descriptor is open. Closing again does nothing.
func (p *Port) Close() error {
	for {
		v := p.state.Load()
		if v&closing != 0 {
			break
		}
		if p.state.CompareAndSwap(v, (v|closing)+1) {
			if p.share != nil {
				close(p.share.stop)
			}
			p.wait.kick()
			p.leave()
			break
		}
	}
	<-p.closed
	if p.share != nil {
		p.share.done.Wait()
	}
	return nil
}

// AddLocal implements port.Port. EINVAL: not an address of one interface, or
// an IPv6 link-local one without zone. EADDRINUSE names the holder if it can
// be told. After Close it is ErrClosed of package net.
func (p *Port) AddLocal(addr netip.Addr) (int, error) {
	addr, err := checkLocal(addr)
	if err != nil {
		return 0, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.enter() {
		return 0, errClosed
	}
	defer p.leave()
	old := *p.socks.Load()
	for i, s := range old {
		switch {
		case s.addr != addr:
		case !s.dropped:
			return i, nil
		default:
			return i, p.named(p.reopen(s), addr)
		}
	}
	s, err := p.openLocal(addr)
	if err != nil {
		return 0, p.named(err, addr)
	}
	s.index = len(old)
	if s.control != nil {
		s.control.index = s.index
	}
	set := append(old[:len(old):len(old)], s)
	p.socks.Store(&set)
	p.wait.kick() // a Wait that is running must see the socket
	return s.index, nil
}

// openLocal makes the socket of a local address, or gets that of this process from
// those who share it.
func (p *Port) openLocal(addr netip.Addr) (*socket, error) {
	if p.share != nil {
		return p.openShared(addr)
	}
	return openSocket(&p.cfg, addr)
}

// named adds to EADDRINUSE who holds the address, and if it is this process that does
// not share, why.
func (p *Port) named(err error, addr netip.Addr) error {
	if !errors.Is(err, unix.EADDRINUSE) {
		return err
	}
	if p.share == nil && p.cfg.Alone != "" {
		return fmt.Errorf("%w; %s (this device does not share: %s)", err, whoHolds(addr), p.cfg.Alone)
	}
	return fmt.Errorf("%w; %s", err, whoHolds(addr))
}

// Caps implements port.Port. The first failure of segmentation offload lowers
// MaxSegs to 1 for good; Send then lowers the limit of the batches it is given.
func (p *Port) Caps() port.Caps {
	segs := int(p.maxSegs.Load())
	return port.Caps{
		MaxSegs:     segs,
		RecvBuf:     p.recvBuf,
		NeedsProbe:  segs > 1,
		Checksummed: true,
	}
}

// Stats implements port.Port.
func (p *Port) Stats() port.Stats {
	s := p.counters.stats()
	s.RxOverflow = p.overflowed()
	return s
}
