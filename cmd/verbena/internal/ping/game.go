package ping

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"syscall"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/cli"
	"github.com/verbena-rdma/verbena/ib"
)

// ErrData tells that the data that came back is not what was sent.
var ErrData = errors.New("data mismatch")

// client plays the pings.
func (s *session) client() error {
	for n := 0; s.cfg.Count == 0 || n < s.cfg.Count; n++ {
		fill(s.start, n)
		if err := s.describe(s.start, s.startMR.Addr(), s.startMR.RKey()); err != nil {
			return err
		}
		// The server goes ahead when it has read, and again when it has written.
		if _, err := s.wait(ib.WCRecv); err != nil {
			return err
		}
		if err := s.describe(s.data, s.dataMR.Addr(), s.dataMR.RKey()); err != nil {
			return err
		}
		if _, err := s.wait(ib.WCRecv); err != nil {
			return err
		}
		if s.cfg.Validate && !bytes.Equal(s.start, s.data) {
			at := 0
			for s.start[at] == s.data[at] {
				at++
			}
			return fmt.Errorf("%w: ping %d differs from byte %d on", ErrData, n, at)
		}
		if s.cfg.Verbose {
			if err := s.printf("ping data: %s\n", text(s.data)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *session) describe(b []byte, addr uint64, key ib.RKey) error {
	i := info{addr, key, uint32(len(b))}
	s.debugf("RDMA addr %x rkey %x len %d\n", i.Addr, uint32(i.RKey), i.Size)
	return s.tell(i)
}

// server answers pings until the client disconnects, which is no error.
func (s *session) server() error {
	for {
		switch err := s.serve(); {
		case errors.Is(err, errDisconnected):
			return nil
		case err != nil:
			return err
		}
	}
}

// serve answers one ping.
func (s *session) serve() error {
	source, err := s.advert()
	if err != nil {
		return err
	}
	if err := s.move(ib.WRRDMARead, source, int(source.Size)); err != nil {
		return err
	}
	s.debugf("server posted rdma read req\n")
	if _, err := s.wait(ib.WCRDMARead); err != nil {
		return err
	}
	s.debugf("rdma read completion\nserver received read complete\n")
	got := text(s.data[:source.Size])
	if s.cfg.Verbose {
		if err := s.printf("server ping data: %s\n", got); err != nil {
			return err
		}
	}
	if err := s.goAhead(); err != nil {
		return err
	}
	sink, err := s.advert()
	if err != nil {
		return err
	}
	n := min(len(got)+1, int(source.Size)) // with the 0 at its end
	s.debugf("rdma write from lkey %x laddr %x len %d\n", uint32(s.dataMR.LKey()), s.dataMR.Addr(), n)
	if err := s.move(ib.WRRDMAWrite, sink, n); err != nil {
		return err
	}
	if _, err := s.wait(ib.WCRDMAWrite); err != nil {
		return err
	}
	s.debugf("rdma write completion\nserver rdma write complete\n")
	return s.goAhead()
}

// advert waits for the description of a buffer.
func (s *session) advert() (info, error) {
	i, err := s.wait(ib.WCRecv)
	if err != nil {
		return i, err
	}
	s.debugf("Received rkey %x addr %x len %d from peer\nserver received sink adv\n", uint32(i.RKey), i.Addr, i.Size)
	if int64(i.Size) > int64(s.cfg.Size) {
		return i, cli.Hint(fmt.Errorf("the client's data has %d bytes, this side has room for %d: %w", i.Size, s.cfg.Size, syscall.EMSGSIZE),
			"Give the same -S on both sides")
	}
	return i, nil
}

func (s *session) goAhead() error {
	err := s.tell(info{})
	s.debugf("server posted go ahead\n")
	return err
}

// printf writes to the output, whole lines at a time also with many clients.
func (p *program) printf(format string, args ...any) error {
	return p.write(p.out, format, args...)
}

// errorf tells on the error output what is no end.
func (p *program) errorf(format string, args ...any) {
	_ = p.write(p.errs, format, args...)
}

// debugf is printf with -d.
func (p *program) debugf(format string, args ...any) {
	if p.cfg.Debug {
		_ = p.write(p.out, format, args...)
	}
}

func (p *program) write(w io.Writer, format string, args ...any) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, err := fmt.Fprintf(w, format, args...)
	return err
}
