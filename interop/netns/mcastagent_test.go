//go:build interop && linux

package netns

import (
	"context"
	"net/netip"
	"os"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

// OpenArgs names an interface with the addresses that the process's device has.
type OpenArgs struct {
	Netdev string
	Addrs  []string
}

// OpenWith opens a device with addresses of its own, and two locks.
func (a *Agent) OpenWith(args OpenArgs, p *Port) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var addrs []netip.Addr
	for _, s := range args.Addrs {
		addrs = append(addrs, netip.MustParseAddr(s))
	}
	var err error
	a.dev, err = rdma.Open(context.Background(), "soft_"+args.Netdev, rdma.WithAddrs(args.Netdev, addrs...), rdma.WithShards(2))
	if err != nil {
		p.Failure = failure(err)
		return nil
	}
	p.Device, p.GIDs = a.dev.Device().Name(), args.Addrs
	a.pd, err = a.dev.AllocPD()
	return err
}

// ListenArgs describes a datagram queue pair.
type ListenArgs struct {
	Block bool // BlockSelfMcastLB
}

// datagramRoom is what a receive of a listener holds.
const datagramRoom = 2048

const listenerDepth = 64

// Listen makes a datagram queue pair in RTS that receives.
func (a *Agent) Listen(args ListenArgs, e *Endpoint) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	q := &agentQP{buf: make([]byte, (listenerDepth+1)*datagramRoom)}
	var err error
	if q.mr, err = a.pd.RegMR(q.buf, ib.AccessLocalWrite); err != nil {
		return err
	}
	if q.cq, err = a.dev.CreateCQ(4096, nil, nil); err != nil {
		return err
	}
	q.qp, err = a.pd.CreateQP(&verbs.QPInitAttr{
		SendCQ: q.cq, RecvCQ: q.cq, Type: ib.UD, BlockSelfMcastLB: args.Block,
		Cap: ib.QPCap{MaxSendWR: 128, MaxRecvWR: 128, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	if err != nil {
		return err
	}
	for _, m := range []struct {
		attr ib.QPAttr
		mask ib.QPAttrMask
	}{
		{ib.QPAttr{QPState: ib.QPStateInit, PortNum: 1, QKey: qkey}, ib.QPAttrState | ib.QPAttrPKeyIndex | ib.QPAttrPort | ib.QPAttrQKey},
		{ib.QPAttr{QPState: ib.QPStateRTR}, ib.QPAttrState},
		{ib.QPAttr{QPState: ib.QPStateRTS}, ib.QPAttrState | ib.QPAttrSQPSN},
	} {
		if err := q.qp.Modify(&m.attr, m.mask); err != nil {
			return err
		}
	}
	for i := range listenerDepth {
		if err := q.qp.PostRecvOne(&verbs.RecvWR{WRID: uint64(i), SGList: []verbs.SGE{q.mr.SGE(i*datagramRoom, datagramRoom)}}); err != nil {
			return err
		}
	}
	*e = Endpoint{Index: len(a.qps), Num: q.qp.Num()}
	a.qps = append(a.qps, q)
	return nil
}

// GroupArgs names a queue pair and a group.
type GroupArgs struct {
	QP     int
	Group  string
	Detach bool
}

// Attach attaches the queue pair to the group, or detaches it.
func (a *Agent) Attach(args GroupArgs, f *Failure) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	gid := ib.GIDFromAddr(netip.MustParseAddr(args.Group))
	if q := a.qps[args.QP].qp; args.Detach {
		*f = failure(q.DetachMcast(gid, 0))
	} else {
		*f = failure(q.AttachMcast(gid, 0))
	}
	return nil
}

// SayArgs describes datagrams: Count of Len bytes.
type SayArgs struct {
	QP, SGID   int
	To         string
	QPN        ib.QPN
	Len, Count int
	Hop        uint8
	Mark       byte // all payload has it
}

// Say sends datagrams, all posted at once.
func (a *Agent) Say(args SayArgs, f *Failure) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	q := a.qps[args.QP]
	ah, err := a.pd.CreateAH(&ib.AHAttr{
		IsGlobal: true, DGID: ib.GIDFromAddr(netip.MustParseAddr(args.To)), SGIDIndex: uint8(args.SGID), PortNum: 1,
		HopLimit: args.Hop, TrafficClass: 0x20,
	})
	if err != nil {
		*f = failure(err)
		return nil
	}
	payload := q.buf[listenerDepth*datagramRoom:][:args.Len]
	for i := range payload {
		payload[i] = args.Mark
	}
	wrs := make([]verbs.SendWR, args.Count)
	for i := range wrs {
		wrs[i] = verbs.SendWR{
			Opcode: ib.WRSendWithImm, SGList: []verbs.SGE{q.mr.SGE(listenerDepth*datagramRoom, args.Len)}, ImmData: uint32(i),
			AH: ah, RemoteQPN: args.QPN, RemoteQKey: qkey,
		}
	}
	if err := q.qp.PostSend(wrs); err != nil {
		*f = failure(err)
		return nil
	}
	*f = failure(ah.Destroy())
	return nil
}

// Heard is a datagram that was received.
type Heard struct {
	WC         verbs.WC
	Src, Dst   netip.Addr
	Class, Hop uint8
	Len        int
	Mark       byte
}

// HearArgs is what Hear takes.
type HearArgs struct {
	QP    int
	Until byte
}

// Hear gives what a queue pair has received, up to a datagram whose payload has
// the mark until, and a little more.
func (a *Agent) Hear(args HearArgs, list *[]Heard) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	q := a.qps[args.QP]
	dev := a.dev.Driver().(*soft.Device)
	for last, extra := false, 0; extra < 100; {
		if last {
			dev.Progress() // reads every socket
			extra++
		}
		var wcs []verbs.WC
		var err error
		if last {
			wcs = make([]verbs.WC, 64)
			var n int
			n, err = q.cq.Poll(wcs)
			wcs = wcs[:n]
		} else {
			wcs, err = q.wait()
		}
		if err != nil {
			return err
		}
		for _, wc := range wcs {
			if wc.Status != ib.WCSuccess {
				*list = append(*list, Heard{WC: wc})
				continue
			}
			b := q.buf[int(wc.WRID)*datagramRoom:][:wc.ByteLen]
			h := Heard{WC: wc, Len: len(b) - roce.GRHLen, Mark: b[len(b)-1]}
			h.Src, h.Dst, h.Class, h.Hop, _, _ = roce.ParseGRH(b)
			if h.Mark == args.Until {
				last = true
			} else {
				*list = append(*list, h)
			}
			err := q.qp.PostRecvOne(&verbs.RecvWR{WRID: wc.WRID, SGList: []verbs.SGE{q.mr.SGE(int(wc.WRID)*datagramRoom, datagramRoom)}})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// ReadFile gives a file's content as the process sees it.
func (*Agent) ReadFile(name string, content *string) error {
	b, err := os.ReadFile(name)
	*content = string(b)
	return err
}
