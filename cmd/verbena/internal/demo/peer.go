package demo

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"syscall"

	"github.com/verbena-rdma/verbena/verbs"
)

// The word that the atomics change starts with this.
const firstWord = 41

// peer is the second process.
type peer struct {
	*side
	first  contact // the first process
	damage string
	sum    hash.Hash
	held   []verbs.WC // completions that came before somebody asked for them
}

// Peer runs the second process: it serves requests from in until it ends.
func Peer(ctx context.Context, in io.Reader, out io.Writer) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	requests := make(chan request)
	go func() {
		// The end of the input is the end of the first process: nothing waits longer.
		d := json.NewDecoder(in)
		for {
			var r request
			if err := d.Decode(&r); err != nil {
				cancel(fmt.Errorf("the first process ended: %w", err))
				return
			}
			select {
			case requests <- r:
			case <-ctx.Done():
				return
			}
		}
	}()
	p := &peer{sum: sha256.New()}
	defer func() {
		if p.side == nil {
			return
		}
		if t := p.trouble(); err != nil && t != "" {
			err = fmt.Errorf("%w; counted: %s", err, t)
		}
		p.close()
	}()
	for {
		var r request
		select {
		case r = <-requests:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		a, err := p.serve(ctx, &r)
		if err != nil {
			a = answer{Err: err.Error()}
			if n := syscall.Errno(0); errors.As(err, &n) {
				a.Errno = uintptr(n)
			}
		}
		line, e := lineOf(&a)
		if e == nil {
			_, e = out.Write(line)
		}
		switch {
		case err != nil:
			return err
		case e != nil:
			return e
		case r.Op == opBye:
			return nil
		case r.Op == opSetup:
			if p.first, err = p.accept(ctx, p.prepare); err != nil {
				return fmt.Errorf("accept the first process: %w", ctxErr(ctx, err))
			}
		case r.Op == opPong:
			if err := p.rally(ctx, r.Count, &p.first, nil); err != nil {
				return err
			}
		}
	}
}

// serve does what one request asks.
func (p *peer) serve(ctx context.Context, r *request) (answer, error) {
	if p.side == nil && r.Op != opSetup {
		return answer{}, errors.New("setup comes first")
	}
	switch r.Op {
	case opSetup:
		return p.setup(ctx, r.Setup)
	case opHash:
		return p.hash(ctx, r)
	case opRecv:
		wc, err := p.recv(ctx, recvMessage)
		if err != nil {
			return answer{}, err
		}
		return p.summed("send", p.bytes(messageAt, int(wc.ByteLen))), nil
	case opDatagram:
		wc, err := p.recv(ctx, recvDatagram)
		if err != nil {
			return answer{}, err
		}
		if wc.ByteLen < grhLen {
			return answer{}, fmt.Errorf("a datagram of %d bytes, less than its GRH", wc.ByteLen)
		}
		a := p.summed("datagram", p.bytes(datagramAt+grhLen, int(wc.ByteLen)-grhLen))
		from, err := p.dev.InitAHFromWC(1, wc, p.bytes(datagramAt, grhLen))
		if err != nil {
			return answer{}, err
		}
		a.SrcQP, a.GID = wc.SrcQP, &from.DGID
		return a, nil
	case opAtomic:
		v := binary.NativeEndian.Uint64(p.bytes(wordAt, 8))
		if p.damage == "atomic" {
			v++
		}
		return answer{Value: v}, nil
	case opPong, opBye:
		return answer{}, nil
	}
	return answer{}, fmt.Errorf("unknown request %q", r.Op)
}

func (p *peer) setup(ctx context.Context, c *setup) (answer, error) {
	if c == nil || p.side != nil {
		return answer{}, errors.New("a second or empty setup")
	}
	s, err := open(ctx, c.Addr, c.Window, nil)
	if err != nil {
		return answer{}, err
	}
	p.side, p.damage = s, c.Damage
	binary.NativeEndian.PutUint64(s.bytes(wordAt, 8), firstWord)
	if err := s.ud.PostRecvOne(&verbs.RecvWR{WRID: recvDatagram, SGList: []verbs.SGE{s.small.SGE(datagramAt, grhLen+datagramLen)}}); err != nil {
		return answer{}, err
	}
	port, err := s.listen()
	return answer{Port: port}, err
}

// prepare posts receives for what comes by the connection.
func (p *peer) prepare() error {
	if err := p.rc.PostRecvOne(&verbs.RecvWR{WRID: recvMessage, SGList: []verbs.SGE{p.small.SGE(messageAt, messageMax)}}); err != nil {
		return err
	}
	return p.postPings(pings)
}

// postPings posts receives for pings: they have no buffer, the data goes where
// the WRITE says.
func (s *side) postPings(n int) error {
	wrs := make([]verbs.RecvWR, n)
	for i := range wrs {
		wrs[i].WRID = recvPing
	}
	return s.rc.PostRecv(wrs)
}

// hash adds what was written to the checksum.
func (p *peer) hash(ctx context.Context, r *request) (answer, error) {
	b := p.window.Bytes()
	if r.Len < 0 || r.Len > len(b) {
		return answer{}, fmt.Errorf("%d bytes of a window of %d", r.Len, len(b))
	}
	spoil := func(what string) {
		if p.damage == what && r.Len > 0 {
			b[r.Len/2] ^= 1
		}
	}
	switch p.damage {
	case "die":
		os.Exit(3)
	case "hang":
		<-ctx.Done()
		return answer{}, context.Cause(ctx)
	}
	spoil("write")
	p.sum.Write(b[:r.Len])
	spoil("read")
	a := answer{Len: r.Len}
	if r.Last {
		a.Sum = hex.EncodeToString(p.sum.Sum(nil))
	}
	return a, nil
}

// summed is the checksum of what was received.
func (p *peer) summed(what string, b []byte) answer {
	if p.damage == what {
		b[0] ^= 1
	}
	return answer{Len: len(b), Sum: sumOf(b)}
}

func sumOf(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// recv waits for the completion of a receive.
func (p *peer) recv(ctx context.Context, wrid uint64) (*verbs.WC, error) {
	for {
		for i := range p.held {
			if p.held[i].WRID == wrid {
				return &p.held[i], nil
			}
		}
		wcs, err := p.wait(ctx)
		if err != nil {
			return nil, err
		}
		p.held = append(p.held, wcs...)
	}
}
