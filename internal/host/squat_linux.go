package host

import (
	"encoding/binary"
	"syscall"

	"golang.org/x/sys/unix"
)

// Of the kernel's linux/unix_diag.h.
const (
	diagReqLen   = 24
	diagMsgLen   = 16
	diagShowName = 1
	diagShowUID  = 0x40
	diagAttrName = 0
	diagAttrUID  = 7
	diagMax      = 1 << 16 // messages that are read of one answer
)

// holder tells which user has an abstract name, of a socket for connections (or of any type). It asks the
// kernel for all sockets, so it is for errors; ok is false if it cannot be told.
func holder(name string) (uid uint32, ok bool) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_INET_DIAG)
	if err != nil {
		return 0, false
	}
	defer closeFD(fd)
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1})
	req := make([]byte, unix.SizeofNlMsghdr+diagReqLen)
	order := binary.NativeEndian
	order.PutUint32(req, uint32(len(req)))
	order.PutUint16(req[4:], unix.SOCK_DIAG_BY_FAMILY)
	order.PutUint16(req[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	body := req[unix.SizeofNlMsghdr:]
	body[0] = unix.AF_UNIX
	order.PutUint32(body[4:], ^uint32(0)) // in any state
	order.PutUint32(body[12:], diagShowName|diagShowUID)
	if unix.Sendto(fd, req, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}) != nil {
		return 0, false
	}
	b := make([]byte, 64<<10)
	for range diagMax {
		n, _, err := unix.Recvfrom(fd, b, 0)
		if err != nil || n < unix.SizeofNlMsghdr {
			return 0, false
		}
		list, err := syscall.ParseNetlinkMessage(b[:n])
		if err != nil {
			return 0, false
		}
		for i := range list {
			if t := list[i].Header.Type; t == unix.NLMSG_DONE || t == unix.NLMSG_ERROR {
				return 0, false
			}
			if got, uid, ok := diagSocket(list[i].Data); ok && got == "\x00"+name {
				return uid, true
			}
		}
	}
	return 0, false
}

// diagSocket reads what the kernel tells of one socket.
func diagSocket(b []byte) (name string, uid uint32, ok bool) {
	if len(b) < diagMsgLen {
		return "", 0, false
	}
	for b = b[diagMsgLen:]; len(b) >= unix.SizeofNlAttr; {
		n, typ := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])
		if n < unix.SizeofNlAttr || n > len(b) {
			break
		}
		switch data := b[unix.SizeofNlAttr:n]; typ {
		case diagAttrName:
			name = string(data)
		case diagAttrUID:
			if len(data) >= 4 {
				uid, ok = binary.NativeEndian.Uint32(data), true
			}
		}
		b = b[min((n+3)&^3, len(b)):]
	}
	return name, uid, ok && name != ""
}
