//go:build interop && linux

package interop

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/rdmacm"
)

//go:embed cmpeer/cmpeer.c
var cmpeerSource []byte

// cmpeerPath is where the guest has the program.
const cmpeerPath = "/tmp/cmpeer"

var cmpeer = sync.OnceValue(func() error { return compileForGuest("cmpeer", cmpeerSource, cmpeerPath) })

// compileForGuest compiles a program on the host, whose libraries the guest has, and copies it.
func compileForGuest(name string, source []byte, path string) error {
	binary := filepath.Join(tempDir, name)
	cmd := exec.Command("gcc", "-Wall", "-Wextra", "-Werror", "-O1", "-x", "c", "-o", binary, "-", "-lrdmacm", "-libverbs")
	cmd.Stdin = bytes.NewReader(source)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("compiling %s.c (interop/setup.sh installs what it needs): %w\n%s", name, err, out)
	}
	b, err := os.ReadFile(binary)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), runTimeout)
	defer cancel()
	if err := guest.WriteFile(ctx, path, b); err != nil {
		return err
	}
	if r, err := guest.Run(ctx, "chmod", "755", path); err != nil || !r.OK() {
		return fmt.Errorf("chmod: %v %w", r, err)
	}
	return nil
}

// cmpeer is the command line of the peer on a side: cmpeer.c, or this test binary.
func (s *side) cmpeer(t *testing.T, args ...string) []string {
	t.Helper()
	if s.name == "kernel" {
		if err := cmpeer(); err != nil {
			t.Fatal(err)
		}
		return append([]string{cmpeerPath}, args...)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return append([]string{"env", cmEnv + "=" + guest.Net().Interface(), self}, args...)
}

// privateData is a line of output: an event with its private data, which arrives at full length.
func privateData(event rdmacm.EventType, status, kind, length, full int, more string) string {
	b := make([]byte, full)
	copy(b, content(kind, length))
	return strings.TrimSpace(fmt.Sprintf("%v status=%d len=%d data=%s %s", event, status, full, hex.EncodeToString(b), more))
}

// wantLines compares the output of a program with what it must be.
func wantLines(t *testing.T, who, out string, want []string) {
	t.Helper()
	got := strings.Split(strings.TrimSpace(out), "\n")
	for i := range max(len(got), len(want)) {
		g, w := "(nothing)", "(nothing)"
		if i < len(got) {
			g = got[i]
		}
		if i < len(want) {
			w = want[i]
		}
		if g != w {
			t.Errorf("%s, line %d:\n got %s\nwant %s", who, i+1, g, w)
		}
	}
}

// TestCMPrivateData: private data of no, one and as many bytes as there can be, and one byte too many, of requests and of answers of
// both kinds, arrives as it was sent; so do the parameters of the connection, and the reason of a refusal.
func TestCMPrivateData(t *testing.T) {
	kernelContent(t)
	for _, d := range both(t) {
		for _, family := range []string{"IPv4", "IPv6"} {
			t.Run(fmt.Sprintf("%s-serves/%s/connections", d.server.name, family), func(t *testing.T) {
				plan := []string{"accept:0", "accept:1", "accept:196", "accept:197", "reject:0", "reject:1", "reject:148", "reject:149"}
				lengths := []int{0, 1, rdmacm.MaxPrivateConnect, 5, 0, 1, rdmacm.MaxPrivateConnect, 7}
				// The peer's depth is this side's resources, and the other way round.
				const offered, accepted = "rr=5 id=3 fc=1 retry=6 rnr=5 srq=0", "rr=2 id=4 fc=0 retry=0 rnr=3 srq=0"
				none := "len=0 data= rr=0 id=0 fc=0 retry=0 rnr=0 srq=0"
				var serverWant, clientWant []string
				for i, word := range plan {
					what, number, _ := strings.Cut(word, ":")
					n, _ := strconv.Atoi(number)
					serverWant = append(serverWant, privateData(rdmacm.EventConnectRequest, 0, ofConnect, lengths[i], rdmacm.MaxPrivateConnect, offered))
					if what == "accept" && n > rdmacm.MaxPrivateAccept {
						serverWant = append(serverWant, fmt.Sprintf("ACCEPT errno=%d", int(syscall.EINVAL)))
						n = 0
					} else if what == "accept" {
						serverWant = append(serverWant, rdmacm.EventEstablished.String()+" status=0 "+none, rdmacm.EventDisconnected.String()+" status=0 "+none)
						clientWant = append(clientWant, privateData(rdmacm.EventEstablished, 0, ofAccept, n, rdmacm.MaxPrivateAccept, accepted),
							rdmacm.EventDisconnected.String()+" status=0 "+none)
						continue
					}
					if n > rdmacm.MaxPrivateReject {
						serverWant = append(serverWant, fmt.Sprintf("REJECT errno=%d", int(syscall.EINVAL)))
						n = 0
					}
					clientWant = append(clientWant, privateData(rdmacm.EventRejected, int(rdmacm.RejectConsumer), ofReject, n, rdmacm.MaxPrivateReject,
						"rr=0 id=0 fc=0 retry=0 rnr=0 srq=0"))
				}
				// What is too long is refused here and nobody hears of it.
				clientWant = append(clientWant, fmt.Sprintf("CONNECT errno=%d", int(syscall.EINVAL)))
				lengths = append(lengths, rdmacm.MaxPrivateConnect+1)
				conversation(t, d.server, d.client, family, "tcp", plan, lengths, serverWant, clientWant)
			})
			t.Run(fmt.Sprintf("%s-serves/%s/datagrams", d.server.name, family), func(t *testing.T) {
				plan := []string{"accept:0", "accept:1", "accept:136", "reject:0", "reject:1", "reject:136"}
				lengths := []int{0, 1, rdmacm.MaxPrivateConnectDatagram, 0, 1, rdmacm.MaxPrivateConnectDatagram}
				var serverWant, clientWant []string
				for i, word := range plan {
					what, number, _ := strings.Cut(word, ":")
					n, _ := strconv.Atoi(number)
					serverWant = append(serverWant, privateData(rdmacm.EventConnectRequest, 0, ofConnect, lengths[i], rdmacm.MaxPrivateConnectDatagram, ""))
					if what == "accept" {
						clientWant = append(clientWant, privateData(rdmacm.EventEstablished, 0, ofAccept, n, rdmacm.MaxPrivateAcceptDatagram,
							fmt.Sprintf("qkey=%#x", uint32(rdmacm.UDPQKey))))
						continue
					}
					// 2: the request was rejected (IBA 12.11.2.2).
					clientWant = append(clientWant, privateData(rdmacm.EventUnreachable, 2, ofReject, n, rdmacm.MaxPrivateAcceptDatagram, ""))
				}
				clientWant = append(clientWant, fmt.Sprintf("CONNECT errno=%d", int(syscall.EINVAL)))
				lengths = append(lengths, rdmacm.MaxPrivateConnectDatagram+1)
				conversation(t, d.server, d.client, family, "udp", plan, lengths, serverWant, clientWant)
			})
		}
	}
}

func conversation(t *testing.T, server, client *side, family, space string, plan []string, lengths []int, serverWant, clientWant []string) {
	t.Helper()
	port := nextPort()
	var words []string
	for _, n := range lengths {
		words = append(words, strconv.Itoa(n))
	}
	p := cmPair{server: server, client: client, port: port}
	p.serverArgs = server.cmpeer(t, "serve", addr(t, family, server, server), strconv.Itoa(port), space, strings.Join(plan, ","))
	p.clientArgs = client.cmpeer(t, "ask", addr(t, family, server, client), strconv.Itoa(port), space, strings.Join(words, ","))
	serverOut, clientOut := p.run(t)
	wantLines(t, server.name+" as server", serverOut, append(serverWant, "DONE"))
	wantLines(t, client.name+" as client", clientOut, append(clientWant, "DONE"))
}

// Offsets in an IPv4 packet's UDP header and payload for tcpdump's filters: the attribute of a management datagram.
const (
	sniffREQ = "udp dst port 4791 and udp[44:2] == 0x10"
	sniffMRA = "udp dst port 4791 and udp[44:2] == 0x11"
)

// TestCMSlowAccept: a server that takes longer than a request waits for its answer. The request comes again and is answered by an MRA,
// after which the client waits; there is one connection.
func TestCMSlowAccept(t *testing.T) {
	kernelContent(t)
	for _, d := range both(t) {
		t.Run(d.server.name+"-serves", func(t *testing.T) {
			again := sniff(t, 2, sniffREQ+" and src host "+d.client.ip4)
			mra := sniff(t, 1, sniffMRA+" and src host "+d.server.ip4)
			none := "len=0 data= rr=0 id=0 fc=0 retry=0 rnr=0 srq=0"
			disconnected := rdmacm.EventDisconnected.String() + " status=0 " + none
			conversation(t, d.server, d.client, "IPv4", "tcp", []string{"slow:2"}, []int{4}, []string{
				privateData(rdmacm.EventConnectRequest, 0, ofConnect, 4, rdmacm.MaxPrivateConnect, "rr=5 id=3 fc=1 retry=6 rnr=5 srq=0"),
				rdmacm.EventEstablished.String() + " status=0 " + none, disconnected,
			}, []string{
				privateData(rdmacm.EventEstablished, 0, ofAccept, 2, rdmacm.MaxPrivateAccept, "rr=2 id=4 fc=0 retry=0 rnr=3 srq=0"), disconnected,
			})
			if !again() {
				t.Error("the request has not come again")
			}
			if !mra() {
				t.Error("no MRA")
			}
		})
	}
}

// TestCMNobodyListens: a port on which nobody listens is refused with reason 8 to connections and status 1 to datagrams.
func TestCMNobodyListens(t *testing.T) {
	kernelContent(t)
	for _, d := range both(t) {
		for space, want := range map[string]string{
			"tcp": fmt.Sprintf("%v status=%d ", rdmacm.EventRejected, rdmacm.RejectBadServiceID),
			"udp": rdmacm.EventUnreachable.String() + " status=1 ",
		} {
			t.Run(d.server.name+"-serves/"+space, func(t *testing.T) {
				port := nextPort()
				p := cmPair{server: d.server, client: d.client, port: port, forever: true}
				p.serverArgs = d.server.cmpeer(t, "serve", d.server.ip4, strconv.Itoa(port), space, "hold")
				p.clientArgs = d.client.cmpeer(t, "ask", d.server.ip4, strconv.Itoa(port+1000), space, "0")
				_, out := p.run(t)
				if !strings.HasPrefix(out, want) {
					t.Errorf("got %s\nwant %s...", out, want)
				}
			})
		}
	}
}
