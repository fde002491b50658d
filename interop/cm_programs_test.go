//go:build interop && linux

package interop

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// pingData is what rping -v prints for each ping.
var pingData = regexp.MustCompile(`(?m)^(server )?ping data: rdma-ping-(\d+): \S+$`)

// pings wants n lines of ping data in order, the same ones on both sides.
func pings(t *testing.T, who, out string, n int) {
	t.Helper()
	found := pingData.FindAllStringSubmatch(out, -1)
	for i, f := range found {
		if f[2] != strconv.Itoa(i) {
			t.Fatalf("%s: line %d is of ping %s", who, i, f[2])
		}
	}
	if len(found) != n {
		t.Errorf("%s: %d lines of ping data, want %d:\n%.2000s", who, len(found), n, out)
	}
}

// TestCMPing: rping's game with verbena ping, with each side as server, over each family of addresses.
func TestCMPing(t *testing.T) {
	kernelContent(t)
	for _, d := range both(t) {
		for _, family := range families {
			t.Run(fmt.Sprintf("%s-serves/%s", d.server.name, family), func(t *testing.T) {
				port := strconv.Itoa(nextPort())
				p := cmPair{server: d.server, client: d.client}
				p.port, _ = strconv.Atoi(port)
				const n = 3
				common := []string{"-p", port, "-v", "-C", strconv.Itoa(n)}
				p.serverArgs = d.server.cm(t, "rping", append(common, "-s", "-a", addr(t, family, d.server, d.server))...)
				p.clientArgs = d.client.cm(t, "rping", append(common, "-c", "-V", "-a", addr(t, family, d.server, d.client))...)
				serverOut, clientOut := p.run(t)
				pings(t, d.server.name, serverOut, n)
				pings(t, d.client.name, clientOut, n)
			})
		}
	}
}

// TestCMPingOptions: many pings, long ones, and servers for several clients.
func TestCMPingOptions(t *testing.T) {
	kernelContent(t)
	for _, d := range both(t) {
		for _, o := range []struct {
			name       string
			n, clients int
			server     []string
			client     []string
		}{
			{"1000", 1000, 1, nil, []string{"-V"}},
			{"65000-bytes", 5, 1, []string{"-S", "65000"}, []string{"-V", "-S", "65000"}},
			{"persistent", 3, 3, []string{"-P"}, []string{"-V"}},
			{"own-qp", 2, 1, []string{"-q"}, []string{"-V", "-q"}},
			// The last -a counts: any address, and any of either family, of which the client takes the IPv4 one.
			{"any-IPv4", 2, 1, []string{"-a", "0.0.0.0"}, []string{"-V"}},
			{"any", 2, 1, []string{"-a", "::0"}, []string{"-V"}},
		} {
			t.Run(d.server.name+"-serves/"+o.name, func(t *testing.T) {
				port := nextPort()
				common := []string{"-p", strconv.Itoa(port), "-C", strconv.Itoa(o.n), "-a", d.server.ip4}
				p := cmPair{server: d.server, client: d.client, port: port, forever: o.clients > 1, clients: o.clients}
				p.serverArgs = d.server.cm(t, "rping", append(append([]string{"-s"}, common...), o.server...)...)
				p.clientArgs = d.client.cm(t, "rping", append(append([]string{"-c", "-v"}, common...), o.client...)...)
				_, clientOut := p.run(t)
				if o.clients == 1 {
					pings(t, d.client.name, clientOut, o.n)
				} else if n := len(pingData.FindAllString(clientOut, -1)); n != o.n*o.clients {
					t.Errorf("%d pings of %d clients, want %d:\n%s", n, o.clients, o.n*o.clients, clientOut)
				}
			})
		}
	}
}

// typeOfService is that of ucmatose -t; the server takes it over from the request.
const typeOfService = 32

// TestCMatose: many connections at once, with a type of service, long messages and IDs that move to another channel.
func TestCMatose(t *testing.T) {
	kernelContent(t)
	for _, d := range both(t) {
		for _, o := range []struct {
			name, family string
			options      []string
			client       []string
		}{
			{"50-connections", "IPv4", []string{"-c", "50", "-C", "5", "-S", "100"}, []string{"-t", strconv.Itoa(typeOfService)}},
			{"long-messages", "IPv6", []string{"-c", "3", "-C", "5", "-S", "20000", "-m"}, nil},
			{"link-local", "link-local", []string{"-c", "2"}, nil},
			{"no-messages", "IPv4", []string{"-c", "2", "-C", "0"}, nil},
			{"port-space-ib", "IPv4", []string{"-c", "2", "-P", "ib"}, nil},
		} {
			t.Run(d.server.name+"-serves/"+o.name, func(t *testing.T) {
				port := nextPort()
				p := cmPair{server: d.server, client: d.client, port: port}
				options := append([]string{"-p", strconv.Itoa(port)}, o.options...)
				p.serverArgs = d.server.cm(t, "ucmatose", append(options[:len(options):len(options)], "-b", addr(t, o.family, d.server, d.server))...)
				p.clientArgs = d.client.cm(t, "ucmatose", append(append(options[:len(options):len(options)], o.client...), "-s", addr(t, o.family, d.server, d.client))...)
				if o.client != nil {
					for _, from := range []*side{d.client, d.server} {
						marked := sniff(t, 20, fmt.Sprintf("udp dst port 4791 and src host %s and ip[1] & 0xfc == %d", from.ip4, typeOfService))
						t.Cleanup(func() {
							if !marked() {
								t.Errorf("%s sends no packets with type of service %d", from.name, typeOfService)
							}
						})
					}
				}
				serverOut, clientOut := p.run(t)
				for who, out := range map[string]string{d.server.name: serverOut, d.client.name: clientOut} {
					if !strings.Contains(out, "return status 0") {
						t.Errorf("%s:\n%s", who, out)
					}
				}
			})
		}
	}
}

// TestCMDatagrams: udaddy looks services up and gets its datagrams back.
func TestCMDatagrams(t *testing.T) {
	kernelContent(t)
	for _, d := range both(t) {
		for _, family := range families {
			t.Run(d.server.name+"-serves/"+family, func(t *testing.T) {
				p := cmPair{server: d.server, client: d.client, port: 7174}
				options := []string{"-c", "3", "-C", "4", "-S", "900"}
				p.serverArgs = d.server.cm(t, "udaddy", append(options, "-b", addr(t, family, d.server, d.server))...)
				p.clientArgs = d.client.cm(t, "udaddy", append(options, "-s", addr(t, family, d.server, d.client))...)
				serverOut, clientOut := p.run(t)
				for who, out := range map[string]string{d.server.name: serverOut, d.client.name: clientOut} {
					if !strings.Contains(out, "data transfers complete") || !strings.Contains(out, "return status 0") {
						t.Errorf("%s:\n%s", who, out)
					}
				}
			})
		}
	}
}

// TestCMTime: the steps of making and ending connections, many at once.
func TestCMTime(t *testing.T) {
	kernelContent(t)
	for _, d := range both(t) {
		t.Run(d.server.name+"-serves", func(t *testing.T) {
			port := nextPort()
			p := cmPair{server: d.server, client: d.client, port: port, forever: true}
			p.serverArgs = d.server.cm(t, "cmtime", "-p", strconv.Itoa(port), "-b", d.server.ip4)
			p.clientArgs = d.client.cm(t, "cmtime", "-p", strconv.Itoa(port), "-s", d.server.ip4, "-c", "40")
			_, out := p.run(t)
			if !strings.Contains(out, "disconnect") || strings.Contains(out, "error") {
				t.Errorf("%s:\n%s", d.client.name, out)
			}
			t.Logf("%s:\n%s", d.client.name, out)
		})
	}
}

// TestCMGroup: mckey's members of an IPv4 group hear the sender.
func TestCMGroup(t *testing.T) {
	kernelContent(t)
	for i, d := range both(t) {
		t.Run(d.client.name+"-sends", func(t *testing.T) {
			group := netip.AddrFrom4([4]byte{239, 77, 2, byte(20 + i)})
			p := cmPair{server: d.server, client: d.client, ready: func(ctx context.Context, s *side) error { return joined(ctx, s, group) }}
			options := []string{"-m", group.String(), "-C", "5", "-S", "500"}
			p.serverArgs = d.server.cm(t, "mckey", append(options, "-b", d.server.ip4)...)
			p.clientArgs = d.client.cm(t, "mckey", append(options, "-b", d.client.ip4, "-s")...)
			serverOut, clientOut := p.run(t)
			for who, out := range map[string]string{d.server.name: serverOut, d.client.name: clientOut} {
				if !strings.Contains(out, "data transfers complete") || !strings.Contains(out, "return status 0") {
					t.Errorf("%s:\n%s", who, out)
				}
			}
		})
	}
}
