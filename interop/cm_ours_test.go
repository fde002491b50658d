//go:build interop && linux

package interop

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	ossignal "os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/rdmacm"
	"github.com/verbena-rdma/verbena/verbs"
)

// cmEnv makes the test binary a program of the connection manager, with the arguments of cmpeer.c or of one of librdmacm's examples.
const cmEnv = "VERBENA_INTEROP_CM"

const (
	cmReceives = 64
	cmSize     = 64
	cmResolve  = 5 * time.Second
	// cmSlow is longer than a REQ waits for its answer, 4.6 s or, from a kernel of that age, 6.1 s.
	cmSlow = 7 * time.Second
)

// Kinds of messages, whose private data differs.
const (
	ofConnect = 1
	ofAccept  = 2
	ofReject  = 3
)

// content is the private data of a kind of message.
func content(kind, length int) []byte {
	b := make([]byte, length)
	for i := range b {
		b[i] = byte(i*7 + kind)
	}
	return b
}

// cmPeer is what cmpeer.c has in its variables.
type cmPeer struct {
	ctx context.Context
	dev *verbs.Context
	m   *rdmacm.Manager
	ch  *rdmacm.EventChannel
	ps  rdmacm.PortSpace
	// addr is the server's.
	addr netip.AddrPort
}

// runCM is the program. Its exit codes are cmpeer's.
func runCM(netdev string, args []string) int {
	ctx, cancel := context.WithTimeout(context.Background(), runTimeout)
	defer cancel()
	p := &cmPeer{ctx: ctx, ps: rdmacm.PSTCP}
	err := p.run(netdev, args)
	if err != nil {
		var errno syscall.Errno
		errors.As(err, &errno)
		fmt.Printf("FAILED %v errno=%d\n", err, int(errno))
		return 1
	}
	fmt.Println("DONE")
	return 0
}

func (p *cmPeer) run(netdev string, args []string) (err error) {
	addr, err := netip.ParseAddr(args[1])
	if err != nil {
		return err
	}
	port, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	p.addr = netip.AddrPortFrom(addr, uint16(port))
	if len(args) > 3 && args[3] == "udp" {
		p.ps = rdmacm.PSUDP
	}
	if p.dev, err = rdma.Open(p.ctx, netdev); err != nil {
		return err
	}
	p.m = rdmacm.NewManager(rdmacm.WithContexts(p.dev))
	if p.ch, err = p.m.NewEventChannel(); err != nil {
		return err
	}
	switch args[0] {
	case "serve":
		err = p.serve(args[4])
	case "ask":
		err = p.ask(args[4])
	case "storm":
		err = p.storm()
	case "pulse":
		timeout, _ := strconv.Atoi(args[3])
		retries, _ := strconv.Atoi(args[4])
		err = p.pulse(uint8(timeout), uint8(retries))
	case "rdma_server", "rdma_client", "rdma_xserver", "rdma_xclient":
		err = p.example(args[0])
	default:
		err = syscall.EINVAL
	}
	if err != nil {
		return err
	}
	return errors.Join(p.ch.Close(), p.m.Close(), p.dev.Close())
}

func (p *cmPeer) datagrams() bool { return p.ps == rdmacm.PSUDP }

// tell writes an event as cmpeer.c does.
func (p *cmPeer) tell(e *rdmacm.Event) {
	var b strings.Builder
	fmt.Fprintf(&b, "%v status=%d", e.Type, e.Status)
	switch {
	case p.datagrams() && (e.Type == rdmacm.EventConnectRequest || e.Type == rdmacm.EventEstablished || e.Type == rdmacm.EventUnreachable):
		u := &e.UD
		fmt.Fprintf(&b, " len=%d data=%s", len(u.PrivateData), hex.EncodeToString(u.PrivateData))
		if e.Type == rdmacm.EventEstablished {
			fmt.Fprintf(&b, " qkey=%#x", uint32(u.QKey))
		}
	case !p.datagrams():
		c := &e.Conn
		fmt.Fprintf(&b, " len=%d data=%s rr=%d id=%d fc=%d retry=%d rnr=%d srq=%d", len(c.PrivateData), hex.EncodeToString(c.PrivateData),
			c.ResponderResources, c.InitiatorDepth, flag01(c.FlowControl), c.RetryCount, c.RNRRetryCount, flag01(c.SRQ))
	}
	fmt.Println(b.String())
}

func flag01(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (p *cmPeer) get(quiet bool) (*rdmacm.ID, rdmacm.EventType, error) {
	e, err := p.ch.Get(p.ctx)
	if err != nil {
		return nil, 0, err
	}
	id, t := e.ID, e.Type
	if !quiet || t != rdmacm.EventAddrResolved && t != rdmacm.EventRouteResolved {
		p.tell(e)
	}
	return id, t, e.Ack()
}

// want is get for the only event that may come.
func (p *cmPeer) want(want rdmacm.EventType) error {
	_, t, err := p.get(true)
	if err == nil && t != want {
		err = fmt.Errorf("%v, want %v", t, want)
	}
	return err
}

type cmMemory struct {
	mr  *verbs.MR
	buf []byte
}

func (p *cmPeer) makeQP(id *rdmacm.ID, receives int) error {
	a := verbs.QPInitAttr{
		Type: ib.RC, SQSigAll: true,
		Cap: ib.QPCap{MaxSendWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1, MaxRecvWR: uint32(max(receives, 1))},
	}
	if p.datagrams() {
		a.Type = ib.UD
	}
	if err := id.CreateQP(nil, &a); err != nil {
		return err
	}
	m := &cmMemory{buf: make([]byte, cmSize)}
	var err error
	if m.mr, err = id.PD().RegMR(m.buf, ib.AccessLocalWrite); err != nil {
		return err
	}
	id.SetUserContext(m)
	for range receives {
		if err := id.PostRecv(0, m.buf, m.mr); err != nil {
			return err
		}
	}
	return nil
}

func (p *cmPeer) drop(id *rdmacm.ID) error {
	var errs []error
	if id.QP() != nil {
		errs = append(errs, id.DestroyQP(p.ctx), id.UserContext().(*cmMemory).mr.Dereg())
	}
	return errors.Join(append(errs, id.Destroy(p.ctx))...)
}

func cmParams(kind, length int) *rdmacm.ConnParam {
	c := &rdmacm.ConnParam{
		PrivateData: content(kind, length), ResponderResources: 3, InitiatorDepth: 5, FlowControl: true, RetryCount: 6, RNRRetryCount: 5,
	}
	if kind == ofAccept {
		c.ResponderResources, c.InitiatorDepth, c.FlowControl, c.RNRRetryCount = 4, 2, false, 3
	}
	return c
}

func (p *cmPeer) resolved(timeout uint8) (*rdmacm.ID, error) {
	id, err := p.m.NewID(p.ch, p.ps, nil)
	if err != nil {
		return nil, err
	}
	if err := id.ResolveAddr(p.ctx, netip.AddrPort{}, p.addr, cmResolve); err != nil {
		return nil, err
	}
	if err := p.want(rdmacm.EventAddrResolved); err != nil {
		return nil, err
	}
	if timeout > 0 {
		if err := id.SetAckTimeout(timeout); err != nil {
			return nil, err
		}
	}
	if err := id.ResolveRoute(p.ctx, cmResolve); err != nil {
		return nil, err
	}
	if err := p.want(rdmacm.EventRouteResolved); err != nil {
		return nil, err
	}
	return id, p.makeQP(id, 0)
}

// cmRefused writes the errno of a call that must fail in a test.
func cmRefused(call string, err error) {
	var errno syscall.Errno
	errors.As(err, &errno)
	fmt.Printf("%s errno=%d\n", call, int(errno))
}

func (p *cmPeer) ask(plan string) error {
	for word := range strings.SplitSeq(plan, ",") {
		length, err := strconv.Atoi(word)
		if err != nil {
			return err
		}
		id, err := p.resolved(0)
		if err != nil {
			return err
		}
		if err := id.Connect(p.ctx, cmParams(ofConnect, length)); err != nil {
			cmRefused("CONNECT", err)
		} else if _, t, err := p.get(true); err != nil {
			return err
		} else if t == rdmacm.EventEstablished && !p.datagrams() {
			if err := id.Disconnect(p.ctx); err != nil {
				return err
			}
			if _, _, err := p.get(true); err != nil {
				return err
			}
		}
		if err := p.drop(id); err != nil {
			return err
		}
	}
	return nil
}

func (p *cmPeer) answer(id *rdmacm.ID, word string) error {
	what, number, _ := strings.Cut(word, ":")
	length, err := strconv.Atoi(number)
	if err != nil {
		return err
	}
	if what == "reject" {
		if err := id.Reject(content(ofReject, length)); err != nil {
			cmRefused("REJECT", err)
			if err := id.Reject(nil); err != nil {
				return err
			}
		}
		return p.drop(id)
	}
	if what == "slow" {
		time.Sleep(cmSlow)
	}
	if err := p.makeQP(id, 1); err != nil {
		return err
	}
	c := cmParams(ofAccept, length)
	c.QPNum = id.QP().Num()
	if err := id.Accept(p.ctx, c); err != nil {
		cmRefused("ACCEPT", err)
		if err := id.Reject(nil); err != nil { // the kernel does that itself, here the request could still be accepted
			return err
		}
	} else if !p.datagrams() {
		for {
			_, t, err := p.get(false)
			if err != nil {
				return err
			}
			if t != rdmacm.EventEstablished {
				break
			}
		}
		_ = id.Disconnect(p.ctx) // fails if the connection was never made
	}
	return p.drop(id)
}

func (p *cmPeer) hold() error {
	for {
		id, t, err := p.get(false)
		if err != nil {
			return err
		}
		switch t {
		case rdmacm.EventConnectRequest:
			if err := p.makeQP(id, cmReceives); err != nil {
				return err
			}
			if err := id.Accept(p.ctx, cmParams(ofAccept, 0)); err != nil {
				cmRefused("ACCEPT", err) // the peer has gone
				if err := p.drop(id); err != nil {
					return err
				}
			}
			continue
		case rdmacm.EventEstablished, rdmacm.EventTimewaitExit:
			continue
		case rdmacm.EventDisconnected:
			_ = id.Disconnect(p.ctx)
		}
		if err := p.drop(id); err != nil {
			return err
		}
	}
}

func (p *cmPeer) serve(plan string) error {
	listener, err := p.m.NewID(p.ch, p.ps, nil)
	if err != nil {
		return err
	}
	if err := errors.Join(listener.Bind(p.addr), listener.Listen(64)); err != nil {
		return err
	}
	if plan == "hold" {
		return p.hold()
	}
	for word := range strings.SplitSeq(plan, ",") {
		id, t, err := p.get(false)
		if err == nil && t != rdmacm.EventConnectRequest {
			err = fmt.Errorf("%v", t)
		}
		if err != nil {
			return err
		}
		if err := p.answer(id, word); err != nil {
			return err
		}
	}
	return listener.Destroy(p.ctx)
}

func (p *cmPeer) connected(timeout, retries uint8) (*rdmacm.ID, error) {
	id, err := p.resolved(timeout)
	if err != nil {
		return nil, err
	}
	c := cmParams(ofConnect, 0)
	c.RetryCount = retries
	if err := id.Connect(p.ctx, c); err != nil {
		return nil, err
	}
	if _, t, err := p.get(true); err != nil {
		return nil, err
	} else if t != rdmacm.EventEstablished {
		os.Exit(3)
	}
	return id, nil
}

// sendOne sends a message and waits for its completion.
func (p *cmPeer) sendOne(id *rdmacm.ID) (ib.WCStatus, error) {
	m := id.UserContext().(*cmMemory)
	if err := id.PostSend(0, m.buf, m.mr, ib.SendSignaled); err != nil {
		return 0, err
	}
	wc, err := id.GetSendComp(p.ctx)
	return wc.Status, err
}

func (p *cmPeer) storm() error {
	for {
		id, err := p.connected(0, 7)
		if err != nil {
			return err
		}
		status, err := p.sendOne(id)
		if err != nil {
			return err
		}
		fmt.Println("WC", int(status))
		_ = id.Disconnect(p.ctx)
		if _, _, err := p.get(true); err != nil {
			return err
		}
		if err := p.drop(id); err != nil {
			return err
		}
	}
}

// pulse sends over one of two connections, again whenever the test says so by SIGUSR1 or something happens to a connection, until a
// send fails; then it tells how the other one is, which was not used.
func (p *cmPeer) pulse(timeout, retries uint8) error {
	again := make(chan os.Signal, 1)
	ossignal.Notify(again, syscall.SIGUSR1)
	defer ossignal.Stop(again)
	busy, err := p.connected(timeout, retries)
	if err != nil {
		return err
	}
	idle, err := p.connected(timeout, retries)
	if err != nil {
		return err
	}
	events := 0
	for {
		begin := time.Now()
		status, err := p.sendOne(busy)
		if err != nil {
			return err
		}
		word := "SENT"
		if status != ib.WCSuccess {
			word = "END"
		}
		fmt.Printf("%s WC %d after %d ms\n", word, int(status), time.Since(begin).Milliseconds())
		if status != ib.WCSuccess {
			break
		}
		select {
		case <-again:
		case <-p.ch.Ready():
			if _, err := p.ch.Poll(); err == nil {
				events++
			}
		case <-p.ctx.Done():
			return p.ctx.Err()
		}
	}
	if _, err := p.ch.Poll(); err == nil {
		events++
	}
	attr, _, err := idle.QP().Query()
	if err != nil {
		return err
	}
	fmt.Printf("IDLE events=%d state=%d\n", events, int(attr.QPState))
	os.Exit(0) // as a program that ends without a word to the peer
	return nil
}
