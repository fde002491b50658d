//go:build amd64 || arm64

package bareloop

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/bench"
)

// Roles returns the roles that this package plays in a child process.
func Roles() map[string]bench.Role {
	return map[string]bench.Role{roleSource: source, roleSink: sink, rolePing: ping, rolePong: pong}
}

// silence is how long either side waits for the other before it gives up.
const silence = 5 * time.Second

// lossTime is how long the source waits for credit before it writes off what is outstanding.
const lossTime = 500 * time.Millisecond

// open returns a UDP socket on a free port of 127.0.0.1, set as one for RoCEv2 is.
func open() (fd, port int, err error) {
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, 0, err
	}
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO),
		// As much as an unprivileged process gets; the kernel lowers it to its limit.
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 4<<20),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 4<<20),
		unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}),
	)
	if err == nil {
		var at unix.Sockaddr
		at, err = unix.Getsockname(fd)
		if in4, ok := at.(*unix.SockaddrInet4); ok {
			return fd, in4.Port, nil
		}
	}
	_ = unix.Close(fd)
	return 0, 0, err
}

// cpuTime returns the processor time that this process has used.
func cpuTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// source sends for the duration, then ends the sink, and tells what was credited.
func source(raw json.RawMessage, _ *json.Decoder, out *json.Encoder) error {
	var a streamArgs
	if err := json.Unmarshal(raw, &a); err != nil {
		return err
	}
	fd, _, err := open()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	runtime.LockOSThread()

	memory := make([]byte, a.Memory)
	for i := range memory {
		memory[i] = byte(i * 7)
	}
	o, s := newOutgoing(a.Port, a.Segments, a.Payload), newScratch()
	var r streamResult
	var (
		sent, credited uint64 // packets
		offset         int
		credit         [8]byte
		from           unix.RawSockaddrInet4
		window         = uint64(a.Window * a.Segments)
	)
	take := func() bool {
		n, errno := receiveFrom(fd, credit[:], &from, false)
		if errno != 0 || n != len(credit) {
			return false
		}
		credited = max(credited, binary.LittleEndian.Uint64(credit[:])+r.Lost)
		return true
	}
	cpu, start := cpuTime(), time.Now()
	progress := start
	for turn := uint(0); ; turn++ {
		if turn%64 == 0 && time.Since(start) >= a.Duration {
			break
		}
		if sent+uint64(a.Segments) > credited+window {
			for idle := 1; sent+uint64(a.Segments) > credited+window; idle++ {
				if take() {
					progress = time.Time{}
				} else if idle%1024 == 0 {
					if progress.IsZero() {
						progress = time.Now()
					} else if time.Since(progress) > lossTime {
						r.Lost += sent - min(sent, credited)
						credited = sent
						progress = time.Time{}
					}
				}
			}
		}
		for i := range a.Segments {
			payload, h := memory[offset:offset+a.Payload], o.header(i)
			binary.BigEndian.PutUint64(h[offsetAt:], uint64(offset))
			h[kindAt] = kindData
			if offset += a.Payload; offset+a.Payload > len(memory) {
				offset = 0
			}
			s.seal(h, payload, o.trailer(i))
			o.payload(i, payload)
		}
		switch errno := o.send(fd); errno {
		case 0:
			sent += uint64(a.Segments)
		case unix.EAGAIN, unix.ENOBUFS:
		default:
			return fmt.Errorf("send: %w", errno)
		}
	}
	r.Packets = min(sent, credited) - r.Lost
	r.Elapsed, r.CPU = time.Since(start), cpuTime()-cpu

	// End the sink; its answer is its last count, which drops out.
	end := newOutgoing(a.Port, 1, a.Payload)
	end.header(0)[kindAt] = kindEnd
	end.payload(0, memory[:a.Payload])
	for range 5 {
		if errno := end.send(fd); errno != 0 {
			return fmt.Errorf("end: %w", errno)
		}
		for deadline := time.Now().Add(100 * time.Millisecond); time.Now().Before(deadline); {
			if _, errno := receiveFrom(fd, credit[:], &from, false); errno == 0 && from.Addr == [4]byte{127, 0, 0, 1} &&
				binary.LittleEndian.Uint64(credit[:]) == endMark {
				return out.Encode(r)
			}
		}
	}
	return errors.New("the sink did not end")
}

// endMark is a count that no sink reaches: the answer to kindEnd.
const endMark = ^uint64(0)

// sink receives until it is told to end.
func sink(raw json.RawMessage, _ *json.Decoder, out *json.Encoder) error {
	var a streamArgs
	if err := json.Unmarshal(raw, &a); err != nil {
		return err
	}
	fd, port, err := open()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_GRO, 1); err != nil {
		return fmt.Errorf("UDP_GRO: %w: %w", err, bench.ErrUnavailable)
	}
	if err := out.Encode(ready{Port: port}); err != nil {
		return err
	}
	runtime.LockOSThread()

	var (
		r      streamResult
		in     = newIncoming(8)
		s      = newScratch()
		memory = make([]byte, a.Memory)
		credit [8]byte
		cpu    time.Duration
		start  time.Time
		last   = time.Now()
		heard  bool
	)
	for turn := uint(1); ; turn++ {
		if turn%(1<<14) == 0 {
			now := time.Now()
			if heard {
				last, heard = now, false
			} else if now.Sub(last) > silence {
				return errors.New("the source fell silent")
			}
		}
		n, errno := in.receive(fd)
		if errno == unix.EAGAIN || errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return fmt.Errorf("receive: %w", errno)
		}
		if start.IsZero() {
			start, cpu = time.Now(), cpuTime()
		}
		ended := false
		for i := range n {
			b, segment := in.datagram(i)
			if len(b) >= headerLen && b[kindAt] == kindEnd {
				ended = true
				break
			}
			for len(b) > 0 {
				p := b[:min(segment, len(b))]
				b = b[len(p):]
				r.Packets++
				if !s.place(memory, p) {
					r.Bad++
				}
			}
		}
		heard = true
		count := r.Packets
		if ended {
			count = endMark
		}
		binary.LittleEndian.PutUint64(credit[:], count)
		if errno := sendTo(fd, credit[:], &in.from); errno != 0 && errno != unix.EAGAIN {
			return fmt.Errorf("credit: %w", errno)
		}
		if ended {
			r.Elapsed, r.CPU = time.Since(start), cpuTime()-cpu
			return out.Encode(r)
		}
	}
}
