package demo

import (
	"io"
	"time"

	"github.com/schollz/progressbar/v3"
)

// bar is a progress bar, or nothing.
type bar struct{ p *progressbar.ProgressBar }

func (b *bar) begin(w io.Writer, total int64) {
	if w == nil || total == 0 {
		return
	}
	b.p = progressbar.NewOptions64(total,
		progressbar.OptionSetWriter(w), progressbar.OptionShowBytes(true), progressbar.OptionSetWidth(30),
		progressbar.OptionThrottle(50*time.Millisecond), progressbar.OptionClearOnFinish(), progressbar.OptionUseANSICodes(true))
}

func (b *bar) step(name string) {
	if b.p != nil {
		b.p.Describe(name)
	}
}

func (b *bar) add(n int) {
	if b.p != nil {
		b.p.Add(n)
	}
}

func (b *bar) end() {
	if b.p != nil {
		b.p.Clear()
		b.p = nil
	}
}
