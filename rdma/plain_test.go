package rdma_test

import (
	"errors"
	"io"
	"net/netip"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/rdmacm"
	"github.com/verbena-rdma/verbena/verbs"
)

// The peer may be a program that knows nothing of this package: it is rdma_server(1) here, with one
// receive, one answer, an immediate value besides, and a disconnect.
func TestPlainPeer(t *testing.T) {
	at := loopAddr()
	h := host(t, at)
	ctx := limited(t)
	ai := &rdmacm.AddrInfo{Flags: rdmacm.RAIPassive, Src: netip.AddrPortFrom(at, 0), PortSpace: rdmacm.PSTCP}
	lid, err := h.Manager().CreateEP(ctx, ai, nil, &verbs.QPInitAttr{Cap: ib.QPCap{MaxSendWR: 2, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}})
	if err != nil {
		t.Fatal(err)
	}
	defer lid.DestroyEP(ctx)
	if err := lid.Listen(0); err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() {
		served <- func() error {
			id, err := lid.GetRequest(ctx)
			if err != nil {
				return err
			}
			defer id.DestroyEP(ctx)
			buf := make([]byte, 16)
			mr, err := id.RegMsgs(buf)
			if err != nil {
				return err
			}
			defer mr.Dereg()
			if err := errors.Join(id.PostRecv(0, buf, mr), id.Accept(ctx, nil)); err != nil {
				return err
			}
			for range 2 { // without a receive for the second one until the first is dealt with
				wc, err := id.GetRecvComp(ctx)
				if err != nil || wc.Err() != nil {
					return errors.Join(err, wc.Err())
				}
				if err := id.PostRecv(0, buf, mr); err != nil {
					return err
				}
			}
			if err := errors.Join(
				id.PostSend(0, buf[:4], mr, ib.SendSignaled),
				id.QP().PostSendOne(&verbs.SendWR{Opcode: ib.WRSendWithImm, Flags: ib.SendSignaled, ImmData: 7, SGList: []verbs.SGE{mr.SGE(4, 4)}}),
			); err != nil {
				return err
			}
			for range 2 {
				wc, err := id.GetSendComp(ctx)
				if err != nil || wc.Err() != nil {
					return errors.Join(err, wc.Err())
				}
			}
			return id.Disconnect(ctx)
		}()
	}()
	c, err := h.Dial(ctx, lid.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []string{"first", "0123abcd"} {
		if err := c.Send(ctx, []byte(m)); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"0123", "abcd"} {
		if m, err := c.Recv(ctx); err != nil || string(m) != want {
			t.Errorf("%q %v", m, err)
		}
	}
	if _, err := c.Recv(ctx); err != io.EOF {
		t.Error(err)
	}
	if err := c.Send(ctx, nil); !errors.Is(err, syscall.EPIPE) {
		t.Error(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// A listener without an address takes connections to every one, of both families.
func TestListenEverywhere(t *testing.T) {
	one, two := loopAddr(), loopAddr()
	h := host(t, one, two, netip.IPv6Loopback())
	ctx := limited(t)
	l, err := h.Listen(ctx, ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(rdma.Addr).Port()
	for _, a := range []netip.Addr{one, two, netip.IPv6Loopback()} {
		to := netip.AddrPortFrom(a, port)
		accepted := make(chan *rdma.Conn, 1)
		go func() {
			c, err := l.Accept(ctx)
			if err != nil {
				t.Error(err)
			}
			accepted <- c
		}()
		c, err := h.Dial(ctx, to.String(), rdma.WithLocalAddr(netip.AddrPortFrom(a, 0)))
		if err != nil {
			t.Fatal(to, err)
		}
		b := <-accepted
		if c.RemoteAddr() != (rdma.Addr{AddrPort: to}) || b.LocalAddr() != c.RemoteAddr() || b.RemoteAddr() != c.LocalAddr() {
			t.Error(to, c.LocalAddr(), c.RemoteAddr(), b.LocalAddr(), b.RemoteAddr())
		}
		if err := errors.Join(c.Close(), b.Close()); err != nil {
			t.Error(err)
		}
	}
}
