package demo

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/rdmacm"
	"github.com/verbena-rdma/verbena/verbs"
)

// contact is what one side tells the other one in the private data of the connection.
type contact struct {
	Device string
	UD     ib.QPN
	// Registered memory: the window for the file, and the small things (see layout).
	WindowAddr, SmallAddr uint64
	WindowKey, SmallKey   ib.RKey
}

// contactLen is the length of a contact without the device's name, of which as much goes
// as there is room for in a request.
const contactLen = 28

func (c *contact) encode() []byte {
	b := binary.BigEndian.AppendUint64(nil, c.WindowAddr)
	b = binary.BigEndian.AppendUint64(b, c.SmallAddr)
	b = binary.BigEndian.AppendUint32(b, uint32(c.WindowKey))
	b = binary.BigEndian.AppendUint32(b, uint32(c.SmallKey))
	b = binary.BigEndian.AppendUint32(b, uint32(c.UD))
	return append(b, c.Device[:min(len(c.Device), rdmacm.MaxPrivateConnect-contactLen)]...)
}

// decode reads a contact from private data, which are filled up with zeros.
func (c *contact) decode(b []byte) error {
	if len(b) < contactLen {
		return fmt.Errorf("private data of %d bytes, want %d: %w", len(b), contactLen, syscall.EPROTO)
	}
	name, _, _ := bytes.Cut(b[contactLen:], []byte{0})
	*c = contact{
		Device: string(name), UD: ib.QPN(binary.BigEndian.Uint32(b[24:]) & uint32(ib.QPNMax)),
		WindowAddr: binary.BigEndian.Uint64(b), SmallAddr: binary.BigEndian.Uint64(b[8:]),
		WindowKey: ib.RKey(binary.BigEndian.Uint32(b[16:])), SmallKey: ib.RKey(binary.BigEndian.Uint32(b[20:])),
	}
	return nil
}

// newID makes an ID of the side's, which close destroys with its queue pair.
func (s *side) newID() (*rdmacm.ID, error) {
	id, err := s.cm.NewID(nil, rdmacm.PSTCP, nil)
	if err == nil {
		s.destroyLater(id)
	}
	return id, err
}

func (s *side) destroyLater(id *rdmacm.ID) {
	s.undo = append(s.undo, func() error { return id.DestroyEP(context.Background()) })
}

// createRC makes the queue pair of a connection.
func (s *side) createRC(id *rdmacm.ID) error {
	if err := id.CreateQP(s.pd, s.attr(ib.RC)); err != nil {
		return err
	}
	s.rc = id.QP()
	return nil
}

// connect connects to the second process.
func (s *side) connect(ctx context.Context, to netip.AddrPort) (peer contact, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("connect from %s to %s: %w", s.addr, to.Addr(), err)
		}
	}()
	id, err := s.newID()
	if err != nil {
		return peer, err
	}
	if err := id.ResolveAddr(ctx, netip.AddrPortFrom(s.addr, 0), to, patience); err != nil {
		return peer, err
	}
	if err := id.ResolveRoute(ctx, patience); err != nil {
		return peer, err
	}
	if err := s.createRC(id); err != nil {
		return peer, err
	}
	if err := id.Connect(ctx, s.param()); err != nil {
		return peer, err
	}
	s.mtu = id.Route()[0].MTU
	return peer, peer.decode(id.Event().Conn.PrivateData)
}

// listen begins to wait for the first process and tells the port.
func (s *side) listen() (uint16, error) {
	var err error
	if s.listener, err = s.newID(); err != nil {
		return 0, err
	}
	if err := s.listener.Bind(netip.AddrPortFrom(s.addr, 0)); err != nil {
		return 0, err
	}
	return s.listener.SrcPort(), s.listener.Listen(1)
}

// accept waits for the first process; prepare is called when there is a queue pair.
func (s *side) accept(ctx context.Context, prepare func() error) (peer contact, err error) {
	id, err := s.listener.GetRequest(ctx)
	if err != nil {
		return peer, err
	}
	s.destroyLater(id)
	if err := peer.decode(id.Event().Conn.PrivateData); err != nil {
		return peer, err
	}
	if err := s.createRC(id); err != nil {
		return peer, err
	}
	if err := prepare(); err != nil {
		return peer, err
	}
	return peer, id.Accept(ctx, s.param())
}

// param are the connection's parameters.
func (s *side) param() *rdmacm.ConnParam {
	return &rdmacm.ConnParam{
		PrivateData: s.me.encode(), ResponderResources: rdmacm.MaxRespRes, InitiatorDepth: rdmacm.MaxInitDepth, RetryCount: 7, RNRRetryCount: 7,
	}
}

// attr describes a queue pair.
func (s *side) attr(typ ib.QPType) *verbs.QPInitAttr {
	return &verbs.QPInitAttr{
		SendCQ: s.cq, RecvCQ: s.cq, Type: typ,
		Cap: ib.QPCap{MaxSendWR: sqDepth, MaxRecvWR: rqDepth, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: 64},
	}
}
