//go:build interop && linux

package interop

import (
	"bufio"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

// ourPeer does on Verbena what peer.py does on the kernel.
type ourPeer struct {
	dev  *verbs.Context
	pd   *verbs.PD
	ends map[int]*ourEnd
	mws  map[int]*verbs.MW
	last int

	mu     sync.Mutex // guards events
	events []ib.EventType
	more   chan struct{} // has a value when some were added
}

// ourEnd is a queue pair with its completion queue and its memory.
type ourEnd struct {
	qp  *verbs.QP
	cq  *verbs.CQ
	mr  *verbs.MR
	buf []byte
	ahs []*verbs.AH
	// sgid is the index of the own address.
	sgid int
}

// runPeer serves standard input until that ends. name is the interface.
func runPeer(name string) int {
	if err := servePeer(name); err != nil {
		fmt.Fprintln(os.Stderr, "verbena's peer:", err)
		return 1
	}
	return 0
}

func servePeer(name string) (err error) {
	p := &ourPeer{ends: map[int]*ourEnd{}, mws: map[int]*verbs.MW{}, more: make(chan struct{}, 1)}
	if p.dev, err = rdma.Open(context.Background(), name); err != nil {
		return err
	}
	if p.pd, err = p.dev.AllocPD(); err != nil {
		return err
	}
	go p.collect()
	in := bufio.NewReader(os.Stdin)
	out := json.NewEncoder(os.Stdout)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return p.close() // the test is over
		}
		var r request
		if err := json.Unmarshal(line, &r); err != nil {
			return err
		}
		a, err := p.serve(&r)
		if a == nil {
			a = &reply{}
		}
		if err != nil {
			a.Err = err.Error()
			errors.As(err, &a.Errno)
		}
		if err := out.Encode(a); err != nil {
			return err
		}
	}
}

// close shows that everything that the tests left can be destroyed.
func (p *ourPeer) close() error {
	for n, e := range p.ends {
		if err := e.close(); err != nil {
			return fmt.Errorf("end %d: %w", n, err)
		}
	}
	return errors.Join(p.pd.Dealloc(), p.dev.Close())
}

func (p *ourPeer) collect() {
	for {
		e, err := p.dev.GetAsyncEvent(context.Background())
		if err != nil {
			return // closed
		}
		p.mu.Lock()
		p.events = append(p.events, e.Type)
		p.mu.Unlock()
		select {
		case p.more <- struct{}{}:
		default:
		}
		e.Ack()
	}
}

// take gives the events so far, but for COMM_EST, once there are n: they come after the state that they tell of.
func (p *ourPeer) take(n int) []ib.EventType {
	var got []ib.EventType
	for limit := time.After(10 * time.Second); ; {
		p.mu.Lock()
		for _, e := range p.events {
			if e != ib.EventCommEst {
				got = append(got, e)
			}
		}
		p.events = nil
		p.mu.Unlock()
		if len(got) >= n {
			return got
		}
		select {
		case <-p.more:
		case <-limit:
			return got
		}
	}
}

func (p *ourPeer) serve(r *request) (*reply, error) {
	switch r.Op {
	case "qp":
		return p.newEnd(r)
	case "events":
		return &reply{Events: p.take(r.Count)}, nil
	case "counters":
		return &reply{Counters: p.dev.Driver().(*soft.Device).Counters()}, nil
	case "window":
		w, err := p.pd.AllocMW(r.Kind)
		if err != nil {
			return nil, err
		}
		p.last++
		p.mws[p.last] = w
		return &reply{MW: p.last, RKey: w.RKey()}, nil
	case "free window":
		w := p.mws[r.MW]
		if w == nil {
			return nil, nil
		}
		delete(p.mws, r.MW)
		return nil, w.Dealloc()
	}
	e := p.ends[r.QP]
	if e == nil {
		return nil, fmt.Errorf("no end %d", r.QP)
	}
	switch r.Op {
	case "connect":
		return nil, e.connect(r)
	case "fill":
		copy(e.buf[r.Off:r.Off+r.Length], stream(r.Seed, r.Length))
		return nil, nil
	case "digest":
		return &reply{Text: digest(e.buf[r.Off : r.Off+r.Length])}, nil
	case "bytes":
		return &reply{Text: hex.EncodeToString(e.buf[r.Off : r.Off+r.Length])}, nil
	case "recv":
		return nil, e.qp.PostRecvOne(&verbs.RecvWR{WRID: r.WRID, SGList: e.sges(r)})
	case "send":
		return e.send(p, r)
	case "poll":
		return e.poll(r)
	case "bind":
		w := p.mws[r.MW]
		err := e.qp.BindMW(w, &verbs.MWBind{Flags: ib.SendSignaled, Info: e.info(r)})
		return &reply{RKey: w.RKey()}, err
	case "attach", "detach":
		gid, err := parseGID(r.GID)
		if err != nil {
			return nil, err
		}
		if r.Op == "detach" {
			return nil, e.qp.DetachMcast(gid, 0)
		}
		return nil, e.qp.AttachMcast(gid, 0)
	case "state":
		return &reply{State: e.qp.State()}, nil
	case "close":
		delete(p.ends, r.QP)
		return nil, e.close()
	}
	return nil, fmt.Errorf("unknown command %q", r.Op)
}

func (p *ourPeer) newEnd(r *request) (*reply, error) {
	e := &ourEnd{buf: make([]byte, r.Size)}
	var err error
	if e.mr, err = p.pd.RegMR(e.buf, r.Access); err != nil {
		return nil, err
	}
	if e.cq, err = p.dev.CreateCQ(512, nil, nil); err != nil {
		return nil, err
	}
	types := map[string]ib.QPType{"RC": ib.RC, "UC": ib.UC, "UD": ib.UD}
	e.qp, err = p.pd.CreateQP(&verbs.QPInitAttr{
		SendCQ: e.cq, RecvCQ: e.cq, Type: types[r.Type],
		Cap: ib.QPCap{MaxSendWR: 128, MaxRecvWR: 128, MaxSendSGE: 4, MaxRecvSGE: 4},
	})
	if err != nil {
		return nil, err
	}
	attr := ib.QPAttr{QPState: ib.QPStateInit, PortNum: 1, QKey: r.QKey, QPAccessFlags: r.QPAccess}
	mask := ib.QPAttrState | ib.QPAttrPKeyIndex | ib.QPAttrPort | ib.QPAttrAccessFlags
	if r.Type == "UD" {
		mask = mask&^ib.QPAttrAccessFlags | ib.QPAttrQKey
	}
	if err := e.qp.Modify(&attr, mask); err != nil {
		return nil, err
	}
	gids, err := p.dev.QueryGIDTable()
	if err != nil {
		return nil, err
	}
	for _, g := range gids {
		a := g.GID.Addr()
		if a.Is4() != (r.Family == 4) || a.IsLinkLocalUnicast() {
			continue
		}
		e.sgid = int(g.Index)
		p.last++
		p.ends[p.last] = e
		return &reply{QP: p.last, QPN: e.qp.Num(), GID: gidText(g.GID), Addr: e.mr.Addr(), RKey: e.mr.RKey()}, nil
	}
	return nil, fmt.Errorf("no address of IPv%d", r.Family)
}

// gidText writes a GID as inet_ntop does.
func gidText(g ib.GID) string { return netip.AddrFrom16(g).String() }

func parseGID(s string) (ib.GID, error) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		return ib.GID{}, err
	}
	return ib.GIDFromAddr(a), nil
}

func (e *ourEnd) address(text string) (ib.AHAttr, error) {
	gid, err := parseGID(text)
	return ib.AHAttr{IsGlobal: true, DGID: gid, SGIDIndex: uint8(e.sgid), HopLimit: 64, PortNum: 1}, err
}

func (e *ourEnd) connect(r *request) error {
	rtr := ib.QPAttr{
		QPState: ib.QPStateRTR, DestQPN: r.QPN, RQPSN: r.PeerPSN, MaxDestRDAtomic: max(r.RDAtomic, 4), MinRNRTimer: r.RNRTimer,
	}
	rts := ib.QPAttr{
		QPState: ib.QPStateRTS, SQPSN: r.PSN, Timeout: r.Timeout, RetryCnt: r.RetryCnt, RNRRetry: r.RNRRetry, MaxRDAtomic: max(r.RDAtomic, 4),
	}
	var toRTR, toRTS ib.QPAttrMask
	if e.qp.Type() != ib.UD {
		var err error
		if rtr.AHAttr, err = e.address(r.GID); err != nil {
			return err
		}
		if rtr.PathMTU, err = ib.MTUFromBytes(r.MTU); err != nil {
			return err
		}
		toRTR = ib.QPAttrAV | ib.QPAttrPathMTU | ib.QPAttrDestQPN | ib.QPAttrRQPSN
	}
	if e.qp.Type() == ib.RC {
		toRTR |= ib.QPAttrMaxDestRDAtomic | ib.QPAttrMinRNRTimer
		toRTS = ib.QPAttrTimeout | ib.QPAttrRetryCnt | ib.QPAttrRNRRetry | ib.QPAttrMaxRDAtomic
	}
	if err := e.qp.Modify(&rtr, ib.QPAttrState|toRTR); err != nil {
		return err
	}
	return e.qp.Modify(&rts, ib.QPAttrState|ib.QPAttrSQPSN|toRTS)
}

func (e *ourEnd) sges(r *request) []verbs.SGE {
	list := make([]verbs.SGE, 0, len(r.SGEs))
	for _, s := range r.SGEs {
		g := verbs.SGE{Addr: e.mr.Addr() + uint64(s[0]), Length: uint32(s[1]), LKey: e.mr.LKey()}
		if r.BadLKey {
			g.LKey ^= 0xFFFF00
		}
		list = append(list, g)
	}
	return list
}

func (e *ourEnd) send(p *ourPeer, r *request) (*reply, error) {
	wr := verbs.SendWR{
		WRID: r.WRID, Opcode: r.Opcode, Flags: r.Flags, SGList: e.sges(r), ImmData: r.Imm, InvalidateRKey: r.InvKey,
		RemoteAddr: r.RemoteAddr, RKey: r.RKey, CompareAdd: r.CompareAdd, Swap: r.Swap, RemoteQPN: r.QPN, RemoteQKey: r.QKey,
	}
	a := &reply{}
	if r.Opcode == ib.WRBindMW {
		w, info := p.mws[r.MW], e.info(r)
		info.MW = w
		wr.Bind, wr.SGList = &info, nil
		wr.RKey = w.RKey()&^0xFF | ib.RKey(r.KeyByte)
		a.RKey = wr.RKey
	}
	if e.qp.Type() == ib.UD {
		attr, err := e.address(r.GID)
		if err != nil {
			return nil, err
		}
		ah, err := p.pd.CreateAH(&attr)
		if err != nil {
			return nil, err
		}
		e.ahs = append(e.ahs, ah)
		wr.AH = ah
	}
	return a, e.qp.PostSendOne(&wr)
}

func (e *ourEnd) info(r *request) verbs.BindInfo {
	return verbs.BindInfo{MR: e.mr, Addr: e.mr.Addr() + uint64(r.Off), Length: uint64(r.Length), Access: r.Access}
}

func (e *ourEnd) poll(r *request) (*reply, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(r.TimeoutMS)*time.Millisecond)
	defer cancel()
	a := &reply{}
	wcs := make([]verbs.WC, 16)
	for len(a.WCs) < r.Count {
		n, err := e.cq.Poll(wcs[:min(len(wcs), r.Count-len(a.WCs))])
		if err != nil {
			return nil, err
		}
		for _, wc := range wcs[:n] {
			c := completion{WRID: wc.WRID, Status: wc.Status, Opcode: wc.Opcode, Len: wc.ByteLen, Flags: wc.Flags, SrcQP: wc.SrcQP}
			if wc.Flags&ib.WCWithImm != 0 {
				c.Imm = wc.ImmData
			}
			if wc.Flags&ib.WCWithInv != 0 {
				c.InvKey = wc.InvalidatedRKey
			}
			a.WCs = append(a.WCs, c)
		}
		if n > 0 {
			continue
		}
		if err := e.cq.Wait(ctx); errors.Is(err, context.DeadlineExceeded) {
			return a, nil
		} else if err != nil {
			return nil, err
		}
	}
	return a, nil
}

func (e *ourEnd) close() error {
	errs := []error{e.qp.Destroy(), e.cq.Destroy()}
	for _, ah := range e.ahs {
		errs = append(errs, ah.Destroy())
	}
	return errors.Join(append(errs, e.mr.Dereg())...)
}
