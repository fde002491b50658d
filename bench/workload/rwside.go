package workload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"time"

	"github.com/verbena-rdma/verbena/bench"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/port/udp"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/rdmarw"
	"github.com/verbena-rdma/verbena/verbs"
)

// rwMemory is how much of the peer's memory is read and written, beside what the last
// transfer has beyond it.
const rwMemory = 32 << 20

// rwBlock and rwTuple are the lengths of a protected block and of what protects it.
const (
	rwBlock = 512
	rwTuple = 8
	rwPage  = 4096
)

// rwSide is one process: a device, and a queue pair for each way.
type rwSide struct {
	rwJob
	side
	buf  *verbs.Buffer
	ways []rwWay
	at   int // of the next transfer in the peer's memory
	rnd  *rand.Rand
	free []int // slots
	done func(i int)
}

// rwWay is a way to move data.
type rwWay interface {
	name() string
	// begin starts a transfer between slot i of this side's memory and the peer's
	// memory at offset at.
	begin(i, at int) error
	// poll looks for completions, and hands the slots to done.
	poll(done func(i int)) error
}

// rwWire is the length of a transfer on the wire, at most.
func (j *rwJob) rwWire() int { return j.Size / rwBlock * (rwBlock + rwTuple) }

// rwWays are the names of the ways, in the order of their queue pairs.
func (j *rwJob) rwWays() []string {
	if j.Size <= rwPage { // one element
		return []string{"plain", "single", "mr", "sig"}
	}
	return []string{"plain", "single", "multi", "mr", "iova", "sig"}
}

func newRWSide(args json.RawMessage, in *json.Decoder, out *json.Encoder, asks bool) (*rwSide, error) {
	s := &rwSide{rnd: rand.New(rand.NewPCG(1, 2))}
	s.out = out
	if err := json.Unmarshal(args, &s.rwJob); err != nil {
		return nil, err
	}
	s.side.Other = s.rwJob.Other
	if err := s.open(asks); err != nil {
		return nil, err
	}
	info := peerInfo{Addr: s.buf.Addr(), RKey: uint32(s.buf.MR().RKey())}
	for _, name := range s.rwWays() {
		qp, err := s.way(name, asks)
		if err != nil {
			return nil, err
		}
		s.qps = append(s.qps, qp)
		info.QPNs = append(info.QPNs, uint32(qp.Num()))
	}
	if err := out.Encode(info); err != nil {
		return nil, err
	}
	if err := in.Decode(&s.peer); err != nil {
		return nil, fmt.Errorf("peer: %w", err)
	}
	for i, qp := range s.qps {
		if err := s.connect(qp, ib.QPN(s.peer.QPNs[i])); err != nil {
			return nil, err
		}
	}
	return s, s.start(in)
}

func (s *rwSide) open(asks bool) error {
	s.ctx, s.cancel = context.WithCancel(context.Background())
	addr, err := netip.ParseAddr(s.rwJob.Addr)
	if err != nil {
		return err
	}
	p, err := udp.Open(udp.Config{})
	if err != nil {
		return err
	}
	d, err := soft.NewDevice(soft.Config{
		Name: "soft_lo", NetDev: "lo", Addrs: []netip.Addr{addr}, Port: p, Limits: soft.Limits{ContigMapping: true},
	})
	if err != nil {
		return errors.Join(err, p.Close())
	}
	s.dev = verbs.NewContext(d)
	if s.pd, err = s.dev.AllocPD(); err != nil {
		return err
	}
	n := rwMemory + s.rwWire()
	if asks {
		n = s.InFlight * s.rwJob.Size
	}
	if s.buf, err = s.pd.AllocBuffer(n, ib.AccessLocalWrite|ib.AccessRemoteWrite|ib.AccessRemoteRead); err != nil {
		return err
	}
	for i := range s.buf.Bytes() {
		s.buf.Bytes()[i] = byte(i)
	}
	s.rcq, err = s.dev.CreateCQ(16, nil, nil)
	return err
}

// way makes a queue pair, and on the asking side what moves data over it.
func (s *rwSide) way(name string, asks bool) (*verbs.QP, error) {
	cq, err := s.dev.CreateCQ(16*s.InFlight+64, nil, nil)
	if err != nil {
		return nil, err
	}
	attr := rdmarw.QPInitAttr{
		QPInitAttr: verbs.QPInitAttr{
			SendCQ: cq, RecvCQ: s.rcq, Type: ib.RC, IntegrityEn: name == "sig",
			Cap: ib.QPCap{MaxSendWR: uint32(s.InFlight), MaxRecvWR: 1, MaxSendSGE: 32, MaxRecvSGE: 1},
		},
		ForceMR: name == "mr", CQ: rdmarw.NewCQ(cq, nil),
	}
	if name == "plain" || !asks {
		attr.Cap.MaxSendSGE = 1
		qp, err := s.pd.CreateQP(&attr.QPInitAttr)
		if err == nil && asks {
			s.ways = append(s.ways, &rwPlain{s: s, qp: qp, cq: cq, wcs: make([]verbs.WC, 64)})
		}
		return qp, err
	}
	pages := max(s.rwJob.Size/rwPage, 1)
	attr.MaxRDMACtxs = uint32(s.InFlight * rdmarw.MRFactor(s.dev, 1, pages, attr.ForceMR))
	qp, err := rdmarw.CreateQP(s.pd, &attr)
	if err != nil {
		return nil, err
	}
	w := &rwCtx{s: s, qp: qp, how: name, ctxs: make([]rwOne, s.InFlight)}
	for i := range w.ctxs {
		w.ctxs[i].init(w, i)
	}
	s.ways = append(s.ways, w)
	return qp.QP(), nil
}

// rwPlain posts work requests by itself.
type rwPlain struct {
	s   *rwSide
	qp  *verbs.QP
	cq  *verbs.CQ
	wr  verbs.SendWR
	sge [1]verbs.SGE
	wcs []verbs.WC
}

func (w *rwPlain) name() string { return "plain" }

func (w *rwPlain) begin(i, at int) error {
	s := w.s
	w.sge[0] = s.buf.SGE(i*s.rwJob.Size, s.rwJob.Size)
	w.wr = verbs.SendWR{
		Opcode: s.rwJob.Op, Flags: ib.SendSignaled, SGList: w.sge[:], RemoteAddr: s.peer.Addr + uint64(at), RKey: ib.RKey(s.peer.RKey),
		WRID: uint64(i),
	}
	return w.qp.PostSendOne(&w.wr)
}

func (w *rwPlain) poll(done func(int)) error {
	n, err := w.cq.Poll(w.wcs)
	if err != nil {
		return err
	}
	for i := range w.wcs[:n] {
		if err := w.wcs[i].Err(); err != nil {
			return err
		}
		done(int(w.wcs[i].WRID))
	}
	return nil
}

// rwCtx moves data by contexts.
type rwCtx struct {
	s    *rwSide
	qp   *rdmarw.QP
	how  string
	ctxs []rwOne
	done func(int)
	err  error
}

// rwOne is a slot's context, which is used again and again.
type rwOne struct {
	w    *rwCtx
	i    int
	ctx  rdmarw.Ctx
	cqe  rdmarw.CQE
	sg   [][]byte
	bvec []rdmarw.BioVec
	attr ib.SigAttrs
}

func (o *rwOne) init(w *rwCtx, i int) {
	o.w, o.i = w, i
	o.cqe.Done = o.completed
	size := w.s.rwJob.Size
	b := w.s.buf.Bytes()[i*size : (i+1)*size]
	switch w.how {
	case "single", "sig":
		o.sg = [][]byte{b}
	default: // pages that are no neighbours
		for at := size; at > 0; at -= rwPage {
			o.sg = append(o.sg, b[at-rwPage:at])
		}
	}
	for _, p := range o.sg {
		o.bvec = append(o.bvec, rdmarw.BioVec{Page: p, Len: uint32(len(p))})
	}
	// This side's memory is without protection, the peer's has it.
	o.attr = ib.SigAttrs{CheckMask: ib.SigCheckGuard | ib.SigCheckRefTag, Wire: ib.SigDomain{
		SigType: ib.SigTypeT10DIF, DIF: ib.T10DIFDomain{PIInterval: rwBlock, AppEscape: true},
	}}
}

func (w *rwCtx) name() string { return w.how }

func (o *rwOne) dir() rdmarw.Direction {
	if o.w.s.rwJob.Op == ib.WRRDMARead {
		return rdmarw.DMAFromDevice
	}
	return rdmarw.DMAToDevice
}

func (w *rwCtx) begin(i, at int) (err error) {
	o, s := &w.ctxs[i], w.s
	remote, key := s.peer.Addr+uint64(at), ib.RKey(s.peer.RKey)
	switch w.how {
	case "sig":
		_, err = o.ctx.SignatureInit(w.qp, 1, o.sg, nil, &o.attr, remote, key, o.dir())
	case "iova":
		_, err = o.ctx.InitBvec(w.qp, 1, o.bvec, rdmarw.BvecIter{Size: uint32(s.rwJob.Size)}, remote, key, o.dir())
	default:
		_, err = o.ctx.Init(w.qp, 1, o.sg, 0, remote, key, o.dir())
	}
	if err != nil {
		return err
	}
	return o.ctx.Post(w.qp, 1, &o.cqe, nil)
}

func (o *rwOne) completed(_ *rdmarw.CQ, wc *verbs.WC) {
	w := o.w
	err := wc.Err()
	switch w.how {
	case "sig":
		if e, bad := o.ctx.CheckMRStatus(); bad {
			err = errors.Join(err, fmt.Errorf("%v: expected %#x, got %#x", e.Type, e.Expected, e.Actual))
		}
		err = errors.Join(err, o.ctx.DestroySignature(w.qp, 1, o.sg, nil, o.dir()))
	case "iova":
		err = errors.Join(err, o.ctx.DestroyBvec(w.qp, 1, o.bvec, o.dir()))
	default:
		err = errors.Join(err, o.ctx.Destroy(w.qp, 1, o.sg, o.dir()))
	}
	if err != nil {
		w.err = err
	}
	w.done(o.i)
}

func (w *rwCtx) poll(done func(int)) error {
	w.done = done
	if _, err := w.qp.CQ().Process(64); err != nil {
		return err
	}
	return w.err
}

// place is where in the peer's memory the next transfer goes.
func (s *rwSide) place() int {
	step := s.rwWire()
	if s.Random {
		return s.rnd.IntN(rwMemory/step) * step
	}
	at := s.at
	if s.at += step; s.at+step > rwMemory {
		s.at = 0
	}
	return at
}

// round makes n transfers by one way.
func (s *rwSide) round(w rwWay, n int) (time.Duration, error) {
	begin := time.Now()
	for n > 0 || len(s.free) < s.InFlight {
		for n > 0 && len(s.free) > 0 {
			i := s.free[len(s.free)-1]
			s.free = s.free[:len(s.free)-1]
			if err := w.begin(i, s.place()); err != nil {
				return 0, fmt.Errorf("%s: %w", w.name(), err)
			}
			n--
		}
		if err := w.poll(s.done); err != nil {
			return 0, fmt.Errorf("%s: %w", w.name(), err)
		}
	}
	return time.Since(begin), nil
}

// protect fills the peer's memory with protected blocks, which READs then check.
func (s *rwSide) protect(w *rwCtx) error {
	op := s.rwJob.Op
	defer func() { s.rwJob.Op = op }()
	s.rwJob.Op = ib.WRRDMAWrite
	step, at, left := s.rwWire(), 0, 0
	done := func(int) { left-- }
	for at+step <= rwMemory+step {
		if at > rwMemory-step && s.Random {
			break
		}
		if err := w.begin(0, at); err != nil {
			return err
		}
		for left = 1; left > 0; {
			if err := w.poll(done); err != nil {
				return err
			}
		}
		at += step
	}
	return nil
}

// rwClient is the asking side: it goes through all ways in turn, so that what else the
// machine does hits all of them.
func rwClient(args json.RawMessage, in *json.Decoder, out *json.Encoder) error {
	s, err := newRWSide(args, in, out, true)
	if err != nil {
		return err
	}
	defer s.dev.Close()
	for i := range s.InFlight {
		s.free = append(s.free, i)
	}
	s.done = func(i int) { s.free = append(s.free, i) }
	each := max(2*s.InFlight, (2<<20)/s.rwJob.Size)
	rates := make([][]float64, len(s.ways))
	allocs := make([][]float64, len(s.ways))
	end := time.Now().Add(s.rwJob.Duration)
	for r := 0; r < 3 || time.Now().Before(end); r++ {
		for i, w := range s.ways {
			if c, ok := w.(*rwCtx); ok && c.how == "sig" && s.rwJob.Op == ib.WRRDMARead {
				if err := s.protect(c); err != nil { // the others have written there
					return err
				}
			}
			before := mallocs()
			d, err := s.round(w, each)
			if err != nil {
				return err
			}
			if r > 0 { // the first one warms up
				rates[i] = append(rates[i], float64(each*s.rwJob.Size)/d.Seconds())
				allocs[i] = append(allocs[i], float64(mallocs()-before)/float64(each))
			}
		}
	}
	results := make([]rwResult, len(s.ways))
	for i, w := range s.ways {
		results[i] = rwResult{Way: w.name(), Rate: bench.Median(rates[i]), Allocs: bench.Median(allocs[i])}
		if i > 0 {
			ratios := make([]float64, len(rates[i]))
			for k := range ratios {
				ratios[k] = rates[i][k] / rates[0][k]
			}
			results[i].Ratio = bench.Median(ratios)
		}
	}
	return out.Encode(results)
}

// rwServer is the side whose memory is read and written.
func rwServer(args json.RawMessage, in *json.Decoder, out *json.Encoder) error {
	s, err := newRWSide(args, in, out, false)
	if err != nil {
		return err
	}
	defer s.dev.Close()
	stop := s.stopped(in)
	wcs := make([]verbs.WC, 1)
	for !stop.Load() {
		if _, err := s.rcq.Poll(wcs); err != nil {
			return err
		}
	}
	return nil
}

func mallocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}
