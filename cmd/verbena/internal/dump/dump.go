// Package dump prints captures, one line for each packet.
package dump

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/gopacket/gopacket"
	gplayers "github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/cli"
	"github.com/verbena-rdma/verbena/layers"
)

// Config says what to print.
type Config struct {
	Count int  // packets at most; 0: all
	Hex   bool // payload too
}

// Summary is what was printed.
type Summary struct {
	Packets int    // RoCE packets
	Others  int    // packets that are not
	BadICRC int    // of the RoCE packets
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

// Print prints the RoCE packets of a capture. A file that ends within a packet,
// because its writer was killed, gives an error after what there is was printed.
func Print(w io.Writer, r io.Reader, c Config) (s Summary, err error) {
	src, err := open(r)
	if err != nil {
		return s, err
	}
	layers.Register()
	out := bufio.NewWriter(w)
	defer func() { err = errors.Join(err, out.Flush()) }()
	for c.Count == 0 || s.Packets < c.Count {
		data, ci, dir, err := src.read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return s, fmt.Errorf("after %d packets: %w", s.Packets+s.Others, err)
		}
		p := gopacket.NewPacket(data, src.link(ci.InterfaceIndex), gopacket.DecodeOptions{NoCopy: true})
		m := p.Metadata()
		m.CaptureInfo = ci
		m.Truncated = m.Truncated || ci.CaptureLength < ci.Length
		if p.Layer(layers.LayerTypeBTH) == nil {
			s.Others++
			continue
		}
		s.Packets++
		if bad := line(out, p, dir); bad {
			s.BadICRC++
		}
		if app := p.ApplicationLayer(); c.Hex && app != nil {
			hexdump(out, app.Payload())
		}
	}
	s.Dropped = src.drop()
	return s, nil
}
