//go:build amd64 || arm64

package bareloop

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

const supported = true

// mmsghdr is struct mmsghdr of <sys/socket.h>.
type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
	_   [4]byte
}

// segmentControl is a control message with one 16-bit (UDP_SEGMENT) or 32-bit (UDP_GRO) value, aligned as the kernel wants it.
type segmentControl struct {
	hdr   unix.Cmsghdr
	value [8]byte
}

// outgoing is a send of equal packets: header of the first, payload, trailer and next header, payload, and so on. Payload stays where it
// is, unless it is small.
type outgoing struct {
	msg     unix.Msghdr
	name    unix.RawSockaddrInet4
	control segmentControl
	iov     []unix.Iovec
	frames  []byte // per packet: header, small payload, trailer; the trailer and the next header are one piece
	inline  int    // length of payload in frames: all of it, or 0
}

// newOutgoing prepares sends of so many packets to a port of 127.0.0.1.
func newOutgoing(port, segments, payload int) *outgoing {
	o := &outgoing{
		name: loopback(port),
		iov:  make([]unix.Iovec, 2*segments+1),
	}
	if payload <= inlineMax {
		o.inline = payload
		o.iov = o.iov[:1]
	}
	o.frames = make([]byte, segments*o.stride())
	o.control.hdr.Level = unix.SOL_UDP
	o.control.hdr.Type = unix.UDP_SEGMENT
	o.control.hdr.SetLen(unix.CmsgLen(2))
	*(*uint16)(unsafe.Pointer(&o.control.value)) = uint16(headerLen + payload + crcLen) // 8 bytes of room
	o.msg.Name = (*byte)(unsafe.Pointer(&o.name))                                       // with the length of the structure
	o.msg.Namelen = unix.SizeofSockaddrInet4
	o.msg.Control = (*byte)(unsafe.Pointer(&o.control)) // CmsgSpace(2) is the size of the structure
	o.msg.SetControllen(unix.CmsgSpace(2))
	o.msg.Iov = &o.iov[0]
	o.msg.SetIovlen(len(o.iov))
	if o.inline > 0 {
		setIovec(&o.iov[0], o.frames)
		return o
	}
	setIovec(&o.iov[0], o.header(0))
	for i := 1; i < segments; i++ {
		at := i*o.stride() - crcLen
		setIovec(&o.iov[2*i], o.frames[at:at+crcLen+headerLen])
	}
	setIovec(&o.iov[2*segments], o.trailer(segments-1))
	return o
}

// stride is what one packet takes in frames.
func (o *outgoing) stride() int { return headerLen + o.inline + crcLen }

// header and trailer are the parts of packet i that are not payload.
func (o *outgoing) header(i int) []byte {
	at := i * o.stride()
	return o.frames[at : at+headerLen]
}

func (o *outgoing) trailer(i int) []byte {
	at := (i + 1) * o.stride()
	return o.frames[at-crcLen : at]
}

// payload sets the payload of packet i: by reference, or by copying it when it is small.
func (o *outgoing) payload(i int, b []byte) {
	if o.inline > 0 {
		copy(o.frames[i*o.stride()+headerLen:][:o.inline], b)
		return
	}
	setIovec(&o.iov[2*i+1], b)
}

// send sends all packets with one system call that does not block.
func (o *outgoing) send(fd int) unix.Errno {
	_, _, errno := unix.RawSyscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&o.msg)), unix.MSG_DONTWAIT)
	return errno
}

// incoming receives up to as many datagrams, coalesced or not, as it has buffers.
type incoming struct {
	msgs     []mmsghdr
	iov      []unix.Iovec
	controls []segmentControl
	buffers  [][]byte
	from     unix.RawSockaddrInet4 // of the last datagram
}

func newIncoming(n int) *incoming {
	r := &incoming{
		msgs: make([]mmsghdr, n), iov: make([]unix.Iovec, n), controls: make([]segmentControl, n), buffers: make([][]byte, n),
	}
	for i := range n {
		r.buffers[i] = make([]byte, 65536)
		setIovec(&r.iov[i], r.buffers[i])
		h := &r.msgs[i].hdr
		h.Iov = &r.iov[i]
		h.SetIovlen(1)
		h.Control = (*byte)(unsafe.Pointer(&r.controls[i])) // its size, and the name's, are set before each receive
		h.Name = (*byte)(unsafe.Pointer(&r.from))
	}
	return r
}

// receive returns how many datagrams came, without waiting.
func (r *incoming) receive(fd int) (int, unix.Errno) {
	for i := range r.msgs {
		r.msgs[i].hdr.SetControllen(int(unsafe.Sizeof(segmentControl{})))
		r.msgs[i].hdr.Namelen = unix.SizeofSockaddrInet4
	}
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd),
		uintptr(unsafe.Pointer(&r.msgs[0])), uintptr(len(r.msgs)), // as many as there are
		unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

// datagram returns datagram i and the length of the packets in it, of which the last may be shorter.
func (r *incoming) datagram(i int) (b []byte, segment int) {
	n := int(r.msgs[i].len)
	segment = n
	c := &r.controls[i]
	if int(r.msgs[i].hdr.Controllen) >= unix.CmsgLen(4) && c.hdr.Level == unix.SOL_UDP && c.hdr.Type == unix.UDP_GRO {
		segment = int(*(*int32)(unsafe.Pointer(&c.value))) // an int of the kernel's, in 8 bytes of room
	}
	return r.buffers[i][:n], segment
}

// sendTo sends a few bytes to an address.
func sendTo(fd int, b []byte, to *unix.RawSockaddrInet4) unix.Errno {
	_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)),
		unix.MSG_DONTWAIT, uintptr(unsafe.Pointer(to)), unix.SizeofSockaddrInet4)
	return errno
}

// receiveFrom receives a few bytes and the sender's address. With wait the thread sleeps, and the scheduler is told.
func receiveFrom(fd int, b []byte, from *unix.RawSockaddrInet4, wait bool) (int, unix.Errno) {
	size := uint32(unix.SizeofSockaddrInet4)
	var n uintptr
	var errno unix.Errno
	if wait {
		n, _, errno = unix.Syscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)),
			0, uintptr(unsafe.Pointer(from)), uintptr(unsafe.Pointer(&size)))
	} else {
		n, _, errno = unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)),
			unix.MSG_DONTWAIT, uintptr(unsafe.Pointer(from)), uintptr(unsafe.Pointer(&size)))
	}
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

// loopback returns the address 127.0.0.1 with a port.
func loopback(port int) unix.RawSockaddrInet4 {
	return unix.RawSockaddrInet4{
		Family: unix.AF_INET,
		Port:   uint16(port)>>8 | uint16(port)<<8, // network order; Linux on amd64 and arm64 is little-endian
		Addr:   [4]byte{127, 0, 0, 1},
	}
}

func setIovec(v *unix.Iovec, b []byte) {
	v.Base = unsafe.SliceData(b)
	v.SetLen(len(b))
}
