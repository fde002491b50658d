package rdmacm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/rdmacm"
	"github.com/verbena-rdma/verbena/verbs"
)

// cmPatience is how long a test over sockets waits before it takes something for lost.
const cmPatience = 30 * time.Second

func patient(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), cmPatience)
	t.Cleanup(cancel)
	return ctx
}

// loopAddr is an address of this host that hardly anybody else uses now.
func loopAddr() netip.Addr {
	n := rand.Uint32()
	return netip.AddrFrom4([4]byte{127, byte(1 + n%254), byte(n >> 8), byte(1 + n>>16%254)})
}

// loopManager is a manager with a device that has the addresses, or those of all
// interfaces.
func loopManager(t *testing.T, addrs ...netip.Addr) *rdmacm.Manager {
	t.Helper()
	var opts []soft.Option
	if len(addrs) > 0 {
		lo := ""
		ifs, err := net.Interfaces()
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range ifs {
			if i.Flags&net.FlagLoopback != 0 {
				lo = i.Name
			}
		}
		opts = append(opts, soft.WithAddrs(lo, addrs...))
	}
	m := rdmacm.NewManager(rdmacm.WithProviders(soft.NewProvider(opts...)))
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

func passive(at netip.Addr, port uint16) *rdmacm.AddrInfo {
	return &rdmacm.AddrInfo{Flags: rdmacm.RAIPassive, Src: netip.AddrPortFrom(at, port)}
}

// talk connects synchronously from src (invalid: by the routing table) to what
// listens at dst, exchanges a message, and disconnects.
func talk(t *testing.T, m *rdmacm.Manager, listen, src, dst netip.Addr) {
	t.Helper()
	ctx := patient(t)
	l := cmOK(m.CreateEP(ctx, passive(listen, 0), nil, cmAttr()))(t)
	defer l.Destroy(ctx)
	if err := l.Listen(0); errors.Is(err, syscall.EADDRINUSE) {
		t.Skipf("another process has %s: %v", listen, err)
	} else if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- serve(ctx, l) }()
	ai := &rdmacm.AddrInfo{Dst: netip.AddrPortFrom(dst, l.SrcPort())}
	if src.IsValid() {
		ai.Src = netip.AddrPortFrom(src, 0)
	}
	attr := cmAttr()
	c := cmOK(m.CreateEP(ctx, ai, nil, attr))(t)
	if attr.Cap.MaxSendWR < 16 || attr.SendCQ != c.SendCQ() || attr.Type != ib.RC {
		t.Errorf("%+v", attr)
	}
	if err := c.Connect(ctx, &rdmacm.ConnParam{PrivateData: []byte("ping"), RetryCount: 7, RNRRetryCount: 7, ResponderResources: 1, InitiatorDepth: 1}); err != nil {
		t.Fatal(err)
	}
	if e := c.Event(); e == nil || e.Type != rdmacm.EventEstablished || !bytes.HasPrefix(e.Conn.PrivateData, []byte("pong")) {
		t.Errorf("%+v", e)
	}
	b := []byte("over the wire")
	mr := cmOK(c.PD().RegMR(b, ib.AccessLocalWrite))(t)
	if err := c.QP().PostSendOne(&verbs.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: []verbs.SGE{mr.SGE(0, len(b))}}); err != nil {
		t.Fatal(err)
	}
	if err := await(ctx, c.SendCQ()); err != nil {
		t.Error(err)
	}
	if err := c.Disconnect(ctx); err != nil {
		t.Error(err)
	}
	if err := c.Disconnect(ctx); err != nil {
		t.Errorf("the second time: %v", err)
	}
	if err := errors.Join(<-done, mr.Dereg(), c.DestroyEP(ctx), c.Destroy(ctx)); err != nil {
		t.Error(err)
	}
}

// serve is the passive side of talk.
func serve(ctx context.Context, l *rdmacm.ID) error {
	s, err := l.GetRequest(ctx)
	if err != nil {
		return err
	}
	if e := s.Event(); e == nil || e.Type != rdmacm.EventConnectRequest || !bytes.HasPrefix(e.Conn.PrivateData, []byte("ping")) {
		return fmt.Errorf("request %+v", e)
	}
	b := make([]byte, 64)
	mr, err := s.PD().RegMR(b, ib.AccessLocalWrite)
	if err != nil {
		return err
	}
	if err := s.QP().PostRecvOne(&verbs.RecvWR{SGList: []verbs.SGE{mr.SGE(0, len(b))}}); err != nil {
		return err
	}
	if err := s.Accept(ctx, &rdmacm.ConnParam{PrivateData: []byte("pong"), ResponderResources: 1, InitiatorDepth: 1}); err != nil {
		return err
	}
	if err := await(ctx, s.RecvCQ()); err != nil {
		return err
	}
	if !bytes.HasPrefix(b, []byte("over the wire")) {
		return fmt.Errorf("received %q", b)
	}
	// Whoever comes second: the peer disconnects too.
	return errors.Join(s.Disconnect(ctx), mr.Dereg(), s.DestroyEP(ctx))
}

// await waits for a completion, which must be a success.
func await(ctx context.Context, cq *verbs.CQ) error {
	if err := cq.Wait(ctx); err != nil {
		return err
	}
	var wc [1]verbs.WC
	n, err := cq.Poll(wc[:])
	if err == nil && (n != 1 || wc[0].Status != ib.WCSuccess) {
		err = fmt.Errorf("%d completions, %v", n, wc[0].Status)
	}
	return err
}

// Connections within one process: an address to itself, to another one, to the loopback
// addresses, each address of the interfaces, and the host's name.
func TestCase97_OneProcess(t *testing.T) {
	var none netip.Addr
	t.Run("chosen addresses", func(t *testing.T) {
		a, b := loopAddr(), loopAddr()
		m := loopManager(t, a, b)
		any4 := netip.IPv4Unspecified()
		for _, c := range []struct {
			name             string
			listen, src, dst netip.Addr
		}{
			{"itself", a, a, a},
			{"itself by route", a, none, a},
			{"to another", b, a, b},
			{"and back", a, b, a},
			{"wildcard", any4, none, b},
			{"nothing but any", any4, none, any4},
			{"both families", netip.IPv6Unspecified(), none, b},
		} {
			t.Run(c.name, func(t *testing.T) { talk(t, m, c.listen, c.src, c.dst) })
		}
	})
	all := loopManager(t)
	devs, err := all.Devices(patient(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range devs {
		gids := cmOK(d.QueryGIDTable())(t)
		for _, g := range gids {
			addr := g.GID.Addr()
			if addr.IsLinkLocalUnicast() && addr.Is6() {
				addr = addr.WithZone(g.NetDev)
			}
			t.Run(addr.String(), func(t *testing.T) { talk(t, all, addr, none, addr) })
			if addr.Zone() != "" {
				byNumber := addr.WithZone(strconv.Itoa(g.IfIndex))
				t.Run(byNumber.String(), func(t *testing.T) { talk(t, all, byNumber, none, byNumber) })
			}
		}
	}
	t.Run("hostname", func(t *testing.T) {
		name, err := os.Hostname()
		if err != nil {
			t.Fatal(err)
		}
		ai, err := rdmacm.GetAddrInfo(patient(t), name, "", &rdmacm.AddrInfo{Flags: rdmacm.RAIFamily, Family: rdmacm.FamilyIPv4})
		if err != nil {
			t.Skip(err)
		}
		talk(t, all, ai.Dst.Addr(), none, ai.Dst.Addr())
	})
}

// A context ends a wait at once, and Destroy withdraws what was waited for.
func TestCase95_ContextEndsConnect(t *testing.T) {
	a, hole := loopAddr(), loopAddr() // nobody has a socket there
	m := loopManager(t, a)
	for _, ps := range []rdmacm.PortSpace{rdmacm.PSTCP, rdmacm.PSUDP} {
		id := cmOK(m.CreateEP(patient(t), &rdmacm.AddrInfo{PortSpace: ps, Src: netip.AddrPortFrom(a, 0), Dst: netip.AddrPortFrom(hole, 1)}, nil, cmAttr()))(t)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		begin := time.Now()
		if err := id.Connect(ctx, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		cancel()
		if d := time.Since(begin); d > 4*time.Second { // far less than 74 s
			t.Error(d)
		}
		if err := id.DestroyEP(patient(t)); err != nil {
			t.Error(err)
		}
	}
	l := cmOK(m.CreateEP(patient(t), passive(a, 0), nil, nil))(t)
	if err := l.Listen(0); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.GetRequest(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := l.DestroyEP(patient(t)); err != nil {
		t.Error(err)
	}
}

// Destroy ends a call that waits.
func TestDestroyEndsWaiting(t *testing.T) {
	a := loopAddr()
	m := loopManager(t, a)
	ctx := patient(t)
	l := cmOK(m.CreateEP(ctx, passive(a, 0), nil, nil))(t)
	if err := l.Listen(0); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := l.GetRequest(ctx)
		done <- err
	}()
	if err := l.Destroy(ctx); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

// A synchronous Connect that is refused tells why.
func TestSynchronousRefusal(t *testing.T) {
	a := loopAddr()
	m := loopManager(t, a)
	ctx := patient(t)
	l := cmOK(m.CreateEP(ctx, passive(a, 0), nil, nil))(t)
	if err := l.Listen(0); err != nil {
		t.Fatal(err)
	}
	defer l.DestroyEP(ctx)
	if _, err := m.CreateEP(ctx, passive(a, l.SrcPort()), nil, nil); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("the port is taken: %v", err)
	}
	done := make(chan error, 1)
	go func() {
		s, err := l.GetRequest(ctx)
		if err == nil {
			err = errors.Join(s.Reject([]byte("go away")), s.DestroyEP(ctx))
		}
		done <- err
	}()
	for _, c := range []struct {
		port   uint16
		reason rdmacm.RejectReason
	}{{l.SrcPort(), rdmacm.RejectConsumer}, {l.SrcPort() ^ 1, rdmacm.RejectBadServiceID}} {
		id := cmOK(m.CreateEP(ctx, &rdmacm.AddrInfo{Dst: netip.AddrPortFrom(a, c.port), ConnectData: []byte("first ")}, nil, cmAttr()))(t)
		err := id.Connect(ctx, &rdmacm.ConnParam{PrivateData: []byte("second")})
		var re *rdmacm.RejectError
		if !errors.As(err, &re) || re.Reason != c.reason || !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%v", err)
		}
		if err := id.DestroyEP(ctx); err != nil {
			t.Error(err)
		}
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := m.CreateEP(ctx, nil, nil, nil); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
}

// IDs and channels that come and go, and connections, leave nothing.
func TestCase102_NothingIsLeft(t *testing.T) {
	a := loopAddr()
	m := loopManager(t, a)
	ctx := patient(t)
	round := func(n int) {
		for i := range n {
			ch := cmOK(m.NewEventChannel())(t)
			id := cmOK(m.NewID(ch, rdmacm.PSTCP, nil))(t)
			if err := id.Bind(netip.AddrPortFrom(a, 0)); err != nil {
				t.Fatal(err)
			}
			if i%16 == 0 {
				if err := id.Listen(0); err != nil {
					t.Fatal(err)
				}
			}
			if err := errors.Join(id.Destroy(ctx), ch.Close()); err != nil {
				t.Fatal(err)
			}
		}
	}
	round(100)
	talk(t, m, a, a, a)
	fds, routines := descriptors(t), runtime.NumGoroutine()
	round(5000)
	for range 40 {
		talk(t, m, a, a, a)
	}
	// Queue pairs share 32 UDP source ports, which are opened as they are needed.
	if n := descriptors(t); n > fds+32 {
		t.Errorf("%d descriptors, before %d", n, fds)
	}
	if n := runtime.NumGoroutine(); n > routines {
		t.Errorf("%d goroutines, before %d", n, routines)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}
