package roce

// Opcode is the operation code of a BTH (IBA 9.2, table of OpCodes): the transport in bits 7..5, the operation in bits 4..0.
type Opcode uint8

// Transport is the transport class of an opcode, in its place (bits 7..5).
type Transport uint8

// Transport classes.
const (
	TransportRC  Transport = 0x00 // reliable connection
	TransportUC  Transport = 0x20 // unreliable connection
	TransportRD  Transport = 0x40 // reliable datagram
	TransportUD  Transport = 0x60 // unreliable datagram
	TransportCNP Transport = 0x80 // congestion notification (IBA A17)
	TransportXRC Transport = 0xA0 // extended reliable connection (IBA A14)
)

// Operation is the operation part of an opcode: its low 5 bits.
type Operation uint8

// Operations, common to all transports that have them.
const (
	OpSendFirst       Operation = 0x00
	OpSendMiddle      Operation = 0x01
	OpSendLast        Operation = 0x02
	OpSendLastImm     Operation = 0x03
	OpSendOnly        Operation = 0x04
	OpSendOnlyImm     Operation = 0x05
	OpWriteFirst      Operation = 0x06
	OpWriteMiddle     Operation = 0x07
	OpWriteLast       Operation = 0x08
	OpWriteLastImm    Operation = 0x09
	OpWriteOnly       Operation = 0x0A
	OpWriteOnlyImm    Operation = 0x0B
	OpReadRequest     Operation = 0x0C
	OpReadRespFirst   Operation = 0x0D
	OpReadRespMiddle  Operation = 0x0E
	OpReadRespLast    Operation = 0x0F
	OpReadRespOnly    Operation = 0x10
	OpAcknowledge     Operation = 0x11
	OpAtomicAck       Operation = 0x12
	OpCompareSwap     Operation = 0x13
	OpFetchAdd        Operation = 0x14
	OpSendLastInv     Operation = 0x16
	OpSendOnlyInv     Operation = 0x17
	OpFlush           Operation = 0x1C
	OpAtomicWrite     Operation = 0x1D
	operationMask     Opcode    = 0x1F
	transportMask     Opcode    = 0xE0
	opResync          Operation = 0x15 // reliable datagram only
	cnpReservedLength           = 16   // reserved bytes that follow the BTH of a CNP
)

// Opcodes of the reliable connection.
const (
	OpRCSendFirst      = Opcode(TransportRC) | Opcode(OpSendFirst)
	OpRCSendMiddle     = Opcode(TransportRC) | Opcode(OpSendMiddle)
	OpRCSendLast       = Opcode(TransportRC) | Opcode(OpSendLast)
	OpRCSendLastImm    = Opcode(TransportRC) | Opcode(OpSendLastImm)
	OpRCSendOnly       = Opcode(TransportRC) | Opcode(OpSendOnly)
	OpRCSendOnlyImm    = Opcode(TransportRC) | Opcode(OpSendOnlyImm)
	OpRCWriteFirst     = Opcode(TransportRC) | Opcode(OpWriteFirst)
	OpRCWriteMiddle    = Opcode(TransportRC) | Opcode(OpWriteMiddle)
	OpRCWriteLast      = Opcode(TransportRC) | Opcode(OpWriteLast)
	OpRCWriteLastImm   = Opcode(TransportRC) | Opcode(OpWriteLastImm)
	OpRCWriteOnly      = Opcode(TransportRC) | Opcode(OpWriteOnly)
	OpRCWriteOnlyImm   = Opcode(TransportRC) | Opcode(OpWriteOnlyImm)
	OpRCReadRequest    = Opcode(TransportRC) | Opcode(OpReadRequest)
	OpRCReadRespFirst  = Opcode(TransportRC) | Opcode(OpReadRespFirst)
	OpRCReadRespMiddle = Opcode(TransportRC) | Opcode(OpReadRespMiddle)
	OpRCReadRespLast   = Opcode(TransportRC) | Opcode(OpReadRespLast)
	OpRCReadRespOnly   = Opcode(TransportRC) | Opcode(OpReadRespOnly)
	OpRCAcknowledge    = Opcode(TransportRC) | Opcode(OpAcknowledge)
	OpRCAtomicAck      = Opcode(TransportRC) | Opcode(OpAtomicAck)
	OpRCCompareSwap    = Opcode(TransportRC) | Opcode(OpCompareSwap)
	OpRCFetchAdd       = Opcode(TransportRC) | Opcode(OpFetchAdd)
	OpRCSendLastInv    = Opcode(TransportRC) | Opcode(OpSendLastInv)
	OpRCSendOnlyInv    = Opcode(TransportRC) | Opcode(OpSendOnlyInv)
	OpRCFlush          = Opcode(TransportRC) | Opcode(OpFlush)
	OpRCAtomicWrite    = Opcode(TransportRC) | Opcode(OpAtomicWrite)
)

// Opcodes of the unreliable connection.
const (
	OpUCSendFirst    = Opcode(TransportUC) | Opcode(OpSendFirst)
	OpUCSendMiddle   = Opcode(TransportUC) | Opcode(OpSendMiddle)
	OpUCSendLast     = Opcode(TransportUC) | Opcode(OpSendLast)
	OpUCSendLastImm  = Opcode(TransportUC) | Opcode(OpSendLastImm)
	OpUCSendOnly     = Opcode(TransportUC) | Opcode(OpSendOnly)
	OpUCSendOnlyImm  = Opcode(TransportUC) | Opcode(OpSendOnlyImm)
	OpUCWriteFirst   = Opcode(TransportUC) | Opcode(OpWriteFirst)
	OpUCWriteMiddle  = Opcode(TransportUC) | Opcode(OpWriteMiddle)
	OpUCWriteLast    = Opcode(TransportUC) | Opcode(OpWriteLast)
	OpUCWriteLastImm = Opcode(TransportUC) | Opcode(OpWriteLastImm)
	OpUCWriteOnly    = Opcode(TransportUC) | Opcode(OpWriteOnly)
	OpUCWriteOnlyImm = Opcode(TransportUC) | Opcode(OpWriteOnlyImm)
)

// Opcodes of the unreliable datagram.
const (
	OpUDSendOnly    = Opcode(TransportUD) | Opcode(OpSendOnly)
	OpUDSendOnlyImm = Opcode(TransportUD) | Opcode(OpSendOnlyImm)
)

// OpCNP is the congestion notification packet (IBA A17). It may be ignored.
const OpCNP Opcode = 0x81

// Opcodes of the extended reliable connection.
const (
	OpXRCSendFirst      = Opcode(TransportXRC) | Opcode(OpSendFirst)
	OpXRCSendMiddle     = Opcode(TransportXRC) | Opcode(OpSendMiddle)
	OpXRCSendLast       = Opcode(TransportXRC) | Opcode(OpSendLast)
	OpXRCSendLastImm    = Opcode(TransportXRC) | Opcode(OpSendLastImm)
	OpXRCSendOnly       = Opcode(TransportXRC) | Opcode(OpSendOnly)
	OpXRCSendOnlyImm    = Opcode(TransportXRC) | Opcode(OpSendOnlyImm)
	OpXRCWriteFirst     = Opcode(TransportXRC) | Opcode(OpWriteFirst)
	OpXRCWriteMiddle    = Opcode(TransportXRC) | Opcode(OpWriteMiddle)
	OpXRCWriteLast      = Opcode(TransportXRC) | Opcode(OpWriteLast)
	OpXRCWriteLastImm   = Opcode(TransportXRC) | Opcode(OpWriteLastImm)
	OpXRCWriteOnly      = Opcode(TransportXRC) | Opcode(OpWriteOnly)
	OpXRCWriteOnlyImm   = Opcode(TransportXRC) | Opcode(OpWriteOnlyImm)
	OpXRCReadRequest    = Opcode(TransportXRC) | Opcode(OpReadRequest)
	OpXRCReadRespFirst  = Opcode(TransportXRC) | Opcode(OpReadRespFirst)
	OpXRCReadRespMiddle = Opcode(TransportXRC) | Opcode(OpReadRespMiddle)
	OpXRCReadRespLast   = Opcode(TransportXRC) | Opcode(OpReadRespLast)
	OpXRCReadRespOnly   = Opcode(TransportXRC) | Opcode(OpReadRespOnly)
	OpXRCAcknowledge    = Opcode(TransportXRC) | Opcode(OpAcknowledge)
	OpXRCAtomicAck      = Opcode(TransportXRC) | Opcode(OpAtomicAck)
	OpXRCCompareSwap    = Opcode(TransportXRC) | Opcode(OpCompareSwap)
	OpXRCFetchAdd       = Opcode(TransportXRC) | Opcode(OpFetchAdd)
	OpXRCSendLastInv    = Opcode(TransportXRC) | Opcode(OpSendLastInv)
	OpXRCSendOnlyInv    = Opcode(TransportXRC) | Opcode(OpSendOnlyInv)
	OpXRCFlush          = Opcode(TransportXRC) | Opcode(OpFlush)
	OpXRCAtomicWrite    = Opcode(TransportXRC) | Opcode(OpAtomicWrite)
)

// MakeOpcode joins a transport and an operation. The result need not be a valid opcode.
func MakeOpcode(t Transport, op Operation) Opcode {
	return Opcode(t)&transportMask | Opcode(op)&operationMask
}

// Transport returns the transport class.
func (o Opcode) Transport() Transport { return Transport(o & transportMask) }

// Operation returns the operation part.
func (o Opcode) Operation() Operation { return Operation(o & operationMask) }

// Info returns the opcode's row of the table. It is never nil; a row with Valid false has no headers but the BTH.
func (o Opcode) Info() *OpInfo { return &opTable[o] }

// String returns the standard's spelling, or Opcode(0xNN).
func (o Opcode) String() string {
	if n := opTable[o].Name; n != "" {
		return n
	}
	return "Opcode(" + hexByte(uint8(o)) + ")"
}

// String returns RC, UC, RD, UD, CNP or XRC, or Transport(0xNN).
func (t Transport) String() string {
	switch t {
	case TransportRC:
		return "RC"
	case TransportUC:
		return "UC"
	case TransportRD:
		return "RD"
	case TransportUD:
		return "UD"
	case TransportCNP:
		return "CNP"
	case TransportXRC:
		return "XRC"
	}
	return "Transport(" + hexByte(uint8(t)) + ")"
}

// String returns the standard's spelling without the transport, or Operation(0xNN).
func (o Operation) String() string {
	for i := range opRows {
		if opRows[i].op == o {
			return opRows[i].name
		}
	}
	return "Operation(" + hexByte(uint8(o)) + ")"
}

func hexByte(v uint8) string {
	const digits = "0123456789ABCDEF"
	return string([]byte{'0', 'x', digits[v>>4], digits[v&0xF]})
}
