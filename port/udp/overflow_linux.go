package udp

// overflowed counts what the kernel dropped before the port could read it: the
// receive buffers were full, or a checksum was wrong, which it counts together.
// It is asked when somebody wants to know, so that receiving costs nothing.
// After Close it is what it was then.
func (p *Port) overflowed() uint64 {
	if p.enter() {
		p.countDrops()
		p.leave()
	}
	return p.counters.rxOverflow.Load()
}

// countDrops asks the kernel. The descriptors are open.
func (p *Port) countDrops() {
	g := &p.groups
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.overflowed
	for _, s := range *p.socks.Load() {
		n += s.drops()
	}
	for _, s := range g.byFD {
		n += s.drops()
	}
	p.counters.rxOverflow.Store(n)
}
