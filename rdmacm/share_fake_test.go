package rdmacm_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/port/simnet"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/rdmacm"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// fakeDirectory is what the processes that share an interface's addresses know of each
// other, without processes.
type fakeDirectory struct {
	claims  []*fakeClaim
	records []*fakeRecord
	asked   []string // what was claimed, also in vain
	// claimErr and recordErr, if set, are what the calls fail with.
	claimErr, recordErr error
	// full: every port but this one is held by somebody, 0: by nobody.
	free uint16
}

type fakeClaim struct {
	dir       *fakeDirectory
	who       string
	space     uint16
	at        netip.AddrPort
	flags     driver.ClaimFlags
	listening bool
	dead      bool
}

type fakeRecord struct {
	dir     *fakeDirectory
	r       driver.ConnRecord
	updates int
	dead    bool
}

// holderError tells who holds a port.
type holderError struct {
	who      string
	wildcard bool
}

func (e *holderError) Error() string { return "address already in use by process " + e.who }

func (e *holderError) Unwrap() []error {
	if e.wildcard {
		return []error{syscall.EADDRINUSE, syscall.EADDRNOTAVAIL}
	}
	return []error{syscall.EADDRINUSE}
}

func (d *fakeDirectory) conflict(c *fakeClaim, flags driver.ClaimFlags) error {
	only := func(x *fakeClaim) bool { return x.at.Addr().Is4() || x.flags&driver.ClaimAFOnly != 0 }
	for _, o := range d.claims {
		switch {
		case o == c || o.dead || o.space != c.space || o.at.Port() != c.at.Port():
		case flags&driver.ClaimUnused != 0:
			return &holderError{o.who, false}
		case flags&o.flags&driver.ClaimReuse != 0:
		case o.at.Addr().Is4() != c.at.Addr().Is4() && only(o) && only(c):
		case o.at.Addr().IsUnspecified() || c.at.Addr().IsUnspecified():
			return &holderError{o.who, true}
		case o.at.Addr() == c.at.Addr():
			return &holderError{o.who, false}
		}
	}
	return nil
}

func (d *fakeDirectory) claim(who string, space uint16, at netip.AddrPort, flags driver.ClaimFlags) (driver.PortClaim, error) {
	d.asked = append(d.asked, who+" "+at.String())
	switch {
	case at.Addr().Zone() != "" || at.Port() == 0 || !at.Addr().IsValid():
		return nil, fmt.Errorf("%v: %w", at, syscall.EINVAL)
	case d.claimErr != nil:
		return nil, d.claimErr
	case flags&driver.ClaimUnused != 0 && d.free != 0 && at.Port() != d.free:
		return nil, &holderError{"of the others", false}
	}
	c := &fakeClaim{dir: d, who: who, space: space, at: at, flags: flags &^ driver.ClaimUnused}
	if err := d.conflict(c, flags); err != nil {
		return nil, err
	}
	d.claims = append(d.claims, c)
	return c, nil
}

func (c *fakeClaim) Listen(on bool) error {
	if on {
		if err := c.dir.conflict(c, 0); err != nil {
			return err
		}
		c.flags &^= driver.ClaimReuse
	}
	c.listening = on
	return nil
}

func (c *fakeClaim) Release() {
	c.dead = true
	c.dir.claims = slices.DeleteFunc(c.dir.claims, func(o *fakeClaim) bool { return o == c })
}

func (r *fakeRecord) Update(to *driver.ConnRecord) {
	if r.dead {
		panic("the record was released")
	}
	r.r = *to
	r.updates++
}

func (r *fakeRecord) Release() {
	r.dead = true
	r.dir.records = slices.DeleteFunc(r.dir.records, func(o *fakeRecord) bool { return o == r })
}

// listens lists where somebody listens.
func (d *fakeDirectory) listens() (at []string) {
	for _, c := range d.claims {
		if c.listening {
			at = append(at, c.who+" "+c.at.String())
		}
	}
	return at
}

// held lists what is claimed.
func (d *fakeDirectory) held() (at []string) {
	for _, c := range d.claims {
		at = append(at, c.who+" "+c.at.String())
	}
	return at
}

// sharedDevice is a software device of a process that shares its addresses.
type sharedDevice struct {
	*soft.Device
	dir  *fakeDirectory
	who  string
	slot uint32
	// sent, if set, sees the management datagrams before they leave.
	sent func(m *driver.MAD)
}

func (d *sharedDevice) OpenMAD(notify func()) (driver.MADAgent, error) {
	a, err := d.Device.OpenMAD(notify)
	if err != nil {
		return nil, err
	}
	return &sharedAgent{a, d}, nil
}

type sharedAgent struct {
	driver.MADAgent
	d *sharedDevice
}

// Listen and ListenAll do nothing where processes have one address: the simulated
// network has it once.
func (a *sharedAgent) Listen(addr netip.Addr) error {
	if a.d.sent == nil {
		return nil
	}
	return a.MADAgent.Listen(addr)
}

func (a *sharedAgent) ListenAll() error {
	if a.d.sent == nil {
		return nil
	}
	return a.MADAgent.ListenAll()
}

func (a *sharedAgent) Send(m *driver.MAD) error {
	if a.d.sent != nil {
		a.d.sent(m)
	}
	return a.MADAgent.Send(m)
}

func (a *sharedAgent) CommIDs() (bits, mask uint32) { return a.d.slot << 25, 127 << 25 }

func (a *sharedAgent) ClaimPort(space uint16, at netip.AddrPort, flags driver.ClaimFlags) (driver.PortClaim, error) {
	return a.d.dir.claim(a.d.who, space, at, flags)
}

func (a *sharedAgent) RecordConn(r *driver.ConnRecord) (driver.ConnHandle, error) {
	if a.d.dir.recordErr != nil {
		return nil, a.d.dir.recordErr
	}
	h := &fakeRecord{dir: a.d.dir, r: *r}
	a.d.dir.records = append(a.d.dir.records, h)
	return h, nil
}

// shares makes a host's device one that shares its addresses, by another manager.
func (h *cmHost) shares(dir *fakeDirectory, who string, slot uint32) *sharedDevice {
	h.t.Helper()
	d := &sharedDevice{Device: h.soft, dir: dir, who: who, slot: slot}
	h.must(h.ch.Close())
	h.must(h.m.Close())
	h.m = rdmacm.NewManager(rdmacm.WithContexts(verbs.NewContext(d)), rdmacm.WithManual(h.net.Now), rdmacm.WithSeed(uint64(slot)))
	h.ch = cmOK(h.m.NewEventChannel())(h.t)
	return d
}

// sharingProcess is a process with devices at addresses that other ones have too: one
// for each directory.
func sharingProcess(t *testing.T, who string, slot uint32, watch soft.Watch, devices ...sharing) *cmHost {
	t.Helper()
	net := simnet.New(1)
	h := &cmHost{t: t, net: net}
	var ctxs []*verbs.Context
	for i, d := range devices {
		p := net.NewPort(simnet.Config{})
		cfg := soft.Config{Name: d.name, NetDev: d.name, LinkMTU: 1500, Port: p, Clock: net.Now, Seed: uint64(i + 1), Manual: true, Watch: watch}
		watch = nil
		for _, a := range d.addrs {
			cfg.Addrs = append(cfg.Addrs, netip.MustParseAddr(a))
		}
		dev := cmOK(soft.NewDevice(cfg))(t)
		ctx := verbs.NewContext(&sharedDevice{Device: dev, dir: d.dir, who: who, slot: slot})
		ctxs = append(ctxs, ctx)
		h.port, h.soft, h.ctx = p, dev, ctx
		net.Attach(p, func(now int64) int64 {
			h.m.Turn(now)
			return dev.Turn(now)
		})
	}
	h.m = rdmacm.NewManager(rdmacm.WithContexts(ctxs...), rdmacm.WithManual(net.Now), rdmacm.WithSeed(uint64(slot)))
	h.ch = cmOK(h.m.NewEventChannel())(t)
	t.Cleanup(func() {
		h.close()
		for _, c := range ctxs {
			h.must(c.Close())
		}
	})
	return h
}

// sharing is a device of a sharingProcess.
type sharing struct {
	name  string
	dir   *fakeDirectory
	addrs []string
}

// sentIDs are the two communication ids of a message, or the request id.
func sentIDs(m *driver.MAD) (local, remote uint32) {
	return binary.BigEndian.Uint32(m.Data[24:]), binary.BigEndian.Uint32(m.Data[28:])
}
