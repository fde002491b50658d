package rdmacm

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/cm"
	"github.com/verbena-rdma/verbena/verbs"
)

// state is where an ID stands, as in Linux's rdma_cm.
type state uint8

const (
	stateIdle state = iota
	stateBound
	stateAddrResolved
	stateRouteResolved
	stateConnect // a request was sent or received, until the ID is destroyed
	stateListen
	stateRemoved // the device is gone
	stateDestroyed
)

// ID is to RDMA what a socket is to TCP and UDP (struct rdma_cm_id). See the package's
// documentation for the order of calls; one that comes at the wrong time fails with
// EINVAL and changes nothing.
type ID struct {
	m   *Manager
	ps  PortSpace
	typ ib.QPType

	helpers helpers // what posting needs; see verbs_post.go

	qpMu sync.Mutex // held while queue pair, queues and shared receive queue are made or destroyed

	// All else is under the manager's mu.
	ledger
	user  any
	ch    *EventChannel // own one of a synchronous ID
	sync  bool
	state state
	last  *Event // of a synchronous ID

	dev      *device
	port     uint8
	src, dst netip.AddrPort
	holds    bool // has an entry in Manager.ports
	claims   []claim
	route    []PathRecord

	listens []listening

	conn      *cm.Conn
	datagram  bool // conn is a SIDR exchange
	passive   bool // made for a request
	ended     bool // EventDisconnected was raised
	seq       uint32
	respRes   uint8
	initDepth uint8
	qkey      ib.QKey
	localECE  cm.ECE
	remoteECE cm.ECE
	prefix    []byte // of private data of Connect

	reuse, afOnly bool
	tos           uint8
	ackTimeout    uint8
	ackSet        bool

	pd                 *verbs.PD
	qp                 *verbs.QP
	qpInit             *verbs.QPInitAttr // for GetRequest
	srq                *verbs.SRQ
	sendCQ, recvCQ     *verbs.CQ
	sendChan, recvChan *verbs.CompChannel
	madeSend, madeRecv bool // the queues are the ID's
	xrcSRQ             bool // ... recvCQ is for srq
	groups             map[netip.Addr]*group
}

// listening is an ID's part on one device.
type listening struct {
	d *device
	l *cm.Listener
}

func get[T any](id *ID, f func() T) T {
	id.m.mu.Lock()
	defer id.m.mu.Unlock()
	return f()
}

// UserContext is what was given to NewID; an ID from a request has that of the
// listening one.
func (id *ID) UserContext() any { return get(id, func() any { return id.user }) }

// SetUserContext changes what UserContext returns, as assigning to the field does in C.
func (id *ID) SetUserContext(user any) {
	id.m.mu.Lock()
	defer id.m.mu.Unlock()
	id.user = user
}

// PortSpace is the port space of the ID.
func (id *ID) PortSpace() PortSpace { return id.ps }

// QPType is the type that a queue pair of the ID has.
func (id *ID) QPType() ib.QPType { return id.typ }

// Channel is the event channel; nil for a synchronous ID.
func (id *ID) Channel() *EventChannel {
	return get(id, func() *EventChannel {
		if id.sync {
			return nil
		}
		return id.ch
	})
}

// Event is the event that the last call of a synchronous ID got: of an ID from
// GetRequest the request. It is acknowledged by the next call that gets one, and
// by Migrate and Destroy. nil: there was none.
func (id *ID) Event() *Event { return get(id, func() *Event { return id.last }) }

// Verbs is the device; nil until the ID is bound to one.
func (id *ID) Verbs() *verbs.Context {
	return get(id, func() *verbs.Context {
		if id.dev == nil {
			return nil
		}
		return id.dev.ctx
	})
}

// PD is the domain of the ID: that of its queue pair, or the one that all IDs of the device
// share by default. nil until the ID is bound to a device.
func (id *ID) PD() *verbs.PD { return get(id, func() *verbs.PD { return id.pd }) }

// PortNum is the device's port, counted from 1; 0 until the ID is bound to one.
func (id *ID) PortNum() uint8 { return get(id, func() uint8 { return id.port }) }

// LocalAddr is the own address and port (rdma_get_local_addr). A link-local
// address has its zone. Not valid before Bind or ResolveAddr.
func (id *ID) LocalAddr() netip.AddrPort { return get(id, func() netip.AddrPort { return id.src }) }

// PeerAddr is the peer's address and port (rdma_get_peer_addr).
func (id *ID) PeerAddr() netip.AddrPort { return get(id, func() netip.AddrPort { return id.dst }) }

// SrcPort is the own port (rdma_get_src_port), 0 for none.
func (id *ID) SrcPort() uint16 { return id.LocalAddr().Port() }

// DstPort is the peer's port (rdma_get_dst_port), 0 for none.
func (id *ID) DstPort() uint16 { return id.PeerAddr().Port() }

// Route is the way to the peer (struct rdma_route): one path after ResolveRoute, and of
// an ID from a request.
func (id *ID) Route() []PathRecord {
	return get(id, func() []PathRecord { return slices.Clone(id.route) })
}

// alive refuses what a destroyed ID cannot do. The caller holds mu.
func (id *ID) alive() error {
	switch id.state {
	case stateDestroyed:
		return errIDDestroyed
	case stateRemoved:
		return errRemoved
	}
	return nil
}

// complete ends a call of a synchronous ID: it waits for one of the events wanted, or for
// one that tells that there will be none, and keeps it. Others, which a call that
// gave up has left, are passed over.
func (id *ID) complete(ctx context.Context, want ...EventType) error {
	id.m.mu.Lock()
	ch, isSync := id.ch, id.sync
	if isSync && id.last != nil {
		id.last.ack()
		id.last = nil
	}
	id.m.mu.Unlock()
	if !isSync {
		return nil
	}
	for {
		e, err := ch.get(ctx)
		if err != nil {
			return err
		}
		wanted := slices.Contains(want, e.Type)
		over := e.Type == EventDeviceRemoval || e.Type == EventDisconnected
		if !wanted && !over && e.Status == 0 {
			e.Ack()
			continue
		}
		id.m.mu.Lock()
		id.last = e
		id.m.mu.Unlock()
		switch {
		case e.Type == EventDeviceRemoval:
			return errRemoved
		case !wanted && e.Status == 0: // the peer has connected and disconnected
			return fmt.Errorf("%v: %w", e.Type, syscall.ECONNRESET)
		}
		return e.Err()
	}
}

// Migrate moves the ID to another event channel (rdma_migrate_id), with the events that
// nobody has got; nil makes it synchronous. It waits until every event of the ID that
// was got is acknowledged: afterwards nobody deals with one from the old channel.
// EINVAL: it is synchronous and stays so. With ctx's error it has moved, but
// events are not acknowledged.
func (id *ID) Migrate(ctx context.Context, ch *EventChannel) error {
	const op = "migrate_id"
	if ch != nil && ch.m != id.m {
		return paramErr(op, "channel", "is another manager's", syscall.EINVAL)
	}
	id.m.mu.Lock()
	var err error
	switch {
	case id.state == stateDestroyed:
		err = errIDDestroyed
	case ch == nil && id.sync:
		err = syscall.EINVAL
	case ch != nil && ch.closed:
		err = errChannelClosed
	}
	if err != nil {
		id.m.mu.Unlock()
		return opErr(op, err)
	}
	old, own := id.ch, id.sync
	if id.sync = ch == nil; ch == nil {
		ch = newChannel(id.m)
	}
	id.ch = ch
	old.ids--
	ch.ids++
	old.remove(func(e *Event) bool {
		if e.owner != id || ch == old { // in C too an ID may be moved to where it is
			return false
		}
		ch.list = append(ch.list, e)
		return true
	})
	if len(ch.list) > 0 {
		ch.signal()
	}
	if own {
		old.shut()
	}
	if id.last != nil {
		id.last.ack()
		id.last = nil
	}
	id.m.mu.Unlock()
	return opErr(op, id.wait(ctx, id.m))
}

// Destroy ends the ID (rdma_destroy_id): what is under way is withdrawn, a request
// that was neither accepted nor rejected is rejected, a connection is ended as by
// Disconnect but without waiting for the peer, groups are left, events that nobody
// got are discarded. Calls of a synchronous ID that wait fail with net.ErrClosed. Then it
// waits until the events that were got are acknowledged.
// Its queue pair is not destroyed: call DestroyQP before (or after), or DestroyEP
// instead. With ctx's error the ID is of no use any more; calling again waits
// again.
func (id *ID) Destroy(ctx context.Context) error {
	id.m.mu.Lock()
	if id.state != stateDestroyed {
		id.end()
	}
	id.m.mu.Unlock()
	if err := id.wait(ctx, id.m); err != nil {
		return opErr("destroy_id", err)
	}
	id.m.mu.Lock()
	defer id.m.mu.Unlock()
	if _, ok := id.m.ids[id]; ok {
		delete(id.m.ids, id)
		id.ch.ids--
	}
	return nil
}

// end is the part of Destroy that happens at once. The caller holds mu.
func (id *ID) end() {
	id.state = stateDestroyed
	id.unlisten()
	id.release()
	for a := range id.groups {
		id.leave(a)
	}
	if id.conn != nil {
		now := id.m.clock()
		id.dev.cm.Destroy(now, id.conn)
		id.conn = nil
		if !id.dev.gone {
			id.dev.after(now)
		}
	}
	var orphans []*ID
	id.ch.remove(func(e *Event) bool {
		if e.owner == id && e.Type == EventConnectRequest {
			orphans = append(orphans, e.ID)
		}
		return e.owner == id
	})
	if id.last != nil {
		id.last.ack()
		id.last = nil
	}
	if id.sync {
		id.ch.shut() // a call that waits returns
	}
	for _, o := range orphans { // requests that nobody has seen
		o.end()
		delete(id.m.ids, o)
		o.ch.ids--
	}
}

// unlisten ends listening. The caller holds mu.
func (id *ID) unlisten() {
	for _, l := range id.listens {
		l.d.cm.Unlisten(l.l)
	}
	id.withdraw(nil)
	id.listens = nil
}

// DestroyEP destroys queue pair, completion queues and shared receive queue, as far as
// this package made them, and the ID (rdma_destroy_ep).
func (id *ID) DestroyEP(ctx context.Context) error {
	if err := id.DestroyQP(ctx); err != nil {
		return err
	}
	if err := id.DestroySRQ(ctx); err != nil {
		return err
	}
	return id.Destroy(ctx)
}
