package rdmacm

import (
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/internal/cm"
)

// receiveBatch bounds the datagrams that are taken before what they brought is dealt
// with.
const receiveBatch = 64

// nudge has the loop look after the devices.
func (m *Manager) nudge() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// arrived is called by whoever has received a datagram, and deals with it at once if
// nobody else is at work: the loop would have to be woken up first.
func (m *Manager) arrived() {
	if m.cfg.manual || !m.mu.TryLock() {
		m.nudge()
		return
	}
	defer m.mu.Unlock()
	if m.closed {
		return
	}
	m.step(m.clock())
	if at := m.deadline(); at != 0 && at < m.sleep {
		m.nudge()
	}
}

// run is the manager's goroutine: it fires timers, and receives what others left.
func (m *Manager) run() {
	defer m.stopped.Done()
	t := time.NewTimer(time.Hour)
	defer t.Stop()
	for {
		m.mu.Lock()
		now := m.clock()
		m.step(now)
		d := m.deadline()
		if m.sleep = d; d == 0 {
			m.sleep = 1<<63 - 1
		}
		m.mu.Unlock()
		wait := time.Hour
		if d != 0 {
			wait = time.Duration(max(d-now, 0))
		}
		t.Reset(wait)
		select {
		case <-m.wake:
		case <-t.C:
		case <-m.stop:
			return
		}
	}
}

// deadline is the next time at which step is needed, 0 for never. The caller holds mu.
func (m *Manager) deadline() (next int64) {
	for _, d := range m.devs {
		if at := d.cm.Deadline(); at != 0 && !d.gone && (next == 0 || at < next) {
			next = at
		}
	}
	return next
}

// step receives and fires what is due. The caller holds mu.
func (m *Manager) step(now int64) {
	for _, d := range m.devs {
		d.step(now)
	}
}

func (d *device) step(now int64) {
	if d.gone {
		return
	}
	select {
	case <-d.removed:
		d.vanish()
		return
	default:
	}
	for more := true; more; {
		more = false
		for range receiveBatch {
			if more = d.agent.Recv(&d.mad); !more {
				break
			}
			d.cm.Receive(now, d.withZone(d.mad.Local), d.withZone(d.mad.Remote), d.mad.Data[:])
		}
		if at := d.cm.Deadline(); at != 0 && at <= now {
			d.cm.Timer(now)
		}
		d.flush(now)
	}
}

// flush deals with what the protocol has to say, and sends its messages. The caller
// holds the manager's mu.
func (d *device) flush(now int64) {
	for {
		events := d.cm.Events()
		for i := range events {
			d.handle(now, &events[i])
		}
		out := d.cm.Outgoing()
		if len(out) == 0 && len(events) == 0 {
			return
		}
		for i := range out {
			d.send(&out[i])
		}
	}
}

func (d *device) send(o *cm.Out) {
	d.mad.Local, d.mad.Remote, d.mad.TrafficClass, d.mad.HopLimit = o.Local, o.Remote, o.TrafficClass, 0
	d.mad.Data = o.MAD
	if err := d.agent.Send(&d.mad); err != nil {
		// As good as lost: it is sent again, until the protocol gives up.
		d.m.log.Debug("message not sent", "device", d.ctx.Device().Name(), "local", o.Local, "remote", o.Remote, "err", err)
	}
}

// after ends a call of the application that has used the protocol: flush, and make
// sure that the loop wakes up in time. The caller holds the manager's mu.
func (d *device) after(now int64) {
	d.flush(now)
	if at := d.cm.Deadline(); at != 0 && at < d.m.sleep {
		d.m.nudge()
	}
}

// vanish ends everything on a device that was removed. The caller holds mu.
func (d *device) vanish() {
	d.gone = true
	for id := range d.m.ids {
		id.unclaim(d)
		if id.dev != d {
			continue
		}
		if id.conn != nil {
			d.cm.Destroy(d.m.clock(), id.conn)
			id.conn = nil
		}
		id.unlisten()
		if id.state != stateDestroyed {
			id.state = stateRemoved
			id.push(&Event{ID: id, Type: EventDeviceRemoval})
		}
	}
	d.forget()
	d.cm.Outgoing()
	d.cm.Events()
}

// negative is an errno as a status.
func negative(e syscall.Errno) int { return -int(e) }
