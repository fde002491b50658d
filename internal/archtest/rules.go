package archtest

import "strings"

// A Rules value says where every package stands and what it may do there.
type Rules struct {
	// Module is the module path; imports that start with it are held to the floors.
	Module string
	// Floors lists the packages of each floor, lowest first, as patterns relative to the module: "ib" is one package, "port/*" is
	// every package directly below, "cmd/..." is cmd with everything below.
	Floors [][]string
	// Sideways lists the imports allowed between two packages of one floor.
	Sideways []Edge
	// TestsUp lists the imports that only tests may make although they lead up.
	TestsUp []Edge
	// Pure is the highest floor that reads no clock, opens nothing, starts no goroutine and draws no random numbers.
	Pure int
	// Stateless is the highest floor that has no func init and no global that changes.
	Stateless int
	// Globals lists variables ("package.name") that may change all the same, each with its reason.
	Globals map[string]string
	// Foreign lists modules outside the standard library that floors above Pure up to Stateless may import. Higher floors may
	// import any, lower floors none.
	Foreign []string
	// Unsafe lists the packages that may import unsafe, in files named *_unsafe.go.
	Unsafe []string
	// MaxLines is the length from which a file is too long.
	MaxLines int
}

// An Edge is an import, both ends patterns as in [Rules].Floors.
type Edge struct{ From, To string }

// Verbena returns the rules of this module.
func Verbena() Rules {
	return Rules{
		Module: "github.com/verbena-rdma/verbena",
		Floors: [][]string{
			0: {"ib", "internal/psn", "internal/crc", "internal/pi", "internal/pi/pimodel", "internal/wire/*"},
			1: {
				"internal/queue", "internal/ring", "internal/mem", "internal/pkt", "internal/timer", "internal/trace",
				"verbs/driver",
			},
			2: {"internal/transport", "internal/rc", "internal/ud", "internal/cm"},
			3: {"internal/shard", "internal/port", "port/*", "internal/capture", "internal/host"},
			4: {"provider/*"},
			// layers knows no device: it stands here because it is public, and gopacket, whose types it has, is allowed above floor 2 only.
			5: {"verbs", "rdmacm", "rdmarw", "rdma", "layers"},
			6: {"cmd/...", "examples/...", "bench/...", "interop/...", "internal/simtest", "internal/archtest"},
		},
		Sideways: []Edge{
			{"ib", "internal/psn"},
			{"internal/pi", "ib"},
			{"internal/pi/pimodel", "ib"},
			{"internal/wire/*", "ib"},
			{"internal/wire/*", "internal/psn"},
			{"internal/wire/*", "internal/crc"}, // the ICRC
			{"internal/queue", "internal/ring"},
			{"internal/queue", "internal/mem"},    // a work request names the regions that it resolved
			{"internal/queue", "verbs/driver"},    // queues hold the seam's work requests and completions
			{"internal/pkt", "internal/mem"},      // a batch refers to payload in place
			{"internal/trace", "internal/mem"},    // payload of a sent packet is copied under the guard
			{"internal/rc", "internal/transport"}, // what the services share: windows, queue pair, scatter lists
			{"internal/ud", "internal/transport"},
			{"internal/shard", "internal/port"},
			{"port/*", "internal/port"},
			{"port/*", "internal/host"}, // sockets that several processes share
			{"rdmacm", "verbs"},
			{"rdmarw", "verbs"},
			{"rdma", "verbs"},
			{"rdma", "rdmacm"},
			{"rdma", "rdmarw"},
			// The parts of one product.
			{"cmd/...", "cmd/..."},
			{"bench/...", "bench/..."},
			{"interop/...", "interop/..."},
			{"examples/...", "examples/..."},
		},
		Pure:      2,
		Stateless: 5,
		Foreign: []string{
			"golang.org/x/sys", "golang.org/x/net", "golang.org/x/sync", "github.com/vishvananda/netlink",
			// What Go programs that look at packets use; of ours the layers package only.
			"github.com/gopacket/gopacket",
		},
		Unsafe:   []string{"internal/ring", "internal/mem", "internal/host", "port/udp", "bench/..."},
		MaxLines: 800,
	}
}

// floor returns the floor of a package, or -1 when nobody has placed it.
func (r *Rules) floor(pkg string) int {
	for n, patterns := range r.Floors {
		for _, p := range patterns {
			if match(p, pkg) {
				return n
			}
		}
	}
	return -1
}

// listed reports whether one of the edges allows the import.
func listed(edges []Edge, from, to string) bool {
	for _, e := range edges {
		if match(e.From, from) && match(e.To, to) {
			return true
		}
	}
	return false
}

// match reports whether a package path, relative to the module, fits a pattern.
func match(pattern, pkg string) bool {
	if top, ok := strings.CutSuffix(pattern, "/..."); ok {
		return pkg == top || strings.HasPrefix(pkg, top+"/")
	}
	if top, ok := strings.CutSuffix(pattern, "/*"); ok {
		rest, below := strings.CutPrefix(pkg, top+"/")
		return below && rest != "" && !strings.Contains(rest, "/")
	}
	return pattern == pkg
}
