package udp

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// open opens a port that is closed at the end of the test.
func open(t testing.TB, cfg Config) *Port {
	t.Helper()
	p, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// addLoopback gives the port a loopback address that nobody has. The UDP port
// is fixed, so tests keep out of each other's way by their addresses.
func addLoopback(t testing.TB, p *Port) (netip.Addr, int) {
	t.Helper()
	for range 100 {
		a := netip.AddrFrom4([4]byte{127, byte(1 + rand.IntN(200)), byte(rand.IntN(256)), byte(1 + rand.IntN(250))})
		i, err := p.AddLocal(a)
		if errors.Is(err, unix.EADDRINUSE) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		return a, i
	}
	t.Fatal("no free loopback address")
	panic("unreachable")
}

func flow(from, to netip.Addr, local int) *pkt.Flow {
	return &pkt.Flow{
		Path:  roce.NewPath(from, to, roce.Port),
		Local: local,
		To:    netip.AddrPortFrom(to, roce.Port),
	}
}

// put adds a packet with the payload to the batch; its PSN is its number.
func put(t testing.TB, tx *pkt.Tx, f *pkt.Flow, number int, payload []byte) {
	t.Helper()
	if tx.Full(1) {
		t.Fatal("batch is full")
	}
	h := tx.Begin(f, roce.BTHLen, len(payload))
	clear(h)
	h[0] = 0x64 // UD SEND_ONLY
	binary.BigEndian.PutUint32(h[8:], uint32(number))
	if err := tx.Payload(payload); err != nil {
		t.Fatal(err)
	}
	tx.End()
}

func psnOf(packet []byte) int { return int(binary.BigEndian.Uint32(packet[8:])) }

// collect receives until it has n packets or 5 s have passed, and calls see
// for each with its index in its datagram.
func collect(t testing.TB, p *Port, n int, see func(d *pkt.Datagram, k int, packet []byte)) {
	t.Helper()
	rx := pkt.Rx{Dgrams: make([]pkt.Datagram, 0, turn)}
	deadline := time.Now().Add(5 * time.Second)
	for got := 0; got < n; {
		if p.Recv(&rx) == 0 {
			if time.Now().After(deadline) {
				t.Fatalf("%d of %d packets received; %+v", got, n, p.Stats())
			}
			p.Wait(10 * time.Millisecond)
			continue
		}
		for i := range rx.Dgrams {
			d := &rx.Dgrams[i]
			for k, b := 0, d.Data; len(b) > 0; k++ {
				size := min(d.SegSize, len(b))
				see(d, k, b[:size])
				b = b[size:]
				got++
			}
		}
	}
}

// variants are the ways a port works, depending on what the kernel has.
var variants = []struct {
	name string
	cfg  Config
}{
	{"All", Config{}},
	{"NoGSO", Config{NoGSO: true}},
	{"NoGRO", Config{NoGRO: true}},
	{"NoMMsg", Config{NoMMsg: true}},
	{"MaxSegs64", Config{MaxSegs: 64}},
	{"Plain", Config{NoGSO: true, NoGRO: true, NoMMsg: true}},
}
