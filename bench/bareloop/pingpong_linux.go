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

// pingLen is a packet with 8 bytes of payload.
const pingLen = headerLen + 8 + crcLen

// warmUp is how many round trips are not counted.
const warmUp = 1000

// exchange is one side's socket and packet.
type exchange struct {
	fd     int
	poll   bool
	buf    [pingLen]byte
	s      *scratch
	memory [64]byte
}

// await receives one packet, checks it and places it. It reports the sender.
func (x *exchange) await(from *unix.RawSockaddrInet4) error {
	var quiet time.Time
	for turn := uint(1); ; turn++ {
		n, errno := receiveFrom(x.fd, x.buf[:], from, !x.poll)
		switch errno {
		case 0:
			if !x.s.place(x.memory[:], x.buf[:n]) {
				return errors.New("damaged packet")
			}
			return nil
		case unix.EINTR:
		case unix.EAGAIN:
			if !x.poll {
				return errors.New("no answer") // the socket's receive timeout
			}
			if turn%(1<<14) == 0 {
				if quiet.IsZero() {
					quiet = time.Now()
				} else if time.Since(quiet) > silence {
					return errors.New("no answer")
				}
			}
		default:
			return fmt.Errorf("receive: %w", errno)
		}
	}
}

// answer seals the packet and sends it.
func (x *exchange) answer(kind byte, to *unix.RawSockaddrInet4) error {
	binary.BigEndian.PutUint64(x.buf[offsetAt:], 8)
	x.buf[kindAt] = kind
	x.s.seal(x.buf[:headerLen], x.buf[headerLen:headerLen+8], x.buf[headerLen+8:])
	if errno := sendTo(x.fd, x.buf[:], to); errno != 0 {
		return fmt.Errorf("send: %w", errno)
	}
	return nil
}

// newExchange opens a socket that is polled, or that waits for [silence] at most.
func newExchange(a pingArgs) (*exchange, int, error) {
	fd, port, err := open()
	if err != nil {
		return nil, 0, err
	}
	limit := unix.NsecToTimeval(silence.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
		_ = unix.Close(fd)
		return nil, 0, err
	}
	return &exchange{fd: fd, poll: a.Poll, s: newScratch()}, port, nil
}

// ping sends, waits for the answer, and so on for the duration.
func ping(raw json.RawMessage, _ *json.Decoder, out *json.Encoder) error {
	var a pingArgs
	if err := json.Unmarshal(raw, &a); err != nil {
		return err
	}
	x, _, err := newExchange(a)
	if err != nil {
		return err
	}
	defer unix.Close(x.fd)
	runtime.LockOSThread()
	to := loopback(a.Port)
	var from unix.RawSockaddrInet4
	samples := make([]int64, 0, 4<<20)
	begin := time.Now()
	before := begin
	for i := 0; len(samples) < cap(samples); i++ {
		if err := errors.Join(x.answer(kindData, &to), x.await(&from)); err != nil {
			return err
		}
		now := time.Now()
		if i < warmUp {
			begin = now
		} else {
			samples = append(samples, now.Sub(before).Nanoseconds())
			if now.Sub(begin) >= a.Duration {
				break
			}
		}
		before = now
	}
	if err := x.answer(kindEnd, &to); err != nil {
		return err
	}
	return out.Encode(pingResult{
		Median: bench.Percentile(samples, 50) / 2, P99: bench.Percentile(samples, 99) / 2, Count: len(samples),
	})
}

// pong sends back what it gets until it is told to end.
func pong(raw json.RawMessage, _ *json.Decoder, out *json.Encoder) error {
	var a pingArgs
	if err := json.Unmarshal(raw, &a); err != nil {
		return err
	}
	x, port, err := newExchange(a)
	if err != nil {
		return err
	}
	defer unix.Close(x.fd)
	if err := out.Encode(ready{Port: port}); err != nil {
		return err
	}
	runtime.LockOSThread()
	var from unix.RawSockaddrInet4
	for {
		if err := x.await(&from); err != nil {
			return err
		}
		if x.buf[kindAt] == kindEnd {
			return nil
		}
		if err := x.answer(kindData, &from); err != nil {
			return err
		}
	}
}
