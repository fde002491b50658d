package udp

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// A holder is a socket that keeps us from an address's port.
type holder struct {
	addr  netip.Addr
	uid   int
	inode uint64
}

// parseHolders finds the sockets in a table like /proc/net/udp that are bound
// to the address, or to all addresses, with RoCE's port.
func parseHolders(table []byte, addr netip.Addr) (found []holder) {
	lines := bufio.NewScanner(bytes.NewReader(table))
	for lines.Scan() {
		// sl local_address rem_address st queues timer retrnsmt uid timeout inode ...
		f := strings.Fields(lines.Text())
		if len(f) < 10 {
			continue
		}
		host, port, ok := strings.Cut(f[1], ":")
		n, err := strconv.ParseUint(port, 16, 16)
		if !ok || err != nil || n != roce.Port {
			continue
		}
		a, ok := parseProcAddr(host)
		if !ok || a != addr.WithZone("") && !a.IsUnspecified() || addr.Is6() && a.Is4() {
			continue
		}
		uid, err := strconv.Atoi(f[7])
		if err != nil {
			continue
		}
		inode, err := strconv.ParseUint(f[9], 10, 64)
		if err != nil {
			continue
		}
		found = append(found, holder{addr: a, uid: uid, inode: inode})
	}
	return found
}

// parseProcAddr reads an address as /proc/net prints it: words of 32 bits in
// the order of the machine.
func parseProcAddr(s string) (netip.Addr, bool) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != 4 && len(b) != 16 {
		return netip.Addr{}, false
	}
	for i := 0; i < len(b); i += 4 {
		binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
	}
	a, ok := netip.AddrFromSlice(b)
	return a.Unmap(), ok
}

// otherAddr is what always helps: RoCE has one UDP port, so who does not share an
// address needs one of its own.
const otherAddr = "give this one another address (rdma.WithAddrs, VERBENA_ADDRS)"

// whoHolds describes, as well as it can be told, who has the port of an
// address and what to do about it.
func whoHolds(addr netip.Addr) string {
	found := holders(addr)
	if len(found) == 0 {
		return "the holder cannot be told (it may have gone by now, or run in another container): stop it, or " + otherAddr
	}
	h, pid, name := processOf(found)
	return h.describe(pid, name)
}

// holders lists the sockets that have the port of an address.
func holders(addr netip.Addr) (found []holder) {
	// Of this thread: /proc/net is the network of the process's first thread. A dual-stack
	// wildcard socket, listed with IPv6, also holds IPv4 addresses.
	for _, name := range []string{"/proc/thread-self/net/udp", "/proc/thread-self/net/udp6"} {
		if table, err := os.ReadFile(name); err == nil {
			found = append(found, parseHolders(table, addr)...)
		}
	}
	return found
}

// describe says who the holder is and what to do; pid is 0 where that is not known.
func (h holder) describe(pid int, name string) string {
	switch {
	case pid == os.Getpid():
		return "this process has the address open already, in another Context: share that one, or " + otherAddr
	case pid != 0 && h.uid != os.Getuid():
		return fmt.Sprintf("held by process %d (%s) of uid %d, and only processes of one user share an address: stop it, or %s", pid, name, h.uid, otherAddr)
	case pid != 0:
		return fmt.Sprintf("held by process %d (%s) of uid %d, which does not share it with this one: stop it, or %s", pid, name, h.uid, otherAddr)
	case h.uid == 0 && h.addr.IsUnspecified():
		return "held on all addresses by uid 0, perhaps by the kernel's rdma_rxe (see `rdma link`; remove it with `rdma link delete`)"
	}
	if h.uid != os.Getuid() {
		return fmt.Sprintf("held by a process of uid %d (as root `ss -ulpn sport = :%d` names it), and only processes of one user share an address: stop it, or %s",
			h.uid, roce.Port, otherAddr)
	}
	return fmt.Sprintf("held by a process of uid %d (as root `ss -ulpn sport = :%d` names it): stop it, or %s", h.uid, roce.Port, otherAddr)
}

// processOf looks for a process that has one of the sockets open. It sees only what
// the user may see; 0: not found, the holder is the first.
func processOf(list []holder) (h holder, pid int, name string) {
	want := make(map[string]holder, len(list))
	for _, h := range list {
		want[fmt.Sprintf("socket:[%d]", h.inode)] = h
	}
	fds, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return list[0], 0, ""
	}
	for _, fd := range fds {
		link, err := os.Readlink(fd)
		if err != nil {
			continue
		}
		h, ok := want[link]
		if !ok {
			continue
		}
		dir := filepath.Dir(filepath.Dir(fd))
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		comm, err := os.ReadFile(filepath.Join(dir, "comm"))
		if err != nil {
			comm = []byte("?")
		}
		return h, pid, strings.TrimSpace(string(comm))
	}
	return list[0], 0, ""
}
