package dump

import (
	"bufio"
	"fmt"

	"github.com/gopacket/gopacket"
	gplayers "github.com/gopacket/gopacket/layers"

	"github.com/verbena-rdma/verbena/layers"
)

// line prints a packet and reports whether its ICRC is wrong.
func line(w *bufio.Writer, p gopacket.Packet, dir direction) (bad bool) {
	fmt.Fprintf(w, "%s %c", p.Metadata().Timestamp.UTC().Format("15:04:05.000000000"), dir)
	if n := p.NetworkLayer(); n != nil {
		src, dst := n.NetworkFlow().Endpoints()
		fmt.Fprintf(w, " %v -> %v", src, dst)
	}
	bth := p.Layer(layers.LayerTypeBTH).(*layers.BTH)
	fmt.Fprintf(w, " %v qp=%#x psn=%#x", bth.Opcode, bth.DestQP, bth.PSN)
	for _, f := range []struct {
		set  bool
		name string
	}{{bth.AckReq, "ackreq"}, {bth.SolicitedEvent, "solicited"}, {bth.FECN, "fecn"}, {bth.BECN, "becn"}} {
		if f.set {
			fmt.Fprintf(w, " %s", f.name)
		}
	}
	payload := 0
	for _, l := range p.Layers() {
		header(w, l)
		if l, ok := l.(*gopacket.Payload); ok {
			payload += len(*l)
		}
	}
	if payload > 0 {
		fmt.Fprintf(w, " len=%d", payload)
	}
	if e := p.ErrorLayer(); e != nil {
		fmt.Fprintf(w, " (%v)", e.Error())
	}
	if ok, err := layers.PacketICRC(p); err == nil && !ok {
		bad = true
		w.WriteString(" WRONG ICRC")
	}
	if m := p.Metadata(); m.CaptureLength < m.Length {
		fmt.Fprintf(w, " (%d of %d bytes)", m.CaptureLength, m.Length)
	}
	w.WriteByte('\n')
	return bad
}

// header prints what an extension header or a message says.
func header(w *bufio.Writer, l gopacket.Layer) {
	switch h := l.(type) {
	case *layers.RETH:
		fmt.Fprintf(w, " va=%#x rkey=%#x dmalen=%d", h.VA, h.RKey, h.DMALen)
	case *layers.AETH:
		fmt.Fprintf(w, " %v msn=%d", h.Syndrome, h.MSN)
	case *layers.DETH:
		fmt.Fprintf(w, " srcqp=%#x qkey=%#x", h.SrcQP, h.QKey)
	case *layers.AtomicETH:
		fmt.Fprintf(w, " va=%#x rkey=%#x swapadd=%d compare=%d", h.VA, h.RKey, h.SwapAdd, h.Compare)
	case *layers.AtomicAckETH:
		fmt.Fprintf(w, " was=%d", h.Original)
	case *layers.ImmDt:
		fmt.Fprintf(w, " imm=%#x", h.Data)
	case *layers.IETH:
		fmt.Fprintf(w, " invalidate=%#x", h.RKey)
	case *layers.XRCETH:
		fmt.Fprintf(w, " srq=%#x", h.SRQ)
	case *layers.RDETH:
		fmt.Fprintf(w, " eecontext=%#x", h.EEContext)
	case *layers.FETH:
		fmt.Fprintf(w, " placement=%d selectivity=%d", h.Placement, h.Selectivity)
	case *layers.MAD:
		fmt.Fprintf(w, " MAD class=%#x method=%#x tid=%#x", h.Class, h.Method, h.TID)
	case *layers.CMREQ:
		fmt.Fprintf(w, " CM REQ id=%#x service=%#x %v localqp=%#x startpsn=%#x resources=%d depth=%d", h.LocalCommID, h.ServiceID, h.TransportService, h.LocalQPN,
			h.StartingPSN, h.ResponderResources, h.InitiatorDepth)
	case *layers.CMREP:
		fmt.Fprintf(w, " CM REP id=%#x peer=%#x localqp=%#x startpsn=%#x resources=%d depth=%d", h.LocalCommID, h.RemoteCommID, h.LocalQPN, h.StartingPSN,
			h.ResponderResources, h.InitiatorDepth)
	case *layers.CMRTU:
		fmt.Fprintf(w, " CM RTU id=%#x peer=%#x", h.LocalCommID, h.RemoteCommID)
	case *layers.CMMRA:
		fmt.Fprintf(w, " CM MRA id=%#x peer=%#x of %v", h.LocalCommID, h.RemoteCommID, h.MessageMRAed)
	case *layers.CMREJ:
		fmt.Fprintf(w, " CM REJ id=%#x peer=%#x of %v: %v", h.LocalCommID, h.RemoteCommID, h.MessageRejected, h.Reason)
	case *layers.CMDREQ:
		fmt.Fprintf(w, " CM DREQ id=%#x peer=%#x remoteqp=%#x", h.LocalCommID, h.RemoteCommID, h.RemoteQPN)
	case *layers.CMDREP:
		fmt.Fprintf(w, " CM DREP id=%#x peer=%#x", h.LocalCommID, h.RemoteCommID)
	case *layers.CMLAP:
		fmt.Fprintf(w, " CM LAP id=%#x peer=%#x remoteqp=%#x", h.LocalCommID, h.RemoteCommID, h.RemoteQPN)
	case *layers.CMAPR:
		fmt.Fprintf(w, " CM APR id=%#x peer=%#x status=%d", h.LocalCommID, h.RemoteCommID, h.Status)
	case *layers.CMSIDRREQ:
		fmt.Fprintf(w, " CM SIDR_REQ id=%#x service=%#x", h.RequestID, h.ServiceID)
	case *layers.CMSIDRREP:
		fmt.Fprintf(w, " CM SIDR_REP id=%#x %v localqp=%#x qkey=%#x", h.RequestID, h.Status, h.QPN, h.QKey)
	case *layers.IPCM:
		fmt.Fprintf(w, " from %v port %d to %v", h.Src, h.SrcPort, h.Dst)
	case *gplayers.IPv4:
		if h.Id != 0 {
			fmt.Fprintf(w, " ipid=%d", h.Id)
		}
	}
}

// hexdump prints bytes, 16 a line.
func hexdump(w *bufio.Writer, b []byte) {
	for at := 0; at < len(b); at += 16 {
		row := b[at:min(at+16, len(b))]
		text := make([]byte, len(row))
		for i, c := range row {
			if text[i] = '.'; c >= ' ' && c < 0x7F {
				text[i] = c
			}
		}
		fmt.Fprintf(w, "\t%04x  % -48x %s\n", at, row, text)
	}
}
