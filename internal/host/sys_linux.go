package host

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxFDs is the most descriptors that one message carries (SCM_MAX_FD).
const maxFDs = 253

const sockFlags = unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK

// abstract is an address in the abstract namespace, which belongs to the network
// namespace and needs no file.
func abstract(name string) *unix.SockaddrUnix { return &unix.SockaddrUnix{Name: "@" + name} }

// selfSocket makes a datagram socket that is connected to itself: what is sent is received
// by who reads it, however many hold it. Nobody else can send to it (EPERM). Its queue is
// bounded by its send buffer alone. EADDRINUSE: the name is taken.
func selfSocket(name string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|sockFlags, 0)
	if err != nil {
		return -1, err
	}
	a := abstract(name)
	if err = unix.Bind(fd, a); err == nil {
		if err = unix.Connect(fd, a); err == nil {
			return fd, nil
		}
	}
	closeFD(fd)
	return -1, err
}

// drainMax bounds how many messages are thrown away: more than fit into a queue.
const drainMax = 1 << 16

// drain throws away what is in a socket's queue.
func drain(fd, most int) error {
	var b [1]byte
	for range most {
		if _, err := unix.Read(fd, b[:]); err != nil {
			switch {
			case errors.Is(err, unix.EAGAIN):
				return nil
			case errors.Is(err, unix.EINTR), errors.Is(err, unix.ECONNREFUSED):
				continue // a pending error of a datagram socket is read with it
			}
			return err
		}
	}
	return nil
}

// bound reports whether anybody has the name of a datagram socket.
func bound(name string) bool {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|sockFlags, 0)
	if err != nil {
		return true // nobody is dead because we have no descriptor
	}
	defer closeFD(fd)
	return !errors.Is(unix.Connect(fd, abstract(name)), unix.ECONNREFUSED)
}

// bindName makes a socket for connections with a name that nobody has: EADDRINUSE.
func bindName(name string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|sockFlags, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.Bind(fd, abstract(name)); err != nil {
		closeFD(fd)
		return -1, err
	}
	return fd, nil
}

// dial connects to a name. ECONNREFUSED: nobody listens; EAGAIN: too many wait.
func dial(name string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|sockFlags, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.Connect(fd, abstract(name)); err != nil {
		closeFD(fd)
		return -1, err
	}
	return fd, nil
}

// peer gives the credentials of who is at the other end.
func peer(fd int) (*unix.Ucred, error) {
	return unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
}

// sendFDs sends a message with descriptors, which stay the caller's.
func sendFDs(fd int, b []byte, fds ...int) error {
	err := unix.Sendmsg(fd, b, unix.UnixRights(fds...), nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	if errors.Is(err, unix.ETOOMANYREFS) {
		return fmt.Errorf("%w (in flight)", ErrDescriptors)
	}
	return err
}

// recvFDs receives a message with the descriptors that came with it, which are the caller's.
// With unix.MSG_PEEK the message stays.
func recvFDs(fd int, b []byte, flags int) (n int, fds []int, err error) {
	oob := make([]byte, unix.CmsgSpace(4*maxFDs))
	for {
		var oobn, got int
		n, oobn, got, _, err = unix.Recvmsg(fd, b, oob, flags|unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0, nil, err
		}
		list, perr := unix.ParseSocketControlMessage(oob[:oobn])
		if perr != nil {
			return n, nil, perr
		}
		for i := range list {
			if more, err := unix.ParseUnixRights(&list[i]); err == nil {
				fds = append(fds, more...)
			}
		}
		if got&unix.MSG_CTRUNC != 0 {
			closeFDs(fds)
			return n, nil, ErrDescriptors
		}
		return n, fds, nil
	}
}

// peekBytes reads the first message and leaves it, and its descriptors, where they are.
func peekBytes(fd int, b []byte) (int, error) {
	for {
		n, _, _, _, err := unix.Recvmsg(fd, b, nil, unix.MSG_PEEK|unix.MSG_DONTWAIT)
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

func closeFD(fd int) {
	if fd >= 0 {
		_ = unix.Close(fd)
	}
}

func closeFDs(fds []int) {
	for _, fd := range fds {
		closeFD(fd)
	}
}

// tooFew makes EMFILE and ENFILE say what to do.
func tooFew(err error) error {
	if errors.Is(err, unix.EMFILE) && !errors.Is(err, ErrDescriptors) {
		return fmt.Errorf("%w: %w", ErrDescriptors, err)
	}
	return err
}

// limited reports whether a file must not have n bytes.
func limited(n uint64) bool {
	var r unix.Rlimit
	return unix.Getrlimit(unix.RLIMIT_FSIZE, &r) == nil && r.Cur < n
}

// identity is who this process is.
type identity struct {
	uid    uint32
	userns [2]uint64 // device and inode, 0 if it cannot be told
}

// whoami finds out. ErrForeign: the user has no name in this user namespace, so that
// others cannot be told from it.
func whoami() (identity, error) {
	id := identity{uid: uint32(os.Geteuid())}
	var st unix.Stat_t
	if unix.Stat("/proc/self/ns/user", &st) == nil {
		id.userns = [2]uint64{uint64(st.Dev), st.Ino}
	}
	if id.uid == overflowUID() && !allMapped() {
		return id, fmt.Errorf("%w: user %d stands for all that are not mapped into this user namespace", ErrForeign, id.uid)
	}
	return id, nil
}

// overflowUID is what the kernel shows in place of users that are not mapped.
func overflowUID() uint32 {
	const usual = 65534
	b, err := os.ReadFile("/proc/sys/kernel/overflowuid")
	if err != nil {
		return usual
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 32)
	if err != nil {
		return usual
	}
	return uint32(n)
}

// allMapped reports whether this user namespace has all users, as the first one has.
func allMapped() bool {
	b, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && strings.Join(strings.Fields(string(b)), " ") == "0 0 4294967295"
}
