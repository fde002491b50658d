// Package devinfo shows devices: as a table, as ibv_devinfo does, and as JSON.
package devinfo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Device is what is known of a device.
type Device struct {
	Name      string
	NetDev    string
	Transport string
	NodeType  ib.NodeType
	GUID      uint64
	Attr      ib.DeviceAttr
	Ports     []Port
	Sharers   []int // processes that have it open too
}

// Port is what is known of a port. GIDs has the entries that are in use.
type Port struct {
	Num  int
	Attr ib.PortAttr
	GIDs []ib.GIDEntry
}

// Query opens the device and asks it everything.
func Query(ctx context.Context, d *verbs.Device) (Device, error) {
	c, err := d.Open(ctx)
	if err != nil {
		return Device{}, fmt.Errorf("device %s: %w", d.Name(), err)
	}
	defer c.Close()
	out := Device{Name: d.Name(), NetDev: d.NetDev(), Transport: d.Transport(), NodeType: d.NodeType(), GUID: d.GUID()}
	if out.Attr, err = c.QueryDevice(); err != nil {
		return out, err
	}
	if s, ok := c.Driver().(driver.AddrSharer); ok {
		out.Sharers = s.Sharers()
	}
	gids, err := c.QueryGIDTable()
	if err != nil {
		return out, err
	}
	for n := 1; n <= int(out.Attr.PhysPortCnt); n++ {
		p := Port{Num: n}
		if p.Attr, err = c.QueryPort(uint8(n)); err != nil {
			return out, err
		}
		for _, g := range gids {
			if int(g.Port) == n {
				p.GIDs = append(p.GIDs, g)
			}
		}
		out.Ports = append(out.Ports, p)
	}
	return out, nil
}

// Table prints one line for each port.
func Table(w io.Writer, list []Device) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "DEVICE\tPORT\tNETDEV\tNODE GUID\tSTATE\tACTIVE MTU\tGIDS\tGID 0\tSHARED BY")
	for i := range list {
		d := &list[i]
		for _, p := range d.Ports {
			first := "-"
			if len(p.GIDs) > 0 {
				first = p.GIDs[0].GID.Addr().String()
			}
			fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%d\t%d\t%s\t%s\n", d.Name, p.Num, dash(d.NetDev), guid(d.GUID), stateName(p.Attr.State),
				p.Attr.ActiveMTU.Bytes(), len(p.GIDs), first, sharedBy(d.Sharers))
		}
	}
	return t.Flush()
}

// sharedBy tells how many processes there are.
func sharedBy(pids []int) string {
	switch len(pids) {
	case 0:
		return "-"
	case 1:
		return "1 process"
	}
	return fmt.Sprintf("%d processes", len(pids))
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// guid prints a GUID as libibverbs' tools do.
func guid(g uint64) string {
	return fmt.Sprintf("%04x:%04x:%04x:%04x", g>>48, g>>32&0xFFFF, g>>16&0xFFFF, g&0xFFFF)
}

type jsonDevice struct {
	Name         string        `json:"name"`
	NetDev       string        `json:"netdev"`
	Transport    string        `json:"transport"`
	NodeType     string        `json:"node_type"`
	NodeGUID     string        `json:"node_guid"`
	SysImageGUID string        `json:"sys_image_guid"`
	FWVer        string        `json:"fw_ver"`
	Attr         ib.DeviceAttr `json:"attr"`
	Ports        []jsonPort    `json:"ports"`
	SharedBy     []int         `json:"shared_by"` // processes
}

type jsonPort struct {
	Port      int         `json:"port"`
	State     string      `json:"state"`
	PhysState string      `json:"phys_state"`
	MaxMTU    int         `json:"max_mtu"`
	ActiveMTU int         `json:"active_mtu"`
	LinkLayer string      `json:"link_layer"`
	MaxMsgSz  uint32      `json:"max_msg_sz"`
	GIDTblLen int         `json:"gid_tbl_len"`
	GIDs      []jsonEntry `json:"gids"`
}

type jsonEntry struct {
	Index   int    `json:"index"`
	GID     string `json:"gid"`
	Address string `json:"address"`
	Type    string `json:"type"`
	NetDev  string `json:"netdev"`
}

// JSON prints a list of objects.
func JSON(w io.Writer, list []Device) error {
	out := make([]jsonDevice, 0, len(list))
	for i := range list {
		d := &list[i]
		j := jsonDevice{
			Name: d.Name, NetDev: d.NetDev, Transport: d.Transport, NodeType: d.NodeType.String(),
			NodeGUID: guid(d.Attr.NodeGUID), SysImageGUID: guid(d.Attr.SysImageGUID), FWVer: d.Attr.FWVer, Attr: d.Attr,
			SharedBy: append([]int{}, d.Sharers...),
		}
		for _, p := range d.Ports {
			q := jsonPort{
				Port: p.Num, State: stateName(p.Attr.State), PhysState: physName(p.Attr.PhysState), MaxMTU: p.Attr.MaxMTU.Bytes(),
				ActiveMTU: p.Attr.ActiveMTU.Bytes(), LinkLayer: p.Attr.LinkLayer.String(), MaxMsgSz: p.Attr.MaxMsgSz,
				GIDTblLen: p.Attr.GIDTblLen, GIDs: []jsonEntry{},
			}
			for _, g := range p.GIDs {
				q.GIDs = append(q.GIDs, jsonEntry{
					Index: g.Index, GID: g.GID.String(), Address: g.GID.Addr().String(), Type: gidTypeName(g.Type), NetDev: g.NetDev,
				})
			}
			j.Ports = append(j.Ports, q)
		}
		out = append(out, j)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(out)
}
