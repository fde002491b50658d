package udp

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

func TestAncillary(t *testing.T) {
	ints := func(list ...option) []byte {
		var b []byte
		for _, o := range list {
			b = append(b, make([]byte, cmsgSpace)...)
			putInt(b[len(b)-cmsgSpace:], int32(o.level), int32(o.name), o.value)
		}
		return b
	}
	short := make([]byte, cmsgSpace)
	putCmsgHdr(short, unix.SOL_IP, unix.IP_TOS, 1)[0] = 0xB8
	empty := make([]byte, cmsgSpace)
	putCmsgHdr(empty, unix.SOL_IP, unix.IP_TOS, 0)
	long := ints(option{unix.SOL_IP, unix.IP_TTL, 5})
	putWord(long, 1000)
	tiny := ints(option{unix.SOL_IP, unix.IP_TTL, 5})
	putWord(tiny, cmsgHdrLen-1)
	gro := option{unix.SOL_UDP, unix.UDP_GRO, 4112}
	for _, c := range []struct {
		name string
		b    []byte
		want ancillary
	}{
		{"none", nil, ancillary{}},
		{"all IPv4", append(short, ints(option{unix.SOL_IP, unix.IP_TTL, 64}, gro)...), ancillary{4112, 0xB8, 64}},
		{
			"all IPv6",
			ints(gro, option{unix.SOL_IPV6, unix.IPV6_TCLASS, 7}, option{unix.SOL_IPV6, unix.IPV6_HOPLIMIT, 255}),
			ancillary{4112, 7, 255},
		},
		{"unknown", ints(option{unix.SOL_SOCKET, 99, 1}, option{unix.SOL_UDP, 99, 2}, gro), ancillary{segSize: 4112}},
		{"no data", append(empty[:cmsgHdrLen], ints(gro)...), ancillary{segSize: 4112}},
		{"negative", ints(option{unix.SOL_UDP, unix.UDP_GRO, -1}), ancillary{}},
		{"length too long", append(ints(gro), long...), ancillary{segSize: 4112}},
		{"length too short", append(tiny, ints(gro)...), ancillary{}},
	} {
		if got := parseAncillary(c.b); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
		for n := range c.b { // truncated anywhere: no panic
			parseAncillary(c.b[:n:n])
		}
	}
}

// The layout is the C library's.
func TestCmsgLayout(t *testing.T) {
	if cmsgSpace != unix.CmsgSpace(4) || cmsgSpace != unix.CmsgSpace(2) || cmsgHdrLen != unix.CmsgLen(0) {
		t.Errorf("space %d, header %d", cmsgSpace, cmsgHdrLen)
	}
	b := make([]byte, 2*cmsgSpace)
	n := putInt(b, unix.SOL_IP, unix.IP_TTL, 3)
	n += putSegment(b[n:], 0x1234)
	msgs, err := unix.ParseSocketControlMessage(b[:n])
	if err != nil || len(msgs) != 2 {
		t.Fatal(len(msgs), err)
	}
	if h := msgs[0].Header; h.Level != unix.SOL_IP || h.Type != unix.IP_TTL || len(msgs[0].Data) != 4 {
		t.Errorf("%+v", msgs[0])
	}
	if h := msgs[1].Header; h.Level != unix.SOL_UDP || h.Type != unix.UDP_SEGMENT || len(msgs[1].Data) != 2 {
		t.Errorf("%+v", msgs[1])
	}
}

func TestRawAddr(t *testing.T) {
	for _, c := range []struct {
		to, want string
		zone     string
		length   uint32
	}{
		{to: "192.0.2.7:4791", length: unix.SizeofSockaddrInet4},
		{to: "[::ffff:192.0.2.7]:1", want: "192.0.2.7:1", length: unix.SizeofSockaddrInet4},
		{to: "[2001:db8::5]:65535", zone: "eth0", length: unix.SizeofSockaddrInet6},
		{to: "[fe80::5]:4791", want: "[fe80::5%eth0]:4791", zone: "eth0", length: unix.SizeofSockaddrInet6},
	} {
		var r rawAddr
		n := putRawAddr(&r, netip.MustParseAddrPort(c.to), 3)
		if c.want == "" {
			c.want = c.to
		}
		if got := r.addrPort(c.zone); got != netip.MustParseAddrPort(c.want) || n != c.length {
			t.Errorf("%s: %v, length %d", c.to, got, n)
		}
	}
	var unknown rawAddr
	if got := unknown.addrPort(""); got.IsValid() {
		t.Error(got)
	}
}
