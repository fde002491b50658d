package capture

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/gopacket/gopacket"
	gplayers "github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/verbena-rdma/verbena/internal/trace"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

var (
	v4a, v4b = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	v6a, v6b = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
)

// udp makes a UDP payload with a right ICRC for the identification.
func udp(src, dst netip.Addr, port, id uint16, payload string) []byte {
	b := make([]byte, roce.BTHLen+len(payload)+roce.PadLen(len(payload))+roce.ICRCLen)
	roce.BTH(b).Put(roce.OpRCSendOnly, false, roce.PadLen(len(payload)), 0xFFFF, 0x11, true, 0x123456)
	copy(b[roce.BTHLen:], payload)
	p := roce.NewPath(src, dst, port)
	roce.PutICRC(b[len(b)-roce.ICRCLen:], p.Compute(b, id))
	return b
}

// read takes a file apart with a reader that is not ours.
type read struct {
	r       *pcapgo.NgReader
	packets [][]byte
	info    []gopacket.CaptureInfo
	opts    []pcapgo.NgPacketOptions
}

func readFile(t testing.TB, b []byte) *read {
	t.Helper()
	r, err := pcapgo.NewNgReader(bytes.NewReader(b), pcapgo.NgReaderOptions{ErrorOnMismatchingLinkType: true})
	if err != nil {
		t.Fatal(err)
	}
	f := &read{r: r}
	for {
		data, ci, o, err := r.ReadPacketDataWithOptions()
		if errors.Is(err, io.EOF) {
			return f
		}
		if err != nil {
			t.Fatal(err)
		}
		f.packets = append(f.packets, data)
		f.info = append(f.info, ci)
		f.opts = append(f.opts, o)
	}
}

// Every byte of the headers is what it should be, for each kind of packet: sent
// and received, IPv4 and IPv6, with and without what sockets hide.
func TestHeaders(t *testing.T) {
	var out bytes.Buffer
	c, err := New(Options{
		W: &out, Device: "soft_test", Description: "on test0", Application: "verbena 0", Comment: "a comment",
		Offset: 1_700_000_000_000_000_000, Clock: func() int64 { return 999 },
	})
	if err != nil {
		t.Fatal(err)
	}
	bad := udp(v4b, v4a, 50000, 7, "hello")
	bad[13] ^= 1
	for _, p := range []trace.Packet{
		{Time: 1, Sent: true, Src: v4a, Dst: v4b, SrcPort: 0xC123, IDKnown: true, ID: 3, TOS: 0x2A, TTL: 9, Head: udp(v4a, v4b, 0xC123, 3, "hello")},
		{Time: 2, Sent: true, Src: v4a, Dst: v4b, SrcPort: 0xC123, IDKnown: true, Head: udp(v4a, v4b, 0xC123, 0, "")},
		{Time: 3, Src: v4b, Dst: v4a, SrcPort: 50000, TOS: 0xB8, TTL: 63, Head: udp(v4b, v4a, 50000, 0xABCD, "hello!!!")},
		{Time: 4, Src: v4b, Dst: v4a, SrcPort: 50000, TTL: 63, IDKnown: true, ID: 7, Head: bad},
		{Time: 5, Sent: true, Src: v6a, Dst: v6b, SrcPort: 50001, TOS: 0x2A, IDKnown: true, ID: 5, Head: udp(v6a, v6b, 50001, 0, "six")},
		{Time: 6, Src: v6b, Dst: v6a, SrcPort: 50001, TTL: 255, Head: []byte{1}},
	} {
		p.Size = len(p.Head)
		// Half of what was sent is in memory of its own.
		if p.Sent {
			n := roce.BTHLen
			p.Head, p.Rest = p.Head[:n:n], [][]byte{p.Head[n : n+2], p.Head[n+2:]}
		}
		c.Packet(&p)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	// IPv4 checksums by hand (RFC 791), UDP's are checked below.
	want := []string{
		"452a0034 00034000 0911 ed88 c0000201 c0000202 c12312b7 0020",
		"4500002c 00004000 4011 b6bd c0000201 c0000202 c12312b7 0018",
		"45b80034 abcd4000 3f11 0b30 c0000202 c0000201 c35012b7 0020",
		"45000034 00074000 3f11 b7ae c0000202 c0000201 c35012b7 0020",
		"62a00000 001c1140 20010db8000000000000000000000001 20010db8000000000000000000000002 c35112b7 001c",
		"60000000 000911ff 20010db8000000000000000000000002 20010db8000000000000000000000001 c35112b7 0009",
	}
	f := readFile(t, out.Bytes())
	if len(f.packets) != len(want) {
		t.Fatalf("%d packets", len(f.packets))
	}
	comments := []string{"", "", "", "wrong ICRC", "", "wrong ICRC"}
	for i, b := range f.packets {
		if w := strings.ReplaceAll(want[i], " ", ""); !strings.HasPrefix(hex.EncodeToString(b), w) {
			t.Errorf("packet %d: %x\nwant %s", i, b, w)
		}
		if ts := f.info[i].Timestamp.UnixNano(); ts != 1_700_000_000_000_000_001+int64(i) || f.info[i].Length != len(b) {
			t.Errorf("packet %d: time %d, length %d of %d", i, ts, f.info[i].Length, len(b))
		}
		dir := pcapgo.NgEpbFlagDirectionInbound
		if i < 2 || i == 4 {
			dir = pcapgo.NgEpbFlagDirectionOutbound
		}
		if o := f.opts[i]; o.Flags == nil || o.Flags.Direction != dir || strings.Join(o.Comments, "") != comments[i] || o.DropCount != nil {
			t.Errorf("packet %d: options %+v", i, o)
		}
		p := gopacket.NewPacket(b, gplayers.LinkTypeRaw, gopacket.Default)
		u, _ := p.TransportLayer().(*gplayers.UDP)
		if u == nil {
			t.Fatalf("packet %d: %v", i, p)
		}
		_ = u.SetNetworkLayerForChecksum(p.NetworkLayer())
		if err, sum := u.VerifyChecksum(); err != nil || !sum.Valid || u.Checksum == 0 {
			t.Errorf("packet %d: UDP checksum %+v %v", i, sum, err)
		}
		if ip, ok := p.NetworkLayer().(*gplayers.IPv4); ok {
			if err, sum := ip.VerifyChecksum(); err != nil || !sum.Valid {
				t.Errorf("packet %d: IP checksum %+v %v", i, sum, err)
			}
		}
	}
	if s := f.r.SectionInfo(); s.Application != "verbena 0" || s.Comment != "a comment" || s.OS == "" || s.Hardware == "" {
		t.Errorf("section %+v", s)
	}
	i, err := f.r.Interface(0)
	if err != nil || i.Name != "soft_test" || i.Description != "on test0" || i.LinkType != gplayers.LinkTypeRaw || i.SnapLength != 0 {
		t.Errorf("interface %+v %v", i, err)
	}
	if s := i.Statistics; s.PacketsReceived != 6 || s.PacketsDropped != 0 || s.EndTime.UnixNano() != 1_700_000_000_000_000_999 || s.StartTime != s.EndTime {
		t.Errorf("statistics %+v", s)
	}
}

// A snap length cuts what is written and nothing else; the identification of what
// was received is found all the same.
func TestSnapLen(t *testing.T) {
	var out bytes.Buffer
	c, err := New(Options{W: &out, SnapLen: 40})
	if err != nil {
		t.Fatal(err)
	}
	b := udp(v4b, v4a, 50000, 0xABCD, strings.Repeat("x", 1000))
	c.Packet(&trace.Packet{Src: v4b, Dst: v4a, SrcPort: 50000, Head: b, Size: len(b)})
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	f := readFile(t, out.Bytes())
	if len(f.packets) != 1 || len(f.packets[0]) != 40 || f.info[0].Length != 28+len(b) || binary.BigEndian.Uint16(f.packets[0][4:]) != 0xABCD || len(f.opts[0].Comments) != 0 {
		t.Errorf("%x %+v", f.packets, f.info)
	}
	if i, _ := f.r.Interface(0); i.SnapLength != 40 {
		t.Errorf("%+v", i)
	}
}

// stuck is a writer that does not get on until it is let go.
type stuck struct {
	bytes.Buffer
	first sync.Once
	busy  chan struct{} // closed when it is stuck
	let   chan struct{}
	wrote chan struct{} // gets one for each write but the head's
	head  bool
}

func (s *stuck) Write(b []byte) (int, error) {
	if s.head {
		s.first.Do(func() { close(s.busy) })
		<-s.let
		defer func() { s.wrote <- struct{}{} }()
	}
	s.head = true
	return s.Buffer.Write(b)
}

// When the file is slower than the device, packets are left out and counted, and
// the device does not wait.
func TestDropped(t *testing.T) {
	w := &stuck{busy: make(chan struct{}), let: make(chan struct{}), wrote: make(chan struct{}, 10)}
	var log bytes.Buffer
	c, err := New(Options{W: w, Device: "soft_test", Logger: slog.New(slog.NewTextHandler(&log, nil)), bytes: 1000})
	if err != nil {
		t.Fatal(err)
	}
	b := udp(v4a, v4b, 50000, 0, "1234") // 20 bytes: 50 to a buffer
	p := &trace.Packet{Sent: true, Src: v4a, Dst: v4b, SrcPort: 50000, IDKnown: true, Head: b, Size: len(b)}
	c.Packet(p)
	<-w.busy // the goroutine has the first buffer, with one packet, and hangs
	for range 60 {
		c.Packet(p) // 50 fit
	}
	if n := c.Dropped(); n != 10 {
		t.Errorf("%d dropped", n)
	}
	close(w.let)
	<-w.wrote // the one packet
	<-w.wrote // the 50
	c.Packet(p)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c.Packet(p) // too late, ignored
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	f := readFile(t, w.Bytes())
	if len(f.packets) != 52 {
		t.Fatalf("%d packets", len(f.packets))
	}
	for i, o := range f.opts {
		if (o.DropCount != nil) != (i == 51) || o.DropCount != nil && *o.DropCount != 10 {
			t.Errorf("packet %d: %+v", i, o)
		}
	}
	if i, _ := f.r.Interface(0); i.Statistics.PacketsDropped != 10 || i.Statistics.PacketsReceived != 62 {
		t.Errorf("%+v", i.Statistics)
	}
	if s := log.String(); !strings.Contains(s, "not captured") || !strings.Contains(s, "packets=10") {
		t.Errorf("log %q", s)
	}
}

// blocks counts the whole blocks of a file, and what is left behind them.
func blocks(b []byte) (n, rest int) {
	for len(b) >= 12 {
		size := int(binary.LittleEndian.Uint32(b[4:]))
		if size > len(b) || size < 12 {
			break
		}
		b = b[size:]
		n++
	}
	return n, len(b)
}

// pieces checks that each write ends with a block.
type pieces struct {
	bytes.Buffer
	t      *testing.T
	writes int
}

func (p *pieces) Write(b []byte) (int, error) {
	p.writes++
	if _, rest := blocks(b); rest != 0 {
		p.t.Errorf("write %d of %d bytes ends within a block", p.writes, len(b))
	}
	return p.Buffer.Write(b)
}

// Whatever is written, it is whole blocks: the file of a process that dies can be
// read to its end. From many goroutines nothing is lost or mixed up.
func TestConcurrentWholeBlocks(t *testing.T) {
	w := &pieces{t: t}
	c, err := New(Options{W: w})
	if err != nil {
		t.Fatal(err)
	}
	const each = 2000
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range each {
				port := uint16(50000 + g)
				b := udp(v4a, v4b, port, 0, strings.Repeat(strconv.Itoa(g), i%500))
				c.Packet(&trace.Packet{Time: int64(i), Sent: true, Src: v4a, Dst: v4b, SrcPort: port, IDKnown: true, Head: b, Size: len(b)})
			}
		})
	}
	wg.Wait()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	f := readFile(t, w.Bytes())
	if d := c.Dropped(); len(f.packets)+int(d) != 4*each || d > 0 {
		t.Errorf("%d packets, %d dropped", len(f.packets), d)
	}
	next := map[uint16]int64{}
	for i, b := range f.packets {
		port := binary.BigEndian.Uint16(b[20:])
		path := roce.NewPath(v4a, v4b, port)
		if at := f.info[i].Timestamp.UnixNano(); at != next[port] || !path.Check(b[28:], 0) {
			t.Fatalf("packet %d: time %d, want %d: %x", i, at, next[port], b)
		}
		next[port]++
	}
}

// brokenAfter fails from the second write on.
type brokenAfter struct{ n int }

func (b *brokenAfter) Write(p []byte) (int, error) {
	if b.n++; b.n > 1 {
		return 0, syscall.ENOSPC
	}
	return len(p), nil
}

// A disk that is full ends the capture and is told by Close; the device goes on.
func TestWriteError(t *testing.T) {
	c, err := New(Options{W: &brokenAfter{}})
	if err != nil {
		t.Fatal(err)
	}
	b := udp(v4a, v4b, 1, 0, "")
	for range 3 {
		c.Packet(&trace.Packet{Src: v4a, Dst: v4b, SrcPort: 1, Head: b, Size: len(b)})
	}
	if err := c.Close(); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Close = %v", err)
	}
	if _, err := New(Options{W: &brokenAfter{n: 1}}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("New = %v", err)
	}
}

func TestName(t *testing.T) {
	if got, want := Name("/tmp/{device}-{pid}.pcapng", "soft_lo"), "/tmp/soft_lo-"+strconv.Itoa(os.Getpid())+".pcapng"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got := Name("plain", "soft_lo"); got != "plain" {
		t.Error(got)
	}
}

// A file is made for its owner only, emptied, and belongs to one capture at a time.
func TestCreate(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a.pcapng")
	f, err := Create(name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("something"); err != nil {
		t.Fatal(err)
	}
	if err := lockedElsewhere(name); err != nil {
		t.Error(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if f, err = Create(name); err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || st.Size() != 0 {
		t.Errorf("%v %v", st.Size(), err)
	}
	if _, err := Create(filepath.Join(t.TempDir(), "no", "a")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// Nothing of a packet's way to the buffer allocates.
func TestPacketAllocatesNothing(t *testing.T) {
	c, err := New(Options{W: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	b := udp(v4a, v4b, 1, 0, strings.Repeat("x", 1024))
	p := &trace.Packet{Sent: true, Src: v4a, Dst: v4b, SrcPort: 1, IDKnown: true, Head: b[:12], Rest: [][]byte{b[12:]}, Size: len(b)}
	if n := testing.AllocsPerRun(100, func() { c.Packet(p) }); n > 1 { // the goroutine's share is counted too
		t.Errorf("%v allocations", n)
	}
}
