//go:build interop && linux

package netns

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/rpc"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

// Roles of an agent.
const (
	roleRoot = "root"
	roleUser = "user" // the parent starts it as another user; it may lock no memory
)

const (
	// agentLife ends an agent whose parent hangs.
	agentLife = 2 * time.Minute
	// workTime is for one call's work.
	workTime = 30 * time.Second
	psnStart = 0xFFFFF0 // serial numbers wrap in every test
	qkey     = 0x11223344
	grhLen   = 40
)

// Agent is what the tests call in a process of a namespace.
type Agent struct {
	mu  sync.Mutex
	dev *verbs.Context
	pd  *verbs.PD
	qps []*agentQP
}

type agentQP struct {
	qp  *verbs.QP
	cq  *verbs.CQ
	buf []byte
	mr  *verbs.MR
	ah  *verbs.AH
	to  Endpoint
}

// stdio is the connection with the parent.
type stdio struct{ in, out *os.File }

// Read ends the process with the parent, whatever it is doing.
func (s stdio) Read(b []byte) (int, error) {
	n, err := s.in.Read(b)
	if err != nil {
		os.Exit(0)
	}
	return n, nil
}

func (s stdio) Write(b []byte) (int, error) { return s.out.Write(b) }
func (s stdio) Close() error                { return s.in.Close() }

// runAgent serves the parent until it is gone.
func runAgent(role string) int {
	time.AfterFunc(agentLife, func() { os.Exit(3) })
	if role == roleUser {
		if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{}); err != nil {
			fmt.Fprintln(os.Stderr, "agent: RLIMIT_MEMLOCK:", err)
			return 1
		}
	}
	s := rpc.NewServer()
	if err := s.Register(&Agent{}); err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		return 1
	}
	s.ServeConn(stdio{os.Stdin, os.Stdout})
	return 0
}

// Failure is an error that went through a pipe.
type Failure struct {
	Text  string
	Errno syscall.Errno
}

func failure(err error) (f Failure) {
	if err != nil {
		f.Text = err.Error()
		errors.As(err, &f.Errno)
	}
	return f
}

func (f Failure) Error() string { return f.Text }

// Is compares the errno.
func (f Failure) Is(target error) bool {
	e, ok := target.(syscall.Errno)
	return ok && e == f.Errno
}

// Process is what a process may.
type Process struct {
	PID, UID int
	Caps     string
	MemLock  uint64
}

// Who tells about the process.
func (*Agent) Who(_ struct{}, p *Process) error {
	p.PID, p.UID = os.Getpid(), os.Getuid()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(status)) {
		if v, ok := strings.CutPrefix(line, "CapEff:"); ok {
			p.Caps = strings.TrimSpace(v)
		}
	}
	var r unix.Rlimit
	err = unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r)
	p.MemLock = r.Max
	return err
}

// Devices lists the devices.
func (*Agent) Devices(_ struct{}, names *[]string) error {
	list, err := rdma.Devices(context.Background())
	for _, d := range list {
		*names = append(*names, d.Name())
	}
	return err
}

// Port is an open device's port.
type Port struct {
	Device    string
	GIDs      []string // addresses
	ActiveMTU int
	Failure   Failure
}

// Open opens a device; the empty name is the first that works.
func (a *Agent) Open(name string, p *Port) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var err error
	if a.dev, err = rdma.Open(context.Background(), name); err != nil {
		p.Failure = failure(err)
		return nil
	}
	p.Device = a.dev.Device().Name()
	attr, err := a.dev.QueryPort(1)
	if err != nil {
		return err
	}
	p.ActiveMTU = attr.ActiveMTU.Bytes()
	gids, err := a.dev.QueryGIDTable()
	if err != nil {
		return err
	}
	for _, g := range gids {
		p.GIDs = append(p.GIDs, g.GID.Addr().String())
	}
	a.pd, err = a.dev.AllocPD()
	return err
}

// QPArgs describes a queue pair to make, with a buffer of Size bytes.
type QPArgs struct {
	Type ib.QPType
	GID  int
	Size int
}

// Endpoint is what a peer must know.
type Endpoint struct {
	Index int // in its agent
	Num   ib.QPN
	GID   ib.GID
	SGID  int
	Addr  uint64
	RKey  ib.RKey
}

// NewQP makes a queue pair in the state INIT.
func (a *Agent) NewQP(args QPArgs, e *Endpoint) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	q := &agentQP{buf: make([]byte, args.Size)}
	var err error
	const access = ib.AccessLocalWrite | ib.AccessRemoteWrite | ib.AccessRemoteRead | ib.AccessRemoteAtomic
	if q.mr, err = a.pd.RegMR(q.buf, access); err != nil {
		return err
	}
	if q.cq, err = a.dev.CreateCQ(4096, nil, nil); err != nil {
		return err
	}
	q.qp, err = a.pd.CreateQP(&verbs.QPInitAttr{
		SendCQ: q.cq, RecvCQ: q.cq, Type: args.Type,
		Cap: ib.QPCap{MaxSendWR: 512, MaxRecvWR: 512, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	if err != nil {
		return err
	}
	attr := ib.QPAttr{QPState: ib.QPStateInit, PortNum: 1, QKey: qkey, QPAccessFlags: access &^ ib.AccessLocalWrite}
	mask := ib.QPAttrState | ib.QPAttrPKeyIndex | ib.QPAttrPort
	switch args.Type {
	case ib.UD:
		mask |= ib.QPAttrQKey
	case ib.UC:
		attr.QPAccessFlags = ib.AccessRemoteWrite
		mask |= ib.QPAttrAccessFlags
	default:
		mask |= ib.QPAttrAccessFlags
	}
	if err := q.qp.Modify(&attr, mask); err != nil {
		return err
	}
	gid, err := a.dev.QueryGID(1, args.GID)
	if err != nil {
		return err
	}
	*e = Endpoint{
		Index: len(a.qps), Num: q.qp.Num(), GID: gid, SGID: args.GID, Addr: q.mr.Addr(), RKey: q.mr.RKey(),
	}
	a.qps = append(a.qps, q)
	return nil
}

// ConnectArgs joins a queue pair to its peer.
type ConnectArgs struct {
	QP, SGID int
	To       Endpoint
	MTU      ib.MTU
	RetryCnt uint8
	Timeout  uint8
}

// Connect moves a queue pair to RTR and RTS.
func (a *Agent) Connect(c ConnectArgs, f *Failure) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	*f = failure(a.qps[c.QP].connect(a.pd, &c))
	return nil
}

func (q *agentQP) connect(pd *verbs.PD, c *ConnectArgs) error {
	q.to = c.To
	rtr := ib.QPAttr{
		QPState: ib.QPStateRTR, PathMTU: c.MTU, DestQPN: c.To.Num, RQPSN: psnStart, MaxDestRDAtomic: 16, MinRNRTimer: 12,
		AHAttr: ib.AHAttr{IsGlobal: true, DGID: c.To.GID, SGIDIndex: uint8(c.SGID), PortNum: 1},
	}
	rts := ib.QPAttr{
		QPState: ib.QPStateRTS, SQPSN: psnStart, Timeout: c.Timeout, RetryCnt: c.RetryCnt, RNRRetry: 7, MaxRDAtomic: 16,
	}
	var toRTR, toRTS ib.QPAttrMask
	switch q.qp.Type() {
	case ib.RC:
		toRTR = ib.QPAttrAV | ib.QPAttrPathMTU | ib.QPAttrDestQPN | ib.QPAttrRQPSN | ib.QPAttrMaxDestRDAtomic | ib.QPAttrMinRNRTimer
		toRTS = ib.QPAttrTimeout | ib.QPAttrRetryCnt | ib.QPAttrRNRRetry | ib.QPAttrMaxRDAtomic
	case ib.UC:
		toRTR = ib.QPAttrAV | ib.QPAttrPathMTU | ib.QPAttrDestQPN | ib.QPAttrRQPSN
	default:
		var err error
		if q.ah, err = pd.CreateAH(&rtr.AHAttr); err != nil {
			return err
		}
	}
	if err := q.qp.Modify(&rtr, ib.QPAttrState|toRTR); err != nil {
		return err
	}
	return q.qp.Modify(&rts, ib.QPAttrState|ib.QPAttrSQPSN|toRTS)
}

// DataArgs names bytes of a queue pair's buffer, and what they are to be.
type DataArgs struct {
	QP, Off, Len int
	Seed         uint64
}

func pattern(b []byte, seed uint64) {
	_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), 1}).Read(b)
}

// Fill writes the pattern of the seed.
func (a *Agent) Fill(d DataArgs, _ *struct{}) error {
	pattern(a.qps[d.QP].buf[d.Off:d.Off+d.Len], d.Seed)
	return nil
}

// Check compares with the pattern of the seed. wrong is the number of bytes that differ.
func (a *Agent) Check(d DataArgs, wrong *int) error {
	want := make([]byte, d.Len)
	pattern(want, d.Seed)
	for i, c := range a.qps[d.QP].buf[d.Off : d.Off+d.Len] {
		if c != want[i] {
			*wrong++
		}
	}
	return nil
}

// WorkArgs is Count pieces of work of Len bytes each, one behind the other in the buffers, Depth at a time.
type WorkArgs struct {
	QP, Off, Len  int
	Count, Depth  int
	Op            ib.WROpcode
	Imm           uint32
	RemoteOff     int
	Stride        int // between pieces in the local buffer, 0: Len
	WithoutRemote bool
}

// Done tells what became of work.
type Done struct {
	WCs     []verbs.WC // those of receives; of sends only those that failed
	Took    time.Duration
	Failure Failure
}

// Send posts work and waits for it.
func (a *Agent) Send(w WorkArgs, d *Done) error {
	q := a.qps[w.QP]
	begin := time.Now()
	posted, done := 0, 0
	for done < w.Count {
		for posted < w.Count && posted-done < max(w.Depth, 1) {
			wr := verbs.SendWR{
				WRID: uint64(posted), Opcode: w.Op, Flags: ib.SendSignaled, ImmData: w.Imm,
				SGList:     []verbs.SGE{q.mr.SGE(w.Off+posted*w.Len, w.Len)},
				RemoteAddr: q.to.Addr + uint64(w.RemoteOff+posted*w.Len), RKey: q.to.RKey,
				RemoteQPN: q.to.Num, RemoteQKey: qkey, CompareAdd: 1,
			}
			if q.ah != nil {
				wr.AH = q.ah
			}
			if err := q.qp.PostSendOne(&wr); err != nil {
				d.Failure = failure(err)
				return nil
			}
			posted++
		}
		wcs, err := q.wait()
		if err != nil {
			d.Failure = failure(err)
			return nil
		}
		for _, wc := range wcs {
			done++
			if wc.Status != ib.WCSuccess {
				d.WCs = append(d.WCs, wc)
				d.Failure = failure(wc.Err())
				return nil
			}
		}
	}
	d.Took = time.Since(begin)
	return nil
}

// wait waits for completions.
func (q *agentQP) wait() ([]verbs.WC, error) {
	ctx, cancel := context.WithTimeout(context.Background(), workTime)
	defer cancel()
	wcs := make([]verbs.WC, 64)
	for {
		n, err := q.cq.Poll(wcs)
		if n > 0 || err != nil {
			return wcs[:n], err
		}
		if err := q.cq.Wait(ctx); err != nil {
			return nil, err
		}
	}
}

// PostRecv posts Count receives of Len bytes.
func (a *Agent) PostRecv(w WorkArgs, _ *struct{}) error {
	q := a.qps[w.QP]
	for i := range w.Count {
		wr := verbs.RecvWR{WRID: uint64(i), SGList: []verbs.SGE{q.mr.SGE(w.Off+i*w.Stride, w.Len)}}
		if err := q.qp.PostRecvOne(&wr); err != nil {
			return err
		}
	}
	return nil
}

// WaitRecv waits for Count receives.
func (a *Agent) WaitRecv(w WorkArgs, d *Done) error {
	q := a.qps[w.QP]
	for len(d.WCs) < w.Count {
		wcs, err := q.wait()
		if err != nil {
			d.Failure = failure(fmt.Errorf("after %d of %d receives: %w", len(d.WCs), w.Count, err))
			return nil
		}
		d.WCs = append(d.WCs, wcs...)
	}
	return nil
}

// Bytes gives bytes of a buffer.
func (a *Agent) Bytes(d DataArgs, b *[]byte) error {
	*b = a.qps[d.QP].buf[d.Off : d.Off+d.Len]
	return nil
}

// Counters gives the device's counters.
func (a *Agent) Counters(_ struct{}, m *map[string]uint64) error {
	*m = a.dev.Driver().(*soft.Device).Counters()
	return nil
}

// Bind holds UDP port 4791 of an address with a plain socket, until the process ends.
func (*Agent) Bind(addr string, f *Failure) error {
	*f = failure(bindPlain(addr))
	return nil
}
