package rdma

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
)

// AddrsEnv is the environment variable that sets GID tables; the package's
// documentation has its syntax.
const AddrsEnv = "VERBENA_ADDRS"

// An AddrsError tells what is wrong with the addresses given for an interface,
// by WithAddrs or in the environment. It matches EINVAL.
type AddrsError struct {
	Source string // "VERBENA_ADDRS" or "WithAddrs"
	Part   string // the part at fault
	Detail string // what is wrong with it
}

// Error tells where, what and why.
func (e *AddrsError) Error() string { return fmt.Sprintf("%s: %q: %s", e.Source, e.Part, e.Detail) }

// Unwrap returns EINVAL.
func (e *AddrsError) Unwrap() error { return syscall.EINVAL }

// table is the addresses of one interface.
type table struct {
	netdev string
	addrs  []netip.Addr
}

// parseAddrs reads the variable: interfaces joined by commas, each with its
// addresses joined by plus signs. Empty parts between commas are allowed.
func parseAddrs(s string) ([]table, error) {
	bad := func(part, detail string) ([]table, error) {
		return nil, &AddrsError{Source: AddrsEnv, Part: part, Detail: detail}
	}
	var list []table
	for part := range strings.SplitSeq(s, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		name, rest, found := strings.Cut(part, "=")
		if name = strings.TrimSpace(name); !found || name == "" {
			return bad(part, "want interface=address, or interface=address+address")
		}
		t := table{netdev: name}
		for text := range strings.SplitSeq(rest, "+") {
			a, err := netip.ParseAddr(strings.TrimSpace(text))
			if err != nil {
				return bad(part, fmt.Sprintf("%q is not an IP address", text))
			}
			t.addrs = append(t.addrs, a)
		}
		list = append(list, t)
	}
	return list, checkTables(AddrsEnv, list)
}

// checkTables checks what netip does not: unicast addresses, nothing twice.
func checkTables(source string, list []table) error {
	names := make(map[string]bool, len(list))
	for _, t := range list {
		if names[t.netdev] {
			return &AddrsError{source, t.netdev, "the interface is listed twice"}
		}
		names[t.netdev] = true
		for i, a := range t.addrs {
			switch {
			case !a.IsValid():
				return &AddrsError{source, t.netdev, "the zero netip.Addr is no address"}
			case a.IsUnspecified() || a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
				return &AddrsError{source, t.netdev, a.String() + " is not a unicast address"}
			case slices.ContainsFunc(t.addrs[:i], func(b netip.Addr) bool { return b.Unmap() == a.Unmap() }):
				return &AddrsError{source, t.netdev, a.String() + " is listed twice"}
			}
		}
	}
	return nil
}

// checkNames refuses interfaces that do not exist.
func checkNames(source string, list []table, exist []string) error {
	for _, t := range list {
		if !slices.Contains(exist, t.netdev) {
			return &AddrsError{source, t.netdev, "there is no such interface; there are: " + strings.Join(exist, ", ")}
		}
	}
	return nil
}
