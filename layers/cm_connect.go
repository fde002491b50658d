package layers

import (
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire/mad"
)

// CMREQ is a connection request (IBA 12.6.5): what the active side offers.
type CMREQ struct {
	layers.BaseLayer
	LocalCommID             uint32      // sender's communication id
	VendorID                uint32      // vendor id of enhanced connection establishment, 24 bits; 0 is none
	ServiceID               uint64      // service id that the listener has
	LocalCAGUID             uint64      // GUID of the sender's channel adapter
	LocalQKey               uint32      // Q_Key, 0 for connected services
	LocalQPN                uint32      // number of the sender's queue pair
	ResponderResources      uint8       // READs and atomics that the sender can serve at a time
	LocalEECN               uint32      // end-to-end context, 0 but for reliable datagrams
	InitiatorDepth          uint8       // READs and atomics that the sender will have outstanding
	RemoteEECN              uint32      // remote end-to-end context, 0 but for reliable datagrams
	RemoteCMResponseTimeout uint8       // time within which the receiver shall answer, 4.096 us * 2^n
	TransportService        CMTransport // service of the connection; TransportExtended means ExtendedTransport
	FlowControl             bool        // the sender's queue pair does end-to-end flow control
	StartingPSN             uint32      // PSN at which the receiver shall begin to send: that of the sender's receive queue
	LocalCMResponseTimeout  uint8       // time within which the sender answers, 4.096 us * 2^n
	RetryCount              uint8       // how often the receiver shall send again before it gives up
	PKey                    uint16      // partition key
	PathMTU                 uint8       // code of the path MTU: 1 is 256, 5 is 4096 bytes
	RDCExists               bool        // a reliable datagram channel exists
	RNRRetryCount           uint8       // how often the receiver shall send again after RNR NAKs; 7 is for ever
	MaxCMRetries            uint8       // how often messages are sent again
	SRQ                     bool        // the sender's queue pair has a shared receive queue
	ExtendedTransport       uint8       // service if TransportService is TransportExtended; 1 is XRC
	PrivateData             []byte      // 92 bytes of private data; the rest of what the user gave is zero
	Primary, Alternate      CMPath      // there is no alternate path if its LocalLID is 0
}

// LayerType implements gopacket.Layer.
func (m *CMREQ) LayerType() gopacket.LayerType { return LayerTypeCMREQ }

// CanDecode implements gopacket.DecodingLayer.
func (m *CMREQ) CanDecode() gopacket.LayerClass { return LayerTypeCMREQ }

// NextLayerType implements gopacket.DecodingLayer.
func (m *CMREQ) NextLayerType() gopacket.LayerType { return gopacket.LayerTypeZero }

// DecodeFromBytes implements gopacket.DecodingLayer. Byte fields alias data.
func (m *CMREQ) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	d, err := cmData(data, df)
	if err != nil {
		return err
	}
	v := mad.REQ(d)
	*m = CMREQ{
		BaseLayer:               layers.BaseLayer{Contents: d},
		LocalCommID:             v.LocalCommID(),
		VendorID:                v.VendorID(),
		ServiceID:               v.ServiceID(),
		LocalCAGUID:             v.LocalCAGUID(),
		LocalQKey:               v.LocalQKey(),
		LocalQPN:                v.LocalQPN(),
		ResponderResources:      v.ResponderResources(),
		LocalEECN:               v.LocalEECN(),
		InitiatorDepth:          v.InitiatorDepth(),
		RemoteEECN:              v.RemoteEECN(),
		RemoteCMResponseTimeout: v.RemoteCMResponseTimeout(),
		TransportService:        CMTransport(v.TransportService()),
		FlowControl:             v.FlowControl(),
		StartingPSN:             v.StartingPSN(),
		LocalCMResponseTimeout:  v.LocalCMResponseTimeout(),
		RetryCount:              v.RetryCount(),
		PKey:                    v.PKey(),
		PathMTU:                 v.PathMTU(),
		RDCExists:               v.RDCExists(),
		RNRRetryCount:           v.RNRRetryCount(),
		MaxCMRetries:            v.MaxCMRetries(),
		SRQ:                     v.SRQ(),
		ExtendedTransport:       v.ExtendedTransport(),
		PrivateData:             v.PrivateData(),
		Primary:                 readPath(v.PrimaryPath()),
		Alternate:               readPath(v.AlternatePath()),
	}
	return nil
}

// SerializeTo implements gopacket.SerializableLayer. Byte fields that are too long are cut.
func (m *CMREQ) SerializeTo(b gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	d, err := space(b, mad.DataLen)
	if err != nil {
		return err
	}
	v := mad.REQ(d)
	v.SetLocalCommID(m.LocalCommID)
	v.SetVendorID(m.VendorID)
	v.SetServiceID(m.ServiceID)
	v.SetLocalCAGUID(m.LocalCAGUID)
	v.SetLocalQKey(m.LocalQKey)
	v.SetLocalQPN(m.LocalQPN)
	v.SetResponderResources(m.ResponderResources)
	v.SetLocalEECN(m.LocalEECN)
	v.SetInitiatorDepth(m.InitiatorDepth)
	v.SetRemoteEECN(m.RemoteEECN)
	v.SetRemoteCMResponseTimeout(m.RemoteCMResponseTimeout)
	v.SetTransportService(mad.TransportService(m.TransportService))
	v.SetFlowControl(m.FlowControl)
	v.SetStartingPSN(m.StartingPSN)
	v.SetLocalCMResponseTimeout(m.LocalCMResponseTimeout)
	v.SetRetryCount(m.RetryCount)
	v.SetPKey(m.PKey)
	v.SetPathMTU(m.PathMTU)
	v.SetRDCExists(m.RDCExists)
	v.SetRNRRetryCount(m.RNRRetryCount)
	v.SetMaxCMRetries(m.MaxCMRetries)
	v.SetSRQ(m.SRQ)
	v.SetExtendedTransport(m.ExtendedTransport)
	copy(v.PrivateData(), m.PrivateData)
	m.Primary.put(v.PrimaryPath())
	m.Alternate.put(v.AlternatePath())
	return nil
}

// CMPath is one of the two paths in a REQ, 44 bytes.
type CMPath struct {
	LocalLID        uint16 // LID of the sender of the REQ; Linux writes 0xFFFF over RoCE
	RemoteLID       uint16 // LID of the receiver; Linux writes 0xFFFF over RoCE
	LocalGID        ib.GID // GID of the sender of the REQ
	RemoteGID       ib.GID // GID of the receiver
	FlowLabel       uint32 // flow label, 20 bits
	PacketRate      uint8  // code of the packet rate; 0 is the port's
	TrafficClass    uint8  // traffic class
	HopLimit        uint8  // hop limit
	SL              uint8  // service level
	SubnetLocal     bool   // the path stays in the subnet
	LocalACKTimeout uint8  // ACK timeout of the sender's queue pair, 4.096 us * 2^n
	SAPSupported    bool   // a suggested alternate path would be taken; of the alternate path only
}

func readPath(v mad.Path) CMPath {
	return CMPath{
		LocalLID:        v.LocalLID(),
		RemoteLID:       v.RemoteLID(),
		LocalGID:        v.LocalGID(),
		RemoteGID:       v.RemoteGID(),
		FlowLabel:       v.FlowLabel(),
		PacketRate:      v.PacketRate(),
		TrafficClass:    v.TrafficClass(),
		HopLimit:        v.HopLimit(),
		SL:              v.SL(),
		SubnetLocal:     v.SubnetLocal(),
		LocalACKTimeout: v.LocalACKTimeout(),
		SAPSupported:    v.SAPSupported(),
	}
}

func (m *CMPath) put(v mad.Path) {
	v.SetLocalLID(m.LocalLID)
	v.SetRemoteLID(m.RemoteLID)
	v.SetLocalGID(m.LocalGID)
	v.SetRemoteGID(m.RemoteGID)
	v.SetFlowLabel(m.FlowLabel)
	v.SetPacketRate(m.PacketRate)
	v.SetTrafficClass(m.TrafficClass)
	v.SetHopLimit(m.HopLimit)
	v.SetSL(m.SL)
	v.SetSubnetLocal(m.SubnetLocal)
	v.SetLocalACKTimeout(m.LocalACKTimeout)
	v.SetSAPSupported(m.SAPSupported)
}

// CMREP is a reply to a connection request (IBA 12.6.8): what the passive side accepts.
type CMREP struct {
	layers.BaseLayer
	LocalCommID        uint32 // sender's communication id
	RemoteCommID       uint32 // receiver's communication id: the local one of the message that this answers
	LocalQKey          uint32 // Q_Key, 0 for connected services
	LocalQPN           uint32 // number of the sender's queue pair
	LocalEECN          uint32 // end-to-end context; the queue pair of an XRC target
	StartingPSN        uint32 // PSN at which the receiver shall begin to send: that of the sender's receive queue
	ResponderResources uint8  // READs and atomics that the sender will serve at a time
	InitiatorDepth     uint8  // READs and atomics that the sender will have outstanding
	TargetACKDelay     uint8  // longest time until the sender acknowledges, 4.096 us * 2^n
	FailoverAccepted   uint8  // the alternate path is accepted: 0 is yes
	FlowControl        bool   // the sender's queue pair does end-to-end flow control
	RNRRetryCount      uint8  // how often the receiver shall send again after RNR NAKs; 7 is for ever
	SRQ                bool   // the sender's queue pair has a shared receive queue
	LocalCAGUID        uint64 // GUID of the sender's channel adapter
	PrivateData        []byte // 196 bytes of private data; the rest of what the user gave is zero
	VendorID           uint32 // vendor id of enhanced connection establishment, 24 bits; 0 is none
}

// LayerType implements gopacket.Layer.
func (m *CMREP) LayerType() gopacket.LayerType { return LayerTypeCMREP }

// CanDecode implements gopacket.DecodingLayer.
func (m *CMREP) CanDecode() gopacket.LayerClass { return LayerTypeCMREP }

// NextLayerType implements gopacket.DecodingLayer.
func (m *CMREP) NextLayerType() gopacket.LayerType { return gopacket.LayerTypeZero }

// DecodeFromBytes implements gopacket.DecodingLayer. Byte fields alias data.
func (m *CMREP) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	d, err := cmData(data, df)
	if err != nil {
		return err
	}
	v := mad.REP(d)
	*m = CMREP{
		BaseLayer:          layers.BaseLayer{Contents: d},
		LocalCommID:        v.LocalCommID(),
		RemoteCommID:       v.RemoteCommID(),
		LocalQKey:          v.LocalQKey(),
		LocalQPN:           v.LocalQPN(),
		LocalEECN:          v.LocalEECN(),
		StartingPSN:        v.StartingPSN(),
		ResponderResources: v.ResponderResources(),
		InitiatorDepth:     v.InitiatorDepth(),
		TargetACKDelay:     v.TargetACKDelay(),
		FailoverAccepted:   v.FailoverAccepted(),
		FlowControl:        v.FlowControl(),
		RNRRetryCount:      v.RNRRetryCount(),
		SRQ:                v.SRQ(),
		LocalCAGUID:        v.LocalCAGUID(),
		PrivateData:        v.PrivateData(),
		VendorID:           v.VendorID(),
	}
	return nil
}

// SerializeTo implements gopacket.SerializableLayer. Byte fields that are too long are cut.
func (m *CMREP) SerializeTo(b gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	d, err := space(b, mad.DataLen)
	if err != nil {
		return err
	}
	v := mad.REP(d)
	v.SetLocalCommID(m.LocalCommID)
	v.SetRemoteCommID(m.RemoteCommID)
	v.SetLocalQKey(m.LocalQKey)
	v.SetLocalQPN(m.LocalQPN)
	v.SetLocalEECN(m.LocalEECN)
	v.SetStartingPSN(m.StartingPSN)
	v.SetResponderResources(m.ResponderResources)
	v.SetInitiatorDepth(m.InitiatorDepth)
	v.SetTargetACKDelay(m.TargetACKDelay)
	v.SetFailoverAccepted(m.FailoverAccepted)
	v.SetFlowControl(m.FlowControl)
	v.SetRNRRetryCount(m.RNRRetryCount)
	v.SetSRQ(m.SRQ)
	v.SetLocalCAGUID(m.LocalCAGUID)
	copy(v.PrivateData(), m.PrivateData)
	v.SetVendorID(m.VendorID)
	return nil
}

// CMRTU is a ready-to-use message (IBA 12.6.9): the active side has the reply.
type CMRTU struct {
	layers.BaseLayer
	LocalCommID  uint32 // sender's communication id
	RemoteCommID uint32 // receiver's communication id: the local one of the message that this answers
	PrivateData  []byte // 224 bytes of private data; the rest of what the user gave is zero
}

// LayerType implements gopacket.Layer.
func (m *CMRTU) LayerType() gopacket.LayerType { return LayerTypeCMRTU }

// CanDecode implements gopacket.DecodingLayer.
func (m *CMRTU) CanDecode() gopacket.LayerClass { return LayerTypeCMRTU }

// NextLayerType implements gopacket.DecodingLayer.
func (m *CMRTU) NextLayerType() gopacket.LayerType { return gopacket.LayerTypeZero }

// DecodeFromBytes implements gopacket.DecodingLayer. Byte fields alias data.
func (m *CMRTU) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	d, err := cmData(data, df)
	if err != nil {
		return err
	}
	v := mad.RTU(d)
	*m = CMRTU{
		BaseLayer:    layers.BaseLayer{Contents: d},
		LocalCommID:  v.LocalCommID(),
		RemoteCommID: v.RemoteCommID(),
		PrivateData:  v.PrivateData(),
	}
	return nil
}

// SerializeTo implements gopacket.SerializableLayer. Byte fields that are too long are cut.
func (m *CMRTU) SerializeTo(b gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	d, err := space(b, mad.DataLen)
	if err != nil {
		return err
	}
	v := mad.RTU(d)
	v.SetLocalCommID(m.LocalCommID)
	v.SetRemoteCommID(m.RemoteCommID)
	copy(v.PrivateData(), m.PrivateData)
	return nil
}

// CMMRA is a message receipt acknowledgement (IBA 12.6.6): wait, the answer takes time.
type CMMRA struct {
	layers.BaseLayer
	LocalCommID    uint32        // sender's communication id
	RemoteCommID   uint32        // receiver's communication id: the local one of the message that this answers
	MessageMRAed   CMMessageKind // message that is acknowledged
	ServiceTimeout uint8         // time to wait for the answer, 4.096 us * 2^n
	PrivateData    []byte        // 222 bytes of private data; the rest of what the user gave is zero
}

// LayerType implements gopacket.Layer.
func (m *CMMRA) LayerType() gopacket.LayerType { return LayerTypeCMMRA }

// CanDecode implements gopacket.DecodingLayer.
func (m *CMMRA) CanDecode() gopacket.LayerClass { return LayerTypeCMMRA }

// NextLayerType implements gopacket.DecodingLayer.
func (m *CMMRA) NextLayerType() gopacket.LayerType { return gopacket.LayerTypeZero }

// DecodeFromBytes implements gopacket.DecodingLayer. Byte fields alias data.
func (m *CMMRA) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	d, err := cmData(data, df)
	if err != nil {
		return err
	}
	v := mad.MRA(d)
	*m = CMMRA{
		BaseLayer:      layers.BaseLayer{Contents: d},
		LocalCommID:    v.LocalCommID(),
		RemoteCommID:   v.RemoteCommID(),
		MessageMRAed:   CMMessageKind(v.MessageMRAed()),
		ServiceTimeout: v.ServiceTimeout(),
		PrivateData:    v.PrivateData(),
	}
	return nil
}

// SerializeTo implements gopacket.SerializableLayer. Byte fields that are too long are cut.
func (m *CMMRA) SerializeTo(b gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	d, err := space(b, mad.DataLen)
	if err != nil {
		return err
	}
	v := mad.MRA(d)
	v.SetLocalCommID(m.LocalCommID)
	v.SetRemoteCommID(m.RemoteCommID)
	v.SetMessageMRAed(mad.MessageKind(m.MessageMRAed))
	v.SetServiceTimeout(m.ServiceTimeout)
	copy(v.PrivateData(), m.PrivateData)
	return nil
}

// CMREJ is a reject (IBA 12.6.7).
type CMREJ struct {
	layers.BaseLayer
	LocalCommID     uint32         // sender's communication id
	RemoteCommID    uint32         // receiver's communication id: the local one of the message that this answers
	MessageRejected CMMessageKind  // message that is rejected
	ARILength       uint8          // bytes of ARI that count
	Reason          CMRejectReason // why
	ARI             []byte         // additional reject information; ARILength bytes of it count
	PrivateData     []byte         // 148 bytes of private data; the rest of what the user gave is zero
}

// LayerType implements gopacket.Layer.
func (m *CMREJ) LayerType() gopacket.LayerType { return LayerTypeCMREJ }

// CanDecode implements gopacket.DecodingLayer.
func (m *CMREJ) CanDecode() gopacket.LayerClass { return LayerTypeCMREJ }

// NextLayerType implements gopacket.DecodingLayer.
func (m *CMREJ) NextLayerType() gopacket.LayerType { return gopacket.LayerTypeZero }

// DecodeFromBytes implements gopacket.DecodingLayer. Byte fields alias data.
func (m *CMREJ) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	d, err := cmData(data, df)
	if err != nil {
		return err
	}
	v := mad.REJ(d)
	*m = CMREJ{
		BaseLayer:       layers.BaseLayer{Contents: d},
		LocalCommID:     v.LocalCommID(),
		RemoteCommID:    v.RemoteCommID(),
		MessageRejected: CMMessageKind(v.MessageRejected()),
		ARILength:       v.ARILength(),
		Reason:          CMRejectReason(v.Reason()),
		ARI:             v.ARI(),
		PrivateData:     v.PrivateData(),
	}
	return nil
}

// SerializeTo implements gopacket.SerializableLayer. Byte fields that are too long are cut.
func (m *CMREJ) SerializeTo(b gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	d, err := space(b, mad.DataLen)
	if err != nil {
		return err
	}
	v := mad.REJ(d)
	v.SetLocalCommID(m.LocalCommID)
	v.SetRemoteCommID(m.RemoteCommID)
	v.SetMessageRejected(mad.MessageKind(m.MessageRejected))
	v.SetARILength(m.ARILength)
	v.SetReason(mad.RejectReason(m.Reason))
	copy(v.ARI(), m.ARI)
	copy(v.PrivateData(), m.PrivateData)
	return nil
}
