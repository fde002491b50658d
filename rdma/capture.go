package rdma

import (
	"io"
	"os"

	"github.com/verbena-rdma/verbena/provider/soft"
)

// CaptureEnv is the environment variable that names the file to which a software
// device writes the packets that it sends and receives.
const CaptureEnv = "VERBENA_PCAP"

// WithCapture has a software device write the packets that it sends and receives
// to a file, as pcapng for Wireshark, tshark, tcpdump and verbena dump; instead of
// what VERBENA_PCAP says. The file is made or emptied when the device is opened and
// complete when it is closed; until then it is at most a tenth of a second behind.
// {device} and {pid} in the path are replaced. Only one device at a time can write
// to a file: opening another one fails with EBUSY, so that a Host, which opens
// all of them, needs {device}. The empty path: no capture.
func WithCapture(path string) Option {
	return func(c *config) { c.capture.Path, c.capture.W, c.captured = path, nil, true }
}

// WithCaptureTo is WithCapture with a writer in place of a file, for one device.
// It is written to by one goroutine until the device is closed, and not closed.
func WithCaptureTo(w io.Writer) Option {
	return func(c *config) { c.capture.Path, c.capture.W, c.captured = "", w, true }
}

// WithCaptureLen sets how many bytes of each packet a capture keeps, from the IP
// header on; all if not set.
func WithCaptureLen(n int) Option { return func(c *config) { c.capture.SnapLen = n } }

// captureOption is the provider's option for what options and environment say,
// nil for no capture.
func (c *config) captureOption() soft.Option {
	if !c.captured {
		c.capture.Path = os.Getenv(CaptureEnv)
	}
	if c.capture.Path == "" && c.capture.W == nil {
		return nil
	}
	return soft.WithCapture(c.capture)
}
