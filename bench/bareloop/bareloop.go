// Package bareloop measures the limit for software RDMA in Go on this machine: what a program reaches that moves packets of RoCEv2's
// shape over UDP sockets and does nothing else.
//
// Payload is gathered from application memory by iovec, every packet carries a CRC over header and payload that the receiver
// checks, equal packets leave as one send with segmentation offload and arrive coalesced, and the receiver copies payload once, into
// application memory. There is no protocol: the receiver counts, and its count is the sender's credit. What is lost stays lost.
package bareloop

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/verbena-rdma/verbena/bench"
)

// Names of the roles, for [bench.StartChild].
const (
	roleSource = "bareloop/source"
	roleSink   = "bareloop/sink"
	rolePing   = "bareloop/ping"
	rolePong   = "bareloop/pong"
)

// streamArgs tells a source or a sink what to move.
type streamArgs struct {
	Payload  int           `json:"payload"`  // bytes per packet
	Segments int           `json:"segments"` // packets per send
	Window   int           `json:"window"`   // sends outstanding
	Memory   int           `json:"memory"`   // bytes of the message that is sent over and over
	Duration time.Duration `json:"duration"`
	Port     int           `json:"port"` // of the sink
}

// streamResult is what each side saw.
type streamResult struct {
	Packets uint64        `json:"packets"` // arrived (sink) or credited (source)
	Lost    uint64        `json:"lost"`    // written off by the source
	Bad     uint64        `json:"bad"`     // wrong CRC, at the sink
	Elapsed time.Duration `json:"elapsed"`
	CPU     time.Duration `json:"cpu"`
}

// pingArgs tells a ping or a pong how to wait.
type pingArgs struct {
	Poll     bool          `json:"poll"`
	Duration time.Duration `json:"duration"`
	Port     int           `json:"port"` // of the pong
}

// pingResult is half of a round trip, in nanoseconds.
type pingResult struct {
	Median, P99 int64
	Count       int
}

// ready is the first word of a sink or a pong.
type ready struct {
	Port int `json:"port"`
}

// Workloads returns the measurements of this package.
func Workloads() []bench.Workload {
	return []bench.Workload{
		{Name: "bareloop/bw", Run: func(ctx context.Context, o bench.Options) ([]bench.Measurement, error) {
			// 15 packets of 4 KiB are the most that fit one UDP send; four such sends fit the default receive buffer.
			return stream(ctx, o, "bareloop/bw/65536", bench.BytesPerSecond, streamArgs{
				Payload: 4096, Segments: 15, Window: 4, Memory: 64 << 10,
			})
		}},
		{Name: "bareloop/rate", Run: func(ctx context.Context, o bench.Options) ([]bench.Measurement, error) {
			return stream(ctx, o, "bareloop/rate/8/batch32", bench.MessagesPerSecond, streamArgs{
				Payload: 8, Segments: 32, Window: 64, Memory: 64 << 10,
			})
		}},
		{Name: "bareloop/poll", Run: func(ctx context.Context, o bench.Options) ([]bench.Measurement, error) {
			return pingPong(ctx, o, "poll", true)
		}},
		{Name: "bareloop/sleep", Run: func(ctx context.Context, o bench.Options) ([]bench.Measurement, error) {
			return pingPong(ctx, o, "sleep", false)
		}},
	}
}

// stream runs a source against a sink.
func stream(ctx context.Context, o bench.Options, name, unit string, args streamArgs) (_ []bench.Measurement, err error) {
	args.Duration = o.Duration
	var sent, got streamResult
	if err := both(ctx, o, roleSink, roleSource, args, func(port int) any { args.Port = port; return args }, &got, &sent); err != nil {
		return nil, err
	}
	if got.Bad > 0 {
		return nil, fmt.Errorf("%s: %d packets with a wrong CRC", name, got.Bad)
	}
	if sent.Packets == 0 || sent.Elapsed <= 0 {
		return nil, fmt.Errorf("%s: nothing arrived, %d packets lost", name, sent.Lost)
	}
	m := bench.Measurement{Name: name, Unit: unit, Value: float64(sent.Packets) / sent.Elapsed.Seconds()}
	if unit == bench.BytesPerSecond {
		m.Value *= float64(args.Payload)
		m.CPUPerByte = float64(sent.CPU+got.CPU) / (float64(sent.Packets) * float64(args.Payload))
	}
	return []bench.Measurement{m}, nil
}

// pingPong runs a ping against a pong.
func pingPong(ctx context.Context, o bench.Options, manner string, poll bool) ([]bench.Measurement, error) {
	args := pingArgs{Poll: poll, Duration: o.Duration}
	var r pingResult
	if err := both(ctx, o, rolePong, rolePing, args, func(port int) any { args.Port = port; return args }, nil, &r); err != nil {
		return nil, err
	}
	if r.Count == 0 {
		return nil, fmt.Errorf("bareloop/lat/8/%s: no round trip", manner)
	}
	return []bench.Measurement{
		{Name: "bareloop/lat/8/" + manner, Unit: bench.Nanoseconds, Value: float64(r.Median)},
		{Name: "bareloop/lat_p99/8/" + manner, Unit: bench.Nanoseconds, Value: float64(r.P99)},
	}, nil
}

// both starts the serving side, then the asking side with the server's port, and reads the result of each; a nil result is not read.
func both(
	ctx context.Context, o bench.Options, server, client string, args any, withPort func(int) any, serverResult, clientResult any,
) (err error) {
	if !supported {
		return fmt.Errorf("bare loop: UDP offloads are Linux's: %w", bench.ErrUnavailable)
	}
	ctx, cancel := context.WithTimeout(ctx, o.Duration+20*time.Second)
	defer cancel()
	s, err := bench.StartChild(ctx, server, o.Cores[1], args)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	var at ready
	if err := s.Read(&at); err != nil {
		return fmt.Errorf("%s: %w", server, err)
	}
	c, err := bench.StartChild(ctx, client, o.Cores[0], withPort(at.Port))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if err := c.Read(clientResult); err != nil {
		return fmt.Errorf("%s: %w", client, err)
	}
	if serverResult == nil {
		return nil
	}
	if err := s.Read(serverResult); err != nil {
		return fmt.Errorf("%s: %w", server, err)
	}
	return nil
}
