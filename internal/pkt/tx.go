package pkt

import (
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// Limits of a batch.
const (
	// MaxMsgBytes is the most UDP payload in one GSO send: 65,535 less the
	// largest IP and UDP headers, kept below the kernel's limit for both families.
	MaxMsgBytes = 65535 - 48
	// InlineCopy is the payload size up to which bytes are copied behind their
	// header: one iovec less costs more than the copy of a few cache lines.
	InlineCopy = 256
	// MaxPieces is the most pieces of memory of one packet that are not copied: each costs a
	// fragment of the send and a CRC of its own. From about this number on one copy of the whole
	// packet costs less (measured: blocks of 512 bytes with their tuples, 17 pieces, go out 12 % faster).
	MaxPieces = 8

	maxCount   = 1024 - MaxPieces - 2 // fragments of a message that one more packet may join
	arenaBytes = 64 << 10
	maxMsgs    = 64
	maxFrags   = 2048
)

// TxCaps are the limits of the port that a batch is built for.
type TxCaps struct {
	MaxSegs int // segments in one GSO send; 1 = no offload
}

// Msg is one datagram, or one GSO send of Segs datagrams of which all but the
// last have SegSize bytes of UDP payload.
type Msg struct {
	Flow    *Flow
	SegSize int
	Segs    int
	Bytes   int // UDP payload of all segments
	// Frags[First:First+Count] of the batch are the bytes.
	First, Count int

	last int // UDP payload of the last segment
}

// Tx is a batch of packets to send. It is filled by one owner under its lock,
// given to a port, and reset.
//
// A packet is built by Begin (header space), any number of Payload calls, and
// End (padding and ICRC). The k-th segment of a GSO send leaves Linux with IP
// identification k, a lone datagram with 0 (DF set, unconnected socket); the
// ICRC counts on it.
type Tx struct {
	Caps  TxCaps
	Msgs  []Msg
	Frags [][]byte

	arena []byte // reused; never grows
	used  int

	// The packet under construction.
	crc      uint32
	hdrStart int // arena offset of its header
	hdrLen   int
	payload  int // declared payload bytes
	got      int // payload bytes so far
	inline   bool
	joined   bool // it extends the last message
	open     bool
	frags0   int // len(Frags) before it

	// The last fragment is arena[tailFrom:tailTo] when tailTo > 0: the trailer
	// of one packet and the header of the next are neighbours and share a
	// fragment. The second pair is as it was before the packet under construction.
	tailFrom, tailTo   int
	tailFrom0, tailTo0 int

	Packets int // packets in the batch
}

// NewTx makes an empty batch.
func NewTx(caps TxCaps) *Tx {
	return &Tx{
		Caps:  caps,
		Msgs:  make([]Msg, 0, maxMsgs),
		Frags: make([][]byte, 0, maxFrags),
		arena: make([]byte, arenaBytes),
	}
}

// Empty reports whether nothing is in the batch.
func (t *Tx) Empty() bool { return len(t.Msgs) == 0 }

// Full reports whether a packet with up to frags payload fragments might not
// fit any more: send and Reset first.
func (t *Tx) Full(frags int) bool {
	return len(t.Msgs) >= maxMsgs || len(t.Frags)+frags+2 > maxFrags ||
		t.used+roce.MaxHeaderLen+InlineCopy+16 > len(t.arena)
}

// Gather copies the bytes of a message to a buffer of m.Bytes, for a port that does not
// send them from where they are. An error: payload is not there any more.
func (t *Tx) Gather(to []byte, m *Msg) error {
	for _, f := range t.Frags[m.First : m.First+m.Count] {
		if err := mem.Copy(to[:len(f)], f); err != nil {
			return err
		}
		to = to[len(f):]
	}
	return nil
}

// Reset empties the batch and lets go of all payload.
func (t *Tx) Reset() {
	clear(t.Frags)
	t.Frags = t.Frags[:0]
	t.Msgs = t.Msgs[:0]
	t.used = 0
	t.Packets = 0
	t.open = false
	t.tailTo = 0
}

// Begin starts a packet of hdrLen bytes of BTH and extension headers and
// payload bytes of payload, and returns the space for the headers, to be
// filled before Payload or End is called. The caller has asked Full.
func (t *Tx) Begin(f *Flow, hdrLen, payload int) []byte {
	size := hdrLen + payload + (-payload)&3 + roce.ICRCLen
	t.joined = false
	t.frags0 = len(t.Frags)
	t.tailFrom0, t.tailTo0 = t.tailFrom, t.tailTo
	if n := len(t.Msgs); n > 0 {
		m := &t.Msgs[n-1]
		// Frags of a message are consecutive, and one send takes 1,024 of them.
		t.joined = m.Flow == f && m.last == m.SegSize && size <= m.SegSize &&
			m.Segs < t.maxSegs(f) && m.Bytes+size <= MaxMsgBytes && m.Count <= maxCount
	}
	if !t.joined {
		t.Msgs = append(t.Msgs, Msg{Flow: f, SegSize: size, First: len(t.Frags)})
		t.tailTo = 0
	}
	m := &t.Msgs[len(t.Msgs)-1]
	m.Segs++
	m.Bytes += size
	m.last = size
	t.hdrStart, t.hdrLen = t.used, hdrLen
	t.used += hdrLen
	t.payload, t.got = payload, 0
	t.inline = payload <= InlineCopy
	t.crc = 0
	t.open = true
	return t.arena[t.hdrStart:t.used:t.used]
}

// Copy makes the Payload calls of the packet that was begun copy their bytes:
// the ICRC holds whatever happens to the memory. The caller has asked FullCopy.
func (t *Tx) Copy() { t.inline = true }

// FullCopy is Full for a packet of which n bytes of payload are copied.
func (t *Tx) FullCopy(n int) bool {
	return t.Full(0) || t.used+roce.MaxHeaderLen+n+16 > len(t.arena)
}

func (t *Tx) maxSegs(f *Flow) int {
	if f.MaxSegs > 0 && f.MaxSegs < t.Caps.MaxSegs {
		return f.MaxSegs
	}
	return t.Caps.MaxSegs
}

// id is the IP identification with which the packet under construction leaves.
func (t *Tx) id(m *Msg) uint16 { return uint16(m.Segs - 1) }

// header puts the header into the fragments and the ICRC, once.
func (t *Tx) header(m *Msg) {
	h := t.arena[t.hdrStart:t.used]
	t.arenaFrag(m, t.hdrStart, t.used)
	t.crc = roce.StartBTH(m.Flow.Start(m.last, t.id(m)), h)
}

// arenaFrag adds arena bytes to the message, to its last fragment if that ends
// just there.
func (t *Tx) arenaFrag(m *Msg, from, to int) {
	if t.tailTo == from && t.tailTo > 0 {
		t.tailTo = to
		t.Frags[len(t.Frags)-1] = t.arena[t.tailFrom:to:to]
		return
	}
	t.Frags = append(t.Frags, t.arena[from:to:to])
	m.Count++
	t.tailFrom, t.tailTo = from, to
}

// Joined reports whether the last packet extended a message: it is not the
// first segment of a GSO send.
func (t *Tx) Joined() bool { return t.joined }

// Payload adds bytes of registered memory. They must stay as they are until
// the batch is sent. On an error (the memory is not there any more) the packet
// must be given up with Abort.
func (t *Tx) Payload(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	m := &t.Msgs[len(t.Msgs)-1]
	t.got += len(b)
	if t.inline {
		if err := mem.Copy(t.arena[t.used:t.used+len(b)], b); err != nil {
			return err
		}
		t.used += len(b)
		return nil
	}
	if t.got == len(b) {
		t.header(m)
	}
	crc, err := mem.CRC(t.crc, b)
	if err != nil {
		return err
	}
	t.crc = crc
	t.Frags = append(t.Frags, b)
	m.Count++
	t.tailTo = 0
	return nil
}

// End completes the packet: padding and ICRC.
func (t *Tx) End() {
	if t.got != t.payload {
		panic("pkt: payload differs from what Begin was told")
	}
	m := &t.Msgs[len(t.Msgs)-1]
	if t.inline || t.payload == 0 {
		// Header and payload are neighbours in the arena: one CRC over both.
		t.header(m)
	}
	from := t.used
	for range (-t.payload) & 3 {
		t.arena[t.used] = 0
		t.used++
	}
	t.crc = roce.Update(t.crc, t.arena[from:t.used])
	roce.PutICRC(t.arena[t.used:t.used+roce.ICRCLen], roce.Sum(t.crc))
	t.used += roce.ICRCLen
	t.arenaFrag(m, from, t.used)
	t.open = false
	t.Packets++
}

// Abort drops the packet under construction. A message that it was to extend
// stays as it was.
func (t *Tx) Abort() {
	if !t.open {
		return
	}
	t.open = false
	if t.joined {
		m := &t.Msgs[len(t.Msgs)-1]
		m.Segs--
		m.Bytes -= m.last
		m.last = m.SegSize
		m.Count -= len(t.Frags) - t.frags0
	} else {
		t.Msgs = t.Msgs[:len(t.Msgs)-1]
	}
	clear(t.Frags[t.frags0:])
	t.Frags = t.Frags[:t.frags0]
	t.tailFrom, t.tailTo = t.tailFrom0, t.tailTo0
	if t.tailTo > 0 {
		t.Frags[t.frags0-1] = t.arena[t.tailFrom:t.tailTo:t.tailTo]
	}
	t.used = t.hdrStart
}
