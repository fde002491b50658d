package cm

import (
	"net/netip"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/timer"
	"github.com/verbena-rdma/verbena/internal/wire/mad"
)

// Conn is one connection, or one exchange of SIDR messages. All its methods are reads; what changes it are the Manager's.
type Conn struct {
	Context any // the owner's, until Destroy
	Record  any // of Config.Record, until there is nothing to end any more

	timer    timer.Item[*Conn]
	msg      *message // what is sent until it is answered
	saved    []byte   // private data of the RTU or DREP, for duplicates
	listener *Listener

	local, remote netip.Addr
	serviceID     uint64
	guid          uint64 // of the peer's channel adapter
	tid           uint64 // of the exchange that began with REQ
	dreqTID       uint64 // of the peer's DREQ
	base          int64  // how long to wait for an answer, before any MRA
	wait          int64  // the same for the message that is being sent

	localID, remoteID   uint32
	localQPN, remoteQPN uint32
	sqPSN, rqPSN        uint32
	path                Path
	pkey                uint16
	service             mad.TransportService
	extended            uint8
	mtu                 uint8
	depth, resources    uint8 // what we issue and what we serve
	retry, rnrRetry     uint8
	lifetime            uint8
	ackTimeout          uint8
	left, maxRetries    uint8

	state     State
	passive   bool
	knowsPeer bool // remoteID is set
	destroyed bool
	pending   bool // one of Manager.pending
	backlog   bool // has a place in the listener's backlog
	hasID     bool // is in Manager.remoteIDs
	hasQPN    bool // is in Manager.remoteQPs
}

// State returns where the connection stands.
func (c *Conn) State() State { return c.state }

// Passive reports whether the peer began.
func (c *Conn) Passive() bool { return c.passive }

// Local returns our address.
func (c *Conn) Local() netip.Addr { return c.local }

// Remote returns the peer's address, from where its messages came.
func (c *Conn) Remote() netip.Addr { return c.remote }

// LocalCommID returns our communication id, or the request id of a SIDR exchange.
func (c *Conn) LocalCommID() uint32 { return c.localID }

// RemoteCommID returns the peer's communication id, 0 while it is not known.
func (c *Conn) RemoteCommID() uint32 { return c.remoteID }

// ServiceID returns the service id of the request.
func (c *Conn) ServiceID() uint64 { return c.serviceID }

// Recorded reports whether the peer may take the connection for established, or will without any more word from us: who finds this
// process dead has to end it by a DREQ. That is from the REP or RTU on, before either leaves, until a DREQ or REJ has ended it. An XRC
// target that its owner has left to the peer is none.
func (c *Conn) Recorded() bool {
	switch c.state {
	case StateRepSent, StateMRARepRcvd, StateEstablished, StateDreqSent, StateDreqRcvd:
		return true
	}
	return false
}

// TrafficClass returns that of the messages to the peer.
func (c *Conn) TrafficClass() uint8 { return c.path.TrafficClass }

// QPParams are the attributes of a queue pair that the messages settle.
type QPParams struct {
	Transport         mad.TransportService
	ExtendedTransport uint8
	LocalQPN          uint32
	RemoteQPN         uint32
	SQPSN, RQPSN      uint32
	PathMTU           ib.MTU
	PKey              uint16
	Path              Path
	MaxRDAtomic       uint8 // initiator depth
	MaxDestRDAtomic   uint8 // responder resources
	RetryCnt          uint8
	RNRRetry          uint8
	Timeout           uint8 // local ACK timeout, code
}

// QPParams returns the attributes as far as they are known: on the active side all from EventREPReceived on; on the passive side
// what the REQ said from EventREQReceived on (MaxRDAtomic and MaxDestRDAtomic as it asks), and the parameters of Accept after it.
func (c *Conn) QPParams() QPParams {
	return QPParams{
		Transport: c.service, ExtendedTransport: c.extended, LocalQPN: c.localQPN, RemoteQPN: c.remoteQPN, SQPSN: c.sqPSN, RQPSN: c.rqPSN,
		PathMTU: ib.MTU(c.mtu), PKey: c.pkey, Path: c.path, MaxRDAtomic: c.depth, MaxDestRDAtomic: c.resources,
		RetryCnt: c.retry, RNRRetry: c.rnrRetry, Timeout: c.ackTimeout,
	}
}

// newConn makes a connection that its local id finds. ENOMEM: there are Config.MaxConns.
func (m *Manager) newConn(local, remote netip.Addr) (*Conn, error) {
	if m.Conns() >= m.cfg.MaxConns {
		return nil, syscall.ENOMEM
	}
	c := &Conn{local: local, remote: remote, localID: m.newID()}
	c.timer.Owner = c
	m.ids[c.localID] = c
	return c, nil
}

// admit counts a new passive connection as undecided.
func (m *Manager) admit(c *Conn, l *Listener) {
	c.listener, c.pending, c.backlog = l, true, true
	m.pending++
	l.pending++
}

// Taken frees the connection's place in its listener's backlog: the application has fetched the request, but has not decided. It
// still counts as undecided for Config.MaxPending. Accepting, rejecting and destroying free the place too.
func (m *Manager) Taken(c *Conn) {
	if c.backlog {
		c.backlog = false
		c.listener.pending--
	}
}

// decided ends being undecided.
func (m *Manager) decided(c *Conn) {
	m.Taken(c)
	if c.pending {
		c.pending = false
		m.pending--
	}
}

// learn enters the peer's communication id and queue pair number in the tables. They were looked up before.
func (m *Manager) learn(c *Conn) {
	m.remoteIDs[remoteID{bare(c.remote), c.guid, c.remoteID}] = c
	m.remoteQPs[remoteQPN{bare(c.remote), c.guid, c.remoteQPN}] = c
	c.hasID, c.hasQPN, c.knowsPeer = true, true, true
}

func (m *Manager) forgetQPN(c *Conn) {
	if c.hasQPN {
		c.hasQPN = false
		delete(m.remoteQPs, remoteQPN{bare(c.remote), c.guid, c.remoteQPN})
	}
}

// enter changes the state, and tells who keeps records of connections. All that they say is known before.
func (m *Manager) enter(c *Conn, s State) {
	was := c.Recorded()
	c.state = s
	if m.cfg.Record != nil && (was || c.Recorded()) {
		m.cfg.Record(c)
	}
}

// idle ends a connection: nothing finds it any more.
func (m *Manager) idle(c *Conn) {
	m.stop(c)
	m.decided(c)
	m.forgetQPN(c)
	if c.hasID {
		c.hasID = false
		delete(m.remoteIDs, remoteID{bare(c.remote), c.guid, c.remoteID})
	}
	if c.state == StateSidrReqRcvd {
		delete(m.sidr, sidrKey{c.remote, c.remoteID})
	} else {
		delete(m.ids, c.localID)
	}
	c.saved = nil
	m.enter(c, StateIdle)
}

// timewait ends a connection whose messages may still be on their way.
func (m *Manager) timewait(now int64, c *Conn) {
	m.stop(c)
	m.decided(c)
	m.forgetQPN(c)
	c.saved = nil // of the RTU
	m.enter(c, StateTimewait)
	m.timers.Set(&c.timer, now+m.duration(min(c.ackTimeout, m.cfg.MaxTimewaitCode)))
}

// timeout is called when the connection's deadline has passed.
func (m *Manager) timeout(now int64, c *Conn) {
	if c.state == StateTimewait {
		m.idle(c)
		m.emit(Event{Kind: EventTimewaitExit, Conn: c})
		return
	}
	if c.left > 0 {
		c.left--
		m.counters.TxRetries[mad.Header(c.msg[:]).AttrID()-mad.AttrREQ]++
		m.again(c)
		m.timers.Set(&c.timer, now+c.wait)
		return
	}
	e := Event{Conn: c, Err: syscall.ETIMEDOUT}
	switch c.state {
	case StateReqSent, StateMRAReqRcvd:
		e.Kind = EventREQError
		m.idle(c)
	case StateRepSent, StateMRARepRcvd:
		e.Kind = EventREPError
		m.idle(c)
	case StateDreqSent:
		e.Kind = EventDREQError
		m.timewait(now, c)
	case StateSidrReqSent:
		e.Kind = EventSIDRREQError
		m.idle(c)
	default: // no other state has a deadline
		return
	}
	m.emit(e)
}
