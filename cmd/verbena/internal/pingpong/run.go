package pingpong

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/cli"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// Work request identifiers; also the bits of what a queue pair waits for.
const (
	recvWRID = 1
	sendWRID = 2
)

const (
	// spin is how many empty polls in a row, some milliseconds, happen before the
	// game sleeps until something comes.
	spin = 20_000
	// silence is how long the game waits for the peer.
	silence = 30 * time.Second
)

// errSilence tells that the peer is not there any more.
var errSilence = errors.New("no completion for 30 s")

// ErrContent tells that what was received is not what was sent.
var ErrContent = errors.New("the received content is wrong")

// Run plays and prints to out. ctx ends it.
func Run(ctx context.Context, out io.Writer, c Config) (err error) {
	if err := c.Validate(); err != nil {
		return err
	}
	s, err := open(ctx, &c)
	if err != nil {
		return err
	}
	defer func() {
		if e := s.close(); err == nil {
			err = e
		}
	}()
	if err := s.postRecvs(c.RxDepth); err != nil {
		return err
	}
	if c.Events {
		s.cq.ReqNotify(false)
	}
	sep := "," // as the original
	if c.Kind == UD {
		sep = ":"
	}
	for i := range s.mine {
		d := &s.mine[i]
		fmt.Fprintf(out, "  local address:  LID 0x%04x, QPN 0x%06x, PSN 0x%06x%s GID %s\n", d.LID, uint32(d.QPN), d.PSN, sep, d.gidText())
	}
	var peer []dest
	if c.Host != "" {
		peer, err = exchangeClient(ctx, &c, s.mine)
	} else {
		peer, err = exchangeServer(ctx, &c, s.mine, s.connect)
	}
	if err != nil {
		return err
	}
	for i := range peer {
		fmt.Fprintf(out, "  remote address: %s\n", &peer[i])
	}
	if c.Host != "" {
		if err := s.connect(peer); err != nil {
			return err
		}
	}
	took, err := s.play(ctx)
	if err != nil {
		return err
	}
	bytes := 2 * int64(c.Size) * int64(c.Iters)
	usec := float64(took.Nanoseconds()) / 1e3
	fmt.Fprintf(out, "%d bytes in %.2f seconds = %.2f Mbit/sec\n", bytes, usec/1e6, float64(bytes)*8/usec)
	fmt.Fprintf(out, "%d iters in %.2f seconds = %.2f usec/iter\n", c.Iters, usec/1e6, usec/float64(c.Iters))
	s.linger(ctx)
	if c.Check && c.Host == "" {
		bad := s.badPages()
		for _, p := range bad {
			fmt.Fprintf(out, "invalid data in page %d\n", p)
		}
		if len(bad) > 0 {
			return cli.Hint(fmt.Errorf("%w in %d pages", ErrContent, len(bad)), "Both sides need -c and the same -s")
		}
	}
	return nil
}

// lingerTime is four of the peer's ACK timeouts (code 14, 67 ms).
const lingerTime = 300 * time.Millisecond

// linger stays for the peer's retransmissions after a reliable game: if the ACK
// of its last message is lost, only this queue pair can answer. Linux's rdma_rxe
// takes the retry count of 7 that both sides use for infinite: its program would
// never end.
func (s *session) linger(ctx context.Context) {
	if s.cfg.Kind != RC && s.cfg.Kind != SRQ {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lingerTime)
	defer cancel()
	var wcs [16]verbs.WC
	for s.cq.Wait(ctx) == nil {
		if _, err := s.cq.Poll(wcs[:]); err != nil {
			return
		}
	}
}

// game counts.
type game struct {
	*session
	sent, received int   // completed
	started        int   // sends that were posted
	posted         int   // receives
	pending        []int // what each queue pair waits for before it sends again
	index          map[ib.QPN]int
	events         int // to acknowledge
	wcs            []verbs.WC
}

// play exchanges the messages and tells how long it took.
func (s *session) play(ctx context.Context) (time.Duration, error) {
	g := game{
		session: s, posted: s.cfg.RxDepth, pending: make([]int, len(s.qps)),
		index: make(map[ib.QPN]int, len(s.qps)), wcs: make([]verbs.WC, s.cfg.NumQP+1),
	}
	for i, qp := range s.qps {
		g.index[qp.Num()] = i
		g.pending[i] = recvWRID
	}
	start := time.Now()
	if s.cfg.Host != "" {
		for i := range min(len(s.qps), s.cfg.Iters) {
			if err := g.send(i); err != nil {
				return 0, err
			}
		}
	}
	err := g.loop(ctx)
	took := time.Since(start)
	if g.events > 0 {
		if e := s.cq.AckEvents(g.events); err == nil {
			err = e
		}
	}
	return took, err
}

func (g *game) send(i int) error {
	if err := g.postSend(i); err != nil {
		return fmt.Errorf("couldn't post send: %w", err)
	}
	g.started++
	g.pending[i] = recvWRID | sendWRID
	return nil
}

func (g *game) loop(ctx context.Context) error {
	n := g.cfg.Iters
	for empty := 0; g.received < n || g.sent < n; {
		k, err := g.cq.Poll(g.wcs)
		if err != nil {
			return err
		}
		for i := range g.wcs[:k] {
			if err := g.complete(&g.wcs[i]); err != nil {
				return err
			}
		}
		if empty++; k > 0 {
			empty = 0
		} else if g.cfg.Events || empty > spin {
			empty = 0
			if err := g.sleep(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// sleep waits for completions.
func (g *game) sleep(ctx context.Context) error {
	wait, cancel := context.WithTimeoutCause(ctx, silence, errSilence)
	defer cancel()
	var err error
	if g.cfg.Events {
		if _, err = g.ch.GetCQEvent(wait); err == nil {
			g.events++
			g.cq.ReqNotify(false)
		}
	} else {
		err = g.cq.Wait(wait)
	}
	if err == nil || wait.Err() == nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	err = fmt.Errorf("%w: %d sent, %d received of %d", errSilence, g.sent, g.received, g.cfg.Iters)
	if g.cfg.Kind == UC || g.cfg.Kind == UD {
		return cli.Hint(err, "A packet was lost, which %s does not repair, or the peer ended, or it was started with another -n", g.cfg.Kind)
	}
	return cli.Hint(err, "The peer ended, or it was started with another -n, or it cannot be reached: UDP port 4791 must be open both ways")
}

// complete handles one completion and sends again when it was the last that the
// queue pair waited for.
func (g *game) complete(wc *verbs.WC) error {
	if err := wc.Err(); err != nil {
		if wc.Status == ib.WCRetryExcErr {
			return cli.Hint(err, "The peer does not answer: it ended, or UDP port 4791 is not open both ways")
		}
		if wc.Status == ib.WCLocLenErr || wc.Status == ib.WCRemInvReqErr || wc.Status == ib.WCRemOpErr {
			return cli.Hint(err, "A message did not fit: give the same -s and -m on both sides")
		}
		return err
	}
	i, ok := g.index[wc.QPNum]
	if !ok {
		return fmt.Errorf("completion of an unknown queue pair 0x%06x", uint32(wc.QPNum))
	}
	switch wc.WRID {
	case sendWRID:
		g.sent++
	case recvWRID:
		g.received++
		if want := g.cfg.Size + g.head; int(wc.ByteLen) != want {
			return cli.Hint(fmt.Errorf("received %d bytes, want %d", int(wc.ByteLen)-g.head, g.cfg.Size), "Give the same -s and -m on both sides")
		}
		if g.posted--; g.posted <= g.cfg.NumQP {
			if err := g.postRecvs(g.cfg.RxDepth - g.posted); err != nil {
				return fmt.Errorf("couldn't post receive: %w", err)
			}
			g.posted = g.cfg.RxDepth
		}
	default:
		return fmt.Errorf("completion for unknown wr_id %d", wc.WRID)
	}
	g.pending[i] &^= int(wc.WRID)
	// Not more than were asked for: what came after the end would change the
	// content under the check.
	if g.started < g.cfg.Iters && g.pending[i] == 0 {
		return g.send(i)
	}
	return nil
}
