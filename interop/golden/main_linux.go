// Command golden captures RoCEv2 packets between two Linux kernels and prints them as golden vectors for
// internal/wire/roce: at most two of each opcode, syndrome and IP version. It needs root and what interop/setup.sh installs.
//
//	go run ./interop/golden > internal/wire/roce/testdata/kernel-6.1.hex
package main

import (
	"bufio"
	"context"
	_ "embed"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/interop/vm"
)

//go:embed peer.py
var peer []byte

// GID indices of a guest: 0 is the link-local address, then the addresses in the order in which they were added.
const (
	gidIPv4 = "1"
	gidIPv6 = "2"
)

// caseTimeout bounds one pair of programs.
const caseTimeout = 90 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "golden:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, w io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	n, err := vm.NewNet()
	if err != nil {
		return err
	}
	defer n.Close()
	server, err := vm.Start(ctx, vm.Config{Net: n, MTU: 1500})
	if err != nil {
		return err
	}
	defer server.Close()
	client, err := vm.Start(ctx, vm.Config{Net: n, MTU: 1500})
	if err != nil {
		return err
	}
	defer client.Close()

	fmt.Fprintln(os.Stderr, "golden: two guests are up")
	// On the client's tap: the bridge itself does not see what it forwards.
	c, err := startCapture(n, client.Tap())
	if err != nil {
		return err
	}
	for _, g := range []struct{ index, addr string }{{gidIPv4, server.IPv4().String()}, {gidIPv6, server.IPv6().String()}} {
		if err := verbsCases(ctx, server, client, g.index, g.addr); err != nil {
			return err
		}
	}
	if err := cmCases(ctx, server, client, server.IPv4().String()); err != nil {
		return err
	}
	packets, err := c.stop()
	if err != nil {
		return err
	}
	return write(w, server, packets)
}

// verbsCases runs peer.py on both guests.
func verbsCases(ctx context.Context, server, client *vm.VM, gid, addr string) error {
	const script, port = "/tmp/peer.py", "18600"
	for _, v := range []*vm.VM{server, client} {
		if err := v.WriteFile(ctx, script, peer); err != nil {
			return err
		}
	}
	s, err := server.Spawn(ctx, "python3", script, "server", gid, port)
	if err != nil {
		return err
	}
	listen, cancel := context.WithTimeout(ctx, caseTimeout/2)
	defer cancel()
	if err := server.WaitListen(listen, 18600); err != nil {
		out, _ := s.Output(ctx)
		return fmt.Errorf("%w: %s", err, out)
	}
	return both(ctx, s, client, "python3", script, "client", gid, port, addr)
}

// cmCases connects with librdmacm's programs: a connection's exchange (REQ, REP, RTU, DREQ, DREP), a refusal and a SIDR exchange.
func cmCases(ctx context.Context, server, client *vm.VM, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*caseTimeout)
	defer cancel()
	// A port without listener: REJ.
	if _, err := client.Run(ctx, "rping", "-c", "-a", addr, "-p", "7999", "-C", "1"); err != nil {
		return err
	}
	for _, program := range [][2][]string{
		{{"rping", "-s", "-a", addr, "-C", "1"}, {"rping", "-c", "-a", addr, "-C", "1"}},
		{{"udaddy", "-C", "1", "-S", "16", "-b", addr}, {"udaddy", "-C", "1", "-S", "16", "-s", addr}},
	} {
		s, err := server.Spawn(ctx, program[0]...)
		if err != nil {
			return err
		}
		// An rdma_cm listener is in no table of sockets; rdma knows it.
		for {
			r, err := server.Run(ctx, "rdma", "resource", "show", "cm_id")
			if err != nil {
				return err
			}
			if strings.Contains(string(r.Stdout), "state LISTEN") {
				break
			}
		}
		if err := both(ctx, s, client, program[1]...); err != nil {
			return err
		}
	}
	return nil
}

// both runs the client's command and waits for the server's.
func both(ctx context.Context, s *vm.Process, client *vm.VM, argv ...string) error {
	ctx, cancel := context.WithTimeout(ctx, caseTimeout)
	defer cancel()
	fmt.Fprintln(os.Stderr, "golden:", strings.Join(argv, " "))
	c, err := client.Run(ctx, argv...)
	if err != nil {
		return err
	}
	if !c.OK() {
		out, _ := s.Output(context.WithoutCancel(ctx))
		return fmt.Errorf("client: %v\nserver: %s", c, out)
	}
	r, err := s.Wait(ctx)
	if err != nil {
		return err
	}
	// rping's server ends with 0 only when it is told the number of pings, udaddy's always.
	if !r.OK() {
		return fmt.Errorf("server: %v\nclient: %v", r, c)
	}
	return nil
}

func write(out io.Writer, v *vm.VM, packets [][]byte) error {
	w := bufio.NewWriter(out)
	fmt.Fprintf(w, "# Packets between two Linux kernels, captured on the client's tap device by interop/golden on %s.\n", time.Now().UTC().Format(time.DateOnly))
	fmt.Fprintf(w, "# Peer on both sides: Debian %s (package version %s), rdma_rxe.\n", v.Release(), v.Kernel().Package)
	fmt.Fprintf(w, "# Programs: interop/golden/peer.py (python3-pyverbs) at path MTU 256; rping and udaddy (rdmacm-utils) for the packets to QP1.\n")
	fmt.Fprintf(w, "# Name: IP version, opcode, for an AETH its syndrome in hex, for a MAD to QP1 its attribute in hex; -2 marks the second of a kind.\n")
	names, err := choose(packets)
	if err != nil {
		return err
	}
	for _, p := range names {
		fmt.Fprintf(w, "%s: %x\n", p.name, p.ip)
	}
	return w.Flush()
}
