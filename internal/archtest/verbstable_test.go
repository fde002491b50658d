package archtest

import (
	"slices"
	"strings"
	"testing"
)

// The names of C that docs/verbs.md has to speak of: what verbs.h of rdma-core 65
// (August 2026) declares, static inlines included, and what its library exports.
// rdma-core 44, Debian 12's, has a subset.
const (
	cCalls = `
__ibv_get_device_list __ibv_reg_mr __ibv_reg_mr_iova _ibv_query_comp_cntr_caps _ibv_query_gid_ex
_ibv_query_gid_table ibv_ack_async_event ibv_ack_cq_events ibv_advise_mr ibv_alloc_buf ibv_alloc_dm
ibv_alloc_dmah ibv_alloc_mw ibv_alloc_null_mr ibv_alloc_parent_domain ibv_alloc_pd ibv_alloc_td
ibv_attach_counters_point_flow ibv_attach_mcast ibv_bind_mw ibv_close_device ibv_close_xrcd
ibv_copy_ah_attr_from_kern ibv_copy_path_rec_from_kern ibv_copy_path_rec_to_kern
ibv_copy_qp_attr_from_kern ibv_cq_ex_to_cq ibv_create_ah ibv_create_ah_from_wc ibv_create_comp_channel
ibv_create_comp_cntr ibv_create_counters ibv_create_cq ibv_create_cq_ex ibv_create_flow
ibv_create_flow_action_esp ibv_create_qp ibv_create_qp_ex ibv_create_rwq_ind_table ibv_create_srq
ibv_create_srq_ex ibv_create_wq ibv_dealloc_dmah ibv_dealloc_mw ibv_dealloc_pd ibv_dealloc_td
ibv_dereg_mr ibv_destroy_ah ibv_destroy_comp_channel ibv_destroy_comp_cntr ibv_destroy_counters
ibv_destroy_cq ibv_destroy_flow ibv_destroy_flow_action ibv_destroy_qp ibv_destroy_rwq_ind_table
ibv_destroy_srq ibv_destroy_wq ibv_detach_mcast ibv_dm_export_dmabuf_fd ibv_dofork_range
ibv_dontfork_range ibv_end_poll ibv_event_type_str ibv_export_buf_dmabuf_fd ibv_flow_label_to_udp_sport
ibv_fork_init ibv_free_buf ibv_free_device_list ibv_free_dm ibv_get_async_event ibv_get_cq_event
ibv_get_device_guid ibv_get_device_index ibv_get_device_list ibv_get_device_name ibv_get_pkey_index
ibv_get_srq_num ibv_get_sysfs_path ibv_import_device ibv_import_dm ibv_import_mr ibv_import_pd
ibv_inc_comp_cntr ibv_inc_err_comp_cntr ibv_inc_rkey ibv_init_ah_from_wc ibv_is_fork_initialized
ibv_is_qpt_supported ibv_memcpy_from_dm ibv_memcpy_to_dm ibv_modify_cq ibv_modify_flow_action_esp
ibv_modify_qp ibv_modify_qp_rate_limit ibv_modify_srq ibv_modify_wq ibv_next_poll ibv_node_type_str
ibv_open_device ibv_open_qp ibv_open_xrcd ibv_poll_cq ibv_port_state_str ibv_post_recv ibv_post_send
ibv_post_srq_ops ibv_post_srq_recv ibv_post_wq_recv ibv_qp_attach_comp_cntr ibv_qp_to_qp_ex
ibv_query_comp_cntr_caps ibv_query_device ibv_query_device_ex ibv_query_ece ibv_query_gid
ibv_query_gid_ex ibv_query_gid_table ibv_query_pkey ibv_query_port ibv_query_port_speed ibv_query_qp
ibv_query_qp_data_in_order ibv_query_rt_values_ex ibv_query_srq ibv_rate_to_mbps ibv_rate_to_mult
ibv_read_comp_cntr ibv_read_counters ibv_read_err_comp_cntr ibv_read_sysfs_file ibv_reg_buf_mr
ibv_reg_dm_mr ibv_reg_dmabuf_mr ibv_reg_mr ibv_reg_mr_ex ibv_reg_mr_iova ibv_reg_mr_iova2
ibv_register_driver ibv_req_notify_cq ibv_rereg_mr ibv_resize_cq ibv_resolve_eth_l2_from_gid
ibv_set_comp_cntr ibv_set_ece ibv_set_err_comp_cntr ibv_start_poll ibv_static_providers ibv_unimport_dm
ibv_unimport_mr ibv_unimport_pd ibv_wc_read_byte_len ibv_wc_read_completion_ts
ibv_wc_read_completion_wallclock_ns ibv_wc_read_cvlan ibv_wc_read_dlid_path_bits ibv_wc_read_flow_tag
ibv_wc_read_imm_data ibv_wc_read_invalidated_rkey ibv_wc_read_opcode ibv_wc_read_qp_num ibv_wc_read_sl
ibv_wc_read_slid ibv_wc_read_src_qp ibv_wc_read_tm_info ibv_wc_read_vendor_err ibv_wc_read_wc_flags
ibv_wc_status_str ibv_wr_abort ibv_wr_atomic_cmp_swp ibv_wr_atomic_fetch_add ibv_wr_atomic_write
ibv_wr_bind_mw ibv_wr_complete ibv_wr_flush ibv_wr_local_inv ibv_wr_opcode_str ibv_wr_rdma_read
ibv_wr_rdma_write ibv_wr_rdma_write_imm ibv_wr_send ibv_wr_send_imm ibv_wr_send_inv ibv_wr_send_tso
ibv_wr_set_inline_data ibv_wr_set_inline_data_list ibv_wr_set_sge ibv_wr_set_sge_list
ibv_wr_set_ud_addr ibv_wr_set_xrc_srqn ibv_wr_start mbps_to_ibv_rate mult_to_ibv_rate verbs_get_ctx
verbs_get_ctx_op`

	// What the kernel's interface has beyond it and a program in user space can use.
	cKernel = `ib_alloc_mr ib_map_mr_sg ib_alloc_mr_integrity ib_map_mr_sg_pi ib_sig_attrs ib_check_mr_status ib_update_fast_reg_key local_dma_lkey ib_drain_qp`

	// enum ibv_wr_opcode, and what the kernel's interface has beyond it.
	cOpcodes = `
IBV_WR_RDMA_WRITE IBV_WR_RDMA_WRITE_WITH_IMM IBV_WR_SEND IBV_WR_SEND_WITH_IMM IBV_WR_RDMA_READ
IBV_WR_ATOMIC_CMP_AND_SWP IBV_WR_ATOMIC_FETCH_AND_ADD IBV_WR_LOCAL_INV IBV_WR_BIND_MW
IBV_WR_SEND_WITH_INV IBV_WR_TSO IBV_WR_DRIVER1 IBV_WR_FLUSH IBV_WR_ATOMIC_WRITE IB_WR_REG_MR
IB_WR_RDMA_READ_WITH_INV IB_WR_REG_MR_INTEGRITY`

	// enum ibv_event_type.
	cEvents = `
IBV_EVENT_CQ_ERR IBV_EVENT_QP_FATAL IBV_EVENT_QP_REQ_ERR IBV_EVENT_QP_ACCESS_ERR IBV_EVENT_COMM_EST
IBV_EVENT_SQ_DRAINED IBV_EVENT_PATH_MIG IBV_EVENT_PATH_MIG_ERR IBV_EVENT_DEVICE_FATAL
IBV_EVENT_PORT_ACTIVE IBV_EVENT_PORT_ERR IBV_EVENT_LID_CHANGE IBV_EVENT_PKEY_CHANGE IBV_EVENT_SM_CHANGE
IBV_EVENT_SRQ_ERR IBV_EVENT_SRQ_LIMIT_REACHED IBV_EVENT_QP_LAST_WQE_REACHED IBV_EVENT_CLIENT_REREGISTER
IBV_EVENT_GID_CHANGE IBV_EVENT_WQ_FATAL IBV_EVENT_DEVICE_SPEED_CHANGE`

	// enum ibv_wc_status.
	cStatuses = `
IBV_WC_SUCCESS IBV_WC_LOC_LEN_ERR IBV_WC_LOC_QP_OP_ERR IBV_WC_LOC_EEC_OP_ERR IBV_WC_LOC_PROT_ERR
IBV_WC_WR_FLUSH_ERR IBV_WC_MW_BIND_ERR IBV_WC_BAD_RESP_ERR IBV_WC_LOC_ACCESS_ERR IBV_WC_REM_INV_REQ_ERR
IBV_WC_REM_ACCESS_ERR IBV_WC_REM_OP_ERR IBV_WC_RETRY_EXC_ERR IBV_WC_RNR_RETRY_EXC_ERR
IBV_WC_LOC_RDD_VIOL_ERR IBV_WC_REM_INV_RD_REQ_ERR IBV_WC_REM_ABORT_ERR IBV_WC_INV_EECN_ERR
IBV_WC_INV_EEC_STATE_ERR IBV_WC_FATAL_ERR IBV_WC_RESP_TIMEOUT_ERR IBV_WC_GENERAL_ERR IBV_WC_TM_ERR
IBV_WC_TM_RNDV_INCOMPLETE`
)

// verbsPage is the table of verbs.
func verbsPage() *page {
	return &page{
		name: "docs/verbs.md", known: []string{cCalls, cKernel, cOpcodes, cEvents, cStatuses},
		pkg: "ib", types: []string{"WROpcode", "EventType", "WCStatus"},
		cName: func(tree *sourceTree, _, value string) string { return tree.cNames[value] },
	}
}

// TestVerbsTable holds the table of verbs to the tree: it speaks of every call,
// opcode, event and status of the C interface, what it names in Go is there, and
// so are the tests, which use it.
func TestVerbsTable(t *testing.T) { verbsPage().test(t) }

// The check finds what is wrong.
func TestVerbsTableFindsErrors(t *testing.T) {
	verbs := verbsPage()
	tree := &sourceTree{
		decls: map[string]bool{"verbs.A": true, "driver.B.F": true, "ib.WRSend": true}, alias: map[string]string{"verbs.B": "driver.B"},
		consts: map[string]map[string][]string{"ib": {"WROpcode": {"WRSend"}}},
		cNames: map[string]string{"WRSend": "IBV_WR_SEND"},
		tests: map[string]map[string][]string{"verbs": {
			"TestA": {"helper"}, "helper": {"A"}, "TestB": {"F", "TestB"}, "TestSend": {"WRSend"},
		}},
	}
	for _, c := range []struct{ row, want string }{
		{"| `ibv_reg_mr` | `verbs.A` | `verbs.TestA` |", ""},
		{"| `ibv_reg_mr` | `verbs.B.F` | `verbs.TestB` | alias |", ""},
		{"| `ibv_reg_mr`, `ibv_dereg_mr` | not offered | | why |", ""},
		{"| `ibv_reg_mr` | not offered | |", "not said why"},
		{"| `ibv_reg_mr` | | |", "want a name of Go"},
		{"| `ibv_reg_mr` | `verbs.A` | |", "no test"},
		{"| | `verbs.A` | `verbs.TestA` |", "no name of C"},
		{"| `ibv_reg_mr` | `verbs.A` |", "want the columns"},
		{"| `ibv_regmr` | `verbs.A` | `verbs.TestA` |", "ibv_regmr is no name"},
		{"| `ibv_reg_mr` | `verbs.C` | `verbs.TestA` |", "there is no verbs.C"},
		{"| `ibv_reg_mr` | `verbs.A` | `verbs.TestC` |", "there is no test verbs.TestC"},
		{"| `ibv_reg_mr` | `verbs.A` | `verbs.helper` |", "there is no test verbs.helper"},
		{"| `ibv_reg_mr` | `verbs.A` | `verbs.TestB` |", "no test of the row uses verbs.A"},
		{"| `IBV_WR_SEND` | `ib.WRSend` | `verbs.TestSend` |", ""},
		{"| `IBV_WR_SEND` | `verbs.A` | `verbs.TestA` |", "IBV_WR_SEND is ib.WRSend"},
	} {
		rows, errs := verbs.parse("| C | Go | Test | Note |\n|---|---|---|---|\n" + c.row + "\n")
		for _, e := range verbs.check(rows, tree) {
			if strings.Contains(e, "verbs.md:3:") {
				errs = append(errs, e)
			}
		}
		if c.want == "" && len(errs) != 0 || c.want != "" && (len(errs) == 0 || !strings.Contains(errs[0], c.want)) {
			t.Errorf("%s: %v, want %q", c.row, errs, c.want)
		}
	}
	if errs := verbs.check(nil, tree); !slices.ContainsFunc(errs, func(e string) bool { return strings.HasSuffix(e, "no row for ibv_reg_mr") }) {
		t.Error("an empty table is good")
	}
}
