package layers

import (
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire/mad"
)

// CMDREQ is a request to disconnect (IBA 12.6.10).
type CMDREQ struct {
	layers.BaseLayer
	LocalCommID  uint32 // sender's communication id
	RemoteCommID uint32 // receiver's communication id: the local one of the message that this answers
	RemoteQPN    uint32 // number of the receiver's queue pair
	PrivateData  []byte // 220 bytes of private data; the rest of what the user gave is zero
}

// LayerType implements gopacket.Layer.
func (m *CMDREQ) LayerType() gopacket.LayerType { return LayerTypeCMDREQ }

// CanDecode implements gopacket.DecodingLayer.
func (m *CMDREQ) CanDecode() gopacket.LayerClass { return LayerTypeCMDREQ }

// NextLayerType implements gopacket.DecodingLayer.
func (m *CMDREQ) NextLayerType() gopacket.LayerType { return gopacket.LayerTypeZero }

// DecodeFromBytes implements gopacket.DecodingLayer. Byte fields alias data.
func (m *CMDREQ) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	d, err := cmData(data, df)
	if err != nil {
		return err
	}
	v := mad.DREQ(d)
	*m = CMDREQ{
		BaseLayer:    layers.BaseLayer{Contents: d},
		LocalCommID:  v.LocalCommID(),
		RemoteCommID: v.RemoteCommID(),
		RemoteQPN:    v.RemoteQPN(),
		PrivateData:  v.PrivateData(),
	}
	return nil
}

// SerializeTo implements gopacket.SerializableLayer. Byte fields that are too long are cut.
func (m *CMDREQ) SerializeTo(b gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	d, err := space(b, mad.DataLen)
	if err != nil {
		return err
	}
	v := mad.DREQ(d)
	v.SetLocalCommID(m.LocalCommID)
	v.SetRemoteCommID(m.RemoteCommID)
	v.SetRemoteQPN(m.RemoteQPN)
	copy(v.PrivateData(), m.PrivateData)
	return nil
}

// CMDREP is a reply to a disconnect (IBA 12.6.11).
type CMDREP struct {
	layers.BaseLayer
	LocalCommID  uint32 // sender's communication id
	RemoteCommID uint32 // receiver's communication id: the local one of the message that this answers
	PrivateData  []byte // 224 bytes of private data; the rest of what the user gave is zero
}

// LayerType implements gopacket.Layer.
func (m *CMDREP) LayerType() gopacket.LayerType { return LayerTypeCMDREP }

// CanDecode implements gopacket.DecodingLayer.
func (m *CMDREP) CanDecode() gopacket.LayerClass { return LayerTypeCMDREP }

// NextLayerType implements gopacket.DecodingLayer.
func (m *CMDREP) NextLayerType() gopacket.LayerType { return gopacket.LayerTypeZero }

// DecodeFromBytes implements gopacket.DecodingLayer. Byte fields alias data.
func (m *CMDREP) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	d, err := cmData(data, df)
	if err != nil {
		return err
	}
	v := mad.DREP(d)
	*m = CMDREP{
		BaseLayer:    layers.BaseLayer{Contents: d},
		LocalCommID:  v.LocalCommID(),
		RemoteCommID: v.RemoteCommID(),
		PrivateData:  v.PrivateData(),
	}
	return nil
}

// SerializeTo implements gopacket.SerializableLayer. Byte fields that are too long are cut.
func (m *CMDREP) SerializeTo(b gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	d, err := space(b, mad.DataLen)
	if err != nil {
		return err
	}
	v := mad.DREP(d)
	v.SetLocalCommID(m.LocalCommID)
	v.SetRemoteCommID(m.RemoteCommID)
	copy(v.PrivateData(), m.PrivateData)
	return nil
}

// CMLAP is a load-alternate-path message (IBA 12.8.1). Linux drops it on RoCE ports.
type CMLAP struct {
	layers.BaseLayer
	LocalCommID             uint32 // sender's communication id
	RemoteCommID            uint32 // receiver's communication id: the local one of the message that this answers
	RemoteQPN               uint32 // number of the receiver's queue pair
	RemoteCMResponseTimeout uint8  // time within which the receiver shall answer, 4.096 us * 2^n
	LocalLID                uint16 // LID of the sender on the alternate path
	RemoteLID               uint16 // LID of the receiver on the alternate path
	LocalGID                ib.GID // GID of the sender on the alternate path
	RemoteGID               ib.GID // GID of the receiver on the alternate path
	FlowLabel               uint32 // flow label, 20 bits
	TrafficClass            uint8  // traffic class
	HopLimit                uint8  // hop limit
	PacketRate              uint8  // code of the packet rate
	SL                      uint8  // service level
	SubnetLocal             bool   // the path stays in the subnet
	LocalACKTimeout         uint8  // ACK timeout on the alternate path, 4.096 us * 2^n
	PrivateData             []byte // 168 bytes of private data; the rest of what the user gave is zero
}

// LayerType implements gopacket.Layer.
func (m *CMLAP) LayerType() gopacket.LayerType { return LayerTypeCMLAP }

// CanDecode implements gopacket.DecodingLayer.
func (m *CMLAP) CanDecode() gopacket.LayerClass { return LayerTypeCMLAP }

// NextLayerType implements gopacket.DecodingLayer.
func (m *CMLAP) NextLayerType() gopacket.LayerType { return gopacket.LayerTypeZero }

// DecodeFromBytes implements gopacket.DecodingLayer. Byte fields alias data.
func (m *CMLAP) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	d, err := cmData(data, df)
	if err != nil {
		return err
	}
	v := mad.LAP(d)
	*m = CMLAP{
		BaseLayer:               layers.BaseLayer{Contents: d},
		LocalCommID:             v.LocalCommID(),
		RemoteCommID:            v.RemoteCommID(),
		RemoteQPN:               v.RemoteQPN(),
		RemoteCMResponseTimeout: v.RemoteCMResponseTimeout(),
		LocalLID:                v.LocalLID(),
		RemoteLID:               v.RemoteLID(),
		LocalGID:                v.LocalGID(),
		RemoteGID:               v.RemoteGID(),
		FlowLabel:               v.FlowLabel(),
		TrafficClass:            v.TrafficClass(),
		HopLimit:                v.HopLimit(),
		PacketRate:              v.PacketRate(),
		SL:                      v.SL(),
		SubnetLocal:             v.SubnetLocal(),
		LocalACKTimeout:         v.LocalACKTimeout(),
		PrivateData:             v.PrivateData(),
	}
	return nil
}

// SerializeTo implements gopacket.SerializableLayer. Byte fields that are too long are cut.
func (m *CMLAP) SerializeTo(b gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	d, err := space(b, mad.DataLen)
	if err != nil {
		return err
	}
	v := mad.LAP(d)
	v.SetLocalCommID(m.LocalCommID)
	v.SetRemoteCommID(m.RemoteCommID)
	v.SetRemoteQPN(m.RemoteQPN)
	v.SetRemoteCMResponseTimeout(m.RemoteCMResponseTimeout)
	v.SetLocalLID(m.LocalLID)
	v.SetRemoteLID(m.RemoteLID)
	v.SetLocalGID(m.LocalGID)
	v.SetRemoteGID(m.RemoteGID)
	v.SetFlowLabel(m.FlowLabel)
	v.SetTrafficClass(m.TrafficClass)
	v.SetHopLimit(m.HopLimit)
	v.SetPacketRate(m.PacketRate)
	v.SetSL(m.SL)
	v.SetSubnetLocal(m.SubnetLocal)
	v.SetLocalACKTimeout(m.LocalACKTimeout)
	copy(v.PrivateData(), m.PrivateData)
	return nil
}

// CMAPR is an alternate path response (IBA 12.8.2). Linux drops it on RoCE ports.
type CMAPR struct {
	layers.BaseLayer
	LocalCommID  uint32 // sender's communication id
	RemoteCommID uint32 // receiver's communication id: the local one of the message that this answers
	InfoLength   uint8  // bytes of Info that count
	Status       uint8  // status: 0 is accepted
	Info         []byte // additional information; InfoLength bytes of it count
	PrivateData  []byte // 148 bytes of private data; the rest of what the user gave is zero
}

// LayerType implements gopacket.Layer.
func (m *CMAPR) LayerType() gopacket.LayerType { return LayerTypeCMAPR }

// CanDecode implements gopacket.DecodingLayer.
func (m *CMAPR) CanDecode() gopacket.LayerClass { return LayerTypeCMAPR }

// NextLayerType implements gopacket.DecodingLayer.
func (m *CMAPR) NextLayerType() gopacket.LayerType { return gopacket.LayerTypeZero }

// DecodeFromBytes implements gopacket.DecodingLayer. Byte fields alias data.
func (m *CMAPR) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	d, err := cmData(data, df)
	if err != nil {
		return err
	}
	v := mad.APR(d)
	*m = CMAPR{
		BaseLayer:    layers.BaseLayer{Contents: d},
		LocalCommID:  v.LocalCommID(),
		RemoteCommID: v.RemoteCommID(),
		InfoLength:   v.InfoLength(),
		Status:       v.Status(),
		Info:         v.Info(),
		PrivateData:  v.PrivateData(),
	}
	return nil
}

// SerializeTo implements gopacket.SerializableLayer. Byte fields that are too long are cut.
func (m *CMAPR) SerializeTo(b gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	d, err := space(b, mad.DataLen)
	if err != nil {
		return err
	}
	v := mad.APR(d)
	v.SetLocalCommID(m.LocalCommID)
	v.SetRemoteCommID(m.RemoteCommID)
	v.SetInfoLength(m.InfoLength)
	v.SetStatus(m.Status)
	copy(v.Info(), m.Info)
	copy(v.PrivateData(), m.PrivateData)
	return nil
}

// CMSIDRREQ is a service id resolution request (IBA 12.11.1): which queue pair serves datagrams?
type CMSIDRREQ struct {
	layers.BaseLayer
	RequestID   uint32 // id of the request, chosen by who asks, echoed by the answer
	PKey        uint16 // partition key
	ServiceID   uint64 // service id
	PrivateData []byte // 216 bytes of private data; the rest of what the user gave is zero
}

// LayerType implements gopacket.Layer.
func (m *CMSIDRREQ) LayerType() gopacket.LayerType { return LayerTypeCMSIDRREQ }

// CanDecode implements gopacket.DecodingLayer.
func (m *CMSIDRREQ) CanDecode() gopacket.LayerClass { return LayerTypeCMSIDRREQ }

// NextLayerType implements gopacket.DecodingLayer.
func (m *CMSIDRREQ) NextLayerType() gopacket.LayerType { return gopacket.LayerTypeZero }

// DecodeFromBytes implements gopacket.DecodingLayer. Byte fields alias data.
func (m *CMSIDRREQ) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	d, err := cmData(data, df)
	if err != nil {
		return err
	}
	v := mad.SIDRREQ(d)
	*m = CMSIDRREQ{
		BaseLayer:   layers.BaseLayer{Contents: d},
		RequestID:   v.RequestID(),
		PKey:        v.PKey(),
		ServiceID:   v.ServiceID(),
		PrivateData: v.PrivateData(),
	}
	return nil
}

// SerializeTo implements gopacket.SerializableLayer. Byte fields that are too long are cut.
func (m *CMSIDRREQ) SerializeTo(b gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	d, err := space(b, mad.DataLen)
	if err != nil {
		return err
	}
	v := mad.SIDRREQ(d)
	v.SetRequestID(m.RequestID)
	v.SetPKey(m.PKey)
	v.SetServiceID(m.ServiceID)
	copy(v.PrivateData(), m.PrivateData)
	return nil
}

// CMSIDRREP is the answer to a service id resolution request (IBA 12.11.2).
type CMSIDRREP struct {
	layers.BaseLayer
	RequestID   uint32       // id of the request, chosen by who asks, echoed by the answer
	Status      CMSIDRStatus // status; see SIDRStatus
	InfoLength  uint8        // bytes of Info that count
	QPN         uint32       // number of the queue pair that serves
	ServiceID   uint64       // service id
	QKey        uint32       // Q_Key of the queue pair
	Info        []byte       // additional information; InfoLength bytes of it count
	PrivateData []byte       // 136 bytes of private data; the rest of what the user gave is zero
	VendorID    uint32       // vendor id of enhanced connection establishment, 24 bits; 0 is none
}

// LayerType implements gopacket.Layer.
func (m *CMSIDRREP) LayerType() gopacket.LayerType { return LayerTypeCMSIDRREP }

// CanDecode implements gopacket.DecodingLayer.
func (m *CMSIDRREP) CanDecode() gopacket.LayerClass { return LayerTypeCMSIDRREP }

// NextLayerType implements gopacket.DecodingLayer.
func (m *CMSIDRREP) NextLayerType() gopacket.LayerType { return gopacket.LayerTypeZero }

// DecodeFromBytes implements gopacket.DecodingLayer. Byte fields alias data.
func (m *CMSIDRREP) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	d, err := cmData(data, df)
	if err != nil {
		return err
	}
	v := mad.SIDRREP(d)
	*m = CMSIDRREP{
		BaseLayer:   layers.BaseLayer{Contents: d},
		RequestID:   v.RequestID(),
		Status:      CMSIDRStatus(v.Status()),
		InfoLength:  v.InfoLength(),
		QPN:         v.QPN(),
		ServiceID:   v.ServiceID(),
		QKey:        v.QKey(),
		Info:        v.Info(),
		PrivateData: v.PrivateData(),
		VendorID:    v.VendorID(),
	}
	return nil
}

// SerializeTo implements gopacket.SerializableLayer. Byte fields that are too long are cut.
func (m *CMSIDRREP) SerializeTo(b gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	d, err := space(b, mad.DataLen)
	if err != nil {
		return err
	}
	v := mad.SIDRREP(d)
	v.SetRequestID(m.RequestID)
	v.SetStatus(mad.SIDRStatus(m.Status))
	v.SetInfoLength(m.InfoLength)
	v.SetQPN(m.QPN)
	v.SetServiceID(m.ServiceID)
	v.SetQKey(m.QKey)
	copy(v.Info(), m.Info)
	copy(v.PrivateData(), m.PrivateData)
	v.SetVendorID(m.VendorID)
	return nil
}
