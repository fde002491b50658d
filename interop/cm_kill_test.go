//go:build interop && linux

package interop

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/rdmacm"
)

// killSeed decides when programs are killed.
const killSeed = 93

// output is what a program has written so far.
func (r *running) output(ctx context.Context) (string, error) {
	switch p := r.program.(type) {
	case guestProgram:
		return p.p.Output(ctx)
	case hostProgram:
		return p.out.String(), nil
	}
	return "", syscall.EINVAL
}

// says waits until a program has written what matches.
func (r *running) says(ctx context.Context, t *testing.T, what string) {
	t.Helper()
	re := regexp.MustCompile(what)
	err := poll(ctx, what, func() (bool, error) {
		out, err := r.output(ctx)
		if err == nil && !re.MatchString(out) {
			select {
			case <-r.done:
				err = fmt.Errorf("it has ended: %v\n%s", r.err, r.out)
			default:
			}
		}
		return re.MatchString(out), err
	})
	if err != nil {
		out, _ := r.output(context.WithoutCancel(ctx))
		t.Fatalf("%s: waiting for %q: %v\n%s", r.side.name, what, err, out)
	}
}

// kernelKillBound is how long Verbena may take to tell of the end of a program in the guest. The kernel tells it at once, by DREQ or
// REJ; one lost message costs 6 s more, which is the timeout of REQ and DREQ where the peer is a kernel of that age.
const kernelKillBound = 15 * time.Second

// TestCMKernelKilled kills the kernel's program at random moments, while connections are made, used and ended one after the other:
// Verbena's gets an event in bounded time, in each role, and then serves, or is served, as before.
func TestCMKernelKilled(t *testing.T) {
	kernelContent(t)
	random := rand.New(rand.NewPCG(killSeed, 0))
	t.Logf("seed %d", killSeed)
	ours, kernel := ourSide(t), kernelSide()
	ctx, cancel := context.WithTimeout(t.Context(), runTimeout)
	defer cancel()

	t.Run("server", func(t *testing.T) {
		for i := range 4 {
			port := strconv.Itoa(nextPort())
			s := begin(ctx, t, kernel, kernel.cmpeer(t, "serve", kernel.ip4, port, "tcp", "hold"))
			n, _ := strconv.Atoi(port)
			if err := cmListening(ctx, kernel, n); err != nil {
				t.Fatal(err)
			}
			c := begin(ctx, t, ours, ours.cmpeer(t, "storm", kernel.ip4, port))
			if i > 0 { // else it is killed while the client starts
				c.says(ctx, t, "WC 0")
			}
			wait := time.Duration(random.Int64N(int64(150 * time.Millisecond)))
			time.Sleep(wait)
			killed := time.Now()
			s.stop(t, syscall.SIGKILL)
			if !within(t, c, kernelKillBound) {
				continue
			}
			// Connections that were there ended, and the next request was refused: nobody listens any more, or he who did has gone.
			said := fmt.Sprint(c.err)
			if !strings.Contains(lastLines(said, 1), rdmacm.EventRejected.String()) {
				t.Errorf("verbena's program has not ended by a refusal:\n%s", lastLines(said, 5))
			}
			t.Logf("killed after %v and %d connections; verbena's program ended in %v:\n%s", wait, strings.Count(said, "WC "),
				time.Since(killed), lastLines(said, 3))
		}
	})
	t.Run("client", func(t *testing.T) {
		port := strconv.Itoa(nextPort())
		s := begin(ctx, t, ours, ours.cmpeer(t, "serve", ours.ip4, port, "tcp", "hold"))
		if err := cmListening(ctx, ours, 0); err != nil {
			t.Fatal(err)
		}
		for i := range 4 {
			c := begin(ctx, t, kernel, kernel.cmpeer(t, "storm", ours.ip4, port))
			s.says(ctx, t, fmt.Sprintf("(?s)(%v.*){%d}", rdmacm.EventConnectRequest, 2*i+1))
			wait := time.Duration(random.Int64N(int64(150 * time.Millisecond)))
			time.Sleep(wait)
			c.stop(t, syscall.SIGKILL)
			bound, stop := context.WithTimeout(ctx, kernelKillBound)
			err := poll(bound, "end of each request", func() (bool, error) {
				out, err := s.output(bound)
				return begun(out) <= ended(out), err
			})
			stop()
			out, _ := s.output(ctx)
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			t.Logf("killed after %v: %d requests, each with its end", wait, begun(out))
		}
		// Whoever comes next finds all as it was.
		c := begin(ctx, t, kernel, kernel.cmpeer(t, "ask", ours.ip4, port, "tcp", "3"))
		if out, err := c.end(); err != nil || !strings.Contains(out, "DONE") || !strings.Contains(out, rdmacm.EventEstablished.String()) {
			t.Errorf("%v\n%s", err, out)
		}
		s.stop(t, syscall.SIGKILL)
	})
}

func begun(out string) int { return strings.Count(out, rdmacm.EventConnectRequest.String()) }

// ended counts the events of the end, and requests that could not be accepted any more.
func ended(out string) (n int) {
	for _, s := range []string{
		rdmacm.EventDisconnected.String(), rdmacm.EventRejected.String(), rdmacm.EventUnreachable.String(), rdmacm.EventConnectError.String(), "ACCEPT errno",
	} {
		n += strings.Count(out, s)
	}
	return n
}

// within wants a program to end in time.
func within(t *testing.T, r *running, bound time.Duration) bool {
	t.Helper()
	select {
	case <-r.done:
		return true
	case <-time.After(bound):
		out, _ := r.output(t.Context())
		t.Errorf("%s: still running %v after the peer was killed:\n%s", r.side.name, bound, out)
		return false
	}
}

func lastLines(s string, n int) string {
	l := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(l[max(0, len(l)-n):], "\n")
}

// Of the connections whose end is killed: an ACK timeout of 2^17 * 4.096 us is 537 ms, and there are 3 tries.
const (
	pulseTimeout = 17
	pulseRetries = 2
)

// TestCase94_Case93_OursKilled kills one end without a word to the other, as a loss of power does: Verbena's program and with it its
// user space stack. The kernel's next SEND ends in RETRY_EXC_ERR within the bound that timeout and retries give; the connection that
// rests notices nothing. A new connection to a new program at the same address works at once.
func TestCase94_Case93_OursKilled(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), runTimeout)
	defer cancel()
	kernelContent(t, "retry_exceeded_err")
	ours, kernel := ourSide(t), kernelSide()
	port := strconv.Itoa(nextPort())
	serve := func() *running {
		s := begin(ctx, t, ours, ours.cmpeer(t, "serve", ours.ip4, port, "tcp", "hold"))
		if err := cmListening(ctx, ours, 0); err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := serve()
	c := begin(ctx, t, kernel, kernel.cmpeer(t, "pulse", ours.ip4, port, strconv.Itoa(pulseTimeout), strconv.Itoa(pulseRetries)))
	c.says(ctx, t, "SENT WC 0")
	s.stop(t, syscall.SIGKILL)
	killed := time.Now()
	serve()
	again := begin(ctx, t, kernel, kernel.cmpeer(t, "ask", ours.ip4, port, "tcp", "1"))
	out, err := again.end()
	if err != nil || !strings.Contains(out, rdmacm.EventEstablished.String()+" status=0") {
		t.Fatalf("a new connection: %v\n%s", err, out)
	}
	t.Logf("a new program was connected to and ended %.1f s after the old one was killed", time.Since(killed).Seconds())
	atOnce(t, killed)

	out, err = c.end()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	m := regexp.MustCompile(`END WC (\d+) after (\d+) ms\n`).FindStringSubmatch(out)
	if m == nil || m[1] != strconv.Itoa(int(ib.WCRetryExcErr)) {
		t.Fatalf("no RETRY_EXC_ERR:\n%s", out)
	}
	// The standard allows timers up to four times the timeout (IBA 9.7.6.1.3).
	ms, _ := strconv.Atoi(m[2])
	one := int(4096 << pulseTimeout / 1_000_000)
	if most := 4 * one * (pulseRetries + 1); ms > most+3000 { // and a busy machine
		t.Errorf("after %d ms, want at most %d", ms, most)
	}
	t.Logf("RETRY_EXC_ERR after %d ms; %d tries of %d ms", ms, pulseRetries+1, one)
	if !strings.Contains(out, fmt.Sprintf("IDLE events=0 state=%d", int(ib.QPStateRTS))) {
		t.Errorf("the connection that rests has noticed something:\n%s", out)
	}
}

// atOnce wants a connection to have been made without a message that was lost or ignored: that costs what a REQ waits for its answer.
func atOnce(t *testing.T, begin time.Time) {
	t.Helper()
	const req = 4608 * time.Millisecond
	if d := time.Since(begin); d > req {
		t.Errorf("connected after %v", d)
	}
}

// TestCase93_ClientKilledAndStarted: clients of ours that are killed with connections and started again connect to the same server in
// the kernel, which has the dead ones still, at once.
func TestCase93_ClientKilledAndStarted(t *testing.T) {
	kernelContent(t, "retry_exceeded_err")
	ctx, cancel := context.WithTimeout(t.Context(), runTimeout)
	defer cancel()
	ours, kernel := ourSide(t), kernelSide()
	n := nextPort()
	port := strconv.Itoa(n)
	begin(ctx, t, kernel, kernel.cmpeer(t, "serve", kernel.ip4, port, "tcp", "hold"))
	if err := cmListening(ctx, kernel, n); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		started := time.Now()
		c := begin(ctx, t, ours, ours.cmpeer(t, "pulse", kernel.ip4, port, strconv.Itoa(pulseTimeout), strconv.Itoa(pulseRetries)))
		c.says(ctx, t, "SENT WC 0")
		t.Logf("start %d: connected after %.1f s", i+1, time.Since(started).Seconds())
		atOnce(t, started)
		c.stop(t, syscall.SIGKILL)
	}
}

// TestCMPingKilled kills rping in the middle of its pings: verbena ping as client ends in bounded time and tells why; as persistent
// server it goes on, and serves whoever comes next.
func TestCMPingKilled(t *testing.T) {
	kernelContent(t)
	ctx, cancel := context.WithTimeout(t.Context(), runTimeout)
	defer cancel()
	ours, kernel := ourSide(t), kernelSide()
	t.Run("server", func(t *testing.T) {
		port := nextPort()
		s := begin(ctx, t, kernel, kernel.cm(t, "rping", "-s", "-a", kernel.ip4, "-p", strconv.Itoa(port)))
		if err := cmListening(ctx, kernel, port); err != nil {
			t.Fatal(err)
		}
		c := begin(ctx, t, ours, ours.cm(t, "rping", "-c", "-v", "-a", kernel.ip4, "-p", strconv.Itoa(port)))
		c.says(ctx, t, "rdma-ping-7:")
		s.stop(t, syscall.SIGKILL)
		if within(t, c, kernelKillBound) && (c.err == nil || !strings.Contains(c.err.Error(), "disconnect")) {
			t.Errorf("verbena ping does not tell that it was disconnected: %.500v", c.err)
		}
	})
	t.Run("client", func(t *testing.T) {
		port := strconv.Itoa(nextPort())
		s := begin(ctx, t, ours, ours.cm(t, "rping", "-s", "-P", "-v", "-a", ours.ip4, "-p", port))
		if err := cmListening(ctx, ours, 0); err != nil {
			t.Fatal(err)
		}
		c := begin(ctx, t, kernel, kernel.cm(t, "rping", "-c", "-a", ours.ip4, "-p", port))
		s.says(ctx, t, "rdma-ping-7:")
		c.stop(t, syscall.SIGKILL)
		next := begin(ctx, t, kernel, kernel.cm(t, "rping", "-c", "-v", "-V", "-C", "2", "-a", ours.ip4, "-p", port))
		out, err := next.end()
		if err != nil {
			t.Fatalf("the next client: %v", err)
		}
		pings(t, "the next client", out, 2)
		s.stop(t, syscall.SIGINT)
		if s.err != nil {
			t.Errorf("the server: %v", s.err)
		}
	})
}
