package pingpong

import (
	"bytes"
	"errors"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/port/udp"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

// The message is that of rdma-core's programs: fixed text with a zero behind.
func TestDestWire(t *testing.T) {
	d := dest{LID: 0x12, QPN: 0xa1b2, PSN: 0xc3d4e5, GID: ib.GIDFromAddr(netip.MustParseAddr("10.0.0.1"))}
	const want = "0012:00a1b2:c3d4e5:00000000000000000000ffff0a000001\x00"
	if got := d.wire(); string(got) != want || len(got) != destLen || destLen != 52 {
		t.Errorf("%q", got)
	}
	if got, err := parseDest([]byte(want)); err != nil || got != d {
		t.Errorf("%+v, %v", got, err)
	}
	if s := d.String(); s != "LID 0x0012, QPN 0x00a1b2, PSN 0xc3d4e5, GID ::ffff:10.0.0.1" {
		t.Error(s)
	}
	for _, bad := range []string{
		"", "\x00", want[:51], strings.Replace(want, ":", ";", 1), strings.Replace(want, "a1b2", "x1b2", 1), "0012:1000000" + want[11:],
		strings.Replace(want, "0a000001", "0a00001", 1), strings.Replace(want, "ffff", "fffg", 1), strings.Repeat(":", 60),
	} {
		if d, err := parseDest([]byte(bad)); err == nil {
			t.Errorf("%q is %+v", bad, d)
		}
	}
}

func FuzzParseDest(f *testing.F) {
	f.Add([]byte("0012:00a1b2:c3d4e5:00000000000000000000ffff0a000001\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := parseDest(b)
		if err != nil {
			return
		}
		if e, err := parseDest(d.wire()); err != nil || e != d {
			t.Errorf("%q: %+v, %+v, %v", b, d, e, err)
		}
	})
}

// With a shared receive queue 256 messages go over, whatever is used of them.
func TestDestCount(t *testing.T) {
	gid := ib.GIDFromAddr(netip.MustParseAddr("10.0.0.1"))
	for _, k := range []Kind{RC, SRQ} {
		c := Default(k)
		var list []dest
		for i := range c.NumQP {
			list = append(list, dest{QPN: ib.QPN(i + 1), GID: gid})
		}
		var b bytes.Buffer
		if err := writeDests(&b, &c, list); err != nil {
			t.Fatal(err)
		}
		want := 1
		if k == SRQ {
			want = 256
		}
		if b.Len() != want*destLen {
			t.Errorf("%s: %d bytes", k, b.Len())
		}
		got, err := readDests(bytes.NewReader(b.Bytes()), &c)
		if err != nil || len(got) != c.NumQP || got[c.NumQP-1] != list[c.NumQP-1] {
			t.Errorf("%s: %v, %v", k, got, err)
		}
		c.NumQP++
		if k == SRQ {
			if _, err := readDests(bytes.NewReader(b.Bytes()), &c); err == nil || !strings.Contains(err.Error(), "-q") {
				t.Errorf("fewer queue pairs: %v", err)
			}
		}
		if _, err := readDests(bytes.NewReader(b.Bytes()[:b.Len()-1]), &c); err == nil {
			t.Errorf("%s: a truncated exchange is taken", k)
		}
	}
	c := Default(RC)
	if _, err := readDests(bytes.NewReader((&dest{QPN: 5}).wire()), &c); err == nil || !strings.Contains(err.Error(), "-g") {
		t.Errorf("no GID: %v", err)
	}
}

// What was received is compared byte by byte.
func TestContent(t *testing.T) {
	page := os.Getpagesize()
	for _, k := range []Kind{RC, UD, SRQ} {
		c := Default(k)
		c.Check, c.Size = true, 2*page+7
		client := session{cfg: &c, buf: make([]byte, grhLen+c.Size), head: grhLen}
		c.Host = "there"
		client.fill()
		if bad := client.badPages(); bad != nil {
			t.Errorf("%s: the message itself: %v", k, bad)
		}
		if k != SRQ && (client.buf[grhLen] != 0 || client.buf[grhLen+1] != 0x7b || client.buf[grhLen+page] != 0) {
			t.Errorf("%s: not the content of rdma-core's programs", k)
		}
		sc := c
		sc.Host = ""
		server := session{cfg: &sc, buf: make([]byte, grhLen+c.Size), head: grhLen}
		server.fill()
		if bad := server.badPages(); len(bad) != 3 {
			t.Errorf("%s: nothing received: %v", k, bad)
		}
		copy(server.buf, client.buf)
		server.buf[grhLen+page+5] ^= 1
		if bad := server.badPages(); len(bad) != 1 || bad[0] != 1 {
			t.Errorf("%s: one bit: %v", k, bad)
		}
	}
}

// A path MTU, or a datagram, that the link cannot carry is refused before the
// peer hears of anything.
func TestCase24_PathMTUBeyondActive(t *testing.T) {
	for link, active := range map[int]int{1500: 1024, 9000: 4096, 576: 256} {
		p, err := udp.Open(udp.Config{})
		if err != nil {
			t.Fatal(err)
		}
		d, err := soft.NewDevice(soft.Config{
			Name: "soft_test", NetDev: "test0", Addrs: []netip.Addr{netip.MustParseAddr("127.9.9.9")}, Port: p, LinkMTU: link,
		})
		if err != nil {
			t.Fatal(err)
		}
		dev := verbs.NewContext(d)
		port, err := dev.QueryPort(1)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []int{256, 512, 1024, 2048, 4096} {
			for _, k := range []Kind{RC, UC, UD, SRQ} {
				c := Default(k)
				c.MTU, c.Size = n, n
				err := c.checkPort(dev, &port)
				if n <= active && err != nil || n > active && !errors.Is(err, syscall.EINVAL) {
					t.Errorf("%s %d on a link of %d: %v", k, n, link, err)
				}
				if err != nil && (!strings.Contains(err.Error(), "MTU") || !strings.Contains(err.Error(), "test0")) {
					t.Errorf("%v", err)
				}
			}
		}
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	}
}
