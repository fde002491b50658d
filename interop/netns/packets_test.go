//go:build interop && linux

package netns

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// packet is a RoCE packet as it was on the wire.
type packet struct {
	ip       []byte
	udp      []byte
	src, dst netip.Addr
	id       uint16 // 0 over IPv6
	roce.Packet
}

func (p *packet) is6() bool       { return p.ip[0]>>4 == 6 }
func (p *packet) srcPort() uint16 { return binary.BigEndian.Uint16(p.udp) }

// parse reads an IP packet. ok false: it is not RoCE.
func parse(b []byte) (p packet, ok bool, err error) {
	header := 20
	var proto byte
	var total int
	switch {
	case len(b) >= 20 && b[0] == 0x45:
		proto, total = b[9], int(binary.BigEndian.Uint16(b[2:]))
		p.src, p.dst = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
		p.id = binary.BigEndian.Uint16(b[4:])
	case len(b) >= 40 && b[0]>>4 == 6:
		header = 40
		proto, total = b[6], 40+int(binary.BigEndian.Uint16(b[4:]))
		p.src, p.dst = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
	default:
		return p, false, nil
	}
	if proto != unix.IPPROTO_UDP || total > len(b) || total < header+8 {
		return p, false, nil
	}
	p.ip, p.udp = b[:total], b[header:total]
	if binary.BigEndian.Uint16(p.udp[2:]) != roce.Port {
		return p, false, nil
	}
	if int(binary.BigEndian.Uint16(p.udp[4:])) != len(p.udp) {
		return p, true, fmt.Errorf("UDP length %d of %d bytes", binary.BigEndian.Uint16(p.udp[4:]), len(p.udp))
	}
	return p, true, roce.Parse(p.udp[8:], &p.Packet)
}

// onesSum adds 16-bit words as IP's checksums do.
func onesSum(sum uint32, b []byte) uint32 {
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) > 0 {
		sum += uint32(b[0]) << 8
	}
	for sum > 0xFFFF {
		sum = sum>>16 + sum&0xFFFF
	}
	return sum
}

// pseudo is the sum of UDP's pseudo-header.
func (p *packet) pseudo() uint32 {
	sum := onesSum(uint32(unix.IPPROTO_UDP)+uint32(len(p.udp)), p.src.AsSlice())
	return onesSum(sum, p.dst.AsSlice())
}

// flowKey names one direction of a queue pair.
type flowKey struct {
	src, dst netip.Addr
	qpn      uint32
}

// tally is what the packets of a test were like.
type tally struct {
	packets, segments int // segments: with an identification above 0
	bytes             int
	partial           int // checksum left to the device
	maxID             uint16
	largest           int // IP packet
	opcodes           map[roce.Opcode]int
	ports             map[flowKey]uint16
	asked             int
	unasked           map[flowKey]int // request packets of RC since the last with AckReq
	gap               int             // the most of it
}

func (c *tally) String() string {
	return fmt.Sprintf("%d packets, %d of them segments with identification 1 to %d, %d bytes, largest %d, %d flows, %d AckReq (at most %d packets without)",
		c.packets, c.segments, c.maxID, c.bytes, c.largest, len(c.ports), c.asked, c.gap)
}

// checkPackets holds every RoCE packet to what the standard and the design promise.
func checkPackets(t testing.TB, packets [][]byte) *tally {
	t.Helper()
	c := &tally{opcodes: map[roce.Opcode]int{}, ports: map[flowKey]uint16{}, unasked: map[flowKey]int{}}
	last := map[flowKey]*packet{}
	bad := 0
	for i, b := range packets {
		p, ok, err := parse(b)
		if !ok {
			continue
		}
		if err == nil {
			err = c.check(&p, last)
		}
		if err != nil {
			if bad++; bad <= 5 {
				t.Errorf("packet %d, %v -> %v, %v: %v", i, p.src, p.dst, p.Op, err)
			}
		}
	}
	if bad > 5 {
		t.Errorf("%d packets were bad", bad)
	}
	return c
}

func (c *tally) check(p *packet, last map[flowKey]*packet) error {
	c.packets++
	c.bytes += len(p.ip)
	c.largest = max(c.largest, len(p.ip))
	c.opcodes[p.Op]++
	c.maxID = max(c.maxID, p.id)

	k := flowKey{p.src, p.dst, p.BTH.DestQP()}
	// The identification counts the segments of one send, and a send has one flow and one size but for its last segment.
	if !p.is6() {
		if flags := binary.BigEndian.Uint16(p.ip[6:]); flags != 0x4000 {
			return fmt.Errorf("flags and fragment offset %#04x, want DF alone", flags)
		}
		if onesSum(0, p.ip[:20]) != 0xFFFF {
			return fmt.Errorf("wrong IP header checksum: %x", p.ip[:20])
		}
		before := last[k]
		last[k] = p
		if p.id > 0 {
			c.segments++
			switch {
			case before == nil || before.id+1 != p.id:
				return fmt.Errorf("identification %d without the segment before it", p.id)
			case len(p.ip) > len(before.ip):
				return fmt.Errorf("segment %d is longer than the one before: %d > %d", p.id, len(p.ip), len(before.ip))
			}
		}
	}
	path := roce.NewPath(p.src, p.dst, p.srcPort())
	if !path.Check(p.udp[8:], p.id) {
		return fmt.Errorf("wrong ICRC for identification %d, source port %d", p.id, p.srcPort())
	}

	sum := binary.BigEndian.Uint16(p.udp[6:])
	switch pseudo := p.pseudo(); {
	case sum == 0:
		return fmt.Errorf("UDP checksum 0")
	case onesSum(pseudo, p.udp) == 0xFFFF:
	case uint32(sum) == pseudo:
		c.partial++ // the device would complete it
	default:
		return fmt.Errorf("wrong UDP checksum %#04x", sum)
	}

	if port, seen := c.ports[k]; seen && port != p.srcPort() {
		return fmt.Errorf("source port %d, before %d for the same queue pair", p.srcPort(), port)
	}
	c.ports[k] = p.srcPort()
	return c.checkBTH(p, k)
}

func (c *tally) checkBTH(p *packet, k flowKey) error {
	if !p.BTH.MigReq() {
		return fmt.Errorf("MigReq is 0")
	}
	if p.BTH.PKey() != 0xFFFF {
		return fmt.Errorf("P_Key %#x", p.BTH.PKey())
	}
	ask := p.BTH.AckReq()
	if ask {
		c.asked++
	}
	f := p.Info.Flags
	switch {
	case p.Op.Transport() != roce.TransportRC:
		if ask {
			return fmt.Errorf("AckReq on an unacknowledged service")
		}
	case f.Any(roce.FlagResponse):
		if ask {
			return fmt.Errorf("AckReq on a response")
		}
	case ask:
		c.unasked[k] = 0
	case f.Any(roce.FlagEnd):
		return fmt.Errorf("the last packet of a message does not ask for an ACK")
	default:
		c.unasked[k]++
		c.gap = max(c.gap, c.unasked[k])
	}
	return nil
}
