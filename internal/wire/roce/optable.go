package roce

// OpFlags says what a packet with an opcode is.
type OpFlags uint16

// Flags of an opcode. Every message of one packet has FlagOnly, also READ requests, atomics and acknowledgements.
const (
	FlagRequest      OpFlags = 1 << iota // travels from requester to responder
	FlagResponse                         // travels from responder to requester
	FlagFirst                            // first of several packets
	FlagMiddle                           // neither first nor last
	FlagLast                             // last of several packets
	FlagOnly                             // the whole message
	FlagPayload                          // may have payload
	FlagImm                              // has immediate data
	FlagInv                              // has a key to invalidate
	FlagSend                             // part of a SEND
	FlagWrite                            // part of an RDMA WRITE
	FlagRead                             // a READ request, or part of its response
	FlagAtomic                           // COMPARE_SWAP, FETCH_ADD or ATOMIC_ACK; not ATOMIC_WRITE
	FlagAck                              // ACKNOWLEDGE or ATOMIC_ACK
	FlagConsumesRecv                     // a receive request is consumed at this packet
	FlagExtended                         // FLUSH or ATOMIC_WRITE: takes a responder resource, answered by an empty READ response

	FlagStart = FlagFirst | FlagOnly // a message starts here
	FlagEnd   = FlagLast | FlagOnly  // a message ends here
)

// Any reports whether f has at least one of the flags g.
func (f OpFlags) Any(g OpFlags) bool { return f&g != 0 }

// OpInfo is a row of the opcode table: what parser, builder, requester and responder need to know of an opcode.
type OpInfo struct {
	Name   string // the standard's spelling, "RC_RDMA_READ_RESPONSE_FIRST"; "" if the opcode is not assigned
	Valid  bool   // Parse accepts it. Reliable datagram opcodes have a name but nobody implements them
	HdrLen int    // BTH and extension headers, in bytes
	Flags  OpFlags

	// Offsets of the extension headers from the BTH's first byte; 0 if the packet has no such header.
	RETH, AETH, DETH, AtomicETH, AtomicAck, Imm, IETH, XRCETH, FETH uint8
}

// opRow describes an operation for all transports; the table is made from these rows.
type opRow struct {
	op    Operation
	name  string
	flags OpFlags
	hdrs  []uint8 // in wire order
	in    uint8   // transports that have the operation
}

// Extension headers, for opRow.hdrs.
const (
	hdrRETH uint8 = iota
	hdrAETH
	hdrDETH
	hdrAtomicETH
	hdrAtomicAck
	hdrImm
	hdrIETH
	hdrXRCETH
	hdrFETH
)

// Transports, for opRow.in.
const (
	inRC uint8 = 1 << iota
	inUC
	inRD
	inUD
	inXRC

	inAll   = inRC | inUC | inRD | inUD | inXRC
	inConn  = inRC | inUC | inRD | inXRC // several packets to a message
	inRel   = inRC | inRD | inXRC        // acknowledged
	inRelXC = inRC | inXRC
)

var opRows = [...]opRow{
	{OpSendFirst, "SEND_FIRST", FlagRequest | FlagSend | FlagFirst | FlagPayload | FlagConsumesRecv, nil, inConn},
	{OpSendMiddle, "SEND_MIDDLE", FlagRequest | FlagSend | FlagMiddle | FlagPayload, nil, inConn},
	{OpSendLast, "SEND_LAST", FlagRequest | FlagSend | FlagLast | FlagPayload, nil, inConn},
	{OpSendLastImm, "SEND_LAST_WITH_IMMEDIATE", FlagRequest | FlagSend | FlagLast | FlagPayload | FlagImm, []uint8{hdrImm}, inConn},
	{OpSendOnly, "SEND_ONLY", FlagRequest | FlagSend | FlagOnly | FlagPayload | FlagConsumesRecv, nil, inAll},
	{OpSendOnlyImm, "SEND_ONLY_WITH_IMMEDIATE", FlagRequest | FlagSend | FlagOnly | FlagPayload | FlagImm | FlagConsumesRecv, []uint8{hdrImm}, inAll},
	{OpWriteFirst, "RDMA_WRITE_FIRST", FlagRequest | FlagWrite | FlagFirst | FlagPayload, []uint8{hdrRETH}, inConn},
	{OpWriteMiddle, "RDMA_WRITE_MIDDLE", FlagRequest | FlagWrite | FlagMiddle | FlagPayload, nil, inConn},
	{OpWriteLast, "RDMA_WRITE_LAST", FlagRequest | FlagWrite | FlagLast | FlagPayload, nil, inConn},
	{OpWriteLastImm, "RDMA_WRITE_LAST_WITH_IMMEDIATE", FlagRequest | FlagWrite | FlagLast | FlagPayload | FlagImm | FlagConsumesRecv, []uint8{hdrImm}, inConn},
	{OpWriteOnly, "RDMA_WRITE_ONLY", FlagRequest | FlagWrite | FlagOnly | FlagPayload, []uint8{hdrRETH}, inConn},
	{OpWriteOnlyImm, "RDMA_WRITE_ONLY_WITH_IMMEDIATE", FlagRequest | FlagWrite | FlagOnly | FlagPayload | FlagImm | FlagConsumesRecv, []uint8{hdrRETH, hdrImm}, inConn},
	{OpReadRequest, "RDMA_READ_REQUEST", FlagRequest | FlagRead | FlagOnly, []uint8{hdrRETH}, inRel},
	{OpReadRespFirst, "RDMA_READ_RESPONSE_FIRST", FlagResponse | FlagRead | FlagFirst | FlagPayload, []uint8{hdrAETH}, inRel},
	{OpReadRespMiddle, "RDMA_READ_RESPONSE_MIDDLE", FlagResponse | FlagRead | FlagMiddle | FlagPayload, nil, inRel},
	{OpReadRespLast, "RDMA_READ_RESPONSE_LAST", FlagResponse | FlagRead | FlagLast | FlagPayload, []uint8{hdrAETH}, inRel},
	{OpReadRespOnly, "RDMA_READ_RESPONSE_ONLY", FlagResponse | FlagRead | FlagOnly | FlagPayload, []uint8{hdrAETH}, inRel},
	{OpAcknowledge, "ACKNOWLEDGE", FlagResponse | FlagAck | FlagOnly, []uint8{hdrAETH}, inRel},
	{OpAtomicAck, "ATOMIC_ACKNOWLEDGE", FlagResponse | FlagAtomic | FlagAck | FlagOnly, []uint8{hdrAETH, hdrAtomicAck}, inRel},
	{OpCompareSwap, "COMPARE_SWAP", FlagRequest | FlagAtomic | FlagOnly, []uint8{hdrAtomicETH}, inRel},
	{OpFetchAdd, "FETCH_ADD", FlagRequest | FlagAtomic | FlagOnly, []uint8{hdrAtomicETH}, inRel},
	{opResync, "RESYNC", FlagRequest | FlagOnly, nil, inRD},
	{OpSendLastInv, "SEND_LAST_WITH_INVALIDATE", FlagRequest | FlagSend | FlagLast | FlagPayload | FlagInv, []uint8{hdrIETH}, inRelXC},
	{OpSendOnlyInv, "SEND_ONLY_WITH_INVALIDATE", FlagRequest | FlagSend | FlagOnly | FlagPayload | FlagInv | FlagConsumesRecv, []uint8{hdrIETH}, inRelXC},
	{OpFlush, "FLUSH", FlagRequest | FlagExtended | FlagOnly, []uint8{hdrFETH, hdrRETH}, inRel},
	{OpAtomicWrite, "ATOMIC_WRITE", FlagRequest | FlagExtended | FlagOnly | FlagPayload, []uint8{hdrRETH}, inRelXC},
}

var opTable = makeOpTable()

func makeOpTable() (t [256]OpInfo) {
	for i := range t {
		t[i].HdrLen = BTHLen
	}
	for _, tr := range []struct {
		in uint8
		t  Transport
	}{{inRC, TransportRC}, {inUC, TransportUC}, {inRD, TransportRD}, {inUD, TransportUD}, {inXRC, TransportXRC}} {
		for _, r := range opRows {
			if r.in&tr.in == 0 {
				continue
			}
			inf := &t[MakeOpcode(tr.t, r.op)]
			inf.Name = tr.t.String() + "_" + r.name
			inf.Flags = r.flags
			if tr.in == inRD {
				continue
			}
			inf.Valid = true
			if tr.in == inUD {
				inf.add(hdrDETH)
			}
			if tr.in == inXRC && r.flags&FlagRequest != 0 {
				inf.add(hdrXRCETH)
			}
			for _, h := range r.hdrs {
				inf.add(h)
			}
		}
	}
	t[OpCNP] = OpInfo{Name: "CNP", Valid: true, HdrLen: BTHLen + cnpReservedLength}
	return t
}

// add puts the next extension header behind those that the row has.
func (i *OpInfo) add(hdr uint8) {
	at := uint8(i.HdrLen)
	n := 0
	switch hdr {
	case hdrRETH:
		i.RETH, n = at, RETHLen
	case hdrAETH:
		i.AETH, n = at, AETHLen
	case hdrDETH:
		i.DETH, n = at, DETHLen
	case hdrAtomicETH:
		i.AtomicETH, n = at, AtomicETHLen
	case hdrAtomicAck:
		i.AtomicAck, n = at, AtomicAckETHLen
	case hdrImm:
		i.Imm, n = at, ImmDtLen
	case hdrIETH:
		i.IETH, n = at, IETHLen
	case hdrXRCETH:
		i.XRCETH, n = at, XRCETHLen
	case hdrFETH:
		i.FETH, n = at, FETHLen
	}
	i.HdrLen += n
}
