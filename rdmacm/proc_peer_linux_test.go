package rdmacm_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/rdmacm"
	"github.com/verbena-rdma/verbena/verbs"
)

// peerEnv makes the test binary a program that does what its standard input says.
const peerEnv = "VERBENA_RDMACM_PEER"

// unsteeredEnv has it do without the kernel's steering.
const unsteeredEnv = "VERBENA_RDMACM_UNSTEERED"

func TestMain(m *testing.M) {
	if what := os.Getenv(peerEnv); what != "" {
		os.Exit(peerMain(what))
	}
	os.Exit(m.Run())
}

// peerProgram is a process of a test. Each line that it reads is a call, which it answers by
// a line "= result"; what happens is told by lines "! name what".
type peerProgram struct {
	ctx context.Context
	m   *rdmacm.Manager
	ch  *rdmacm.EventChannel
	out sync.Mutex

	mu      sync.Mutex
	byName  map[string]*peerID
	names   map[*rdmacm.ID]*peerID
	busy    sync.WaitGroup
	closers []func() error
}

type peerID struct {
	name string
	id   *rdmacm.ID
	buf  []byte
	mr   *verbs.MR
	made int  // requests to a listener
	hold bool // a listener whose requests are accepted by a call
}

const (
	peerMsg   = 64
	peerRecvs = 8
)

// peerParams are those of all connections: of short timers, 8 tries of at least 67 ms.
func peerParams() *rdmacm.ConnParam {
	return &rdmacm.ConnParam{ResponderResources: 1, InitiatorDepth: 1, RetryCount: 7, RNRRetryCount: 7}
}

func peerMain(what string) int {
	ctx, cancel := context.WithTimeout(context.Background(), 5*cmPatience)
	defer cancel()
	var opts []soft.Option
	if name, addrs, ok := strings.Cut(what, "="); ok {
		var list []netip.Addr
		for a := range strings.SplitSeq(addrs, "+") {
			list = append(list, netip.MustParseAddr(a))
		}
		opts = append(opts, soft.WithAddrs(name, list...))
	}
	if os.Getenv(unsteeredEnv) != "" {
		opts = append(opts, soft.WithoutSteering())
	}
	p := &peerProgram{ctx: ctx, byName: map[string]*peerID{}, names: map[*rdmacm.ID]*peerID{}}
	p.m = rdmacm.NewManager(rdmacm.WithProviders(soft.NewProvider(opts...)))
	var err error
	if p.ch, err = p.m.NewEventChannel(); err != nil {
		fmt.Println("=", err)
		return 1
	}
	if _, err := p.m.Devices(ctx); err != nil {
		fmt.Println("=", err)
		return 1
	}
	done := make(chan struct{})
	events, stop := context.WithCancel(ctx)
	go func() {
		defer close(done)
		p.events(events)
	}()
	p.say("= ready %d", os.Getpid())
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		f := strings.Fields(in.Text())
		if len(f) == 0 {
			continue
		}
		if f[0] == "exit" {
			os.Exit(0) // without a word to anybody
		}
		result, err := p.call(f)
		if err != nil {
			var errno syscall.Errno
			errors.As(err, &errno)
			p.say("= error %d %v", int(errno), err)
			continue
		}
		p.say("= %s", result)
	}
	// The end of the input is the proper end.
	p.mu.Lock()
	var ids []*peerID
	for _, n := range p.byName {
		ids = append(ids, n)
	}
	p.mu.Unlock()
	for _, n := range ids {
		p.destroy(n)
	}
	stop()
	<-done
	for _, c := range p.closers {
		if err := c(); err != nil {
			p.say("! - %v", err)
		}
	}
	p.busy.Wait()
	if err := errors.Join(p.ch.Close(), p.m.Close()); err != nil {
		p.say("! - %v", err)
		return 1
	}
	return 0
}

func (p *peerProgram) say(format string, args ...any) {
	p.out.Lock()
	defer p.out.Unlock()
	fmt.Printf(format+"\n", args...)
}

func (p *peerProgram) find(name string) (*peerID, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.byName[name]; n != nil {
		return n, nil
	}
	return nil, fmt.Errorf("no ID %s: %w", name, syscall.ENOENT)
}

func (p *peerProgram) add(name string, id *rdmacm.ID) *peerID {
	n := &peerID{name: name, id: id}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.byName[name], p.names[id] = n, n
	return n
}

// call does a call: id NAME SPACE, bind NAME ADDR:PORT [reuse] [only], listen NAME BACKLOG,
// hold NAME, accept NAME, serve NAME ADDR:PORT, flood NAME ADDR:PORT COUNT WORKERS keep|drop, resolve NAME ADDR:PORT [SRC:PORT], send NAME TEXT, state NAME, disconnect NAME, destroy NAME.
func (p *peerProgram) call(f []string) (string, error) {
	if f[0] == "id" {
		ps := map[string]rdmacm.PortSpace{"tcp": rdmacm.PSTCP, "udp": rdmacm.PSUDP, "ib": rdmacm.PSIB}[f[2]]
		id, err := p.m.NewID(p.ch, ps, nil)
		if err != nil {
			return "", err
		}
		p.add(f[1], id)
		return "ok", nil
	}
	switch f[0] {
	case "serve":
		return p.serve(f[1], netip.MustParseAddrPort(f[2]))
	case "flood":
		return p.flood(netip.MustParseAddrPort(f[2]), f[3:])
	}
	n, err := p.find(f[1])
	if err != nil {
		return "", err
	}
	id := n.id
	switch f[0] {
	case "bind":
		for _, o := range f[3:] {
			switch o {
			case "reuse":
				err = id.SetReuseAddr(true)
			case "only":
				err = id.SetAFOnly(true)
			}
			if err != nil {
				return "", err
			}
		}
		err = id.Bind(netip.MustParseAddrPort(f[2]))
		return id.LocalAddr().String(), err
	case "listen":
		backlog, _ := strconv.Atoi(f[2])
		return "ok", id.Listen(backlog)
	case "hold":
		p.mu.Lock()
		n.hold = true
		p.mu.Unlock()
		return "ok", nil
	case "accept":
		if err := p.setup(n); err != nil {
			return "", err
		}
		return "ok", id.Accept(p.ctx, peerParams())
	case "resolve":
		var src netip.AddrPort
		if len(f) > 3 {
			src = netip.MustParseAddrPort(f[3])
		}
		return "ok", id.ResolveAddr(p.ctx, src, netip.MustParseAddrPort(f[2]), 0)
	case "send":
		copy(n.buf, append([]byte(f[2]), 0))
		if err := id.PostSend(1, n.buf[:peerMsg], n.mr, ib.SendSignaled); err != nil {
			return "", err
		}
		wc, err := id.GetSendComp(p.ctx)
		return wc.Status.String(), err
	case "state":
		return id.QP().State().String(), nil
	case "disconnect":
		return "ok", id.Disconnect(p.ctx)
	case "destroy":
		p.destroy(n)
		return "ok", nil
	}
	return "", syscall.EINVAL
}

// destroy gives back an ID with what belongs to it.
func (p *peerProgram) destroy(n *peerID) {
	p.mu.Lock()
	_, there := p.names[n.id]
	delete(p.names, n.id)
	delete(p.byName, n.name)
	p.mu.Unlock()
	if !there {
		return
	}
	if err := n.id.DestroyEP(p.ctx); err != nil {
		p.say("! %s destroy: %v", n.name, err)
	}
	if n.mr != nil {
		if err := n.mr.Dereg(); err != nil {
			p.say("! %s dereg: %v", n.name, err)
		}
	}
}

// setup makes the queue pair of a connection.
func (p *peerProgram) setup(n *peerID) error {
	if err := n.id.CreateQP(nil, &verbs.QPInitAttr{Cap: ib.QPCap{MaxSendWR: 4, MaxRecvWR: peerRecvs, MaxSendSGE: 1, MaxRecvSGE: 1}}); err != nil {
		return err
	}
	n.buf = make([]byte, peerMsg*(1+peerRecvs))
	var err error
	if n.mr, err = n.id.PD().RegMR(n.buf, ib.AccessLocalWrite); err != nil {
		return err
	}
	for i := range peerRecvs {
		if err := n.id.PostRecv(uint64(i), n.slot(i), n.mr); err != nil {
			return err
		}
	}
	return nil
}

func (n *peerID) slot(i int) []byte { return n.buf[peerMsg*(1+i):][:peerMsg] }

// receive tells of messages until the queue pair is gone.
func (p *peerProgram) receive(n *peerID) {
	defer p.busy.Done()
	for {
		wc, err := n.id.GetRecvComp(p.ctx)
		if err != nil || wc.Status != ib.WCSuccess {
			return
		}
		b := n.slot(int(wc.WRID))
		text, _, _ := strings.Cut(string(b), "\x00")
		p.say("! %s RECV %s", n.name, text)
		if err := n.id.PostRecv(wc.WRID, b, n.mr); err != nil {
			return
		}
	}
}

func (p *peerProgram) events(ctx context.Context) {
	for {
		e, err := p.ch.Get(ctx)
		if err != nil {
			return
		}
		id := e.ID
		p.mu.Lock()
		n := p.names[id]
		hold := false
		if e.Type == rdmacm.EventConnectRequest {
			if l := p.names[e.ListenID]; l != nil {
				l.made++
				hold = l.hold
				name := fmt.Sprintf("%s.%d", l.name, l.made)
				p.mu.Unlock()
				n = p.add(name, id)
				p.mu.Lock()
			}
		}
		p.mu.Unlock()
		t, status, err := e.Type, e.Status, e.Ack()
		if n == nil {
			continue
		}
		if err == nil && !hold {
			err = p.event(n, t)
		}
		if t == rdmacm.EventAddrResolved || t == rdmacm.EventRouteResolved {
			if err == nil {
				continue
			}
		}
		p.say("! %s %s %d %v %v", n.name, strings.TrimPrefix(t.String(), "RDMA_CM_EVENT_"), status, err, id.PeerAddr())
		switch t {
		case rdmacm.EventDisconnected, rdmacm.EventRejected, rdmacm.EventUnreachable, rdmacm.EventAddrError:
			p.destroy(n)
		}
	}
}

// event does what an event asks for.
func (p *peerProgram) event(n *peerID, t rdmacm.EventType) error {
	switch t {
	case rdmacm.EventAddrResolved:
		return n.id.ResolveRoute(p.ctx, 0)
	case rdmacm.EventRouteResolved:
		if err := p.setup(n); err != nil {
			return err
		}
		return n.id.Connect(p.ctx, peerParams())
	case rdmacm.EventConnectRequest:
		if err := p.setup(n); err != nil {
			return err
		}
		return n.id.Accept(p.ctx, peerParams())
	case rdmacm.EventEstablished:
		if n.id.PortSpace() == rdmacm.PSTCP {
			p.busy.Add(1)
			go p.receive(n)
		}
	case rdmacm.EventDisconnected:
		return n.id.Disconnect(p.ctx)
	}
	return nil
}
