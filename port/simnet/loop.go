package simnet

// Turn is what a device does when its port has something for it or its
// deadline has come: it returns the time of its next deadline, 0 for none.
type Turn func(now int64) (next int64)

// Attach makes turn the owner of p: it is called when datagrams have arrived,
// when its deadline has come, and after Kick; but only from Step, Run and
// RunFor, never nested.
func (n *Net) Attach(p *Port, turn Turn) {
	p.turn = turn
	n.Kick(p)
}

// Kick has the owner of p called soon, without time passing: after work was
// posted, so that its new deadline counts.
func (n *Net) Kick(p *Port) { p.wake(n.now) }

// Pause keeps the owner of p from running until d ns have passed: a process
// that does not get the processor. Datagrams go on arriving.
func (n *Net) Pause(p *Port, d int64) { p.busy = max(p.busy, n.now+d) }

// next finds what happens next: a port's turn, or with nil the first event.
func (n *Net) next() (at int64, p *Port) {
	at = -1
	if len(n.events) > 0 {
		at = n.events[0].at
	}
	for _, q := range n.ports {
		if q.due == 0 || q.turn == nil {
			continue
		}
		// At equal times what arrives comes before the turn that handles it.
		if t := max(q.due, q.busy, n.now); at < 0 || t < at {
			at, p = t, q
		}
	}
	return at, p
}

// Step does what happens next and moves the time there. False: nothing ever
// will.
func (n *Net) Step() bool {
	at, p := n.next()
	if at < 0 {
		return false
	}
	n.do(at, p)
	return true
}

func (n *Net) do(at int64, p *Port) {
	n.now = max(n.now, at)
	if p != nil {
		p.run()
		return
	}
	e := n.events.pop()
	if e.fn != nil {
		e.fn()
		return
	}
	n.arrive(e.pkt)
}

// Run goes on until the condition holds (true), or max ns have passed or
// nothing is left to do (false, or the condition as it is then). The condition
// is asked after each step.
func (n *Net) Run(until func() bool, maxTime int64) bool {
	end := n.now + maxTime
	for !until() {
		at, p := n.next()
		if at < 0 || at > end {
			return false
		}
		n.do(at, p)
	}
	return true
}

// RunFor goes on for d ns, exactly.
func (n *Net) RunFor(d int64) {
	end := n.now + d
	for {
		at, p := n.next()
		if at < 0 || at > end {
			n.now = end
			return
		}
		n.do(at, p)
	}
}

// arrive puts a datagram into its port's queue.
func (n *Net) arrive(k *packet) {
	p := k.to
	if p == nil {
		p = k.dst.owner
	}
	switch {
	case p == nil || p.closed:
		n.stats.NoHost++
	case p.queue.n >= p.cfg.Queue || p.cfg.RecvBuf > 0 && p.queued+truesize(k) > p.cfg.RecvBuf:
		n.stats.Overflowed++
		p.overflowed++
	default:
		n.stats.Delivered++
		p.queued += truesize(k)
		p.queue.push(k)
		p.wake(n.now)
		return
	}
	n.pool.put(k)
}

// wake schedules a turn for a time, unless one comes earlier.
func (p *Port) wake(at int64) {
	if p.due == 0 || at < p.due {
		p.due = at
	}
}

func (p *Port) run() {
	n := p.net
	n.stats.Turns++
	p.due = 0
	p.busy = n.now + p.cfg.TurnTime
	if next := p.turn(n.now); next > 0 {
		p.wake(next)
	}
	if p.queue.n > 0 {
		p.wake(n.now)
	}
}
