package capture

import (
	"encoding/binary"
	"runtime"
)

// Blocks and options of pcapng (draft-ietf-opsawg-pcapng). Files are written
// here and not with a library, because what reaches the file must be whole blocks
// at any time: a capture of a process that crashed then ends with its last
// packet, and not in the middle of one.
const (
	blockSection   = 0x0A0D0D0A
	blockInterface = 1
	blockStats     = 5
	blockPacket    = 6

	byteOrderMagic = 0x1A2B3C4D

	optEnd     = 0
	optComment = 1

	optSectionHardware = 2
	optSectionOS       = 3
	optSectionApp      = 4

	optIfName        = 2
	optIfDescription = 3
	optIfTSResol     = 9

	optPacketFlags   = 2
	optPacketDropped = 4

	optStatsStart    = 2
	optStatsEnd      = 3
	optStatsReceived = 4
	optStatsDropped  = 5

	linkTypeRaw = 101 // packets begin with the IP header

	flagInbound  = 1
	flagOutbound = 2
)

// block appends a block: begin, what the caller appends in between, and end.
type block struct {
	b     []byte
	start int
}

func begin(b []byte, typ uint32) block {
	start := len(b)
	b = binary.LittleEndian.AppendUint32(b, typ)
	b = binary.LittleEndian.AppendUint32(b, 0) // the length, set by end
	return block{b, start}
}

func (k *block) u16(v uint16) { k.b = binary.LittleEndian.AppendUint16(k.b, v) }
func (k *block) u32(v uint32) { k.b = binary.LittleEndian.AppendUint32(k.b, v) }

// time appends a time in ns, the high half first as pcapng has it.
func (k *block) time(ns int64) {
	k.u32(uint32(uint64(ns) >> 32))
	k.u32(uint32(ns))
}

// pad fills up to a multiple of 4 bytes.
func (k *block) pad() {
	for (len(k.b)-k.start)&3 != 0 {
		k.b = append(k.b, 0)
	}
}

func (k *block) option(code uint16, value []byte) {
	k.u16(code)
	k.u16(uint16(len(value)))
	k.b = append(k.b, value...)
	k.pad()
}

func (k *block) text(code uint16, s string) {
	if s != "" {
		k.option(code, []byte(s[:min(len(s), 0xFFFF)]))
	}
}

func (k *block) number(code uint16, v uint64) {
	k.u16(code)
	k.u16(8)
	k.b = binary.LittleEndian.AppendUint64(k.b, v)
}

// end completes the block.
func (k *block) end() []byte {
	n := uint32(len(k.b) - k.start + 4)
	k.u32(n)
	binary.LittleEndian.PutUint32(k.b[k.start+4:], n)
	return k.b
}

// appendSection begins a file: a section and its only interface, the device.
func appendSection(b []byte, o *Options) []byte {
	k := begin(b, blockSection)
	k.u32(byteOrderMagic)
	k.u16(1) // version 1.0
	k.u16(0)
	k.u32(0xFFFFFFFF) // length of the section: not told
	k.u32(0xFFFFFFFF)
	k.text(optSectionHardware, runtime.GOARCH)
	k.text(optSectionOS, runtime.GOOS)
	k.text(optSectionApp, o.Application)
	k.text(optComment, o.Comment)
	k.u32(optEnd)
	b = k.end()

	k = begin(b, blockInterface)
	k.u16(linkTypeRaw)
	k.u16(0)
	k.u32(uint32(o.SnapLen))
	k.text(optIfName, o.Device)
	k.text(optIfDescription, o.Description)
	k.option(optIfTSResol, []byte{9}) // ns
	k.u32(optEnd)
	return k.end()
}

// packetInfo is what a packet's block says besides the bytes.
type packetInfo struct {
	time    int64 // ns since 1970
	length  int   // of the packet, of which fewer bytes may be in the block
	sent    bool
	dropped uint32 // packets lost since the one before
	comment string
}

func appendPacket(b, data []byte, i *packetInfo) []byte {
	k := begin(b, blockPacket)
	k.u32(0) // interface
	k.time(i.time)
	k.u32(uint32(len(data)))
	k.u32(uint32(i.length))
	k.b = append(k.b, data...)
	k.pad()
	k.text(optComment, i.comment)
	flags := uint32(flagInbound)
	if i.sent {
		flags = flagOutbound
	}
	k.u16(optPacketFlags)
	k.u16(4)
	k.u32(flags)
	if i.dropped > 0 {
		k.number(optPacketDropped, uint64(i.dropped))
	}
	k.u32(optEnd)
	return k.end()
}

// appendStats ends a file.
func appendStats(b []byte, start, end int64, seen, dropped uint64) []byte {
	k := begin(b, blockStats)
	k.u32(0) // interface
	k.time(end)
	for _, t := range []struct {
		code uint16
		ns   int64
	}{{optStatsStart, start}, {optStatsEnd, end}} {
		k.u16(t.code)
		k.u16(8)
		k.time(t.ns)
	}
	k.number(optStatsReceived, seen)
	k.number(optStatsDropped, dropped)
	k.u32(optEnd)
	return k.end()
}
