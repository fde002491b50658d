package archtest

import (
	"strings"
	"testing"
	"unicode"
)

// The names of C that docs/rdmacm.md has to speak of: what librdmacm of rdma-core 65
// (August 2026) exports, and what rdma_cma.h and rdma_verbs.h declare besides. rdma-core 44,
// Debian 12's, has a subset (RDMACM_1.3, events 0 to 15).
const (
	cmExports = `
rdma_accept rdma_ack_cm_event rdma_bind_addr rdma_connect rdma_create_ep rdma_create_event_channel
rdma_create_id rdma_create_qp rdma_create_qp_ex rdma_create_srq rdma_create_srq_ex rdma_destroy_ep
rdma_destroy_event_channel rdma_destroy_id rdma_destroy_qp rdma_destroy_srq rdma_disconnect
rdma_establish rdma_event_str rdma_free_devices rdma_freeaddrinfo rdma_get_cm_event rdma_get_devices
rdma_get_dst_port rdma_get_remote_ece rdma_get_request rdma_get_src_port rdma_getaddrinfo
rdma_init_qp_attr rdma_join_multicast rdma_join_multicast_ex rdma_leave_multicast rdma_listen
rdma_migrate_id rdma_notify rdma_query_addrinfo rdma_reject rdma_reject_ece rdma_resolve_addr
rdma_resolve_addrinfo rdma_resolve_route rdma_set_local_ece rdma_set_option rdma_write_cm_event

raccept rbind rclose rconnect repoll_create repoll_ctl repoll_wait rfcntl rgetpeername rgetsockname
rgetsockopt riomap riounmap riowrite rlisten rpoll rread rreadv rrecv rrecvfrom rrecvmsg rselect rsend
rsendmsg rsendto rsetsockopt rshutdown rsocket rwrite rwritev`

	cmInline = `
rdma_get_local_addr rdma_get_peer_addr

rdma_dereg_mr rdma_get_recv_comp rdma_get_send_comp rdma_post_read rdma_post_readv rdma_post_recv
rdma_post_recvv rdma_post_send rdma_post_sendv rdma_post_ud_send rdma_post_write rdma_post_writev
rdma_reg_msgs rdma_reg_read rdma_reg_write rdma_seterrno`

	cmEvents = `
RDMA_CM_EVENT_ADDR_RESOLVED RDMA_CM_EVENT_ADDR_ERROR RDMA_CM_EVENT_ROUTE_RESOLVED
RDMA_CM_EVENT_ROUTE_ERROR RDMA_CM_EVENT_CONNECT_REQUEST RDMA_CM_EVENT_CONNECT_RESPONSE
RDMA_CM_EVENT_CONNECT_ERROR RDMA_CM_EVENT_UNREACHABLE RDMA_CM_EVENT_REJECTED
RDMA_CM_EVENT_ESTABLISHED RDMA_CM_EVENT_DISCONNECTED RDMA_CM_EVENT_DEVICE_REMOVAL
RDMA_CM_EVENT_MULTICAST_JOIN RDMA_CM_EVENT_MULTICAST_ERROR RDMA_CM_EVENT_ADDR_CHANGE
RDMA_CM_EVENT_TIMEWAIT_EXIT RDMA_CM_EVENT_ADDRINFO_RESOLVED RDMA_CM_EVENT_ADDRINFO_ERROR
RDMA_CM_EVENT_USER RDMA_CM_EVENT_INTERNAL`

	cmConstants = `
RDMA_PS_IPOIB RDMA_PS_TCP RDMA_PS_UDP RDMA_PS_IB

RDMA_OPTION_ID RDMA_OPTION_IB RDMA_OPTION_ID_TOS RDMA_OPTION_ID_REUSEADDR RDMA_OPTION_ID_AFONLY
RDMA_OPTION_ID_ACK_TIMEOUT RDMA_OPTION_IB_PATH

RAI_PASSIVE RAI_NUMERICHOST RAI_NOROUTE RAI_FAMILY RAI_SA RAI_DNS

RDMA_CM_JOIN_MC_ATTR_ADDRESS RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS RDMA_CM_JOIN_MC_ATTR_RESERVED
RDMA_MC_JOIN_FLAG_FULLMEMBER RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER RDMA_MC_JOIN_FLAG_RESERVED

RDMA_UDP_QKEY RDMA_MAX_RESP_RES RDMA_MAX_INIT_DEPTH RDMA_IB_IP_PS_MASK RDMA_IB_IP_PORT_MASK
RDMA_IB_IP_PS_TCP RDMA_IB_IP_PS_UDP RDMA_IB_PS_IB`

	cmFields = `
rdma_cm_id.verbs rdma_cm_id.channel rdma_cm_id.context rdma_cm_id.qp rdma_cm_id.route rdma_cm_id.ps
rdma_cm_id.port_num rdma_cm_id.event rdma_cm_id.send_cq_channel rdma_cm_id.send_cq
rdma_cm_id.recv_cq_channel rdma_cm_id.recv_cq rdma_cm_id.srq rdma_cm_id.pd rdma_cm_id.qp_type

rdma_cm_event.id rdma_cm_event.listen_id rdma_cm_event.event rdma_cm_event.status
rdma_cm_event.param.conn rdma_cm_event.param.ud rdma_cm_event.param.arg

rdma_conn_param.private_data rdma_conn_param.responder_resources rdma_conn_param.initiator_depth
rdma_conn_param.flow_control rdma_conn_param.retry_count rdma_conn_param.rnr_retry_count
rdma_conn_param.srq rdma_conn_param.qp_num

rdma_ud_param.private_data rdma_ud_param.ah_attr rdma_ud_param.qp_num rdma_ud_param.qkey

rdma_addrinfo.ai_flags rdma_addrinfo.ai_family rdma_addrinfo.ai_qp_type rdma_addrinfo.ai_port_space
rdma_addrinfo.ai_src_addr rdma_addrinfo.ai_dst_addr rdma_addrinfo.ai_src_canonname
rdma_addrinfo.ai_dst_canonname rdma_addrinfo.ai_route rdma_addrinfo.ai_connect rdma_addrinfo.ai_next`
)

// TestRDMACMTable holds the table of librdmacm to the tree, as [TestVerbsTable] that of
// libibverbs.
func TestRDMACMTable(t *testing.T) {
	p := &page{
		name: "docs/rdmacm.md", known: []string{cmExports, cmInline, cmEvents, cmConstants, cmFields},
		pkg: "rdmacm", types: []string{"EventType", "PortSpace", "AddrInfoFlags"}, cName: cmName,
	}
	p.test(t)
}

// cmName makes the name of C of a constant of package rdmacm: EventAddrResolved is
// RDMA_CM_EVENT_ADDR_RESOLVED, PSIPoIB RDMA_PS_IPOIB, RAINoRoute RAI_NOROUTE.
func cmName(_ *sourceTree, typ, value string) string {
	switch typ {
	case "PortSpace":
		return "RDMA_PS_" + strings.ToUpper(strings.TrimPrefix(value, "PS"))
	case "AddrInfoFlags":
		return "RAI_" + strings.ToUpper(strings.TrimPrefix(value, "RAI"))
	}
	name := "RDMA_CM"
	for _, r := range value {
		if unicode.IsUpper(r) {
			name += "_"
		}
		name += string(unicode.ToUpper(r))
	}
	return name
}
