package soft

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/capture"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/internal/port"
	"github.com/verbena-rdma/verbena/internal/shard"
	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Device is an open software device. It implements driver.Device.
type Device struct {
	cfg   Config
	log   *slog.Logger
	clock func() int64
	table *mem.Table
	eng   *shard.Engine
	gids  gidTable

	rndMu sync.Mutex
	rnd   *rand.Rand

	pds, cqs, qps, srqs, ahs, cntrs counter
	xrcds                           xrcTable
	srqNum                          atomic.Uint32
	mcast                           mcastTable
	events                          atomic.Pointer[driver.EventSink]
	linkDowned                      atomic.Uint64 // times the port went down

	link      atomic.Pointer[Netdev] // what the interface is now
	gone      atomic.Bool            // it was removed
	removed   chan struct{}          // closed when it was, and all is told
	over      atomic.Bool            // removed is closed
	listening atomic.Bool            // every address of the table is open
	opened    sync.Map               // addresses that were, without zone
	unfollow  func()                 // ends Config.Watch; nil: there is nothing to end

	virtual    bool                  // the clock is not the system's
	wallOffset atomic.Pointer[int64] // ns from the clock to 1970; nil: nobody has asked

	dmBytes atomic.Int64 // device memory in use
	closed  atomic.Bool
	capture *capture.Capture // nil: none
}

// NewDevice makes a device. EINVAL: the configuration lacks something.
func NewDevice(cfg Config) (*Device, error) {
	switch {
	case cfg.Port == nil:
		return nil, fmt.Errorf("soft: a device needs a port: %w", syscall.EINVAL)
	case len(cfg.Addrs) > gidTableLen:
		return nil, fmt.Errorf("soft: %d addresses, the GID table takes %d: %w", len(cfg.Addrs), gidTableLen, syscall.EINVAL)
	}
	if cfg.LinkMTU == 0 {
		cfg.LinkMTU = 65536
	}
	if err := cfg.Limits.fill(); err != nil {
		return nil, err
	}
	wall := cfg.Clock == nil
	if wall {
		cfg.Clock = monotonic
	}
	if cfg.GUID == 0 {
		cfg.GUID = guidFromName(cfg.Name)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	run, err := startCapture(&cfg, wall)
	if err != nil {
		return nil, err
	}
	d := &Device{cfg: cfg, log: cfg.Logger, clock: cfg.Clock, virtual: !wall, capture: run}
	if cfg.Seed != 0 {
		d.rnd = rand.New(rand.NewPCG(cfg.Seed, 0x9E3779B97F4A7C15))
	} else {
		d.rnd = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	d.gids.set(cfg)
	d.table = mem.NewTable(maxMR, d.random())
	d.table.SetPersister(os.Getpagesize(), persister())
	d.eng = shard.NewEngine(shard.Config{
		Port: cfg.Port, Mem: d.table, Clock: cfg.Clock, Shards: cfg.Shards, Manual: cfg.Manual,
		Trace: cfg.Trace,
	})
	for c, limit := range map[*counter]int64{&d.pds: maxPD, &d.cqs: maxCQ, &d.qps: maxQP, &d.srqs: maxSRQ, &d.ahs: maxAH, &d.cntrs: maxCompCntr, &d.xrcds.counter: maxXRCD} {
		c.limit = limit
	}
	d.eng.Start()
	d.follow()
	return d, nil
}

func (d *Device) random() uint64 {
	d.rndMu.Lock()
	defer d.rndMu.Unlock()
	return d.rnd.Uint64()
}

// Info implements driver.Device.
func (d *Device) Info() driver.DeviceInfo {
	return driver.DeviceInfo{
		Name: d.cfg.Name, GUID: d.cfg.GUID, NodeType: d.cfg.Limits.nodeType(),
		Transport: d.cfg.Limits.transport(), NetDev: d.cfg.NetDev,
	}
}

// Query implements driver.Device.
func (d *Device) Query() ib.DeviceAttr {
	l := &d.cfg.Limits
	prot, guard := l.sigCaps()
	return ib.DeviceAttr{
		SigProtCap: prot, SigGuardCap: guard,
		FWVer: fwVersion, NodeGUID: d.cfg.GUID, SysImageGUID: d.cfg.GUID,
		MaxMRSize: 1<<63 - 1, PageSizeCap: 0xFFFFF000, VendorID: vendorID, VendorPartID: vendorPart,
		MaxQP: maxQP, MaxQPWR: maxQPWR, MaxSGE: maxSGE, MaxSGERd: l.MaxSGERd, MaxSGLRd: l.MaxSGLRd,
		MaxCQ: maxCQ, MaxCQE: maxCQE, MaxMR: maxMR, MaxPD: maxPD, MaxMW: maxMW,
		MaxFastRegPageListLen: l.MaxFastRegPages, MaxPIFastRegPageListLen: max(l.MaxPIFastRegPages, 0), ReadWithInv: l.ReadWithInv, MaxDMSize: maxDMSize,
		MaxQPRDAtom: maxRDAtomic, MaxQPInitRDAtom: maxRDAtomic, MaxResRDAtom: maxRDAtomic * maxQP, AtomicCap: ib.AtomicHCA,
		MaxAH: maxAH, MaxSRQ: maxSRQ, MaxSRQWR: maxSRQWR, MaxSRQSGE: maxSGE,
		MaxPKeys: pkeyTableLen, MaxInlineData: maxInline, LocalCAAckDelay: ackDelay,
		PhysPortCnt: 1, DeviceCapFlags: deviceCapFlags | d.extendedCaps(),
		HCACoreClock: clockKHz, CompletionTimestampMask: math.MaxUint64, MaxCompCntr: maxCompCntr,
		MaxCQModeration: ib.ModerateCQ{CQCount: maxModeration, CQPeriod: maxModeration},
		MaxMcastGrp:     maxMcastGrp, MaxMcastQPAttach: maxMcastQPAttach, MaxTotalMcastQPAttach: maxTotalMcastQPAttach,
	}
}

func checkPort(p uint8) error {
	if p != portNum {
		return invalid("port", "%d, the device has port 1 only", p)
	}
	return nil
}

// QueryPort implements driver.Device.
func (d *Device) QueryPort(p uint8) (ib.PortAttr, error) {
	if err := checkPort(p); err != nil {
		return ib.PortAttr{}, err
	}
	if err := d.alive(); err != nil {
		return ib.PortAttr{}, err
	}
	state, phys := d.portState()
	pkey, qkey := d.eng.Violations()
	return ib.PortAttr{
		State: state, PhysState: phys,
		MaxMTU: ib.MTU4096, ActiveMTU: d.activeMTU(),
		GIDTblLen: gidTableLen, PKeyTblLen: pkeyTableLen, MaxMsgSz: ib.MaxMsgSize,
		LinkLayer: ib.LinkEthernet, ActiveWidth: 1, ActiveSpeed: 32, CapFlags: portCapIPBasedGID,
		BadPKeyCntr: uint32(min(pkey, 0xFFFF)), QKeyViolCntr: uint32(min(qkey, 0xFFFF)),
	}, nil
}

// activeMTU is the port's active MTU as Linux's rdma_rxe reckons it, which counts
// 80 bytes of headers. checkPathMTU knows the one packet that may be longer.
func (d *Device) activeMTU() ib.MTU { return ib.MTUFromLink(d.linkMTU()) }

// GIDEntry implements driver.Device.
func (d *Device) GIDEntry(p uint8, index int) (ib.GIDEntry, error) {
	if err := checkPort(p); err != nil {
		return ib.GIDEntry{}, err
	}
	if err := d.alive(); err != nil {
		return ib.GIDEntry{}, err
	}
	return d.gids.entry(index)
}

// PKey implements driver.Device.
func (d *Device) PKey(p uint8, index int) (ib.PKey, error) {
	if err := checkPort(p); err != nil {
		return 0, err
	}
	if err := d.alive(); err != nil {
		return 0, err
	}
	if index < 0 || index >= pkeyTableLen {
		return 0, invalid("index", "%d, the P_Key table has %d entry", index, pkeyTableLen)
	}
	return ib.PKeyDefault, nil
}

// Events implements driver.Device.
func (d *Device) Events(s driver.EventSink) { d.events.Store(&s) }

// Turn makes progress for a manual device and returns the time at which the
// next turn is needed, 0 for none.
func (d *Device) Turn(now int64) int64 { return d.eng.Turn(now) }

// Progress makes progress once if nobody else is at it, and returns the number
// of datagrams handled. Programs that watch memory for RDMA WRITEs, and poll no
// completion queue, call it in their loop for the lowest latency.
func (d *Device) Progress() int { return d.eng.Poll() }

// Stats gives the protocol's counters.
func (d *Device) Stats() transport.Stats { return d.eng.Stats() }

// PortStats gives the counters of the device's port.
func (d *Device) PortStats() port.Stats { return d.cfg.Port.Stats() }

// Leaks names what is left of a device on which every object was destroyed and
// no packet is under way: objects, keys, windows in use. nil: nothing.
func (d *Device) Leaks() error {
	for _, c := range []struct {
		what string
		n    int64
	}{
		{"protection domains", d.pds.n.Load()},
		{"completion queues", d.cqs.n.Load()},
		{"queue pairs", d.qps.n.Load()},
		{"shared receive queues", d.srqs.n.Load()},
		{"address handles", d.ahs.n.Load()},
		{"XRC domains", d.xrcds.n.Load()},
		{"completion counters", d.cntrs.n.Load()},
		{"memory regions", int64(d.table.Len())},
		{"memory windows", int64(d.table.Windows())},
		{"bytes of device memory", d.dmBytes.Load()},
	} {
		if c.n != 0 {
			return fmt.Errorf("%d %s are left", c.n, c.what)
		}
	}
	return d.eng.Busy()
}

// Busy names what a device without work under way should not have: windows in
// use, packets in batches. nil: nothing.
func (d *Device) Busy() error { return d.eng.Busy() }

// Close implements driver.Device. Objects that are left stop working; memory
// that is still registered is unpinned.
func (d *Device) Close() error {
	if d.closed.Swap(true) {
		return nil
	}
	if d.unfollow != nil {
		d.unfollow()
	}
	d.eng.Close()
	d.eng.Quiesce()
	err := d.cfg.Port.Close()
	if d.cfg.sharing != nil {
		err = errors.Join(err, d.cfg.sharing.close())
	}
	if d.capture != nil {
		err = errors.Join(err, d.capture.Close())
	}
	d.table.Close()
	return err
}

// counter counts objects against a limit.
type counter struct {
	n     atomic.Int64
	limit int64
}

// add counts one more; what names it in the error.
func (c *counter) add(d *Device, what string) error {
	if d.closed.Load() {
		return fmt.Errorf("%s: %w", what, shard.ErrClosed)
	}
	if d.gone.Load() {
		return fmt.Errorf("%s: %w", what, errGone)
	}
	if c.n.Add(1) > c.limit {
		c.n.Add(-1)
		return fmt.Errorf("%s: the device has its %d already: %w", what, c.limit, syscall.ENOMEM)
	}
	return nil
}

func (c *counter) drop() { c.n.Add(-1) }

// localIndex opens the socket of a local address.
func (d *Device) localIndex(a netip.Addr) (int, error) {
	i, err := d.cfg.Port.AddLocal(a)
	if err != nil {
		return 0, fmt.Errorf("address %s: %w", a, err)
	}
	d.opened.Store(a.Unmap().WithZone(""), true)
	return i, nil
}
