package layers

import (
	"errors"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// Port is the UDP destination port of every RoCEv2 packet.
const Port = roce.Port

// Types of the layers. The numbers are in gopacket's range for applications.
var (
	LayerTypeBTH          = register(0, "BTH", decodeBTH)
	LayerTypeDETH         = register(1, "DETH", nil)
	LayerTypeRETH         = register(2, "RETH", nil)
	LayerTypeAETH         = register(3, "AETH", nil)
	LayerTypeAtomicETH    = register(4, "AtomicETH", nil)
	LayerTypeAtomicAckETH = register(5, "AtomicAckETH", nil)
	LayerTypeImmDt        = register(6, "ImmDt", nil)
	LayerTypeIETH         = register(7, "IETH", nil)
	LayerTypeXRCETH       = register(8, "XRCETH", nil)
	LayerTypeRDETH        = register(9, "RDETH", nil)
	LayerTypeFETH         = register(10, "FETH", nil)
	LayerTypeCNP          = register(11, "CNP", nil)
	LayerTypeICRC         = register(12, "ICRC", nil)
	LayerTypeMAD          = register(13, "MAD", decodeMAD)
	LayerTypeCMREQ        = register(14, "CMREQ", nil)
	LayerTypeCMMRA        = register(15, "CMMRA", nil)
	LayerTypeCMREJ        = register(16, "CMREJ", nil)
	LayerTypeCMREP        = register(17, "CMREP", nil)
	LayerTypeCMRTU        = register(18, "CMRTU", nil)
	LayerTypeCMDREQ       = register(19, "CMDREQ", nil)
	LayerTypeCMDREP       = register(20, "CMDREP", nil)
	LayerTypeCMSIDRREQ    = register(21, "CMSIDRREQ", nil)
	LayerTypeCMSIDRREP    = register(22, "CMSIDRREP", nil)
	LayerTypeCMLAP        = register(23, "CMLAP", nil)
	LayerTypeCMAPR        = register(24, "CMAPR", nil)
	LayerTypeIPCM         = register(25, "IPCM", nil)
)

const firstLayerType = 47910

// register tells gopacket of a layer; those without a decoder of their own are
// decoded by the one that knows what they are.
func register(n int, name string, f gopacket.DecodeFunc) gopacket.LayerType {
	if f == nil {
		f = func([]byte, gopacket.PacketBuilder) error { return errNotAlone }
	}
	return gopacket.RegisterLayerType(firstLayerType+n, gopacket.LayerTypeMetadata{Name: name, Decoder: f})
}

// Register has gopacket decode UDP packets to port 4791 as RoCE. Call it once,
// before packets are decoded: gopacket's table has no lock.
func Register() { layers.RegisterUDPPortLayerType(Port, LayerTypeBTH) }

var (
	errShort    = errors.New("layers: packet too short")
	errNotAlone = errors.New("layers: this header cannot be decoded without the BTH before it")
)

// need reports bytes that are missing.
func need(data []byte, n int, df gopacket.DecodeFeedback) error {
	if len(data) < n {
		df.SetTruncated()
		return errShort
	}
	return nil
}

func cut(data []byte, n int) layers.BaseLayer {
	return layers.BaseLayer{Contents: data[:n:n], Payload: data[n:]}
}

// space gives n zero bytes before what was serialized.
func space(b gopacket.SerializeBuffer, n int) ([]byte, error) {
	d, err := b.PrependBytes(n)
	if err == nil {
		clear(d)
	}
	return d, err
}

func get24(b []byte) uint32 { return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2]) }

func put24(b []byte, v uint32) { b[0], b[1], b[2] = byte(v>>16), byte(v>>8), byte(v) }
