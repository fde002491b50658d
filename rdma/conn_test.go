package rdma_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/rdma"
)

// patience is how long a test waits before it takes something for lost.
const patience = 30 * time.Second

// loopAddr is an address of the loopback interface that no other test has.
func loopAddr() netip.Addr {
	return netip.AddrFrom4([4]byte{127, byte(10 + rand.IntN(200)), byte(rand.IntN(256)), byte(1 + rand.IntN(250))})
}

// loopName is the loopback interface; without one there is nothing to test with.
func loopName(t testing.TB) string {
	t.Helper()
	ifs, err := net.Interfaces()
	if err != nil {
		t.Skip(err)
	}
	for _, i := range ifs {
		if i.Flags&net.FlagLoopback != 0 && i.Flags&net.FlagUp != 0 {
			return i.Name
		}
	}
	t.Skip("no loopback interface is up")
	return ""
}

// host makes a Host whose loopback device has the addresses.
func host(t testing.TB, addrs ...netip.Addr) *rdma.Host {
	t.Helper()
	t.Setenv(rdma.AddrsEnv, "")
	h, err := rdma.NewHost(rdma.WithAddrs(loopName(t), addrs...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

func limited(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// pair is both ends of a connection: each test closes what it does not want closed for it.
type pair struct {
	l    *rdma.Listener
	a, b *rdma.Conn // a has dialed
}

// connect connects two Hosts, which may be the same.
func connect(t testing.TB, ha, hb *rdma.Host, at netip.Addr, opts ...rdma.ConnOption) *pair {
	t.Helper()
	ctx := limited(t)
	l, err := hb.Listen(ctx, netip.AddrPortFrom(at, 0).String(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	p := &pair{l: l}
	t.Cleanup(func() {
		for _, c := range []io.Closer{p.a, p.b, l} {
			if c, ok := c.(*rdma.Conn); ok && c == nil {
				continue
			}
			if err := c.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
				t.Log("close:", err)
			}
		}
	})
	done := make(chan error, 1)
	go func() {
		var err error
		p.b, err = l.Accept(ctx)
		done <- err
	}()
	a, err := ha.Dial(ctx, l.Addr().String(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	p.a = a
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return p
}

// message is the nth message, of a length of its own.
func message(n, max int) []byte {
	r := rand.New(rand.NewPCG(uint64(n), 7))
	b := make([]byte, r.IntN(max+1))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func TestConn(t *testing.T) {
	one, two := loopAddr(), loopAddr()
	for name, hosts := range map[string]func(t *testing.T) (a, b *rdma.Host, at netip.Addr){
		"one host with itself": func(t *testing.T) (a, b *rdma.Host, at netip.Addr) {
			h := host(t, one)
			return h, h, one
		},
		"two addresses": func(t *testing.T) (a, b *rdma.Host, at netip.Addr) { return host(t, one), host(t, two), two },
		"IPv6": func(t *testing.T) (a, b *rdma.Host, at netip.Addr) {
			h := host(t, netip.IPv6Loopback())
			return h, h, netip.IPv6Loopback()
		},
	} {
		t.Run(name, func(t *testing.T) {
			ha, hb, at := hosts(t)
			p := connect(t, ha, hb, at, rdma.WithMaxMessage(10_000))
			ctx := limited(t)
			const n = 300
			errs := make(chan error, 4)
			for _, d := range []struct{ from, to *rdma.Conn }{{p.a, p.b}, {p.b, p.a}} {
				go func() {
					for i := range n {
						if err := d.from.Send(ctx, message(i, 10_000)); err != nil {
							errs <- fmt.Errorf("send %d: %w", i, err)
							return
						}
					}
					errs <- nil
				}()
				go func() {
					for i := range n {
						m, err := d.to.Recv(ctx)
						if err != nil || !bytes.Equal(m, message(i, 10_000)) {
							errs <- fmt.Errorf("message %d: %d bytes, %w", i, len(m), err)
							return
						}
					}
					errs <- nil
				}()
			}
			for range 4 {
				if err := <-errs; err != nil {
					t.Fatal(err)
				}
			}
			if p.a.RemoteAddr() != p.b.LocalAddr() || p.b.RemoteAddr() != p.a.LocalAddr() || p.a.RemoteAddr().String() != p.l.Addr().String() ||
				p.a.LocalAddr().Network() != "rdma" {
				t.Error(p.a.LocalAddr(), p.a.RemoteAddr(), p.b.LocalAddr(), p.b.RemoteAddr(), p.l.Addr())
			}
			for _, c := range []*rdma.Conn{p.a, p.b} {
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
