package cm

import (
	"math/bits"
	"net/netip"
	"syscall"

	"github.com/verbena-rdma/verbena/internal/timer"
	"github.com/verbena-rdma/verbena/internal/wire/mad"
)

// message is a management datagram that is kept: to send it again, or for duplicates.
type message [mad.Len]byte

// remoteID and remoteQPN are what tells a peer's connections apart. GUIDs are no secret and queue pair numbers are easy to guess:
// without the address any host could have another one's connection taken for stale.
type (
	remoteID struct {
		addr netip.Addr // bare
		guid uint64
		id   uint32
	}
	remoteQPN struct {
		addr netip.Addr // bare
		guid uint64
		qpn  uint32
	}
)

// bare is an address as it is compared: of IPv4 the short form, without a zone, since a manager serves one interface.
func bare(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// Manager is the connection manager of one device. See the package's documentation for how it is driven.
type Manager struct {
	cfg       Config
	counters  Counters
	ids       map[uint32]*Conn // by local communication id; SIDR request ids of ours are of the same kind
	remoteIDs map[remoteID]*Conn
	remoteQPs map[remoteQPN]*Conn
	sidr      map[sidrKey]*Conn
	replies   sidrReplyStore
	listeners listeners
	timers    timer.Heap[*Conn]
	pending   int // undecided requests

	out, outSpare       []Out
	events, eventsSpare []Event
	free                []*message
}

// Out is a message to be sent from queue pair 1 of Local to queue pair 1 of Remote.
type Out struct {
	Local, Remote netip.Addr
	TrafficClass  uint8
	MAD           [mad.Len]byte
}

// Event is something that has happened to a connection. Slices and pointers in it are the receiver's.
type Event struct {
	Kind     EventKind
	Conn     *Conn
	Listener *Listener     // EventREQReceived, EventSIDRREQReceived
	Err      syscall.Errno // ETIMEDOUT of the kinds that end in Error, else 0
	Reason   mad.RejectReason
	ARI      []byte // EventREJReceived: additional information, nil if there is none; EventSIDRREPReceived: the same
	Peer     *Peer  // EventREQReceived, EventREPReceived, EventSIDRREQReceived, EventSIDRREPReceived
	// PrivateData is the field of the message at its full length, what the peer did not fill is zero; of REQ and SIDR_REQ
	// SplitPrivate takes rdma_cm's header off. Nil if no message caused the event.
	PrivateData []byte
}

// New makes a Manager. It panics unless Config.Rand and CAGUID are set, and IDMask leaves ids for all connections.
func New(cfg Config) *Manager {
	if cfg.Rand == nil || cfg.CAGUID == 0 {
		panic("cm: Config needs Rand and CAGUID")
	}
	cfg.setDefaults()
	if cfg.IDBits&^cfg.IDMask != 0 || uint64(1)<<bits.OnesCount32(^cfg.IDMask) <= uint64(cfg.MaxConns) {
		panic("cm: IDBits are not within IDMask, or it leaves too few ids")
	}
	return &Manager{
		cfg:       cfg,
		ids:       map[uint32]*Conn{},
		remoteIDs: map[remoteID]*Conn{},
		remoteQPs: map[remoteQPN]*Conn{},
		sidr:      map[sidrKey]*Conn{},
		replies:   sidrReplyStore{byKey: map[sidrKey]*sidrReply{}},
		listeners: listeners{exact: map[uint64][]*Listener{}},
	}
}

// Outgoing returns the messages to be sent and forgets them. They are valid until the next call of Outgoing.
func (m *Manager) Outgoing() []Out {
	q := m.out
	m.out, m.outSpare = m.outSpare[:0], q
	if cap(m.out) > 256 { // a burst does not cost memory for ever
		m.out = nil
	}
	return q
}

// Events returns what has happened and forgets it. The slice is valid until the next call of Events.
func (m *Manager) Events() []Event {
	q := m.events
	m.events, m.eventsSpare = m.eventsSpare[:0], q
	if cap(m.events) > 256 {
		m.events = nil
	}
	clear(m.events[:cap(m.events)])
	n := 0
	for i := range q { // nothing of a connection that was destroyed meanwhile
		if !q[i].Conn.destroyed {
			q[n] = q[i]
			n++
		}
	}
	clear(q[n:])
	return q[:n]
}

// Deadline returns when Timer has to be called, 0 for never.
func (m *Manager) Deadline() int64 { return m.timers.Next() }

// Timer does what is due at now: repetitions, and giving up.
func (m *Manager) Timer(now int64) {
	for {
		c, ok := m.timers.Expired(now)
		if !ok {
			return
		}
		m.timeout(now, c)
	}
}

// Shift moves all deadlines by d ns: after a pause of the whole process.
func (m *Manager) Shift(d int64) { m.timers.Shift(d) }

// Counters returns the counters; the pointer stays valid and is read under the Manager's rules.
func (m *Manager) Counters() *Counters { return &m.counters }

// Conns returns how many connections exist, those in TIMEWAIT included.
func (m *Manager) Conns() int { return len(m.ids) + len(m.sidr) }

// Each calls f for every connection that is not idle.
func (m *Manager) Each(f func(*Conn)) {
	for _, c := range m.ids {
		f(c)
	}
	for _, c := range m.sidr {
		f(c)
	}
}

func (m *Manager) emit(e Event) { m.events = append(m.events, e) }

// put makes room for a message in the queue to be sent.
func (m *Manager) put(local, remote netip.Addr, tc uint8) *[mad.Len]byte {
	m.out = append(m.out, Out{Local: local, Remote: remote, TrafficClass: tc})
	return &m.out[len(m.out)-1].MAD
}

// begin queues a message that is not kept and returns its data.
func (m *Manager) begin(local, remote netip.Addr, tc uint8, attr mad.AttrID, tid uint64) []byte {
	m.counters.TxMsgs[attr-mad.AttrREQ]++
	return mad.Put(m.put(local, remote, tc)[:], attr, tid)
}

// keep begins a message that is sent again until it is answered, and returns its bytes and data. The connection's earlier one goes.
func (m *Manager) keep(c *Conn, attr mad.AttrID, tid uint64) (mad.Header, []byte) {
	if c.msg == nil {
		c.msg = m.newMessage()
	}
	data := mad.Put(c.msg[:], attr, tid)
	return mad.Header(c.msg[:mad.HeaderLen]), data
}

// start sends the message that the connection keeps for the first time.
func (m *Manager) start(now int64, c *Conn) {
	c.left, c.wait = c.maxRetries, c.base
	m.again(c)
	m.timers.Set(&c.timer, now+c.wait)
}

// again sends the message that the connection keeps.
func (m *Manager) again(c *Conn) {
	*m.put(c.local, c.remote, c.path.TrafficClass) = *c.msg
	m.counters.TxMsgs[mad.Header(c.msg[:]).AttrID()-mad.AttrREQ]++
}

// stop ends the repetition.
func (m *Manager) stop(c *Conn) {
	m.timers.Set(&c.timer, 0)
	if c.msg != nil {
		if len(m.free) < 256 {
			m.free = append(m.free, c.msg)
		}
		c.msg = nil
	}
}

func (m *Manager) newMessage() *message {
	if n := len(m.free); n > 0 {
		b := m.free[n-1]
		m.free = m.free[:n-1]
		return b
	}
	return new(message)
}

// newID draws a communication id that is not in use. A source that repeats itself does not hang it.
func (m *Manager) newID() uint32 {
	id := m.within(uint32(m.cfg.Rand()))
	for m.ids[id] != nil || id == 0 {
		id = m.within((id | m.cfg.IDMask) + 1) // a carry passes through the bits that are fixed
	}
	return id
}

// within gives an id the bits that are fixed.
func (m *Manager) within(id uint32) uint32 { return id&^m.cfg.IDMask | m.cfg.IDBits }

func (m *Manager) newTID() uint64 {
	if tid := m.cfg.Rand(); tid != 0 {
		return tid
	}
	return 1
}
