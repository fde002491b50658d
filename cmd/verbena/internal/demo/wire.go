package demo

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/verbena-rdma/verbena/internal/trace"
	"github.com/verbena-rdma/verbena/internal/wire/mad"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// headLen is what is kept of a packet: all headers that there can be, and that of a
// management datagram.
const headLen = 64

// A packet's kind is its opcode; behind these come the messages of connection management,
// which have one opcode.
const (
	firstMessage = 256
	kinds        = firstMessage + 32
)

// message is which message of connection management a packet is; 0: none.
func message(head *[headLen]byte) mad.AttrID {
	h := roce.BTH(head[:roce.BTHLen])
	if h.DestQP() != mad.QPN {
		return 0
	}
	return mad.Header(head[roce.BTHLen+roce.DETHLen:][:mad.HeaderLen]).AttrID()
}

// sample is the first packet of its kind in a step.
type sample struct {
	kind int
	sent bool
	time int64
	size int
	head [headLen]byte
}

// step counts the packets of one step of the demo.
type step struct {
	name   string
	counts [2][kinds]atomic.Uint64 // received, sent
	mu     sync.Mutex
	first  []sample
}

// recorder is told of every packet of a device and books it on the current step.
type recorder struct {
	current atomic.Pointer[step]
	steps   []*step
}

// enter makes the step of the name the current one.
func (r *recorder) enter(name string) {
	i := slices.IndexFunc(r.steps, func(s *step) bool { return s.name == name })
	if i < 0 {
		i = len(r.steps)
		r.steps = append(r.steps, &step{name: name})
	}
	r.current.Store(r.steps[i])
}

// packet is a trace.Recorder.
func (r *recorder) packet(p *trace.Packet) {
	s := r.current.Load()
	if s == nil || len(p.Head) < roce.BTHLen {
		return
	}
	dir := 0
	if p.Sent {
		dir = 1
	}
	kind := int(p.Head[0])
	x := sample{sent: p.Sent, time: p.Time, size: p.Size}
	if roce.BTH(p.Head[:roce.BTHLen]).DestQP() == mad.QPN {
		p.Copy(x.head[:])
		kind = firstMessage + int(message(&x.head))%(kinds-firstMessage)
	}
	if s.counts[dir][kind].Add(1) > 1 {
		return
	}
	x.kind = kind
	p.Copy(x.head[:])
	s.mu.Lock()
	s.first = append(s.first, x)
	s.mu.Unlock()
}

// WireStep is what one step put on the wire, as one side saw it.
type WireStep struct {
	Step    string     `json:"step"`
	Packets []WireLine `json:"packets"`
}

// WireLine is about the packets of one opcode and direction: their number, and
// the first one.
type WireLine struct {
	Time   float64 `json:"first_ms"` // since the first packet of all
	Sent   bool    `json:"sent"`
	Opcode string  `json:"opcode"`
	PSN    uint32  `json:"first_psn"`
	Bytes  int     `json:"first_bytes"` // UDP payload: headers, data, ICRC
	Count  uint64  `json:"count"`
	Header string  `json:"first_header"`
}

// start is the time of the first packet. The packets of several goroutines come
// not quite in the order of their times.
func (r *recorder) start() int64 {
	first := int64(math.MaxInt64)
	for _, s := range r.steps {
		s.mu.Lock()
		for i := range s.first {
			first = min(first, s.first[i].time)
		}
		s.mu.Unlock()
	}
	return first
}

// timeline tells what was recorded.
func (r *recorder) timeline() []WireStep {
	var list []WireStep
	start := r.start()
	for _, s := range r.steps {
		s.mu.Lock()
		ws := WireStep{Step: s.name}
		slices.SortStableFunc(s.first, func(a, b sample) int { return int(a.time - b.time) })
		for i := range s.first {
			x := &s.first[i]
			dir := 0
			if x.sent {
				dir = 1
			}
			h := roce.BTH(x.head[:roce.BTHLen])
			ws.Packets = append(ws.Packets, WireLine{
				Time: float64(x.time-start) / 1e6, Sent: x.sent, Opcode: h.Opcode().String(), PSN: uint32(h.PSN()),
				Bytes: x.size, Count: s.counts[dir][x.kind].Load(), Header: describe(&x.head),
			})
		}
		s.mu.Unlock()
		list = append(list, ws)
	}
	return list
}

// describe tells what the extension headers say.
func describe(head *[headLen]byte) string {
	h := roce.BTH(head[:roce.BTHLen])
	p := roce.Packet{B: head[:], Op: h.Opcode(), Info: h.Opcode().Info(), BTH: h}
	text := ""
	add := func(format string, args ...any) {
		if text != "" {
			text += ", "
		}
		text += fmt.Sprintf(format, args...)
	}
	if x := p.DETH(); x != nil {
		add("from QP 0x%06x", x.SrcQP())
		if a := message(head); a != 0 {
			add("%v", a)
		}
	}
	if x := p.RETH(); x != nil {
		add("%d bytes at 0x%x, rkey 0x%08x", x.DMALen(), x.VA(), x.RKey())
	}
	if x := p.AtomicETH(); x != nil {
		if p.Op.Operation() == roce.OpFetchAdd {
			add("add %d", x.SwapAdd())
		} else {
			add("if %d then %d", x.Compare(), x.SwapAdd())
		}
		add("at 0x%x", x.VA())
	}
	if x := p.AETH(); x != nil {
		add("%v, MSN %d", x.Syndrome(), x.MSN())
	}
	if x := p.AtomicAckETH(); x != nil {
		add("was %d", x.Orig())
	}
	if x := p.ImmDt(); x != nil {
		add("imm %d", x.Data())
	}
	if text == "" && p.BTH.AckReq() {
		text = "asks for an ACK"
	}
	return text
}
