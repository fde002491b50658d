package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/cli"
)

// devinfoKeys are the lines of ibv_devinfo -v (rdma-core 44) up to the values,
// in their order.
const devinfoKeys = `hca_id:	
	transport:			
	fw_ver:				
	node_guid:			
	sys_image_guid:			
	vendor_id:			
	vendor_part_id:			
	hw_ver:				
	phys_port_cnt:			
	max_mr_size:			
	page_size_cap:			
	max_qp:				
	max_qp_wr:			
	device_cap_flags:		
	max_sge:			
	max_sge_rd:			
	max_cq:				
	max_cqe:			
	max_mr:				
	max_pd:				
	max_qp_rd_atom:			
	max_ee_rd_atom:			
	max_res_rd_atom:		
	max_qp_init_rd_atom:		
	max_ee_init_rd_atom:		
	atomic_cap:			
	max_ee:				
	max_rdd:			
	max_mw:				
	max_raw_ipv6_qp:		
	max_raw_ethy_qp:		
	max_mcast_grp:			
	max_mcast_qp_attach:		
	max_total_mcast_qp_attach:	
	max_ah:				
	max_fmr:			
	max_srq:			
	max_srq_wr:			
	max_srq_sge:			
	max_pkeys:			
	local_ca_ack_delay:		
	general_odp_caps:
	rc_odp_caps:
	uc_odp_caps:
	ud_odp_caps:
	xrc_odp_caps:
	completion_timestamp_mask not supported
	core clock not supported
	device_cap_flags_ex:		
	tso_caps:
		max_tso:			
	rss_caps:
		max_rwq_indirection_tables:			
		max_rwq_indirection_table_size:			
		rx_hash_function:				
		rx_hash_fields_mask:				
	max_wq_type_rq:			
	packet_pacing_caps:
		qp_rate_limit_min:	
		qp_rate_limit_max:	
	tag matching not supported
	num_comp_vectors:		
		port:	
			state:			
			max_mtu:		
			active_mtu:		
			sm_lid:			
			port_lid:		
			port_lmc:		
			link_layer:		
			max_msg_sz:		
			port_cap_flags:		
			port_cap_flags2:	
			max_vl_num:		
			bad_pkey_cntr:		
			qkey_viol_cntr:		
			sm_sl:			
			pkey_tbl_len:		
			gid_tbl_len:		
			subnet_timeout:		
			init_type_reply:	
			active_width:		
			active_speed:		
			phys_state:		
			GID[  0]:		
`

func TestDevicesVerbose(t *testing.T) {
	t.Parallel()
	lo, err := cli.Loopback()
	if err != nil {
		t.Skip(err)
	}
	r := verbena(t, "devices", "-v", "-d", lo).want(t, cli.ExitOK)
	key := regexp.MustCompile(`^(\t*[a-zA-Z_0-9]+(?:\[ *\d+\])?:\t*).*`)
	var got strings.Builder
	for line := range strings.Lines(r.stdout) {
		line = strings.TrimSuffix(line, "\n")
		switch m := key.FindStringSubmatch(line); {
		case strings.HasPrefix(line, "\t\t\tGID[") && !strings.HasPrefix(line, "\t\t\tGID[  0]"):
		case m != nil:
			got.WriteString(m[1] + "\n")
		case strings.HasSuffix(line, "not supported"):
			got.WriteString(line + "\n")
		case line != "" && !strings.HasPrefix(line, "\t\t\t\t\t"): // names of flags stand there
			t.Errorf("line %q", line)
		}
	}
	if got.String() != devinfoKeys {
		t.Errorf("keys:\n%s\nwant:\n%s", got.String(), devinfoKeys)
	}
	for _, s := range []string{
		"hca_id:\tsoft_" + lo + "\n", "transport:\t\t\tInfiniBand (0)\n", "state:\t\t\tPORT_ACTIVE (4)\n", "max_mtu:\t\t4096 (5)\n",
		"link_layer:\t\tEthernet\n", "phys_state:\t\tLINK_UP (5)\n", "::ffff:127.0.0.1, RoCE v2\n", "atomic_cap:\t\t\tATOMIC_HCA (1)\n",
		"max_msg_sz:\t\t0x80000000\n", "max_total_mcast_qp_attach:\t262144\n", "max_res_rd_atom:\t\t16777216\n", "\t\t\t\t\tRC_RNR_NAK_GEN\n",
	} {
		if !strings.Contains(r.stdout, s) {
			t.Errorf("the output lacks %q:\n%s", s, r.stdout)
		}
	}
}

func TestDevicesTable(t *testing.T) {
	t.Parallel()
	lo, err := cli.Loopback()
	if err != nil {
		t.Skip(err)
	}
	r := verbena(t, "devices").want(t, cli.ExitOK)
	head, _, _ := strings.Cut(r.stdout, "\n")
	if strings.Join(strings.Fields(head), " ") != "DEVICE PORT NETDEV NODE GUID STATE ACTIVE MTU GIDS GID 0 SHARED BY" {
		t.Errorf("%q", head)
	}
	row := regexp.MustCompile(`(?m)^soft_` + lo + `\s+1\s+` + lo + `\s+[0-9a-f]{4}(:[0-9a-f]{4}){3}\s+PORT_ACTIVE\s+\d+\s+\d+\s+127\.0\.0\.1\s+(-|1 process|\d+ processes)$`)
	if !row.MatchString(r.stdout) {
		t.Errorf("no row for %s:\n%s", lo, r.stdout)
	}
	if one := verbena(t, "devices", "-d", "soft_"+lo).want(t, cli.ExitOK); strings.Count(one.stdout, "\n") != 2 {
		t.Errorf("-d shows:\n%s", one.stdout)
	}
}

func TestDevicesJSON(t *testing.T) {
	t.Parallel()
	lo, err := cli.Loopback()
	if err != nil {
		t.Skip(err)
	}
	r := verbena(t, "devices", "--json", "-d", lo).want(t, cli.ExitOK)
	var list []struct {
		Name     string
		NetDev   string
		NodeGUID string `json:"node_guid"`
		Attr     struct{ MaxQP int }
		Ports    []struct {
			State     string
			ActiveMTU int `json:"active_mtu"`
			GIDs      []struct{ GID, Address, Type string }
		}
	}
	if err := json.Unmarshal([]byte(r.stdout), &list); err != nil {
		t.Fatalf("%v:\n%s", err, r.stdout)
	}
	if len(list) != 1 || list[0].Name != "soft_"+lo || list[0].NetDev != lo || len(list[0].NodeGUID) != 19 || list[0].Attr.MaxQP == 0 {
		t.Fatalf("%+v", list)
	}
	p := list[0].Ports
	if len(p) != 1 || p[0].State != "PORT_ACTIVE" || p[0].ActiveMTU == 0 || len(p[0].GIDs) == 0 || p[0].GIDs[0].Address != "127.0.0.1" || p[0].GIDs[0].Type != "RoCE v2" {
		t.Errorf("%+v", p)
	}
}

// Who shares a device's addresses is in the table and in JSON.
func TestDevicesSharers(t *testing.T) {
	t.Parallel()
	a := loopAddr()
	srv := startCM(t, a, fmt.Sprintf("ping -s -a %v", a))
	r := verbena(t, "devices", "--json", "-d", "lo").want(t, cli.ExitOK)
	var list []struct {
		SharedBy []int `json:"shared_by"`
	}
	if err := json.Unmarshal([]byte(r.stdout), &list); err != nil || len(list) != 1 || !slices.Contains(list[0].SharedBy, srv.cmd.Process.Pid) {
		t.Errorf("%v, want process %d in\n%s", err, srv.cmd.Process.Pid, r.stdout)
	}
	if r := verbena(t, "devices", "-d", "lo").want(t, cli.ExitOK); !regexp.MustCompile(`(?m) 127\.0\.0\.1 +[1-9]\d* process(es)?$`).MatchString(r.stdout) {
		t.Error(r.stdout)
	}
	srv.interrupt(t)
	srv.end(t, cli.ExitFailed)
}
