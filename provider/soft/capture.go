package soft

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/verbena-rdma/verbena/internal/capture"
	"github.com/verbena-rdma/verbena/internal/trace"
)

// Capture tells where a device writes the packets that it sends and receives, as
// pcapng for Wireshark, tshark and tcpdump. IP and UDP headers, which sockets hide,
// are written as they are on the wire; packets that stay on this host are captured
// too, and those whose ICRC is wrong. A device that sends faster than the capture
// is written does not wait: packets are left out, counted, and the number stands
// at the end of the file (in an interface statistics block) and in the log.
type Capture struct {
	// Path is the file, made or emptied when the device is opened. {device} and
	// {pid} in it are replaced; without them one device at a time can use it.
	Path string
	// W is written to instead of a file if it is not nil. Writes come from one
	// goroutine and end with Device.Close, which does not close W. Only one device
	// may have it.
	W io.Writer
	// SnapLen is the number of bytes to keep of each packet, from the IP header
	// on; 0: all.
	SnapLen int
}

// WithCapture has each device that is opened write a capture. Devices that are
// opened one after the other to the same file empty it each time.
func WithCapture(c Capture) Option { return func(p *Provider) { p.capture = &c } }

// startCapture starts the capture that the configuration asks for and puts its
// recorder beside the one there is. wall tells that the clock is the system's;
// another one's times are written as they are. nil: no capture.
func startCapture(cfg *Config, wall bool) (*capture.Capture, error) {
	c := cfg.Capture
	if c == nil || c.W == nil && c.Path == "" {
		return nil, nil
	}
	if c.SnapLen < 0 {
		return nil, invalid("SnapLen", "%d", c.SnapLen)
	}
	o := capture.Options{
		W: c.W, SnapLen: c.SnapLen, Clock: cfg.Clock, Logger: cfg.Logger,
		Device: cfg.Name, Application: "verbena " + fwVersion, Description: "RoCEv2 in user space on " + cmp.Or(cfg.NetDev, "no interface"),
		Comment: fmt.Sprintf("device %s, node GUID %016x, process %d", cfg.Name, cfg.GUID, os.Getpid()),
	}
	if wall {
		o.Offset = time.Now().UnixNano() - cfg.Clock()
	}
	if o.W == nil {
		f, err := capture.Create(capture.Name(c.Path, cfg.Name))
		if err != nil {
			return nil, err
		}
		o.W, o.Own = f, true
	}
	run, err := capture.New(o)
	if err != nil {
		return nil, err
	}
	if rec := cfg.Trace; rec != nil {
		cfg.Trace = func(p *trace.Packet) {
			rec(p)
			run.Packet(p)
		}
	} else {
		cfg.Trace = run.Packet
	}
	return run, nil
}
