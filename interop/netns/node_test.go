//go:build interop && linux

package netns

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"net/rpc"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// node is a process in a namespace, with an open device.
type node struct {
	t    testing.TB
	name string
	rpc  *rpc.Client
	peer *node // of the last connection, for what is told about failures
	who  Process
	port Port
}

type pipes struct {
	r, w *os.File
}

func (p pipes) Read(b []byte) (int, error)  { return p.r.Read(b) }
func (p pipes) Write(b []byte) (int, error) { return p.w.Write(b) }
func (p pipes) Close() error                { _ = p.w.Close(); return p.r.Close() }

// safeBuffer collects what a process says.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// start starts an agent without a device. uid 0 is root. It ends with the test.
func (ns *namespace) start(t testing.TB, name string, uid int) *node {
	t.Helper()
	// The link works where the binary's directory does not: it is readable for its owner only.
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), agentEnv+"="+roleRoot)
	if uid != 0 {
		cmd.Env = append(os.Environ(), agentEnv+"="+roleUser, "HOME=/", "TMPDIR=/tmp")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
		cmd.Dir = "/"
	}
	out := &safeBuffer{}
	cmd.Stderr = out
	inR, inW, err := os.Pipe()
	must(t, err)
	outR, outW, err := os.Pipe()
	must(t, err)
	cmd.Stdin, cmd.Stdout = inR, outW
	err = ns.do(cmd.Start) // the child gets the namespace of the thread
	_, _ = inR.Close(), outW.Close()
	if err != nil {
		_, _ = inW.Close(), outR.Close()
		t.Fatalf("%s: %v", name, err)
	}
	n := &node{t: t, name: name, rpc: rpc.NewClient(pipes{outR, inW})}
	t.Cleanup(func() {
		_ = n.rpc.Close() // the agent ends with its standard input
		kill := time.AfterFunc(5*time.Second, func() { _ = cmd.Process.Kill() })
		err := cmd.Wait()
		kill.Stop()
		if err != nil && !t.Failed() {
			t.Errorf("%s: %v", name, err)
		}
		if s := out.String(); s != "" {
			t.Logf("%s says: %s", name, s)
		}
	})
	n.call("Who", struct{}{}, &n.who)
	return n
}

// open starts an agent of root and opens its first device.
func (ns *namespace) open(t testing.TB, name string) *node {
	t.Helper()
	n := ns.start(t, name, 0)
	n.open("")
	return n
}

func (n *node) open(device string) {
	n.t.Helper()
	n.call("Open", device, &n.port)
	if n.port.Failure.Text != "" {
		n.t.Fatalf("%s: %v", n.name, n.port.Failure)
	}
}

func (n *node) call(method string, args, reply any) {
	n.t.Helper()
	call := n.rpc.Go("Agent."+method, args, reply, make(chan *rpc.Call, 1))
	select {
	case <-call.Done:
		if call.Error != nil {
			n.t.Fatalf("%s: %s: %v", n.name, method, call.Error)
		}
	case <-time.After(2 * workTime):
		n.t.Fatalf("%s: %s: no answer", n.name, method)
	}
}

func (n *node) counters() map[string]uint64 {
	n.t.Helper()
	var m map[string]uint64
	n.call("Counters", struct{}{}, &m)
	return m
}

// gid is the index of an address.
func (n *node) gid(want func(netip.Addr) bool) int {
	n.t.Helper()
	for i, g := range n.port.GIDs {
		if want(netip.MustParseAddr(g)) {
			return i
		}
	}
	n.t.Fatalf("%s: no such address among %v", n.name, n.port.GIDs)
	return -1
}

func is4(a netip.Addr) bool         { return a.Unmap().Is4() }
func isULA(a netip.Addr) bool       { return a.Is6() && a.IsPrivate() }
func isLinkLocal(a netip.Addr) bool { return a.Is6() && a.IsLinkLocalUnicast() }

// conn is a pair of queue pairs.
type conn struct {
	a, b   *node
	ea, eb Endpoint
	typ    ib.QPType
}

// ackTimeout is 268 ms: with seven retries nobody gives up on a peer that a busy machine does not let run for a second.
const ackTimeout = 16

// connArgs describes a connection.
type connArgs struct {
	typ     ib.QPType
	addr    func(netip.Addr) bool
	mtu     int // 0: what the ports can
	size    int
	timeout uint8 // 0: ackTimeout
}

func mtuOf(bytes int) ib.MTU {
	for m := ib.MTU256; m <= ib.MTU4096; m++ {
		if m.Bytes() == bytes {
			return m
		}
	}
	return 0
}

// newConn makes queue pairs; connect joins them.
func newConn(a, b *node, args connArgs) *conn {
	a.t.Helper()
	c := &conn{a: a, b: b, typ: args.typ}
	a.peer, b.peer = b, a
	a.call("NewQP", QPArgs{args.typ, a.gid(args.addr), args.size}, &c.ea)
	b.call("NewQP", QPArgs{args.typ, b.gid(args.addr), args.size}, &c.eb)
	return c
}

func connect(a, b *node, args connArgs) *conn {
	a.t.Helper()
	c := newConn(a, b, args)
	mtu := args.mtu
	if mtu == 0 {
		mtu = min(a.port.ActiveMTU, b.port.ActiveMTU)
	}
	if err := c.join(a, c.ea, c.eb, mtuOf(mtu), args.timeout); err != nil {
		a.t.Fatalf("%s: %v", a.name, err)
	}
	if err := c.join(b, c.eb, c.ea, mtuOf(mtu), args.timeout); err != nil {
		a.t.Fatalf("%s: %v", b.name, err)
	}
	return c
}

func (*conn) join(n *node, self, peer Endpoint, mtu ib.MTU, timeout uint8) error {
	if timeout == 0 {
		timeout = ackTimeout
	}
	var f Failure
	n.call("Connect", ConnectArgs{QP: self.Index, SGID: self.SGID, To: peer, MTU: mtu, RetryCnt: 7, Timeout: timeout}, &f)
	if f.Text != "" {
		return f
	}
	return nil
}

// send does work from one side, which must succeed.
func send(n *node, w WorkArgs) Done {
	n.t.Helper()
	var d Done
	n.call("Send", w, &d)
	if d.Failure.Text != "" {
		n.t.Fatalf("%s: %v of %d x %d bytes: %v; %v; peer %v", n.name, w.Op, w.Count, w.Len, d.Failure,
			nonZero(n.counters()), nonZero(n.peer.counters()))
	}
	return d
}

// checkData fails the test unless the bytes are the pattern of the seed.
func checkData(n *node, d DataArgs, what string) {
	n.t.Helper()
	var wrong int
	n.call("Check", d, &wrong)
	if wrong != 0 {
		n.t.Errorf("%s: %s: %d of %d bytes are wrong", n.name, what, wrong, d.Len)
	}
}

// write writes count pieces of n bytes from a to b and compares.
func (c *conn) write(n, count, depth int, seed uint64) time.Duration {
	c.a.t.Helper()
	all := n * count
	c.a.call("Fill", DataArgs{c.ea.Index, 0, all, seed}, &struct{}{})
	w := WorkArgs{QP: c.ea.Index, Len: n, Count: count, Depth: depth, Op: ib.WRRDMAWrite}
	if c.typ == ib.UC { // only a receive tells that the data are there
		w.Op = ib.WRRDMAWriteWithImm
		c.b.call("PostRecv", WorkArgs{QP: c.eb.Index, Count: count}, &struct{}{})
	}
	d := send(c.a, w)
	if c.typ == ib.UC {
		var got Done
		c.b.call("WaitRecv", WorkArgs{QP: c.eb.Index, Count: count}, &got)
		if got.Failure.Text != "" {
			c.a.t.Fatalf("%s: %v; counters %v", c.b.name, got.Failure, nonZero(c.b.counters()))
		}
	}
	checkData(c.b, DataArgs{c.eb.Index, 0, all, seed}, fmt.Sprintf("WRITE of %d x %d", count, n))
	return d.Took
}

// read has a read count pieces of n bytes of b and compares.
func (c *conn) read(n, count, depth int, seed uint64) time.Duration {
	c.a.t.Helper()
	all := n * count
	c.b.call("Fill", DataArgs{c.eb.Index, 0, all, seed}, &struct{}{})
	d := send(c.a, WorkArgs{QP: c.ea.Index, Len: n, Count: count, Depth: depth, Op: ib.WRRDMARead})
	checkData(c.a, DataArgs{c.ea.Index, 0, all, seed}, fmt.Sprintf("READ of %d x %d", count, n))
	return d.Took
}

// message sends count messages of n bytes from a to b and compares; datagrams come with a network header.
func (c *conn) message(n, count, depth int, seed uint64) {
	t := c.a.t
	t.Helper()
	skip := 0
	if c.typ == ib.UD {
		skip = grhLen
	}
	c.a.call("Fill", DataArgs{c.ea.Index, 0, n * count, seed}, &struct{}{})
	c.b.call("PostRecv", WorkArgs{QP: c.eb.Index, Len: n + skip, Stride: n + skip, Count: count}, &struct{}{})
	send(c.a, WorkArgs{QP: c.ea.Index, Len: n, Count: count, Depth: depth, Op: ib.WRSendWithImm, Imm: 0xABCD0000 | uint32(n)})
	var d Done
	c.b.call("WaitRecv", WorkArgs{QP: c.eb.Index, Count: count}, &d)
	if d.Failure.Text != "" {
		t.Fatalf("%s: %v; counters %v", c.b.name, d.Failure, c.b.counters())
	}
	want := make([]byte, n*count)
	pattern(want, seed)
	for i, wc := range d.WCs {
		if wc.Status != ib.WCSuccess || int(wc.ByteLen) != n+skip || wc.ImmData != 0xABCD0000|uint32(n) ||
			skip > 0 && wc.SrcQP != c.ea.Num {
			t.Fatalf("%s: receive %d of %d bytes: %+v", c.b.name, i, n, wc)
		}
		var got []byte
		c.b.call("Bytes", DataArgs{QP: c.eb.Index, Off: int(wc.WRID) * (n + skip), Len: n + skip}, &got)
		if !bytes.Equal(got[skip:], want[i*n:(i+1)*n]) {
			t.Errorf("%s: message %d of %d bytes: content differs", c.b.name, i, n)
		}
		if skip > 0 {
			src, dst, _, _, _, ok := roce.ParseGRH(got)
			if !ok || src != c.ea.GID.Addr().Unmap() || dst != c.eb.GID.Addr().Unmap() {
				t.Errorf("%s: the network header of datagram %d shows %v -> %v", c.b.name, i, src, dst)
			}
		}
	}
}

// bindPlain binds an ordinary socket to the port.
func bindPlain(addr string) error {
	_, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(addr), roce.Port)))
	return err
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// ordinary is the uid of nobody.
const ordinary = 65534
