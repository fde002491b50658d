package cmapp

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/cli"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/rdmacm"
	"github.com/verbena-rdma/verbena/verbs"
)

const (
	// grhLen is the room for the GRH before a received datagram.
	grhLen = 40
	// silence is how long a program waits for a completion.
	silence = 30 * time.Second
	// filler is what messages are full of; nobody looks at it.
	filler = 0x7b
)

// Messages says what goes over each connection.
type Messages struct {
	Count     int
	Size      int
	Datagrams bool
	// NoLoopback keeps what is sent to a group from its sender.
	NoLoopback bool
	// Patient receivers wait for their first message as long as it takes.
	Patient bool
}

// Check checks the options -C and -S, and makes sizes of 0 no messages.
func (m *Messages) Check() error {
	if err := CheckRanges(
		Range{"-C/--count", m.Count, 0, 0},
		Range{"-S/--size", m.Size, 0, ib.MaxMsgSize},
	); err != nil {
		return err
	}
	if m.Size == 0 {
		m.Count = 0
	}
	return nil
}

// Node is one connection: an ID with what it needs.
type Node struct {
	ID        *rdmacm.ID
	Connected bool

	// Where datagrams go.
	AH   *verbs.AH
	QPN  ib.QPN
	QKey ib.QKey

	msgs Messages
	pd   *verbs.PD
	send *verbs.CQ
	recv *verbs.CQ
	mr   *verbs.MR
	buf  []byte // of datagrams a slot for the first, whose header Reply reads while others arrive; then one for all others and what is sent
	slot int
}

// CheckMTU refuses datagrams that are too large for the device.
func (n *Node) CheckMTU(program string, m *Messages) error {
	port, err := n.ID.Verbs().QueryPort(n.ID.PortNum())
	if err != nil {
		return err
	}
	if active := port.ActiveMTU.Bytes(); m.Count > 0 && m.Size > active {
		return cli.Hint(fmt.Errorf("%s: message_size %d is larger than active mtu %d: %w", program, m.Size, active, syscall.EINVAL),
			"A datagram is one packet. Choose -S %d or less", active)
	}
	return nil
}

// Setup makes domain, completion queues, queue pair and message buffer.
func (n *Node) Setup(m Messages) error {
	n.msgs = m
	dev := n.ID.Verbs()
	var err error
	if n.pd, err = dev.AllocPD(); err != nil {
		return err
	}
	depth := max(m.Count, 1)
	attr := verbs.QPInitAttr{
		Type: ib.RC, SQSigAll: true,
		Cap: ib.QPCap{MaxSendWR: uint32(depth), MaxRecvWR: uint32(depth), MaxSendSGE: 1, MaxRecvSGE: 1},
	}
	head := 0
	if m.Datagrams {
		attr.Type, attr.SQSigAll, attr.BlockSelfMcastLB = ib.UD, false, m.NoLoopback
		head = grhLen
	}
	if n.send, err = dev.CreateCQ(depth, nil, nil); err != nil {
		return n.tooMany(err)
	}
	if n.recv, err = dev.CreateCQ(depth, nil, nil); err != nil {
		return n.tooMany(err)
	}
	attr.SendCQ, attr.RecvCQ = n.send, n.recv
	if err := n.ID.CreateQP(n.pd, &attr); err != nil {
		return n.tooMany(err)
	}
	if m.Count == 0 {
		return nil
	}
	n.slot = head + m.Size
	slots := 1
	if m.Datagrams {
		slots = 2
	}
	n.buf = make([]byte, slots*n.slot)
	for i := range n.buf {
		n.buf[i] = filler
	}
	n.mr, err = n.pd.RegMR(n.buf, ib.AccessLocalWrite)
	return err
}

// tooMany explains the failure to make queues.
func (n *Node) tooMany(err error) error {
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOMEM) {
		return cli.Hint(err, "All messages of a connection are posted at once. Choose a smaller -C than %d, or a smaller -c", n.msgs.Count)
	}
	return err
}

// PostRecvs posts the receives of all messages.
func (n *Node) PostRecvs() error {
	if n.msgs.Count == 0 {
		return nil
	}
	wr := verbs.RecvWR{SGList: []verbs.SGE{n.mr.SGE(0, n.slot)}}
	for range n.msgs.Count {
		if err := n.ID.QP().PostRecvOne(&wr); err != nil {
			return fmt.Errorf("failed to post receives: %w", err)
		}
		wr.SGList[0] = n.mr.SGE(len(n.buf)-n.slot, n.slot)
	}
	return nil
}

// PostSends posts all messages.
func (n *Node) PostSends() error {
	if n.msgs.Count == 0 || !n.Connected {
		return nil
	}
	wr := verbs.SendWR{
		Opcode: ib.WRSend, Flags: ib.SendSignaled,
		SGList: []verbs.SGE{n.mr.SGE(len(n.buf)-n.msgs.Size, n.msgs.Size)},
	}
	if n.msgs.Datagrams {
		// The peer learns from the immediate data whom to answer.
		wr.Opcode, wr.ImmData = ib.WRSendWithImm, uint32(n.ID.QP().Num())
		wr.AH, wr.RemoteQPN, wr.RemoteQKey = n.AH, n.QPN, n.QKey
	}
	for range n.msgs.Count {
		if err := n.ID.QP().PostSendOne(&wr); err != nil {
			return fmt.Errorf("failed to post sends: %w", err)
		}
	}
	return nil
}

// WaitSends waits for the completions of all sends.
func (n *Node) WaitSends(ctx context.Context) error { return n.wait(ctx, n.send, nil) }

// WaitRecvs waits for the completions of all receives. first, which may be nil, is called
// with the first one.
func (n *Node) WaitRecvs(ctx context.Context, first func(*verbs.WC) error) error {
	return n.wait(ctx, n.recv, first)
}

func (n *Node) wait(ctx context.Context, cq *verbs.CQ, first func(*verbs.WC) error) error {
	if !n.Connected {
		return nil
	}
	var wcs [8]verbs.WC
	for done := 0; done < n.msgs.Count; {
		k, err := cq.Poll(wcs[:])
		if err != nil {
			return fmt.Errorf("failed polling CQ: %w", err)
		}
		for i := range wcs[:k] {
			if err := wcs[i].Err(); err != nil {
				return explainWC(&wcs[i], err)
			}
			if first != nil {
				if err := first(&wcs[i]); err != nil {
					return err
				}
				first = nil
			}
		}
		if done += k; k > 0 {
			continue
		}
		if err := n.sleep(ctx, cq, done); err != nil {
			return err
		}
	}
	return nil
}

func (n *Node) sleep(ctx context.Context, cq *verbs.CQ, done int) error {
	wait := ctx
	if !n.msgs.Patient || done > 0 {
		var cancel context.CancelFunc
		wait, cancel = context.WithTimeout(ctx, silence)
		defer cancel()
	}
	err := cq.Wait(wait)
	if err == nil || wait.Err() == nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	err = fmt.Errorf("no completion for %v: %d of %d messages: %w", silence, done, n.msgs.Count, syscall.ETIMEDOUT)
	if n.msgs.Datagrams {
		return cli.Hint(err, "A datagram was lost, which nobody repairs, or the other side sends fewer: give the same -C on both sides")
	}
	return cli.Hint(err, "The peer ended, or it sends fewer: give the same -C on both sides")
}

// ErrEnded tells that a connection ended before all messages were there.
var ErrEnded = cli.Hint(errors.New("the peer has disconnected before all messages were there"),
	"It may tell why. Give the same -c, -C and -S on both sides")

func explainWC(wc *verbs.WC, err error) error {
	switch wc.Status {
	case ib.WCWRFlushErr: // by the answer to the peer's disconnect
		return ErrEnded
	case ib.WCRetryExcErr:
		return cli.Hint(err, "The peer does not answer: it ended, or UDP port 4791 is not open both ways")
	case ib.WCRNRRetryExcErr:
		return cli.Hint(err, "The peer expects fewer messages: give the same -C on both sides")
	case ib.WCLocLenErr, ib.WCRemInvReqErr:
		return cli.Hint(err, "A message did not fit: give the same -S on both sides")
	}
	return err
}

// Reply makes the address handle that answers a received datagram.
func (n *Node) Reply(wc *verbs.WC) error {
	attr, _, err := n.ID.QP().Query()
	if err != nil {
		return err
	}
	if n.AH, err = n.pd.CreateAHFromWC(wc, n.buf[:grhLen], n.ID.PortNum()); err != nil {
		return fmt.Errorf("failed to create reply AH: %w", err)
	}
	n.QPN, n.QKey = ib.QPN(wc.ImmData), attr.QKey
	return nil
}

// Reach makes the address handle that an event tells of.
func (n *Node) Reach(p *rdmacm.UDParam) error {
	var err error
	if n.AH, err = n.pd.CreateAH(&p.AHAttr); err != nil {
		return fmt.Errorf("failure creating address handle: %w", err)
	}
	n.QPN, n.QKey = p.QPNum, p.QKey
	return nil
}

// Destroy gives all back, the ID last.
func (n *Node) Destroy(ctx context.Context) error {
	if n.ID == nil {
		return nil
	}
	var errs []error
	if n.AH != nil {
		errs = append(errs, n.AH.Destroy())
	}
	errs = append(errs, n.ID.DestroyQP(ctx))
	if n.send != nil {
		errs = append(errs, n.send.Destroy())
	}
	if n.recv != nil {
		errs = append(errs, n.recv.Destroy())
	}
	if n.mr != nil {
		errs = append(errs, n.mr.Dereg())
	}
	if n.pd != nil {
		errs = append(errs, n.pd.Dealloc())
	}
	errs = append(errs, n.ID.Destroy(ctx))
	n.ID = nil
	return errors.Join(errs...)
}
