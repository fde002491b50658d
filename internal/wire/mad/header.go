package mad

import (
	"encoding/binary"
)

// Header is the common header of management datagrams (IBA 13.4.3), the first 24 bytes.
//
//	0: base version, class, class version, method
//	4: status, class specific
//	8: transaction id
//	16: attribute id, reserved, attribute modifier
type Header []byte

// BaseVersion returns the base version, which is 1.
func (h Header) BaseVersion() uint8 { return h[0] }

// SetBaseVersion sets the base version.
func (h Header) SetBaseVersion(v uint8) { h[0] = v }

// Class returns the management class: ClassCM for connection management.
func (h Header) Class() uint8 { return h[1] }

// SetClass sets the management class.
func (h Header) SetClass(v uint8) { h[1] = v }

// ClassVersion returns the version of the class: 2 for connection management.
func (h Header) ClassVersion() uint8 { return h[2] }

// SetClassVersion sets the version of the class.
func (h Header) SetClassVersion(v uint8) { h[2] = v }

// Method returns the method: MethodSend for every message of connection management.
func (h Header) Method() uint8 { return h[3] }

// SetMethod sets the method.
func (h Header) SetMethod(v uint8) { h[3] = v }

// Status returns the status, 0 in connection management.
func (h Header) Status() uint16 { return binary.BigEndian.Uint16(h[4:]) }

// SetStatus sets the status.
func (h Header) SetStatus(v uint16) { binary.BigEndian.PutUint16(h[4:], v) }

// ClassSpecific returns the class specific field, 0 in connection management.
func (h Header) ClassSpecific() uint16 { return binary.BigEndian.Uint16(h[6:]) }

// SetClassSpecific sets the class specific field.
func (h Header) SetClassSpecific(v uint16) { binary.BigEndian.PutUint16(h[6:], v) }

// TID returns the transaction id: chosen by who begins, echoed by answers.
func (h Header) TID() uint64 { return binary.BigEndian.Uint64(h[8:]) }

// SetTID sets the transaction id.
func (h Header) SetTID(v uint64) { binary.BigEndian.PutUint64(h[8:], v) }

// AttrID returns the attribute id: which message it is.
func (h Header) AttrID() AttrID { return AttrID(binary.BigEndian.Uint16(h[16:])) }

// SetAttrID sets the attribute id.
func (h Header) SetAttrID(v AttrID) { binary.BigEndian.PutUint16(h[16:], uint16(v)) }

// AttrMod returns the attribute modifier; in REQ, REP and SIDR_REP the options word of enhanced connection establishment.
func (h Header) AttrMod() uint32 { return binary.BigEndian.Uint32(h[20:]) }

// SetAttrMod sets the attribute modifier.
func (h Header) SetAttrMod(v uint32) { binary.BigEndian.PutUint32(h[20:], v) }

// PutCM writes the whole header of a connection management message.
func (h Header) PutCM(attr AttrID, tid uint64) {
	_ = h[HeaderLen-1]
	h[0], h[1], h[2], h[3] = BaseVersion, ClassCM, ClassVersionCM, MethodSend
	clear(h[4:HeaderLen])
	h.SetTID(tid)
	h.SetAttrID(attr)
}
