package soft

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Tests with two processes run this test binary again: as a peer that is written
// to (TestPeerProcess), or to run other tests as somebody else.
const (
	peerEnv = "VERBENA_TEST_PEER" // the peer's address and queue pair number
	userEnv = "VERBENA_TEST_UID"
)

// beSomebody becomes the user that the parent asked for.
func beSomebody() {
	uid, err := strconv.Atoi(os.Getenv(userEnv))
	if err != nil {
		return
	}
	for _, err := range []error{syscall.Setgroups(nil), syscall.Setgid(uid), syscall.Setuid(uid)} {
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
}

const peerMemory = 4 << 20

// TestPeerProcess is the peer of another process's test. It tells who it is,
// and whenever it is asked the checksum of its memory, until its input ends.
func TestPeerProcess(t *testing.T) {
	who := os.Getenv(peerEnv)
	if who == "" {
		t.Skip("runs as a child of other tests")
	}
	var n uint32
	var a string
	if _, err := fmt.Sscan(who, &a, &n); err != nil {
		t.Fatal(err)
	}
	h := newHost(t, setup{size: peerMemory})
	q := h.qp(ib.RC, 0)
	q.up(&end{QP: numbered(n), h: &host{addrs: []netip.Addr{netip.MustParseAddr(a)}}}, ib.MTU4096)
	fmt.Println("peer", h.addrs[0], uint32(q.Num()), h.mr.Addr(), uint32(h.mr.RKey()))
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		h.dev.eng.Quiesce()
		fmt.Println("sum", sum(h.buf))
	}
}

// child is a peer process.
type child struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Scanner
	end  *end
	addr uint64
	rkey ib.RKey
}

func rerun(t *testing.T, test string, env ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^("+test+")$", "-test.v")
	cmd.Env = append(os.Environ(), env...)
	return cmd
}

// newChild starts a peer for the queue pair.
func newChild(t *testing.T, q *end, env ...string) *child {
	t.Helper()
	c := &child{cmd: rerun(t, "TestPeerProcess", append(env, fmt.Sprintf("%s=%v %d", peerEnv, q.addr(), uint32(q.Num())))...)}
	var err error
	c.in, err = c.cmd.StdinPipe()
	must(t, err)
	out, err := c.cmd.StdoutPipe()
	must(t, err)
	must(t, c.cmd.Start())
	t.Cleanup(func() {
		_ = c.in.Close()
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
	})
	c.out = bufio.NewScanner(out)
	var a string
	var n, rkey uint32
	if _, err := fmt.Sscan(c.line(t, "peer "), &a, &n, &c.addr, &rkey); err != nil {
		t.Fatal(err)
	}
	c.rkey = ib.RKey(rkey)
	c.end = &end{QP: numbered(n), h: &host{addrs: []netip.Addr{netip.MustParseAddr(a)}}}
	return c
}

// line reads up to the line that begins with the word.
func (c *child) line(t *testing.T, word string) string {
	t.Helper()
	var all []string
	for c.out.Scan() {
		all = append(all, c.out.Text())
		if s, ok := strings.CutPrefix(c.out.Text(), word); ok {
			return s
		}
	}
	t.Fatalf("the peer said no %q: %s", word, strings.Join(all, "\n"))
	return ""
}

// stream keeps WRITEs of the whole memory under way, and calls at(k) after the
// k-th completion of n.
func (c *child) stream(t *testing.T, h *host, q *end, n int, at func(k int)) {
	t.Helper()
	const piece = 64 << 10
	for posted, done := 0, 0; done < n; {
		for posted < n && posted-done < 32 {
			off := posted * piece % peerMemory
			q.send(driver.SendWR{Opcode: ib.WRRDMAWrite, SGList: h.sge(off, piece), RemoteAddr: c.addr + uint64(off), RKey: c.rkey})
			posted++
		}
		h.ok()
		done++
		at(done)
	}
	_, err := fmt.Fprintln(c.in)
	must(t, err)
	if got, want := c.line(t, "sum "), fmt.Sprint(sum(h.buf)); got != want {
		t.Fatalf("the peer's memory has checksum %s, want %s", got, want)
	}
}

// A receiver that does not run for 0.3 s is no error with timeout 14 and 7
// retries, which bear 0.54 s; nothing is wrong in its memory afterwards.
func TestCase18_StoppedReceiver(t *testing.T) {
	for _, env := range [][]string{nil, {"GOMAXPROCS=1"}} {
		t.Run(strings.Join(env, ""), func(t *testing.T) {
			h := newHost(t, setup{size: peerMemory})
			h.fill(11)
			q := h.qp(ib.RC, 0)
			c := newChild(t, q, env...)
			must(t, q.init())
			must(t, q.rtr(c.end, ib.MTU4096))
			timeout := uint8(14)
			if raceEnabled {
				timeout = 15 // a peer that is ten times slower
			}
			must(t, q.rtsWith(timeout, 7))
			c.stream(t, h, q, 400, func(k int) {
				if k == 100 {
					must(t, c.cmd.Process.Signal(syscall.SIGSTOP))
					time.Sleep(300 * time.Millisecond) // the pause is what is tested
					must(t, c.cmd.Process.Signal(syscall.SIGCONT))
				}
			})
			t.Logf("sent again %d, timeouts %d", h.dev.Stats().Retransmits, h.dev.Stats().LocalTimeouts)
		})
	}
}

// A receiver that dies ends the sender's work with RETRY_EXC, in a time that
// follows from timeout and retries; what is behind is flushed.
func TestCase94_KilledReceiver(t *testing.T) {
	h := newHost(t, setup{size: peerMemory})
	h.fill(12)
	q := h.qp(ib.RC, 0)
	c := newChild(t, q)
	must(t, q.init())
	must(t, q.rtr(c.end, ib.MTU4096))
	must(t, q.rtsWith(12, 3)) // 4 times 16.8 ms
	c.stream(t, h, q, 100, func(int) {})
	must(t, c.cmd.Process.Kill())
	_ = c.cmd.Wait()
	const n = 20
	for range n {
		q.send(driver.SendWR{Opcode: ib.WRRDMAWrite, SGList: h.sge(0, 64<<10), RemoteAddr: c.addr, RKey: c.rkey})
	}
	h.wc(ib.WCRetryExcErr)
	for range n - 1 {
		h.wc(ib.WCWRFlushErr)
	}
	if at, err := q.Query(); err != nil || at.QPState != ib.QPStateErr {
		t.Fatalf("state %v, %v", at.QPState, err)
	}
	// The device lives.
	x := h.qp(ib.RC, 0)
	join(x, x, ib.MTU4096)
	exercise(t, x, x, 1000)
}

// Nothing needs a privilege, and one processor is enough.
func TestOrdinaryUser(t *testing.T) {
	env := []string{"GOMAXPROCS=1"}
	if os.Getuid() == 0 {
		env = append(env, userEnv+"=65534")
	}
	const tests = "TestServicesIPv4|TestCase71_NotifyPollsAndPosts|TestAtomicsAddUp|TestWaitersOfOneDevice|TestAddressInUse"
	out, err := rerun(t, tests, env...).CombinedOutput()
	if n := strings.Count(string(out), "--- PASS"); err != nil || n != strings.Count(tests, "|")+1 {
		t.Fatalf("%d passed, %v:\n%s", n, err, out)
	}
}
