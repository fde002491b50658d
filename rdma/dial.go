package rdma

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"

	"github.com/verbena-rdma/verbena/rdmacm"
)

// Dial connects to a listener at host:port, where host is an address (a link-local one with
// its zone) or a name of which each address is tried. It makes a Host of its own for the
// connection; programs with more than one make a Host. The context limits the attempt, not the
// connection.
//
// ECONNREFUSED, with a *rdmacm.RejectError: nobody listens there, or the listener has
// refused; ETIMEDOUT: the host does not answer for 74 s; EADDRINUSE: somebody who does not
// share it, see Open, has the address from which the peer is reached.
func Dial(ctx context.Context, addr string, opts ...ConnOption) (*Conn, error) {
	h, err := autoHost()
	if err != nil {
		return nil, netError("dial", Addr{}, Addr{}, err)
	}
	c, err := h.Dial(ctx, addr, opts...)
	if err != nil {
		return nil, also(err, h.Close())
	}
	return c, nil
}

// autoHost makes a Host that ends with the last that uses it.
func autoHost() (*Host, error) {
	h, err := NewHost()
	if err != nil {
		return nil, err
	}
	h.auto = true
	return h, nil
}

// Dial is Dial of the package with this Host.
func (h *Host) Dial(ctx context.Context, addr string, opts ...ConnOption) (*Conn, error) {
	cfg, err := connOptions(opts, rdmacm.MaxPrivateConnect)
	if err != nil {
		return nil, netError("dial", Addr{}, Addr{}, err)
	}
	node, service, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, netError("dial", Addr{}, Addr{}, &badAddr{err})
	}
	ai, err := rdmacm.GetAddrInfo(ctx, node, service, nil)
	if err != nil {
		return nil, netError("dial", Addr{}, Addr{}, err)
	}
	var first error
	for ; ai != nil; ai = ai.Next {
		c, err := h.dial(ctx, ai.Dst, &cfg)
		if err == nil {
			return c, nil
		}
		if first == nil || ctx.Err() != nil {
			first = netError("dial", Addr{cfg.local}, Addr{ai.Dst}, err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, first
}

func (h *Host) dial(ctx context.Context, to netip.AddrPort, cfg *connConfig) (c *Conn, err error) {
	if err := h.hold(); err != nil {
		return nil, err
	}
	id, err := h.m.NewID(nil, rdmacm.PSTCP, nil)
	if err != nil {
		return nil, also(err, h.release())
	}
	defer func() {
		switch {
		case err == nil:
		case c != nil:
			err = also(err, c.destroy())
			c = nil
		default:
			err = also(err, errors.Join(id.Destroy(context.Background()), h.release()))
		}
	}()
	if err := cfg.prepare(id); err != nil {
		return nil, err
	}
	if err := id.ResolveAddr(ctx, cfg.local, to, 0); err != nil {
		return nil, err
	}
	if err := id.ResolveRoute(ctx, 0); err != nil {
		return nil, err
	}
	if c, err = newConn(h, id, cfg); err != nil {
		return nil, err
	}
	if err := id.Connect(ctx, param(cfg.private)); err != nil {
		return c, err
	}
	if err := c.tune(); err != nil {
		return c, err
	}
	return c, c.established(slices.Clone(id.Event().Conn.PrivateData))
}

// param is what connections are made with: as many READs at a time as the devices have, and
// a peer without receives may take its time.
func param(private []byte) *rdmacm.ConnParam {
	return &rdmacm.ConnParam{
		PrivateData: private, ResponderResources: rdmacm.MaxRespRes, InitiatorDepth: rdmacm.MaxInitDepth, RetryCount: 7, RNRRetryCount: 7,
	}
}
