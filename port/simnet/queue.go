package simnet

import "net/netip"

// packet is one datagram on its way. Its owner is, in turn, the sender, the
// event queue, the receiving port's queue and the batch that was received.
type packet struct {
	data  []byte
	class int // of the free list it goes back to
	src   netip.AddrPort
	dst   *host
	to    *Port      // a copy to a member of a group; nil: to dst's owner
	group netip.Addr // the destination of such a copy
	id    uint16
	tos   uint8
	ttl   uint8
	label uint32
}

// event is what happens at a time: a packet arrives, or fn is called.
type event struct {
	at  int64
	seq uint64 // order among events of one time
	pkt *packet
	fn  func()
}

// events is a heap, four children a node: shallow, and a node's children lie
// side by side.
type events []event

func (h events) before(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].seq < h[j].seq
}

func (h *events) push(e event) {
	*h = append(*h, e)
	s := *h
	for i := len(s) - 1; i > 0; {
		p := (i - 1) / 4
		if !s.before(i, p) {
			return
		}
		s[i], s[p] = s[p], s[i]
		i = p
	}
}

func (h *events) pop() event {
	s := *h
	top, last := s[0], len(s)-1
	s[0] = s[last]
	s[last] = event{}
	s = s[:last]
	*h = s
	for i := 0; ; {
		least := i
		for c := 4*i + 1; c <= 4*i+4 && c < last; c++ {
			if s.before(c, least) {
				least = c
			}
		}
		if least == i {
			return top
		}
		s[i], s[least] = s[least], s[i]
		i = least
	}
}

// Sizes of pooled buffers: headers and small payloads, one path MTU, the most
// that a datagram carries.
var classes = [...]int{512, 4608, 65536}

// pool keeps packets for use again.
type pool struct {
	free [len(classes)][]*packet
	out  int // packets handed out
}

// get returns a packet with n bytes of data, of undefined content.
func (p *pool) get(n int) *packet {
	c := 0
	for n > classes[c] {
		c++
	}
	p.out++
	if l := len(p.free[c]); l > 0 {
		k := p.free[c][l-1]
		p.free[c] = p.free[c][:l-1]
		k.data = k.data[:n]
		return k
	}
	return &packet{data: make([]byte, n, classes[c]), class: c}
}

func (p *pool) put(k *packet) {
	p.out--
	k.dst, k.to, k.group = nil, nil, netip.Addr{}
	p.free[k.class] = append(p.free[k.class], k)
}

// fifo is a queue of packets in a ring that grows.
type fifo struct {
	ring []*packet
	head int
	n    int
}

func (f *fifo) push(k *packet) {
	if f.n == len(f.ring) {
		r := make([]*packet, max(64, 2*f.n))
		for i := range f.n {
			r[i] = f.ring[(f.head+i)%len(f.ring)]
		}
		f.ring, f.head = r, 0
	}
	f.ring[(f.head+f.n)%len(f.ring)] = k
	f.n++
}

func (f *fifo) peek() *packet { return f.ring[f.head] }

func (f *fifo) pop() *packet {
	k := f.ring[f.head]
	f.ring[f.head] = nil
	f.head = (f.head + 1) % len(f.ring)
	f.n--
	return k
}
