package layers_test

import (
	"encoding/hex"
	"fmt"

	"github.com/gopacket/gopacket"
	gplayers "github.com/gopacket/gopacket/layers"

	"github.com/verbena-rdma/verbena/layers"
)

// Decode a packet and check its invariant CRC.
func Example() {
	registerOnce() // layers.Register, once in the process
	data, _ := hex.DecodeString("4500003412344000" + "4011a481c0000201c0000202c12312b700200000" + "0430ffff00000011" + "80123456" + "68656c6c6f000000" + "d50c9237")
	p := gopacket.NewPacket(data, gplayers.LayerTypeIPv4, gopacket.Default)

	bth := p.Layer(layers.LayerTypeBTH).(*layers.BTH)
	fmt.Printf("%v to queue pair %#x, PSN %#x: %q\n", bth.Opcode, bth.DestQP, bth.PSN, p.ApplicationLayer().Payload())

	ok, _ := layers.CheckICRC(data)
	fmt.Println("ICRC right:", ok)
	// Output:
	// RC_SEND_ONLY to queue pair 0x11, PSN 0x123456: "hello"
	// ICRC right: true
}
