package simtest

import (
	"fmt"
	"strings"

	"github.com/verbena-rdma/verbena/port/simnet"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// trace remembers the last packets and notes.
type trace struct {
	lines []string
	next  int
}

func newTrace(n *simnet.Net) *trace {
	t := &trace{lines: make([]string, max(*flagTrace, 1))}
	n.Sniff(func(e *simnet.Event) { t.add(describe(e)) })
	return t
}

func (t *trace) add(l string) {
	t.lines[t.next%len(t.lines)] = l
	t.next++
}

func (t *trace) note(format string, args ...any) { t.add(fmt.Sprintf(format, args...)) }

// String gives the lines, oldest first.
func (t *trace) String() string {
	var b strings.Builder
	for i := max(0, t.next-len(t.lines)); i < t.next; i++ {
		b.WriteString(t.lines[i%len(t.lines)])
		b.WriteByte('\n')
	}
	return b.String()
}

// describe prints a packet in one line.
func describe(e *simnet.Event) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d ns: %v -> %v ", e.Now, e.Src.Addr(), e.Dst)
	if e.Err != nil {
		fmt.Fprintf(&b, "%v %x", e.Err, e.B[:min(len(e.B), 32)])
		return b.String()
	}
	fmt.Fprintf(&b, "%v qp %#x psn %#x", e.Op, e.BTH.DestQP(), uint32(e.BTH.PSN()))
	if e.BTH.AckReq() {
		b.WriteString(" ackreq")
	}
	if h := e.RETH(); h != nil {
		fmt.Fprintf(&b, " va %#x rkey %#x len %d", h.VA(), h.RKey(), h.DMALen())
	}
	if h := e.AtomicETH(); h != nil {
		fmt.Fprintf(&b, " va %#x rkey %#x swap/add %#x cmp %#x", h.VA(), h.RKey(), h.SwapAdd(), h.Compare())
	}
	if h := e.AETH(); h != nil {
		fmt.Fprintf(&b, " %v msn %d", h.Syndrome(), h.MSN())
		if h.Syndrome().IsRNRNAK() {
			fmt.Fprintf(&b, " timer %d", h.Syndrome().RNRTimer())
		}
	}
	if h := e.DETH(); h != nil {
		fmt.Fprintf(&b, " from qp %#x", h.SrcQP())
	}
	if n := len(e.Payload); n > 0 {
		fmt.Fprintf(&b, " %d bytes", n)
	}
	if e.Fate != 0 {
		fmt.Fprintf(&b, " [%v]", e.Fate)
	}
	if e.Arrives != 0 {
		fmt.Fprintf(&b, " +%d", e.Arrives-e.Now)
	}
	return b.String()
}

func success(o *op) driver.WC { return driver.WC{Opcode: wcOpcode(o.code)} }
