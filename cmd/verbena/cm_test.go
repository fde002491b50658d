package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/cli"
)

// process is one side of a test with two.
type process struct {
	cmd  *exec.Cmd
	args string
	out  lockedBuffer
	errs lockedBuffer
}

// lockedBuffer can be read while a process writes.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// start starts the command, which is ended with the test.
func start(t *testing.T, args string) *process {
	t.Helper()
	p := &process{cmd: command(t, strings.Fields(args)...), args: args}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.errs
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.cmd.Process.Kill(); p.cmd.Wait() })
	return p
}

// end waits for the end of the process and fails the test unless the code is right.
func (p *process) end(t *testing.T, code int) *process {
	t.Helper()
	p.cmd.Wait()
	if got := p.cmd.ProcessState.ExitCode(); got != code {
		t.Fatalf("verbena %s: exit code %d, want %d\n%s%s", p.args, got, code, p.out.String(), p.errs.String())
	}
	return p
}

// interrupt ends the process as a user does, which must be its proper end.
func (p *process) interrupt(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
}

// until waits for what a process shall bring about.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s did not happen", what)
		}
	}
}

// startCM starts the first server on an address, and returns when its device hears
// there: an unanswered request is repeated after seconds only.
func startCM(t *testing.T, a netip.Addr, args string) *process {
	t.Helper()
	needLoopback(t)
	p := start(t, args)
	b := a.As4()
	want := fmt.Sprintf(" %02X%02X%02X%02X:12B7 ", b[3], b[2], b[1], b[0]) // 4791
	until(t, "verbena "+args+" hears", func() bool {
		table, err := os.ReadFile("/proc/net/udp")
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(table, []byte(want)) {
			return true
		}
		if p.cmd.ProcessState != nil {
			t.Fatalf("verbena %s ended:\n%s%s", args, p.out.String(), p.errs.String())
		}
		return false
	})
	return p
}

// connectTo runs a client to its end. It tries again when it was faster than the server.
func connectTo(t *testing.T, args string) result {
	t.Helper()
	for {
		r := verbena(t, strings.Fields(args)...)
		if !strings.Contains(r.stderr, "start the server first") || t.Context().Err() != nil {
			return r
		}
	}
}

// both runs a server and a client at one address to their proper end, and returns what they
// print.
func both(t *testing.T, server, client, options string) (srv *process, cl result) {
	t.Helper()
	a := loopAddr()
	srv = startCM(t, a, fmt.Sprintf(server, a)+" "+options)
	cl = connectTo(t, fmt.Sprintf(client, a, a)+" "+options)
	if cl.code != cli.ExitOK {
		t.Fatalf("client with %s: exit code %d\n%s%s\nserver:\n%s%s", options, cl.code, cl.stdout, cl.stderr, srv.out.String(), srv.errs.String())
	}
	srv.end(t, cli.ExitOK)
	return srv, cl
}

const (
	pingServer = "ping -s -a %v"
	pingClient = "ping -c -I %v -a %v"
)

func TestPing(t *testing.T) {
	t.Parallel()
	for _, options := range []string{
		"-C 1 -v", "-C 3 -vV", "-C 70 -V -v -S 23", "-C 2 -V -S 65535", "-C 2 -V -S 65000 -v", "-C 5 -V -p 65535", "-C 5 -qV", "-C 1 -v -d",
		"--count=2 --validate --verbose --size=500 --port=7000 --own-qp",
	} {
		t.Run(options, func(t *testing.T) {
			t.Parallel()
			srv, cl := both(t, pingServer, pingClient, options)
			if srv.errs.String() != "server DISCONNECT EVENT...\n" || cl.stderr != "client DISCONNECT EVENT...\n" {
				t.Errorf("server tells\n%s\nclient\n%s", srv.errs.String(), cl.stderr)
			}
			if !strings.Contains(options, "v") || strings.Contains(options, "-d") {
				return
			}
			shown := strings.ReplaceAll(cl.stdout, "ping data: ", "server ping data: ")
			if shown != srv.out.String() || !strings.HasPrefix(cl.stdout, "ping data: rdma-ping-0: AB") {
				t.Errorf("client shows\n%s\nserver\n%s", cl.stdout, srv.out.String())
			}
		})
	}
}

// An own queue pair works with one of the connection manager's.
func TestPingOwnQP(t *testing.T) {
	t.Parallel()
	both(t, pingServer+" -q", pingClient+" -V", "-C 3")
	both(t, pingServer, pingClient+" -q -V", "-C 3")
}

// What -d shows names each step as rping does.
func TestPingDebug(t *testing.T) {
	t.Parallel()
	srv, cl := both(t, pingServer, pingClient, "-C 1 -d")
	for _, c := range []struct{ out, lines string }{
		{cl.stdout, "client|count 1|created cm_id|cma_event type RDMA_CM_EVENT_ADDR_RESOLVED|cma_event type RDMA_CM_EVENT_ROUTE_RESOLVED|" +
			"created pd|created cq|created qp|rping_setup_buffers called|allocated & registered buffers...|ESTABLISHED|rdma_connect successful|" +
			"RDMA addr |recv completion|RDMA addr |recv completion|destroy cm_id"},
		{srv.out.String(), "server|rdma_bind_addr successful|rdma_listen|cma_event type RDMA_CM_EVENT_CONNECT_REQUEST|child cma|created pd|" +
			"accepting client connection request|Received rkey |server received sink adv|server posted rdma read req|server received read complete|" +
			"server posted go ahead|Received rkey |server received sink adv|rdma write from lkey|server rdma write complete|server posted go ahead"},
	} {
		rest := c.out
		for line := range strings.SplitSeq(c.lines, "|") {
			_, after, found := strings.Cut(rest, line)
			if !found {
				t.Errorf("%q is missing, or not in its place, in\n%s", line, c.out)
				break
			}
			rest = after
		}
	}
}

// A persistent server has several clients at the same time, and ends when it is interrupted.
func TestPingPersistent(t *testing.T) {
	t.Parallel()
	a := loopAddr()
	srv := startCM(t, a, fmt.Sprintf("ping -s -P -v -a %v", a))
	endless := start(t, fmt.Sprintf("ping -c -v -V -I %v -a %v", loopAddr(), a)) // -C 0
	until(t, "the first ping", func() bool { return strings.Contains(endless.out.String(), "ping data: rdma-ping-1: ") })
	var clients sync.WaitGroup
	for range 3 {
		clients.Go(func() {
			r := connectTo(t, fmt.Sprintf("ping -c -V -C 50 -I %v -a %v", loopAddr(), a))
			if r.code != cli.ExitOK {
				t.Errorf("client: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
			}
		})
	}
	clients.Wait()
	endless.interrupt(t)
	endless.end(t, cli.ExitFailed)
	if !strings.Contains(endless.errs.String(), "verbena: interrupted") {
		t.Errorf("client without count tells\n%s", endless.errs.String())
	}
	until(t, "the end of four connections", func() bool { return strings.Count(srv.errs.String(), "server DISCONNECT EVENT...\n") == 4 })
	srv.interrupt(t)
	srv.end(t, cli.ExitOK)
}

// A server that is not persistent has one client, and tells others so.
func TestPingBusy(t *testing.T) {
	t.Parallel()
	a := loopAddr()
	srv := startCM(t, a, fmt.Sprintf("ping -s -a %v", a))
	first := start(t, fmt.Sprintf("ping -c -v -I %v -a %v", loopAddr(), a))
	until(t, "the first ping", func() bool { return strings.Contains(first.out.String(), "ping data") })
	r := verbena(t, strings.Fields(fmt.Sprintf("ping -c -C 1 -I %v -a %v", loopAddr(), a))...).want(t, cli.ExitFailed)
	if !strings.Contains(r.stderr, "RDMA_CM_EVENT_REJECTED, error 28") || !strings.Contains(r.stderr, "The server refuses") {
		t.Error(r.stderr)
	}
	first.interrupt(t)
	first.end(t, cli.ExitFailed)
	srv.end(t, cli.ExitOK)
}

// Sides that do not fit, and servers that are not there, are told apart.
func TestPingFailures(t *testing.T) {
	t.Parallel()
	a := loopAddr()
	srv := startCM(t, a, fmt.Sprintf("ping -s -a %v", a))
	r := verbena(t, strings.Fields(fmt.Sprintf("ping -c -C 1 -p 7000 -I %v -a %v", loopAddr(), a))...).want(t, cli.ExitFailed)
	if !strings.Contains(r.stderr, "RDMA_CM_EVENT_REJECTED, error 8") || !strings.Contains(r.stderr, "start the server first") {
		t.Error(r.stderr)
	}
	r = connectTo(t, fmt.Sprintf("ping -c -C 1 -S 100 -I %v -a %v", loopAddr(), a))
	if r.code != cli.ExitFailed || !strings.Contains(r.stderr, "the server has disconnected") {
		t.Errorf("exit code %d\n%s", r.code, r.stderr)
	}
	srv.end(t, cli.ExitFailed)
	if s := srv.errs.String(); !strings.Contains(s, "the client's data has 100 bytes, this side has room for 64") || !strings.Contains(s, "the same -S") {
		t.Error(s)
	}
}

// A port that another process has, and an address that somebody has who does not share
// it, are told apart.
func TestPingInUse(t *testing.T) {
	t.Parallel()
	a := loopAddr()
	srv := startCM(t, a, fmt.Sprintf("ping -s -a %v", a))
	// Its port is its own before its device hears.
	r := verbena(t, strings.Fields(fmt.Sprintf("ping -s -a %v", a))...).want(t, cli.ExitFailed)
	if !strings.Contains(r.stderr, fmt.Sprintf("%v:7174: address already in use by process %d\n", a, srv.cmd.Process.Pid)) ||
		!strings.Contains(r.stderr, "choose another port") {
		t.Error(r.stderr)
	}
	held := loopAddr()
	l, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(held, 4791)))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	r = verbena(t, strings.Fields(fmt.Sprintf("ping -c -C 1 -I %v -a %v", held, a))...).want(t, cli.ExitFailed)
	if !strings.Contains(r.stderr, "does not share it") || !strings.Contains(r.stderr, "choose another address with -I") {
		t.Error(r.stderr)
	}
	srv.interrupt(t)
	srv.end(t, cli.ExitFailed)
}

// What README shows: no address of its own for anybody.
func TestPingOfREADME(t *testing.T) {
	t.Parallel()
	needLoopback(t)
	port := 20000 + rand.IntN(10000) // 7174 of all addresses may be taken
	srv := start(t, fmt.Sprintf("ping -s -v -p %d", port))
	r := connectTo(t, fmt.Sprintf("ping -c -a 127.0.0.1 -vV -C 10 -p %d", port))
	if r.code != cli.ExitOK || !strings.Contains(r.stdout, "ping data: rdma-ping-9: ") {
		t.Errorf("exit code %d\n%s%s\nserver:\n%s%s", r.code, r.stdout, r.stderr, srv.out.String(), srv.errs.String())
	}
	srv.end(t, cli.ExitOK)
	if !strings.Contains(srv.out.String(), "server ping data: rdma-ping-9: ") {
		t.Errorf("server:\n%s%s", srv.out.String(), srv.errs.String())
	}
}

const (
	cmatoseServer = "cmatose -b %v"
	cmatoseClient = "cmatose -b %v -s %v"
)

// The output of ucmatose of rdma-core 44.
func TestCmatose(t *testing.T) {
	t.Parallel()
	server := lines("cmatose: starting server", "initiating data transfers", "completing sends", "receiving data transfers",
		"data transfers complete", "cmatose: disconnecting", "disconnected", "test complete", "return status 0")
	client := lines("cmatose: starting client", "cmatose: connecting", "receiving data transfers", "sending replies",
		"data transfers complete", "test complete", "return status 0")
	migrating := strings.NewReplacer("data transfers complete\n", "data transfers complete\nmigrating to new event channel\n")
	for _, options := range []string{
		"", "-c 20 -C 3 -S 5000", "-c 3 -C 0", "-S 0", "-m -c 2", "-P ib", "-P tcp -f ip", "-t 0x20 -a 14", "-a 0", "-p 9999",
		"--connections=2 --count=1 --size=1 --port=9998 --port-space=TCP --tos=8 --ack-timeout=31 --migrate --format=name",
	} {
		t.Run("options "+options, func(t *testing.T) {
			t.Parallel()
			wantS, wantC := server, client
			switch {
			case strings.Contains(options, "-C 0"), strings.Contains(options, "-S 0"):
				wantS = lines("cmatose: starting server", "cmatose: disconnecting", "disconnected", "test complete", "return status 0")
				wantC = lines("cmatose: starting client", "cmatose: connecting", "test complete", "return status 0")
			case strings.Contains(options, "-m"):
				wantS, wantC = migrating.Replace(server), migrating.Replace(client)
			}
			srv, cl := both(t, cmatoseServer, cmatoseClient, options)
			if srv.out.String() != wantS || srv.errs.String() != "" {
				t.Errorf("server:\n%s%s\nwant\n%s", srv.out.String(), srv.errs.String(), wantS)
			}
			if cl.stdout != wantC || cl.stderr != "" {
				t.Errorf("client:\n%s%s\nwant\n%s", cl.stdout, cl.stderr, wantC)
			}
		})
	}
}

func lines(l ...string) string { return strings.Join(l, "\n") + "\n" }

// The number of the event that ends a client is in its output, as ucmatose tells it.
func TestCmatoseRefused(t *testing.T) {
	t.Parallel()
	a := loopAddr()
	srv := startCM(t, a, fmt.Sprintf(cmatoseServer+" -c 2", a))
	r := verbena(t, strings.Fields(fmt.Sprintf(cmatoseClient+" -p 9997", loopAddr(), a))...).want(t, cli.ExitFailed)
	want := lines("cmatose: starting client", "cmatose: connecting", "cmatose: event: RDMA_CM_EVENT_REJECTED, error: 8", "test complete", "return status 8")
	if r.stdout != want || !strings.Contains(r.stderr, "start the server first") {
		t.Errorf("%s%s", r.stdout, r.stderr)
	}
	// More connections than the server has nodes for. It is told that the client is gone.
	r = connectTo(t, fmt.Sprintf(cmatoseClient+" -c 3", loopAddr(), a))
	if r.code != cli.ExitFailed || !strings.Contains(r.stdout, "return status 28") || !strings.Contains(r.stderr, "other options") {
		t.Errorf("exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	srv.end(t, cli.ExitFailed)
	if !strings.Contains(srv.out.String(), "cmatose: failing connection request\n") {
		t.Errorf("server:\n%s%s", srv.out.String(), srv.errs.String())
	}
}

// A client that wants more messages than the server sends hears of the end at once.
func TestCmatoseCounts(t *testing.T) {
	t.Parallel()
	a := loopAddr()
	srv := startCM(t, a, fmt.Sprintf(cmatoseServer+" -C 0", a))
	r := connectTo(t, fmt.Sprintf(cmatoseClient+" -C 2", loopAddr(), a))
	if r.code != cli.ExitFailed || !strings.Contains(r.stderr, "the peer has disconnected") || !strings.Contains(r.stderr, "the same -c, -C") {
		t.Errorf("exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	srv.end(t, cli.ExitOK)
}

const (
	udaddyServer = "udaddy -b %v"
	udaddyClient = "udaddy -b %v -s %v"
)

// The output of udaddy of rdma-core 44.
func TestUdaddy(t *testing.T) {
	t.Parallel()
	for _, options := range []string{
		"", "-c 10", "-C 0", "-S 0", "-S 4096 -C 2", "-P ipoib", "-P udp -t 8", "-p 0x2", "-p 0x111 -f ip",
		"--connections=2 --count=3 --size=1 --port-space=ipoib --tos=0x10 --format=name",
	} {
		t.Run("options "+options, func(t *testing.T) {
			t.Parallel()
			server := lines("udaddy: starting server", "receiving data transfers", "sending replies", "data transfers complete", "test complete", "return status 0")
			client := lines("udaddy: starting client", "udaddy: connecting", "initiating data transfers", "receiving data transfers",
				"data transfers complete", "test complete", "return status 0")
			if strings.Contains(options, "-C 0") || strings.Contains(options, "-S 0") {
				server = lines("udaddy: starting server", "test complete", "return status 0")
				client = lines("udaddy: starting client", "udaddy: connecting", "test complete", "return status 0")
			}
			srv, cl := both(t, udaddyServer, udaddyClient, options)
			if srv.out.String() != server || srv.errs.String() != "" {
				t.Errorf("server:\n%s%s\nwant\n%s", srv.out.String(), srv.errs.String(), server)
			}
			if cl.stdout != client || cl.stderr != "" {
				t.Errorf("client:\n%s%s\nwant\n%s", cl.stdout, cl.stderr, client)
			}
		})
	}
}

func TestUdaddyFailures(t *testing.T) {
	t.Parallel()
	a := loopAddr()
	srv := startCM(t, a, fmt.Sprintf(udaddyServer, a))
	client := fmt.Sprintf(udaddyClient, loopAddr(), a)
	r := connectTo(t, client+" -S 4097")
	if r.code != cli.ExitFailed || !strings.Contains(r.stderr, "udaddy: message_size 4097 is larger than active mtu 4096") ||
		!strings.Contains(r.stdout, "return status -22") {
		t.Errorf("exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	r = verbena(t, strings.Fields(client+" -P ipoib")...).want(t, cli.ExitFailed) // another port space has other ports
	if !strings.Contains(r.stdout, "udaddy: event: RDMA_CM_EVENT_UNREACHABLE, error: 1\n") || !strings.Contains(r.stderr, "start the server first") {
		t.Errorf("%s%s", r.stdout, r.stderr)
	}
	srv.cmd.Process.Kill()
}

// The output of mckey of rdma-core 44. Each group is a test's own.
func TestMckey(t *testing.T) {
	t.Parallel()
	needLoopback(t)
	for i, c := range []struct{ receiver, sender string }{
		{"-c 2 -C 3", "-C 3"},
		{"-S 4096 -p 0x2 -C 2", "-S 4096 -p 2 -C 1 -c 2"},
		{"-l", "-o -l"},
		{"gid --connections=1 --count=3 --size=1 --port-space=0x111", "gid --count=3 --size=1 --send-only --no-loopback"},
	} {
		t.Run(c.receiver+" with "+c.sender, func(t *testing.T) {
			t.Parallel()
			group := fmt.Sprintf("239.%d.%d.%d", loopAddr().As4()[1], loopAddr().As4()[2], i+1)
			join := func(options string) string {
				rest, gid := strings.CutPrefix(options, "gid ")
				if gid {
					return fmt.Sprintf("mckey -M ::ffff:%s -b %v %s", group, loopAddr(), rest)
				}
				return fmt.Sprintf("mckey -m %s -b %v %s", group, loopAddr(), rest)
			}
			r := start(t, join(c.receiver))
			until(t, "the receiver has joined", func() bool { return strings.Contains(r.out.String(), "receiving data transfers") })
			s := start(t, join(c.sender+" -s")).end(t, cli.ExitOK)
			r.end(t, cli.ExitOK)
			joined := fmt.Sprintf("mckey: joined dgid: ::ffff:%s mlid 0x0 sl 0", group)
			check := func(p *process, side, transfer string) {
				n := 1
				if strings.Contains(p.args, "-c 2") {
					n = 2
				}
				want := lines("mckey: starting "+side, "mckey: joining") + strings.Repeat(joined+"\n", n) +
					lines(transfer, "data transfers complete", "test complete", "return status 0")
				if p.out.String() != want || p.errs.String() != "" {
					t.Errorf("%s:\n%s%s\nwant\n%s", side, p.out.String(), p.errs.String(), want)
				}
			}
			check(r, "server", "receiving data transfers")
			check(s, "client", "initiating data transfers")
		})
	}
}

// The steps and the table of cmtime of rdma-core 44.
func TestCmtime(t *testing.T) {
	t.Parallel()
	a := loopAddr()
	srv := startCM(t, a, fmt.Sprintf("cmtime -b %v", a))
	number := `\s+[0-9]+\.[0-9]{2}`
	row := func(name string) string {
		return regexp.QuoteMeta(fmt.Sprintf("%-13s:", name)) + strings.Repeat(number, 4) + "\n"
	}
	for _, c := range []struct {
		options string
		bind    bool
	}{{"-c 20", true}, {"-c 1 -r 0 -t 500 -p 7471", false}, {"--connections=3 --retries=7 --timeout=1 --port=7471", true}} {
		bindLine, bindRow := "", ""
		own := loopAddr()
		cmd := command(t)
		if c.bind {
			bindLine, bindRow = "binding source address\n", row("bind addr")
			c.options += fmt.Sprintf(" -b %v", own)
		} else {
			cmd.Env = append(cmd.Env, fmt.Sprintf("VERBENA_ADDRS=lo=%v", own))
		}
		cmd.Args = append(cmd.Args, strings.Fields(fmt.Sprintf("cmtime -s %v %s", a, c.options))...)
		var errs bytes.Buffer
		cmd.Stderr = &errs
		out, err := cmd.Output()
		want := "^creating id\n" + bindLine + "resolving address\nresolving route\ncreating qp\nconnecting\ndisconnecting\ndestroying id\n" +
			"step              total ms     max ms     min us  us / conn\n" + row("create id") + bindRow + row("resolve addr") + row("resolve route") +
			row("create qp") + row("connect") + row("disconnect") + row("destroy") + "$"
		if err != nil || !regexp.MustCompile(want).Match(out) {
			t.Errorf("%s: %v\n%s%s", c.options, err, out, errs.String())
		}
	}
	r := verbena(t, strings.Fields(fmt.Sprintf("cmtime -b %v -s %v -c 3 -p 7000", loopAddr(), a))...).want(t, cli.ExitFailed)
	if strings.Count(r.stdout, "event: RDMA_CM_EVENT_REJECTED, error: 8\n") != 3 || !strings.Contains(r.stderr, "3 of 3 connections failed") {
		t.Errorf("%s%s", r.stdout, r.stderr)
	}
	srv.interrupt(t)
	srv.end(t, cli.ExitOK)
	if srv.out.String()+srv.errs.String() != "" {
		t.Errorf("the server tells\n%s%s", srv.out.String(), srv.errs.String())
	}
}

// Wrong usage: exit code 2, a message that says what to do, nothing on stdout.
func TestUsageCM(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ args, say string }{
		{"ping", "give -s to be the server, or -c"},
		{"ping -s -c -a x", "give -s to be the server, or -c"},
		{"ping -c", "-a address"},
		{"ping -c -a x -P", "-P/--persistent"},
		{"ping -s -I x", "-I/--source"},
		{"ping -s -S 22", "23 to 65535"},
		{"ping -s -S 65536", "23 to 65535"},
		{"ping -s -C -1", "-C/--count -1"},
		{"ping -s -C many", "many"},
		{"ping -s -p 0", "-p/--port 0"},
		{"ping -s -x", "verbena ping --help"},
		{"ping -s extra", "too many arguments: extra"},
		{"cmatose -c 0", "-c/--connections 0"},
		{"cmatose -C -1", "-C/--count -1"},
		{"cmatose -S -1", "-S/--size -1"},
		{"cmatose -P udp", "want tcp or ib"},
		{"cmatose -f mac", "want name, ip, ipv6 or gid"},
		{"cmatose -f ip -s localhost", "-s/--server localhost"},
		{"cmatose -t 256", "-t/--tos 256"},
		{"cmatose -a 32", "-a/--ack-timeout 32"},
		{"cmatose -a x", "-a/--ack-timeout x"},
		{"cmatose -p 65536", "-p/--port 65536"},
		{"cmatose more", "too many arguments: more"},
		{"udaddy -c 0", "-c/--connections 0"},
		{"udaddy -P tcp", "want udp or ipoib"},
		{"udaddy -p 0x106", "want 0x111 for UDP or 0x2 for IPoIB"},
		{"udaddy -t -1", "-t/--tos -1"},
		{"mckey", "give the group to join"},
		{"mckey -m 239.1.1.1 -M ff0e::1 -b 127.0.0.1", "give the group to join"},
		{"mckey -M ff0e::1", "needs -b"},
		{"mckey -M 239.1.1.1 -b 127.0.0.1", "::ffff:239.1.2.3"},
		{"mckey -m 0.0.0.0", "not a multicast address"},
		{"mckey -m 239.1.1.1 -o", "give -s too"},
		{"mckey -m 239.1.1.1 -p 1", "want 0x111 for UDP or 0x2 for IPoIB"},
		{"mckey -m 239.1.1.1 -c 0", "-c/--connections 0"},
		{"cmtime -c 0", "-c/--connections 0"},
		{"cmtime -r 8", "-r/--retries 8"},
		{"cmtime -t -1", "-t/--timeout -1"},
		{"cmtime -p 0", "-p/--port 0"},
	} {
		r := verbena(t, strings.Fields(c.args)...)
		if r.code != cli.ExitUsage || !strings.Contains(r.stderr, c.say) || !strings.HasPrefix(r.stderr, "verbena: ") || r.stdout != "" {
			t.Errorf("%s: exit code %d, want it to say %q:\n%s%s", c.args, r.code, c.say, r.stdout, r.stderr)
		}
	}
	for _, c := range []struct{ args, say string }{
		{"cmatose -f gid", "AF_IB"},
		{"ping -s -a 192.0.2.77", "verbena devices -v"},
		{"cmatose -b 192.0.2.77", "verbena devices -v"},
		{"udaddy -b 192.0.2.77 -s 192.0.2.1", "verbena devices -v"},
		{"mckey -m 239.1.1.1 -b 192.0.2.77", "verbena devices -v"},
		{"cmtime -b 192.0.2.77", "verbena devices -v"},
	} {
		r := verbena(t, strings.Fields(c.args)...)
		if r.code != cli.ExitFailed || !strings.Contains(r.stderr, c.say) {
			t.Errorf("%s: exit code %d, want it to say %q:\n%s%s", c.args, r.code, c.say, r.stdout, r.stderr)
		}
	}
	r := verbena(t).want(t, cli.ExitOK)
	for _, s := range []string{"cmatose", "cmtime", "mckey", "ping", "udaddy"} {
		if !strings.Contains(r.stdout, "  "+s+" ") {
			t.Errorf("the help does not tell of %s:\n%s", s, r.stdout)
		}
	}
}
