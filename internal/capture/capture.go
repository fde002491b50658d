// Package capture writes what a device sends and receives as pcapng, with the IP
// and UDP headers that sockets hide, for Wireshark, tshark and tcpdump.
//
// The data path only copies each packet into a bounded buffer; a goroutine
// empties it ten times a second, or when it is half full. When it is full, packets
// are counted and not captured: the device does not wait.
package capture

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/internal/trace"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// Bounds of one of the two buffers. What is never filled takes no memory.
const (
	bufferBytes   = 32 << 20
	bufferPackets = 32 << 10

	flushEvery = 100 * time.Millisecond
	writeBytes = 256 << 10 // one write to the file
)

// Options say what to write about where.
type Options struct {
	W       io.Writer // gets whole blocks; closed by Close if it is an io.Closer and Own
	Own     bool
	SnapLen int // bytes of each packet, from the IP header on; 0: all

	// Offset is added to packets' times and gives ns since 1970.
	Offset int64
	Clock  func() int64 // the device's; Close reads it

	Device      string // name of the interface in the file
	Description string
	Application string
	Comment     string

	Logger *slog.Logger // told of packets that were not captured; nil: none

	bytes int // of a buffer; 0: bufferBytes
}

// Capture is a capture that is running.
type Capture struct {
	o     Options
	start int64

	mu      sync.Mutex
	filling *buffer
	seen    uint64
	dropped uint64
	lost    uint32 // since the last packet
	closed  bool

	half chan struct{} // the buffer is half full
	stop chan struct{}
	done chan struct{}

	// The goroutine's.
	draining *buffer
	out      []byte
	ip       []byte
	err      error // of the first write that failed; nothing is written after it
}

// buffer holds packets as they came.
type buffer struct {
	recs  []record
	bytes []byte
}

// record is one packet in a buffer.
type record struct {
	time     int64
	src, dst netip.Addr
	srcPort  uint16
	tos, ttl uint8
	id       uint16
	idKnown  bool
	sent     bool
	size     int // bytes in the buffer
	lost     uint32
}

// New starts a capture and writes the head of the file. The error is that of the
// writer.
func New(o Options) (*Capture, error) {
	o.bytes = cmp.Or(o.bytes, bufferBytes)
	if o.Clock == nil {
		o.Clock = func() int64 { return 0 }
	}
	c := &Capture{
		o: o, start: o.Clock() + o.Offset, filling: newBuffer(o.bytes), draining: newBuffer(o.bytes),
		half: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
	if _, err := o.W.Write(appendSection(nil, &c.o)); err != nil {
		return nil, fmt.Errorf("capture: %w", err)
	}
	go c.run()
	return c, nil
}

func newBuffer(n int) *buffer {
	return &buffer{recs: make([]record, 0, bufferPackets), bytes: make([]byte, 0, n)}
}

// Packet is a trace.Recorder. It does not block on the file.
func (c *Capture) Packet(p *trace.Packet) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.seen++
	f := c.filling
	at := len(f.bytes)
	if p.Size > cap(f.bytes)-at || len(f.recs) == cap(f.recs) {
		c.dropped++
		c.lost++
		return
	}
	f.bytes = f.bytes[:at+p.Size]
	n := p.Copy(f.bytes[at:])
	clear(f.bytes[at+n:])
	f.recs = append(f.recs, record{
		time: p.Time, src: p.Src, dst: p.Dst, srcPort: p.SrcPort, tos: p.TOS, ttl: p.TTL, id: p.ID, idKnown: p.IDKnown,
		sent: p.Sent, size: p.Size, lost: c.lost,
	})
	c.lost = 0
	if len(f.bytes) > cap(f.bytes)/2 || len(f.recs) > cap(f.recs)/2 {
		select {
		case c.half <- struct{}{}:
		default:
		}
	}
}

func (c *Capture) run() {
	defer close(c.done)
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-c.half:
		case <-c.stop:
			c.drain()
			return
		}
		c.drain()
	}
}

// drain writes what was buffered.
func (c *Capture) drain() {
	c.mu.Lock()
	c.filling, c.draining = c.draining, c.filling
	c.mu.Unlock()
	d := c.draining
	b := d.bytes
	for i := range d.recs {
		r := &d.recs[i]
		c.add(r, b[:r.size])
		b = b[r.size:]
		if len(c.out) > writeBytes {
			c.write()
		}
	}
	c.write()
	d.recs, d.bytes = d.recs[:0], d.bytes[:0]
}

// add appends a packet to what will be written.
func (c *Capture) add(r *record, payload []byte) {
	info := packetInfo{time: r.time + c.o.Offset, sent: r.sent, dropped: r.lost}
	id := r.id
	if !r.sent {
		id, info.comment = judge(r, payload)
	}
	c.ip = appendIP(c.ip[:0], r, payload, id)
	info.length = len(c.ip)
	data := c.ip
	if s := c.o.SnapLen; s > 0 && s < len(data) {
		data = data[:s]
	}
	c.out = appendPacket(c.out, data, &info)
}

// judge finds the IP identification of a received packet, which sockets do not
// tell: it is the one with which the ICRC is right. A packet whose ICRC is wrong
// is shown as it came, with a comment.
func judge(r *record, payload []byte) (id uint16, comment string) {
	path := roce.NewPath(r.src, r.dst, r.srcPort)
	ok := false
	if id = r.id; r.idKnown {
		ok = path.Check(payload, id)
	} else {
		id, ok = path.Solve(payload)
	}
	if !ok {
		comment = "wrong ICRC"
	}
	return id, comment
}

// write gives whole blocks to the writer.
func (c *Capture) write() {
	if len(c.out) > 0 && c.err == nil {
		_, c.err = c.o.W.Write(c.out)
		if c.err != nil && c.o.Logger != nil {
			c.o.Logger.Error("capture stopped", "device", c.o.Device, "err", c.err)
		}
	}
	c.out = c.out[:0]
}

// Close writes what is left and the statistics, and closes the file if it is the
// capture's own. The error is that of the first write that failed. The device must
// not call Packet any more; such packets are ignored.
func (c *Capture) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	c.mu.Unlock()
	close(c.stop)
	<-c.done
	c.out = appendStats(c.out, c.start, c.o.Clock()+c.o.Offset, c.seen, c.dropped)
	c.write()
	err := c.err
	if cl, ok := c.o.W.(io.Closer); ok && c.o.Own {
		err = errors.Join(err, cl.Close())
	}
	if c.dropped > 0 && c.o.Logger != nil {
		c.o.Logger.Warn("packets were not captured: the disk was too slow", "device", c.o.Device, "packets", c.dropped, "of", c.seen)
	}
	if err != nil {
		return fmt.Errorf("capture: %w", err)
	}
	return nil
}

// Dropped is the number of packets that were not captured so far.
func (c *Capture) Dropped() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dropped
}
