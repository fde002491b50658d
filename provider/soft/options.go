package soft

import (
	"fmt"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/queue"
)

// Limits makes a device other than it is by itself: as other devices are, so that
// programs which choose their work requests by what a device offers can be tried
// on all of them. The zero value changes nothing.
type Limits struct {
	// MaxSGERd is the most scatter/gather elements of a READ, 1 to 32; 0: 32.
	MaxSGERd int
	// MaxSGLRd is DeviceAttr.MaxSGLRd: a hint. 0: there is none.
	MaxSGLRd int
	// MaxFastRegPages is the most pages of a fast registration, 1 to 512; 0: 512.
	MaxFastRegPages int
	// MaxPIFastRegPages is that of a registration with protection information, 1 to
	// 256; 0: 256, or half of MaxFastRegPages; negative: the device has none.
	MaxPIFastRegPages int
	// IWARP: the device calls itself an iWARP one, and what a READ fills needs
	// ib.AccessRemoteWrite, as where the responder writes to a key that the READ
	// names. On the wire it speaks RoCEv2 as before.
	IWARP bool
	// ReadWithInv: the device has ib.WRReadWithInv.
	ReadWithInv bool
	// ContigMapping: domains make one range of scattered memory (PD.MapContig), as
	// where an IOMMU can.
	ContigMapping bool
}

// WithLimits sets what the provider's devices offer.
func WithLimits(l Limits) Option { return func(p *Provider) { p.limits = l } }

// fill puts in what is not set. EINVAL: a value is out of range.
func (l *Limits) fill() error {
	for _, f := range []struct {
		what string
		v    *int
		most int
	}{
		{"MaxSGERd", &l.MaxSGERd, maxSGE},
		{"MaxFastRegPages", &l.MaxFastRegPages, maxFastRegPages},
	} {
		if *f.v < 0 || *f.v > f.most {
			return limitError(f.what, *f.v, f.most)
		}
		if *f.v == 0 {
			*f.v = f.most
		}
	}
	if l.MaxSGLRd < 0 {
		return fmt.Errorf("soft: Limits.MaxSGLRd: %d, want at least 0: %w", l.MaxSGLRd, syscall.EINVAL)
	}
	switch {
	case l.MaxPIFastRegPages > maxPIPages:
		return limitError("MaxPIFastRegPages", l.MaxPIFastRegPages, maxPIPages)
	case l.MaxPIFastRegPages < 0:
		l.MaxPIFastRegPages = -1
	case l.MaxPIFastRegPages == 0:
		l.MaxPIFastRegPages = max(l.MaxFastRegPages/2, 1)
	}
	return nil
}

func limitError(what string, v, most int) error {
	return fmt.Errorf("soft: Limits.%s: %d, want 1 to %d, or 0: %w", what, v, most, syscall.EINVAL)
}

// nodeType and transport are what the device calls itself.
func (l *Limits) nodeType() ib.NodeType {
	if l.IWARP {
		return ib.NodeRNIC
	}
	return ib.NodeCA
}

func (l *Limits) transport() string {
	if l.IWARP {
		return "iWARP"
	}
	return "InfiniBand"
}

// ops are the opcodes that the device offers.
func (l *Limits) ops() queue.Ops {
	ops := queue.OpsBase | queue.OpsExtended
	if l.MaxPIFastRegPages > 0 {
		ops |= queue.OpsIntegrity
	}
	if l.ReadWithInv {
		ops |= queue.OpsReadInv
	}
	return ops
}
