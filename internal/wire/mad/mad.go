package mad

import (
	"errors"
	"strconv"
)

// Lengths in bytes.
const (
	Len       = 256             // a management datagram
	HeaderLen = 24              // its header
	DataLen   = Len - HeaderLen // what follows: a message of connection management
)

// Where management datagrams go over RoCE (IBA 13.4): UD SEND_ONLY to and from queue pair 1.
const (
	QPN  = 1          // of the general services interface
	QKey = 0x80010000 // its Q_Key
)

// Values of the header.
const (
	BaseVersion    = 1
	ClassCM        = 0x07
	ClassVersionCM = 2
	MethodSend     = 0x03
)

// AttrID says what a management datagram is about.
type AttrID uint16

// Messages of connection management (IBA 12.6).
const (
	AttrREQ     AttrID = 0x10
	AttrMRA     AttrID = 0x11
	AttrREJ     AttrID = 0x12
	AttrREP     AttrID = 0x13
	AttrRTU     AttrID = 0x14
	AttrDREQ    AttrID = 0x15
	AttrDREP    AttrID = 0x16
	AttrSIDRREQ AttrID = 0x17
	AttrSIDRREP AttrID = 0x18
	AttrLAP     AttrID = 0x19
	AttrAPR     AttrID = 0x1A
)

// String returns the name of the message, or AttrID(n).
func (a AttrID) String() string {
	names := [...]string{"REQ", "MRA", "REJ", "REP", "RTU", "DREQ", "DREP", "SIDR_REQ", "SIDR_REP", "LAP", "APR"}
	if a >= AttrREQ && a <= AttrAPR {
		return names[a-AttrREQ]
	}
	return "AttrID(" + strconv.Itoa(int(a)) + ")"
}

// What Parse finds wrong.
var (
	ErrShort   = errors.New("mad: shorter than a management datagram")
	ErrVersion = errors.New("mad: unknown base version")
	ErrClass   = errors.New("mad: not connection management, or another version or method of it")
	ErrAttr    = errors.New("mad: unknown message of connection management")
)

// Packet is a parsed management datagram. Its views alias B.
type Packet struct {
	B    []byte // the 256 bytes
	Hdr  Header
	Attr AttrID
	Data []byte // what follows the header
}

// Parse cuts a management datagram. It checks length, versions, class and
// message. Errors are ErrShort, ErrVersion, ErrClass and ErrAttr; with all but
// ErrShort p is set. Bytes behind the 256 are ignored.
func Parse(b []byte, p *Packet) error {
	*p = Packet{}
	if len(b) < Len {
		return ErrShort
	}
	b = b[:Len:Len]
	h := Header(b[:HeaderLen:HeaderLen])
	*p = Packet{B: b, Hdr: h, Attr: h.AttrID(), Data: b[HeaderLen:]}
	switch {
	case h.BaseVersion() != BaseVersion:
		return ErrVersion
	case h.Class() != ClassCM || h.ClassVersion() != ClassVersionCM || h.Method() != MethodSend:
		return ErrClass
	case p.Attr < AttrREQ || p.Attr > AttrAPR:
		return ErrAttr
	}
	return nil
}

// Put begins a message of connection management in the first 256 bytes of b: header, and zeros to be filled through the message's
// view, which is of the bytes returned.
func Put(b []byte, attr AttrID, tid uint64) []byte {
	b = b[:Len:Len]
	clear(b)
	Header(b).PutCM(attr, tid)
	return b[HeaderLen:]
}

func get24(b []byte) uint32 { return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2]) }

func put24(b []byte, v uint32) {
	_ = b[2]
	b[0], b[1], b[2] = byte(v>>16), byte(v>>8), byte(v)
}

// bits returns n bits of b from bit low on.
func bits(b byte, low, n uint) uint8 { return b >> low & (1<<n - 1) }

// setBits sets n bits of b from bit low on to the low bits of v.
func setBits(b *byte, low, n uint, v uint8) {
	mask := byte(1<<n-1) << low
	*b = *b&^mask | v<<low&mask
}

func setFlag(b *byte, bit uint, v bool) {
	if v {
		*b |= 1 << bit
	} else {
		*b &^= 1 << bit
	}
}
