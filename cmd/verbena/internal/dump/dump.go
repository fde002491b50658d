// Package dump prints captures, one line for each packet.
package dump

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gopacket/gopacket"
	gplayers "github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/cli"
	"github.com/verbena-rdma/verbena/layers"
)

// Config says what to print.
type Config struct {
	Count int      // packets at most; 0: all
	Hex   bool     // payload too
	QPs   []uint32 // only packets to these queue pairs, and datagrams from them; none: all
	Op    string   // only opcodes with this in their name, whatever the case
}

// Input is a capture and what to call it.
type Input struct {
	Name string
	R    io.Reader
}

// Summary is what a capture had.
type Summary struct {
	Packets int    // RoCE packets
	Others  int    // packets that are not
	Printed int    // of the RoCE packets
	BadICRC int    // of those that were printed
	Dropped uint64 // packets that were not captured, as the file says
}

// source reads the packets of a file of either format.
type source struct {
	read func() ([]byte, gopacket.CaptureInfo, direction, error)
	link func(iface int) gplayers.LinkType
	drop func() uint64
}

type direction byte

const (
	unknown  direction = ' '
	sent     direction = '>'
	received direction = '<'
)

// magic numbers of a pcapng section.
const sectionMagic = "\x0a\x0d\x0d\x0a"

func open(r io.Reader) (*source, error) {
	b := bufio.NewReaderSize(r, 1<<16)
	head, err := b.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if bytes.Equal(head, []byte(sectionMagic)) {
		return openNG(b)
	}
	p, err := pcapgo.NewReader(b)
	if err != nil {
		return nil, cli.Hint(errors.New("neither pcapng nor pcap"), "Captures of Verbena are made with VERBENA_PCAP=file.pcapng or rdma.WithCapture")
	}
	return &source{
		read: func() ([]byte, gopacket.CaptureInfo, direction, error) {
			data, ci, err := p.ReadPacketData()
			return data, ci, unknown, err
		},
		link: func(int) gplayers.LinkType { return p.LinkType() },
		drop: func() uint64 { return 0 },
	}, nil
}

func openNG(b *bufio.Reader) (*source, error) {
	r, err := pcapgo.NewNgReader(b, pcapgo.NgReaderOptions{WantMixedLinkType: true})
	if err != nil {
		return nil, err
	}
	return &source{
		read: func() ([]byte, gopacket.CaptureInfo, direction, error) {
			data, ci, opts, err := r.ReadPacketDataWithOptions()
			dir := unknown
			if opts.Flags != nil {
				switch opts.Flags.Direction {
				case pcapgo.NgEpbFlagDirectionInbound:
					dir = received
				case pcapgo.NgEpbFlagDirectionOutbound:
					dir = sent
				}
			}
			return data, ci, dir, err
		},
		link: func(n int) gplayers.LinkType {
			i, err := r.Interface(n)
			if err != nil {
				return gplayers.LinkTypeNull
			}
			return i.LinkType
		},
		drop: func() (n uint64) {
			for i := range r.NInterfaces() {
				if f, err := r.Interface(i); err == nil && f.Statistics.PacketsDropped != pcapgo.NgNoValue64 {
					n += f.Statistics.PacketsDropped
				}
			}
			return n
		},
	}, nil
}

// A reader is a capture that is read, with its next RoCE packet.
type reader struct {
	Input
	*source
	sum  Summary
	next gopacket.Packet // nil: there is none
	dir  direction
	err  error
}

// advance reads the next RoCE packet.
func (r *reader) advance() {
	r.next = nil
	for {
		data, ci, dir, err := r.read()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				r.err = fmt.Errorf("%s: after %d packets: %w", r.Name, r.sum.Packets+r.sum.Others, err)
			}
			return
		}
		p := gopacket.NewPacket(data, r.link(ci.InterfaceIndex), gopacket.DecodeOptions{NoCopy: true})
		m := p.Metadata()
		m.CaptureInfo = ci
		m.Truncated = m.Truncated || ci.CaptureLength < ci.Length
		if p.Layer(layers.LayerTypeBTH) != nil {
			r.next, r.dir = p, dir
			return
		}
		r.sum.Others++
	}
}

// oldest is the reader whose next packet is the oldest; nil: none has one.
func oldest(list []*reader) (best *reader) {
	for _, r := range list {
		if r.next != nil && (best == nil || r.next.Metadata().Timestamp.Before(best.next.Metadata().Timestamp)) {
			best = r
		}
	}
	return best
}

// Print prints the RoCE packets of captures, in the order of their time. A file that
// ends within a packet, because its writer was killed, gives an error after what
// there is was printed. There is a summary for each input.
func Print(w io.Writer, in []Input, c Config) (sums []Summary, err error) {
	layers.Register()
	out := bufio.NewWriter(w)
	list := make([]*reader, len(in))
	defer func() {
		for _, r := range list {
			if r != nil && r.source != nil {
				r.sum.Dropped = r.drop()
				err = errors.Join(err, r.err)
				sums = append(sums, r.sum)
			}
		}
		err = errors.Join(err, out.Flush())
	}()
	for i := range in {
		src, err := open(in[i].R)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", in[i].Name, err)
		}
		list[i] = &reader{Input: in[i], source: src}
		list[i].advance()
		if len(in) > 1 {
			fmt.Fprintf(out, "%d: %s\n", i+1, in[i].Name)
		}
	}
	printed := 0
	for r := oldest(list); r != nil && (c.Count == 0 || printed < c.Count); r = oldest(list) {
		r.sum.Packets++
		if c.wants(r.next) {
			printed++
			r.sum.Printed++
			if len(in) > 1 {
				fmt.Fprintf(out, "%d ", slices.Index(list, r)+1)
			}
			if bad := line(out, r.next, r.dir); bad {
				r.sum.BadICRC++
			}
			if app := r.next.ApplicationLayer(); c.Hex && app != nil {
				hexdump(out, app.Payload())
			}
		}
		r.advance()
	}
	return nil, nil
}

// wants tells whether a packet is to be printed.
func (c *Config) wants(p gopacket.Packet) bool {
	bth := p.Layer(layers.LayerTypeBTH).(*layers.BTH)
	if c.Op != "" && !strings.Contains(strings.ToUpper(bth.Opcode.String()), strings.ToUpper(c.Op)) {
		return false
	}
	if len(c.QPs) == 0 || slices.Contains(c.QPs, bth.DestQP) {
		return true
	}
	deth, ok := p.Layer(layers.LayerTypeDETH).(*layers.DETH)
	return ok && slices.Contains(c.QPs, deth.SrcQP)
}
