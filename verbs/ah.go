package verbs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// AH is an address handle: where a datagram goes (struct ibv_ah). It implements
// driver.AH, so that it can stand in a work request.
type AH struct {
	life
	pd *PD
	ah driver.AH
}

var _ driver.AHUnwrapper = (*AH)(nil)

// CreateAH makes an address handle (ibv_create_ah). EINVAL: on RoCE the address
// has no GRH (IsGlobal), its GID index is empty,
// or PortNum is not one of the device; ENETUNREACH: no way there.
func (p *PD) CreateAH(attr *ib.AHAttr) (*AH, error) { return p.createAH("create_ah", attr) }

func (p *PD) createAH(op string, attr *ib.AHAttr) (*AH, error) {
	if attr == nil {
		return nil, paramErr(op, "attr", "is nil", syscall.EINVAL)
	}
	if !p.hold(anAH) {
		return nil, opErr(op, errPDClosed)
	}
	if err := p.ctx.checkAV(op, attr); err != nil {
		p.drop(anAH)
		return nil, err
	}
	h, err := p.ctx.dev.CreateAH(p.pd, attr)
	if err != nil {
		p.drop(anAH)
		return nil, opErr(op, err)
	}
	return &AH{pd: p, ah: h}, nil
}

// checkAV refuses addresses that do not work on RoCE, whatever the provider.
func (c *Context) checkAV(op string, a *ib.AHAttr) error {
	port, err := c.dev.QueryPort(a.PortNum)
	switch {
	case errors.Is(err, syscall.EINVAL):
		return paramErr(op, "AHAttr.PortNum", fmt.Sprintf("%d is none of the device, ports count from 1", a.PortNum), syscall.EINVAL)
	case err != nil:
		return opErr(op, err)
	}
	if port.LinkLayer != ib.LinkEthernet {
		return nil
	}
	if !a.IsGlobal {
		return paramErr(op, "AHAttr.IsGlobal", "is false, on RoCE an address needs a GRH", syscall.EINVAL)
	}
	if a.DGID.IsZero() {
		return paramErr(op, "AHAttr.DGID", "is empty", syscall.EINVAL)
	}
	if _, err := c.dev.GIDEntry(a.PortNum, int(a.SGIDIndex)); err != nil {
		return paramErr(op, "AHAttr.SGIDIndex", fmt.Sprintf("%d is not in use", a.SGIDIndex), syscall.EINVAL)
	}
	return nil
}

// InitAHFromWC makes the address of the sender of a datagram out of its
// completion and the first 40 bytes of its receive buffer
// (ibv_init_ah_from_wc). On RoCE they show the IP header; which version it is,
// is told as Linux does. The address answers from the GID to which the datagram
// was sent, with its traffic class, flow label and hop limit. EINVAL: the
// completion has no GRH, grh shows no header, or the datagram was sent to a
// multicast group; ENODATA: the port does not have the GID any more.
func (c *Context) InitAHFromWC(port uint8, wc *WC, grh []byte) (ib.AHAttr, error) {
	return c.initAH("init_ah_from_wc", port, wc, grh)
}

func (c *Context) initAH(op string, port uint8, wc *WC, grh []byte) (ib.AHAttr, error) {
	if err := c.check(op); err != nil {
		return ib.AHAttr{}, err
	}
	if wc == nil {
		return ib.AHAttr{}, paramErr(op, "wc", "is nil", syscall.EINVAL)
	}
	p, err := c.dev.QueryPort(port)
	if err != nil {
		return ib.AHAttr{}, opErr(op, err)
	}
	a := ib.AHAttr{DLID: wc.SLID, SL: wc.SL, SrcPathBits: wc.DLIDPathBits, PortNum: port}
	if wc.Flags&ib.WCGRH == 0 {
		if p.LinkLayer == ib.LinkEthernet {
			return ib.AHAttr{}, paramErr(op, "wc", "has no GRH", syscall.EINVAL)
		}
		return a, nil
	}
	src, dst, class, hop, flow, ok := roce.ParseGRH(grh)
	switch {
	case !ok:
		return ib.AHAttr{}, paramErr(op, "grh", "shows no IP header in its first 40 bytes", syscall.EINVAL)
	case dst.IsMulticast():
		// One does not answer from the group's address, and which of the own ones
		// is meant nobody can tell.
		return ib.AHAttr{}, paramErr(op, "grh", "is of a datagram to the group "+dst.String()+
			": answer with CreateAH to the sender's address, which GRHAddrs gives", syscall.EINVAL)
	}
	gid, typ := ib.GIDFromAddr(dst), ib.GIDTypeIB
	if p.LinkLayer == ib.LinkEthernet {
		typ = ib.GIDTypeRoCEv2
	}
	index, err := c.FindGIDIndex(port, gid, typ)
	if err != nil {
		return ib.AHAttr{}, opErr(op, err)
	}
	a.IsGlobal, a.DGID, a.SGIDIndex = true, ib.GIDFromAddr(src), uint8(index)
	a.FlowLabel, a.TrafficClass, a.HopLimit = flow, class, hop
	return a, nil
}

// GRHAddrs gives the addresses of the sender and of the receiver, which may be a
// group, of a datagram out of the first 40 bytes of its receive buffer (on RoCE they
// show the IP header). To answer what was sent to a group: CreateAH with
// ib.GIDFromAddr(src) as DGID and the GID index of one's own choice. EINVAL: they show
// no IP header.
func GRHAddrs(grh []byte) (src, dst netip.Addr, err error) {
	src, dst, _, _, _, ok := roce.ParseGRH(grh)
	if !ok {
		return src, dst, paramErr("grh_addrs", "grh", "shows no IP header in its first 40 bytes", syscall.EINVAL)
	}
	return src, dst, nil
}

// CreateAHFromWC makes an address handle to the sender of a datagram
// (ibv_create_ah_from_wc): InitAHFromWC, then CreateAH.
func (p *PD) CreateAHFromWC(wc *WC, grh []byte, port uint8) (*AH, error) {
	const op = "create_ah_from_wc"
	a, err := p.ctx.initAH(op, port, wc, grh)
	if err != nil {
		return nil, err
	}
	return p.createAH(op, &a)
}

// PD is the domain of the address handle.
func (a *AH) PD() *PD { return a.pd }

// UnwrapAH gives the provider's object, for providers; nil of a nil handle, so
// that a post with one is refused.
func (a *AH) UnwrapAH() driver.AH {
	if a == nil {
		return nil
	}
	return a.ah
}

// Destroy gives the handle back (ibv_destroy_ah). Work that was posted with it
// and has not been sent may still need it: destroy it after that completed.
func (a *AH) Destroy() error {
	return opErr("destroy_ah", a.end(context.Background(), a.ah.Destroy, nil, a.pd.dropper(anAH)))
}
