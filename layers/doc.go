// Package layers teaches gopacket RoCEv2: the InfiniBand transport headers over
// UDP port 4791, management datagrams and the messages of connection management.
//
// Call [Register] once, and gopacket decodes RoCE packets wherever it meets UDP:
//
//	layers.Register()
//	p := gopacket.NewPacket(data, r.LinkType(), gopacket.Default) // r: pcapgo.NewNgReader(file, ...)
//	if bth, ok := p.Layer(layers.LayerTypeBTH).(*layers.BTH); ok {
//		fmt.Println(bth.Opcode, bth.DestQP, bth.PSN)
//	}
//
// Captures of Verbena (VERBENA_PCAP, rdma.WithCapture) begin with the IP header: their
// link type is Raw, which r.LinkType() tells; those of tcpdump begin with Ethernet.
//
// The layers of a packet are, in the order of the wire: [BTH], the extension
// headers that its opcode has, the payload (gopacket.Payload, or [MAD] with a
// message of connection management for packets to queue pair 1), and [ICRC] with
// the pad bytes before it. A packet that was captured in part has no ICRC layer.
//
// A DecodingLayerParser decodes the BTH only: what follows depends on the opcode,
// which a layer alone does not know.
//
// Packets are built by gopacket.SerializeLayers from the same types, whose
// reserved fields are written as they are; [SetICRC] then puts the invariant CRC
// into the packet, which covers everything before it.
package layers
