package devinfo

import (
	"fmt"
	"io"
	"math/bits"
	"net/netip"
	"strings"

	"github.com/verbena-rdma/verbena/ib"
)

// What ibv_devinfo calls things. Values without a name print as it does.

func stateName(s ib.PortState) string {
	if s < ib.PortDown || s > ib.PortActive {
		return "invalid state"
	}
	return strings.TrimPrefix(s.Name(), "IBV_")
}

func physName(s ib.PortPhysState) string {
	names := []string{"", "SLEEP", "POLLING", "DISABLED", "PORT_CONFIGURATION TRAINNING", "LINK_UP", "LINK_ERROR_RECOVERY", "PHY TEST"}
	if s == 0 || int(s) >= len(names) {
		return "invalid physical state"
	}
	return names[s]
}

func atomicName(a ib.AtomicCap) string {
	if a > ib.AtomicGlob {
		return "invalid atomic capability"
	}
	return []string{"ATOMIC_NONE", "ATOMIC_HCA", "ATOMIC_GLOB"}[a]
}

func mtuName(m ib.MTU) string {
	if m.Bytes() == 0 {
		return "invalid MTU"
	}
	return fmt.Sprint(m.Bytes())
}

func linkName(l ib.LinkLayer) string {
	if l > ib.LinkEthernet {
		return "Unknown"
	}
	return []string{"Unspecified", "InfiniBand", "Ethernet"}[l]
}

func widthName(w uint8) string {
	if s, ok := map[uint8]string{1: "1", 2: "4", 4: "8", 8: "12", 16: "2"}[w]; ok {
		return s
	}
	return "invalid width"
}

func speedName(v uint32) string {
	names := []string{"2.5", "5.0", "10.0", "10.0", "14.0", "25.0", "50.0", "100.0"}
	if i := bits.TrailingZeros32(v); bits.OnesCount32(v) == 1 && i < len(names) {
		return names[i] + " Gbps"
	}
	return "invalid speed"
}

func gidTypeName(t ib.GIDType) string {
	switch t {
	case ib.GIDTypeRoCEv2:
		return "RoCE v2"
	case ib.GIDTypeRoCEv1, ib.GIDTypeIB:
		return "RoCE v1"
	}
	return "Invalid gid type"
}

// capNames are the device capability flags (enum ibv_device_cap_flags; bit 15 is
// the kernel's) by bit.
var capNames = map[int]string{
	0: "RESIZE_MAX_WR", 1: "BAD_PKEY_CNTR", 2: "BAD_QKEY_CNTR", 3: "RAW_MULTI", 4: "AUTO_PATH_MIG", 5: "CHANGE_PHY_PORT",
	6: "UD_AV_PORT_ENFORCE", 7: "CURR_QP_STATE_MOD", 8: "SHUTDOWN_PORT", 9: "INIT_TYPE", 10: "PORT_ACTIVE_EVENT",
	11: "SYS_IMAGE_GUID", 12: "RC_RNR_NAK_GEN", 13: "SRQ_RESIZE", 14: "N_NOTIFY_CQ", 15: "LOCAL_DMA_LKEY", 17: "MEM_WINDOW", 18: "UD_IP_CSUM",
	20: "XRC", 21: "MEM_MGT_EXTENSIONS", 23: "MEM_WINDOW_TYPE_2A", 24: "MEM_WINDOW_TYPE_2B", 25: "RC_IP_CSUM",
	26: "RAW_IP_CSUM", 29: "MANAGED_FLOW_STEERING",
}

const indent = "\t\t\t\t\t"

func printCaps(w io.Writer, flags uint64) {
	var unknown uint32
	for bit := range 32 {
		switch name, ok := capNames[bit]; {
		case flags&(1<<bit) == 0:
		case ok:
			fmt.Fprintf(w, "%s%s\n", indent, name)
		default:
			unknown |= 1 << bit
		}
	}
	if unknown != 0 {
		fmt.Fprintf(w, "%sUnknown flags: 0x%X\n", indent, unknown)
	}
}

// Verbose prints a device as ibv_devinfo -v of rdma-core 44 does, with its keys
// in its order and layout.
func Verbose(w io.Writer, d *Device) {
	a := &d.Attr
	line := func(key, format string, args ...any) { fmt.Fprintf(w, "\t"+key+format+"\n", args...) }
	fmt.Fprintf(w, "hca_id:\t%s\n", d.Name)
	transport := 0
	if d.Transport == "iWARP" {
		transport = 1
	}
	line("transport:\t\t\t", "%s (%d)", d.Transport, transport)
	if a.FWVer != "" {
		line("fw_ver:\t\t\t\t", "%s", a.FWVer)
	}
	line("node_guid:\t\t\t", "%s", guid(a.NodeGUID))
	line("sys_image_guid:\t\t\t", "%s", guid(a.SysImageGUID))
	line("vendor_id:\t\t\t", "0x%04x", a.VendorID)
	line("vendor_part_id:\t\t\t", "%d", a.VendorPartID)
	line("hw_ver:\t\t\t\t", "0x%X", a.HWVer)
	line("phys_port_cnt:\t\t\t", "%d", a.PhysPortCnt)
	line("max_mr_size:\t\t\t", "0x%x", a.MaxMRSize)
	line("page_size_cap:\t\t\t", "0x%x", a.PageSizeCap)
	line("max_qp:\t\t\t\t", "%d", a.MaxQP)
	line("max_qp_wr:\t\t\t", "%d", a.MaxQPWR)
	line("device_cap_flags:\t\t", "0x%08x", uint32(a.DeviceCapFlags))
	printCaps(w, a.DeviceCapFlags)
	line("max_sge:\t\t\t", "%d", a.MaxSGE)
	line("max_sge_rd:\t\t\t", "%d", a.MaxSGERd)
	line("max_cq:\t\t\t\t", "%d", a.MaxCQ)
	line("max_cqe:\t\t\t", "%d", a.MaxCQE)
	line("max_mr:\t\t\t\t", "%d", a.MaxMR)
	line("max_pd:\t\t\t\t", "%d", a.MaxPD)
	line("max_qp_rd_atom:\t\t\t", "%d", a.MaxQPRDAtom)
	// There is no reliable datagram service: no ee contexts, no rdd.
	line("max_ee_rd_atom:\t\t\t", "0")
	line("max_res_rd_atom:\t\t", "%d", a.MaxResRDAtom)
	line("max_qp_init_rd_atom:\t\t", "%d", a.MaxQPInitRDAtom)
	line("max_ee_init_rd_atom:\t\t", "0")
	line("atomic_cap:\t\t\t", "%s (%d)", atomicName(a.AtomicCap), a.AtomicCap)
	line("max_ee:\t\t\t\t", "0")
	line("max_rdd:\t\t\t", "0")
	line("max_mw:\t\t\t\t", "%d", a.MaxMW)
	line("max_raw_ipv6_qp:\t\t", "0")
	line("max_raw_ethy_qp:\t\t", "0")
	line("max_mcast_grp:\t\t\t", "%d", a.MaxMcastGrp)
	line("max_mcast_qp_attach:\t\t", "%d", a.MaxMcastQPAttach)
	line("max_total_mcast_qp_attach:\t", "%d", a.MaxTotalMcastQPAttach)
	line("max_ah:\t\t\t\t", "%d", a.MaxAH)
	line("max_fmr:\t\t\t", "0")
	line("max_srq:\t\t\t", "%d", a.MaxSRQ)
	if a.MaxSRQ > 0 {
		line("max_srq_wr:\t\t\t", "%d", a.MaxSRQWR)
		line("max_srq_sge:\t\t\t", "%d", a.MaxSRQSGE)
	}
	line("max_pkeys:\t\t\t", "%d", a.MaxPKeys)
	line("local_ca_ack_delay:\t\t", "%d", a.LocalCAAckDelay)
	printAbsent(w, line, a)
	for i := range d.Ports {
		printPort(w, &d.Ports[i])
	}
}

// printAbsent prints what the device does not have: the keys are there for
// programs that read them.
func printAbsent(w io.Writer, line func(key, format string, args ...any), a *ib.DeviceAttr) {
	line("general_odp_caps:", "")
	if a.ODP {
		fmt.Fprintf(w, "%sODP_SUPPORT\n", indent)
	}
	for _, t := range []string{"rc", "uc", "ud", "xrc"} {
		line(t+"_odp_caps:", "")
		fmt.Fprintf(w, "%sNO SUPPORT\n", indent)
	}
	line("completion_timestamp_mask not supported", "")
	line("core clock not supported", "")
	line("device_cap_flags_ex:\t\t", "0x%X", a.DeviceCapFlags)
	line("tso_caps:", "")
	line("\tmax_tso:\t\t\t", "0")
	line("rss_caps:", "")
	line("\tmax_rwq_indirection_tables:\t\t\t", "0")
	line("\tmax_rwq_indirection_table_size:\t\t\t", "0")
	line("\trx_hash_function:\t\t\t\t", "0x0")
	line("\trx_hash_fields_mask:\t\t\t\t", "0x0")
	line("max_wq_type_rq:\t\t\t", "0")
	line("packet_pacing_caps:", "")
	line("\tqp_rate_limit_min:\t", "0kbps")
	line("\tqp_rate_limit_max:\t", "0kbps")
	line("tag matching not supported", "")
	line("num_comp_vectors:\t\t", "1")
}

func printPort(w io.Writer, p *Port) {
	a := &p.Attr
	fmt.Fprintf(w, "\t\tport:\t%d\n", p.Num)
	line := func(key, format string, args ...any) { fmt.Fprintf(w, "\t\t\t"+key+format+"\n", args...) }
	line("state:\t\t\t", "%s (%d)", stateName(a.State), a.State)
	line("max_mtu:\t\t", "%s (%d)", mtuName(a.MaxMTU), a.MaxMTU)
	line("active_mtu:\t\t", "%s (%d)", mtuName(a.ActiveMTU), a.ActiveMTU)
	line("sm_lid:\t\t\t", "%d", a.SMLID)
	line("port_lid:\t\t", "%d", a.LID)
	line("port_lmc:\t\t", "0x%02x", a.LMC)
	line("link_layer:\t\t", "%s", linkName(a.LinkLayer))
	line("max_msg_sz:\t\t", "0x%x", a.MaxMsgSz)
	line("port_cap_flags:\t\t", "0x%08x", a.CapFlags)
	// Ethernet has no subnet manager and one virtual lane.
	line("port_cap_flags2:\t", "0x0000")
	line("max_vl_num:\t\t", "1 (1)")
	line("bad_pkey_cntr:\t\t", "0x%x", a.BadPKeyCntr)
	line("qkey_viol_cntr:\t\t", "0x%x", a.QKeyViolCntr)
	line("sm_sl:\t\t\t", "0")
	line("pkey_tbl_len:\t\t", "%d", a.PKeyTblLen)
	line("gid_tbl_len:\t\t", "%d", a.GIDTblLen)
	line("subnet_timeout:\t\t", "0")
	line("init_type_reply:\t", "0")
	line("active_width:\t\t", "%sX (%d)", widthName(a.ActiveWidth), a.ActiveWidth)
	line("active_speed:\t\t", "%s (%d)", speedName(a.ActiveSpeed), a.ActiveSpeed)
	line("phys_state:\t\t", "%s (%d)", physName(a.PhysState), a.PhysState)
	for _, g := range p.GIDs {
		line("", "GID[%3d]:\t\t%s, %s", g.Index, netip.AddrFrom16(g.GID), gidTypeName(g.Type))
	}
	fmt.Fprintln(w)
}
