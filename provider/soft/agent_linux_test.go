package soft

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// agentEnv makes TestAgentProcess a process that does what its input says.
const agentEnv = "VERBENA_TEST_AGENT"

const (
	agentMemory = 1 << 20 // of which the first half is written to by others
	agentPiece  = 32 << 10
)

// usual is the timeout of ibv_rc_pingpong, longer where everything takes ten times as long.
var usual = map[bool]int{false: 14, true: 17}[raceEnabled]

// agent is another process with a device, told by lines what to do. Each line is
// answered by one: what was asked for, or "error ...".
type agent struct {
	t    *testing.T
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Scanner
	over bool
	slot int
}

// agentQP is a queue pair of an agent.
type agentQP struct {
	a    *agent
	num  uint32
	addr netip.Addr
	mem  uint64
	rkey uint32
}

// newAgent starts a process. env are more variables for it.
func newAgent(t *testing.T, env ...string) *agent {
	t.Helper()
	a := &agent{t: t, cmd: exec.Command(os.Args[0], "-test.run=^TestAgentProcess$")}
	a.cmd.Env = append(append(os.Environ(), agentEnv+"=1"), env...)
	a.cmd.Stderr = os.Stderr
	var err error
	a.in, err = a.cmd.StdinPipe()
	must(t, err)
	out, err := a.cmd.StdoutPipe()
	must(t, err)
	must(t, a.cmd.Start())
	t.Cleanup(a.kill)
	a.out = bufio.NewScanner(out)
	return a
}

// start has the agent begin something; finish gives the answer.
func (a *agent) start(format string, args ...any) {
	a.t.Helper()
	if _, err := fmt.Fprintf(a.in, format+"\n", args...); err != nil {
		a.t.Fatal(err)
	}
}

func (a *agent) finish() string {
	a.t.Helper()
	for a.out.Scan() {
		if s, ok := strings.CutPrefix(a.out.Text(), "> "); ok {
			return s
		}
	}
	a.t.Fatalf("agent %d ended: %v", a.cmd.Process.Pid, a.out.Err())
	return ""
}

// try has the agent do something; errors are for the caller to look at.
func (a *agent) try(format string, args ...any) string {
	a.t.Helper()
	a.start(format, args...)
	return a.finish()
}

// do is try for what must not fail.
func (a *agent) do(format string, args ...any) string {
	a.t.Helper()
	s := a.try(format, args...)
	if strings.HasPrefix(s, "error") {
		a.t.Fatalf("agent %d: %s: %s", a.cmd.Process.Pid, fmt.Sprintf(format, args...), s)
	}
	return s
}

// qp makes a queue pair; typ is "rc" or "ud".
func (a *agent) qp(typ string) *agentQP {
	a.t.Helper()
	q := &agentQP{a: a}
	var addr string
	if _, err := fmt.Sscan(a.do("qp %s", typ), &q.num, &addr, &q.mem, &q.rkey); err != nil {
		a.t.Fatal(err)
	}
	q.addr = netip.MustParseAddr(addr)
	return q
}

// up connects two queue pairs, or one with itself.
func up(x, y *agentQP, timeout, retry int) {
	x.a.t.Helper()
	for {
		x.a.do("up %d %v %d %d %d", x.num, y.addr, y.num, timeout, retry)
		if x == y {
			return
		}
		if y.a.do("up %d %v %d %d %d", y.num, x.addr, x.num, timeout, retry); true {
			return
		}
	}
}

// write has x write n pieces into y's memory, checks what came there, and is false if
// the work ended with an error.
func write(x, y *agentQP, n int, seed uint64) {
	x.a.t.Helper()
	want := x.a.do("write %d %d %d %d %d", x.num, y.mem, y.rkey, n, seed)
	if got := y.a.do("sum"); got != want {
		x.a.t.Fatalf("memory of %d has checksum %s, want %s", y.a.cmd.Process.Pid, got, want)
	}
}

// counter gives a counter of the agent's device.
func (a *agent) counter(name string) (n uint64) {
	a.t.Helper()
	if _, err := fmt.Sscan(a.do("counter %s", name), &n); err != nil {
		a.t.Fatal(err)
	}
	return n
}

func (a *agent) signal(s syscall.Signal) {
	a.t.Helper()
	if err := a.cmd.Process.Signal(s); err != nil {
		a.t.Fatal(err)
	}
}

// stop stops the process and returns when it is stopped.
func (a *agent) stop() {
	a.t.Helper()
	a.signal(syscall.SIGSTOP)
	for end := time.Now().Add(patience); ; {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", a.cmd.Process.Pid))
		must(a.t, err)
		if _, rest, _ := strings.Cut(string(b), ") "); strings.HasPrefix(rest, "T") {
			return
		}
		if time.Now().After(end) {
			a.t.Fatalf("does not stop: %s", b)
		}
	}
}

// kill ends the process without a word and waits for its end.
func (a *agent) kill() {
	if a.over {
		return
	}
	a.over = true
	_ = a.cmd.Process.Kill()
	_ = a.in.Close()
	_ = a.cmd.Wait()
}

// leave has it close its device and exit.
func (a *agent) leave() {
	a.t.Helper()
	a.do("close")
	a.over = true
	_ = a.in.Close()
	if err := a.cmd.Wait(); err != nil {
		a.t.Error(err)
	}
}

// TestAgentProcess is the other process.
func TestAgentProcess(t *testing.T) {
	if os.Getenv(agentEnv) == "" {
		t.Skip("runs as a child of other tests")
	}
	s := &agentSide{qps: make(map[uint32]*end), half: agentMemory / 2}
	s.h = &host{t: t, buf: make([]byte, agentMemory)}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		f := strings.Fields(in.Text())
		answer, err := s.do(f[0], f[1:])
		if err != nil {
			answer = "error " + strings.ReplaceAll(err.Error(), "\n", "; ")
		}
		fmt.Println("> " + answer)
	}
	os.Exit(0)
}

// agentSide is what the agent has.
type agentSide struct {
	h    *host
	qps  map[uint32]*end
	half int // bytes that are written, and written to
}

func (s *agentSide) do(what string, args []string) (string, error) {
	h := s.h
	scan := func(v ...any) error {
		_, err := fmt.Sscan(strings.Join(args, " "), v...)
		return err
	}
	switch what {
	case "open": // address, netdev, options
		return s.open(args)
	case "close":
		for _, q := range s.qps {
			if err := q.Destroy(); err != nil {
				return "", err
			}
		}
		h.close()
		return "closed", nil
	case "qp":
		q, err := h.dev.CreateQP(h.pd, h.attr(map[string]ib.QPType{"rc": ib.RC, "ud": ib.UD}[args[0]]), nil)
		if err != nil {
			return "", err
		}
		e := &end{q, h, 0, map[string]ib.QPType{"rc": ib.RC, "ud": ib.UD}[args[0]]}
		s.qps[uint32(q.Num())] = e
		return fmt.Sprintln(uint32(q.Num()), h.addrs[0], h.mr.Addr(), uint32(h.mr.RKey())), nil
	case "up": // number, peer's address and number, timeout, retries
		var num, peer uint32
		var addr string
		var timeout, retry uint8
		if err := scan(&num, &addr, &peer, &timeout, &retry); err != nil {
			return "", err
		}
		q := s.qps[num]
		p := &end{QP: numbered(peer), h: &host{addrs: []netip.Addr{netip.MustParseAddr(addr)}}}
		if err := q.init(); err != nil {
			return "", err
		}
		if err := q.rtr(p, h.dev.activeMTU()); err != nil {
			return "", err
		}
		return "up", q.rtsWith(timeout, retry)
	case "write": // number, memory, key, pieces, seed
		var num, rkey uint32
		var mem, seed uint64
		var n int
		if err := scan(&num, &mem, &rkey, &n, &seed); err != nil {
			return "", err
		}
		return s.write(s.qps[num], mem, ib.RKey(rkey), n, seed)
	case "sum":
		h.dev.eng.Quiesce()
		return fmt.Sprint(sum(h.buf[:s.half])), nil
	case "recv": // number, how many
		var num uint32
		var n int
		if err := scan(&num, &n); err != nil {
			return "", err
		}
		for i := range n {
			if _, err := s.qps[num].PostRecv([]driver.RecvWR{{WRID: uint64(i), SGList: h.sge(0, 4096+40)}}); err != nil {
				return "", err
			}
		}
		return "posted", nil
	case "datagrams": // number, peer's address and number, how many: UD SENDs
		var num, peer uint32
		var addr string
		var n int
		if err := scan(&num, &addr, &peer, &n); err != nil {
			return "", err
		}
		return "sent", s.datagrams(s.qps[num], netip.MustParseAddr(addr), peer, n)
	case "wait": // how many completions; the statuses
		var n int
		if err := scan(&n); err != nil {
			return "", err
		}
		for range n {
			wc, err := s.wc()
			if err != nil {
				return "", err
			}
			if wc.Status != ib.WCSuccess {
				return wc.Status.String(), nil
			}
		}
		return ib.WCSuccess.String(), nil
	case "counter":
		return fmt.Sprint(h.dev.Counters()[args[0]]), nil
	case "state":
		var num uint32
		if err := scan(&num); err != nil {
			return "", err
		}
		at, err := s.qps[num].Query()
		return fmt.Sprint(at.QPState), err
	}
	return "", fmt.Errorf("what is %s?", what)
}

func (s *agentSide) open(args []string) (string, error) {
	h := s.h
	addr := netip.MustParseAddr(args[0])
	opts := []Option{WithAddrs(args[1], addr)}
	for _, o := range args[2:] {
		switch o {
		case "alone":
			opts = append(opts, WithoutSharing())
		case "unsteered":
			opts = append(opts, WithoutSteering())
		case "relayed":
			opts = append(opts, WithoutSteering(), withoutHanding)
		case "private":
			opts = append(opts, func(p *Provider) { p.private = "verbena-test-" + addr.String() + "/" })
		case "small":
			s.half = agentPiece
		case "sleepy":
			opts = append(opts, WithWaitSpin(-1))
		}
	}
	d, err := NewProvider(opts...).Open(context.Background(), namePrefix+args[1])
	if err != nil {
		return "", err
	}
	h.dev, h.addrs = d.(*Device), []netip.Addr{addr}
	if _, err := h.dev.localIndex(addr); err != nil {
		return "", err
	}
	if h.pd, err = d.AllocPD(); err != nil {
		return "", err
	}
	if h.cq, err = d.CreateCQ(1<<12, nil); err != nil {
		return "", err
	}
	if h.mr, err = h.pd.RegMR(h.buf, 0, false, allRights); err != nil {
		return "", err
	}
	h.later(h.pd.Dealloc)
	h.later(h.cq.Destroy)
	h.later(h.mr.Dereg)
	return fmt.Sprint(uint32(d.(*Device).newQPN()) >> 17), nil
}

func (s *agentSide) wc() (driver.WC, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var wc [1]driver.WC
	for {
		n, err := s.h.cq.Poll(wc[:])
		if n == 1 || err != nil {
			return wc[0], err
		}
		if err := s.h.cq.Wait(ctx); err != nil {
			return wc[0], fmt.Errorf("%w; %v", err, s.h.dev.Counters())
		}
	}
}

// write writes pieces of the upper half of the memory, filled after the seed, to the peer's
// lower half, and answers its checksum, or the first status that is none of success.
func (s *agentSide) write(q *end, mem uint64, rkey ib.RKey, n int, seed uint64) (string, error) {
	h := s.h
	half := s.half
	randomize(h.buf[half:2*half], seed)
	n = max(n, half/agentPiece)
	for posted, done := 0, 0; done < n; {
		for posted < n && posted-done < 16 {
			off := posted * agentPiece % half // in whole pieces
			if _, err := q.PostSend([]driver.SendWR{{
				Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGList: h.sge(half+off, agentPiece), RemoteAddr: mem + uint64(off), RKey: rkey,
			}}); err != nil {
				return "", err
			}
			posted++
		}
		wc, err := s.wc()
		if err != nil {
			return "", err
		}
		if wc.Status != ib.WCSuccess {
			for range posted - done - 1 {
				if _, err := s.wc(); err != nil {
					return "", err
				}
			}
			return wc.Status.String(), nil
		}
		done++
	}
	return fmt.Sprint(sum(h.buf[half : 2*half])), nil
}

func (s *agentSide) datagrams(q *end, to netip.Addr, num uint32, n int) error {
	at := q.ah(&end{h: &host{addrs: []netip.Addr{to}}})
	ah, err := s.h.dev.CreateAH(s.h.pd, &at)
	if err != nil {
		return err
	}
	defer ah.Destroy()
	for range n {
		if _, err := q.PostSend([]driver.SendWR{{
			Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: s.h.sge(agentMemory/2, 4096), AH: ah, RemoteQPN: ib.QPN(num), RemoteQKey: testQKey,
		}}); err != nil {
			return err
		}
		wc, err := s.wc()
		if err != nil {
			return err
		}
		if wc.Status != ib.WCSuccess {
			return fmt.Errorf("%v", wc.Status)
		}
	}
	return nil
}
