package host

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Group is a member's view of the group. Its methods may be called by any number of
// goroutines; none of them waits for another process except Join and Sockets.
type Group struct {
	cfg  Config
	me   identity
	name string // prefix of all names

	// What all members hold. None of it changes after Join.
	rendezvous, root int
	dirFD, mails     int
	id               uint64 // of the group
	d                dir
	shared, records  []byte // mappings

	// What is the member's own.
	slot    int
	gen     uint32
	self    uint64 // owner word
	slotFD  int    // has the slot's name
	listen  int    // who watches this member is connected to it
	mailbox int
	claims  claims
	conns   conns
	pool    pool

	poolOnce sync.Once
	poolMem  atomic.Pointer[[]byte]

	mailMu sync.Mutex // gets descriptors
	mail   [Slots]atomic.Int32

	addrMu  sync.Mutex // one Sockets at a time
	drained map[netip.Addr]bool

	// users counts the calls that are using what Close takes away; closing is its bit
	// for Close.
	users  atomic.Int64
	idle   chan struct{}
	once   sync.Once
	loop   loop
	counts counts
}

const closing = 1 << 62

type counts struct {
	sent, dropped, deaths, takeovers, answered, refused, garbage atomic.Uint64
}

// enter begins a use; false: the group was left.
func (g *Group) enter() bool {
	if g.users.Load()&closing != 0 {
		return false
	}
	if g.users.Add(1)&closing != 0 {
		g.exit()
		return false
	}
	return true
}

func (g *Group) exit() {
	if g.users.Add(-1) == closing {
		g.once.Do(func() { close(g.idle) })
	}
}

// step tells a test what happens next.
func (g *Group) step(name string) {
	if g.cfg.Step != nil {
		g.cfg.Step(name)
	}
}

// groupName is the prefix of the names of one group, as opposed to one whose last members
// are being taken apart.
func (g *Group) groupName(id uint64) string { return fmt.Sprintf("%s/%016x", g.name, id) }

// slotName is the name that belongs to who has a slot.
func (g *Group) slotName(slot int) string {
	return g.groupName(g.id) + "/" + strconv.Itoa(slot)
}

// Slot is the member's slot, 1 to 127.
func (g *Group) Slot() int { return g.slot }

// Numbers tells the member's queue pair numbers: every n with n&mask == bits.
func (g *Group) Numbers() (bits, mask ib.QPN) {
	return ib.QPN(g.slot << QPNBits), ib.QPN((Slots - 1) << QPNBits)
}

// CommIDs tells the member's communication and SIDR request IDs: every c with c&mask == bits.
func (g *Group) CommIDs() (bits, mask uint32) {
	return uint32(g.slot) << CommBits, (Slots - 1) << CommBits
}

// Steward reports whether this member is the steward, which reads slot 0's sockets. It is
// a look at shared memory: who reads asks before each batch.
func (g *Group) Steward() bool {
	if !g.enter() {
		return false
	}
	defer g.exit()
	return g.d.load(hdrSteward) == g.self
}

// Members lists who is in the group, by slot.
func (g *Group) Members() []Member {
	if !g.enter() {
		return nil
	}
	defer g.exit()
	var list []Member
	for slot := range Slots {
		if gen, ok := g.d.live(slot); ok {
			list = append(list, Member{
				Slot: slot, Generation: gen, PID: g.pidOf(slot), ServesMADs: g.d.servesMADs(slot),
			})
		}
	}
	return list
}

// ServeMADs says whether this member takes management datagrams: none is routed to it before.
func (g *Group) ServeMADs(on bool) {
	if !g.enter() {
		return
	}
	defer g.exit()
	var flags uint64
	if on {
		flags = uint64(g.gen)<<32 | flagMADs
	}
	g.d.store(slotAt(g.slot, slotFlags), flags)
	g.step("mads:set")
}

// SlotOf is the slot of a queue pair number; ok is false if nobody has it.
func (g *Group) SlotOf(n ib.QPN) (slot int, ok bool) {
	if !g.enter() {
		return 0, false
	}
	defer g.exit()
	slot = int(n>>QPNBits) & (Slots - 1)
	_, ok = g.d.live(slot)
	return slot, ok
}

// Route tells to which member a management datagram goes that came from remote to the
// address local; ok is false if nobody takes it. REQ and SIDR_REQ go to who listens, a repeated REQ
// and all others to whose communication ID they answer; what is nobody's goes to the caller, who has received it, if
// it serves queue pair 1, else to the lowest slot that does, and so knows how to refuse it.
func (g *Group) Route(local, remote netip.Addr, mad []byte) (slot int, ok bool) {
	if !g.enter() {
		return 0, false
	}
	defer g.exit()
	return g.claims.route(local, remote, mad)
}

// port is a claim as its owner sees it.
type port struct {
	g    *Group
	at   netip.AddrPort
	mu   sync.Mutex
	h    *claim
	done bool
}

// ClaimPort implements driver.NameSharer.
func (g *Group) ClaimPort(space uint16, at netip.AddrPort, flags driver.ClaimFlags) (driver.PortClaim, error) {
	if !at.IsValid() || at.Port() == 0 {
		return nil, fmt.Errorf("host: at: %v is no address with a port: %w", at, syscall.EINVAL)
	}
	if !g.enter() {
		return nil, ErrClosed
	}
	defer g.exit()
	h, err := g.claims.claim(space, at, flags)
	if err != nil {
		return nil, err
	}
	return &port{g: g, at: at, h: h}, nil
}

// Listen implements driver.PortClaim.
func (p *port) Listen(on bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done || !p.g.enter() {
		return ErrClosed
	}
	defer p.g.exit()
	h, err := p.g.claims.listen(p.h, on, p.at)
	p.h = h
	return err
}

// Release implements driver.PortClaim.
func (p *port) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done || !p.g.enter() {
		return
	}
	defer p.g.exit()
	p.done = true
	p.g.claims.mu.Lock()
	p.g.claims.drop(p.h)
	p.g.claims.mu.Unlock()
}

// conn is a record as its owner sees it.
type conn struct {
	g    *Group
	i    int
	mu   sync.Mutex
	rec  driver.ConnRecord
	done bool
}

// RecordConn implements driver.NameSharer. EINVAL: the local ID is none of this member's.
func (g *Group) RecordConn(r *driver.ConnRecord) (driver.ConnHandle, error) {
	if bits, mask := g.CommIDs(); r.LocalID&mask != bits {
		return nil, fmt.Errorf("host: LocalID: %#x is not of slot %d: %w", r.LocalID, g.slot, syscall.EINVAL)
	}
	if !g.enter() {
		return nil, ErrClosed
	}
	defer g.exit()
	i, err := g.conns.add(r)
	if err != nil {
		return nil, err
	}
	return &conn{g: g, i: i, rec: *r}, nil
}

// Update implements driver.ConnHandle.
func (c *conn) Update(r *driver.ConnRecord) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done || !c.g.enter() {
		return
	}
	defer c.g.exit()
	c.g.conns.update(c.i, &c.rec, r)
	c.rec = *r
}

// Release implements driver.ConnHandle.
func (c *conn) Release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done || !c.g.enter() {
		return
	}
	defer c.g.exit()
	c.done = true
	c.g.conns.remove(c.i, &c.rec)
}

// poolMap maps the pool, once.
func (g *Group) poolMap() []byte {
	g.poolOnce.Do(func() {
		b, err := unix.Mmap(g.dirFD, poolBytesAt, PoolBufs*PoolBuf, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err == nil {
			g.poolMem.Store(&b)
		}
	})
	if b := g.poolMem.Load(); b != nil {
		return *b
	}
	return nil
}

// PoolGet takes a free buffer of the memory that all members share, for a datagram that is
// to be handed over; ok is false if none is free. What dead members have had is free.
func (g *Group) PoolGet() (buf int, ok bool) {
	if !g.enter() {
		return 0, false
	}
	defer g.exit()
	if g.poolMap() == nil {
		return 0, false
	}
	return g.pool.get()
}

// PoolBytes is a buffer's memory, of [PoolBuf] bytes, nil if there is no such buffer. It is
// valid until Close. Other members may write to it at any time: what is read from it is input, and is
// read once.
func (g *Group) PoolBytes(buf int) []byte {
	if buf < 0 || buf >= PoolBufs || !g.enter() {
		return nil
	}
	defer g.exit()
	b := g.poolMap()
	if b == nil {
		return nil
	}
	return b[buf*PoolBuf : (buf+1)*PoolBuf : (buf+1)*PoolBuf]
}

// PoolPass makes this member's buffer another member's, who is then told by a message;
// false: it has too many already, or is gone.
func (g *Group) PoolPass(buf, slot int) bool {
	if !g.enter() {
		return false
	}
	defer g.exit()
	return g.pool.pass(buf, slot)
}

// PoolTake takes back a buffer that was passed to a member, as the message that tells so
// could not be sent.
func (g *Group) PoolTake(buf, slot int) {
	if !g.enter() {
		return
	}
	defer g.exit()
	g.pool.take(buf, slot)
}

// PoolMine reports whether a buffer was passed to this member: what a message says must be so.
func (g *Group) PoolMine(buf int) bool {
	if !g.enter() {
		return false
	}
	defer g.exit()
	return g.pool.came(buf)
}

// PoolPut gives this member's buffer back. Of others' it does nothing.
func (g *Group) PoolPut(buf int) {
	if !g.enter() {
		return
	}
	defer g.exit()
	g.pool.put(buf)
}

// Stats counts what happened since Join.
func (g *Group) Stats() Stats {
	c := &g.counts
	return Stats{
		MailSent: c.sent.Load(), MailDropped: c.dropped.Load(), Deaths: c.deaths.Load(), Takeovers: c.takeovers.Load(),
		Answered: c.answered.Load(), Refused: c.refused.Load(), Garbage: c.garbage.Load(),
	}
}

// Close leaves the group: ports and records are void, the slot is free. The sockets that it
// has given are the caller's to close, before. It waits for calls of OnDeath and OnSteward that are running, and so is not to be called with a
// lock that they take.
// Closing again does nothing.
func (g *Group) Close() error {
	for {
		v := g.users.Load()
		if v&closing != 0 {
			break
		}
		if g.users.CompareAndSwap(v, (v|closing)+1) {
			g.exit()
			<-g.idle
			g.loop.end()
			g.leave()
			close(g.loop.left)
			break
		}
	}
	<-g.loop.left
	return nil
}

// leave gives everything back.
func (g *Group) leave() {
	if g.d.w != nil && g.slot != 0 {
		g.d.store(slotAt(g.slot, slotFlags), 0)
		g.step("leave:begun")
		g.d.cas(hdrSteward, g.self, 0)
		g.step("leave:steward")
		if g.d.cas(slotAt(g.slot, slotState), slotWord(g.gen, slotLive), slotWord(g.gen, slotFree)) {
			g.step("leave:free")
			g.punch(g.slot)
		}
		g.step("leave:punched")
	}
	for i := range g.mail {
		closeFD(int(g.mail[i].Swap(0)) - 1)
	}
	closeFD(g.listen)
	closeFD(g.slotFD)
	g.step("leave:named")
	closeFD(g.mailbox)
	closeFD(g.mails)
	if b := g.poolMem.Load(); b != nil {
		_ = unix.Munmap(*b)
	}
	if g.records != nil {
		_ = unix.Munmap(g.records)
	}
	if g.shared != nil {
		_ = unix.Munmap(g.shared)
	}
	closeFD(g.dirFD)
	// With the last root the sockets go, and then the name: so who founds the next group finds the
	// addresses free.
	closeFD(g.root)
	g.step("leave:root")
	closeFD(g.rendezvous)
}

// punch gives the memory of a slot's records back: they read as 0 then. Who does so has the slot's name.
func (g *Group) punch(slot int) {
	err := unix.Fallocate(g.dirFD, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, sharedBytes+int64(slot)*connsBytes, connsBytes)
	if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		g.counts.garbage.Add(1)
	}
	g.d.store(slotAt(slot, slotConns), 0)
}
