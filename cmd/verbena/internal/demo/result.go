package demo

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Result is what the demo found.
type Result struct {
	File       string     `json:"file"`
	Size       int64      `json:"bytes"`
	Made       bool       `json:"made_for_the_demo"`
	SHA256     string     `json:"sha256"`
	Device     string     `json:"device"`
	PeerDevice string     `json:"peer_device"`
	From       string     `json:"from"`
	To         string     `json:"to"`
	PeerPID    int        `json:"peer_pid"`
	PathMTU    int        `json:"path_mtu"`
	Write      Rate       `json:"write"`
	Read       Rate       `json:"read"`
	Message    int        `json:"send_bytes"`
	Datagram   int        `json:"datagram_bytes"`
	Latency    *Latency   `json:"latency,omitempty"`
	Checks     []Check    `json:"checks"`
	Wire       []WireStep `json:"wire"`
	Counters   Counters   `json:"counters"`
}

// Rate is how long so many bytes took.
type Rate struct {
	Bytes   int64   `json:"bytes"`
	Seconds float64 `json:"seconds"`
}

// rateMin is the least that a rate is worth telling of.
const rateMin = 64 << 10

func (r Rate) String() string {
	if r.Bytes < rateMin || r.Seconds == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f Gbit/s", float64(r.Bytes)*8/r.Seconds/1e9)
}

// Latency is half the time of a round trip, in microseconds.
type Latency struct {
	Count int     `json:"round_trips"`
	P50   float64 `json:"p50_us"`
	P99   float64 `json:"p99_us"`
	Min   float64 `json:"min_us"`
	Max   float64 `json:"max_us"`
}

// Counters are this side's packets, as the device counts them.
type Counters struct {
	Sent          uint64 `json:"sent"`
	Received      uint64 `json:"received"`
	Retransmitted uint64 `json:"retransmitted"`
}

// Check is one comparison.
type Check struct {
	Step string `json:"step"`
	Want string `json:"want"`
	Got  string `json:"got"`
	OK   bool   `json:"ok"`
}

func (r *Result) check(step, want, got string) {
	r.Checks = append(r.Checks, Check{step, want, got, want == got})
}

// find gives the comparison of a step.
func (r *Result) find(step string) Check {
	for _, c := range r.Checks {
		if c.Step == step {
			return c
		}
	}
	return Check{Step: step, Want: "a comparison", Got: "none"}
}

// verdict is "same" or what differs.
func (c Check) verdict(same string) string {
	if c.OK {
		return same
	}
	return "DIFFERS: " + short(c.Want) + " became " + short(c.Got)
}

// short is a value, of a checksum only the beginning.
func short(s string) string {
	if len(s) == 64 {
		return s[:16] + "..."
	}
	return s
}

// JSON prints the result for programs.
func (r *Result) JSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// Print prints the result for people.
func (r *Result) Print(w io.Writer) error {
	made := ""
	if r.Made {
		made = ", random, made for this"
	}
	fmt.Fprintf(w, "Two processes: %s (%s) here, %s (%s) in process %d; RoCEv2 packets, path MTU %d\n", r.From, r.Device, r.To, r.PeerDevice, r.PeerPID, r.PathMTU)
	fmt.Fprintf(w, "File %s, %s%s\nSHA-256 %s\n\n", r.File, size(r.Size), made, r.SHA256)

	t, flush := table(w)
	row := func(name, what, speed, verdict string) {
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\n", name, what, speed, verdict)
	}
	row("WRITE", size(r.Write.Bytes), r.Write.String(), r.find("WRITE").verdict("same checksum there"))
	row("READ", size(r.Read.Bytes), r.Read.String(), r.find("READ").verdict("same checksum back here"))
	row("SEND", size(int64(r.Message)), "", r.find("SEND").verdict("same checksum there"))
	add, cas, end := r.find("FETCH_ADD"), r.find("CMP_SWAP"), r.find("ATOMIC RESULT")
	row("FETCH_ADD", "add 1", "", add.verdict("it was "+add.Got))
	row("CMP_SWAP", "if "+cas.Want+" then "+end.Want, "", cas.verdict("it was "+cas.Got)+", "+end.verdict("is "+end.Got+" there"))
	sender := r.find("DATAGRAM SENDER")
	row("DATAGRAM", size(int64(r.Datagram)), "", r.find("DATAGRAM").verdict("same checksum there")+", "+sender.verdict("from "+sender.Got))
	if l := r.Latency; l != nil {
		row("PINGPONG", fmt.Sprintf("%d x 8 B", l.Count), fmt.Sprintf("p50 %.1f us, p99 %.1f us", l.P50, l.P99), "half a round trip, WRITE with immediate, both sides polling")
	}
	if err := flush(); err != nil {
		return err
	}
	return r.printWire(w)
}

// table lines up what is written to t; flush writes it to w, without the blanks
// that stand for empty cells at the end of a line.
func table(w io.Writer) (t io.Writer, flush func() error) {
	var b bytes.Buffer
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	return tw, func() error {
		if err := tw.Flush(); err != nil {
			return err
		}
		for line := range strings.Lines(b.String()) {
			if _, err := fmt.Fprintln(w, strings.TrimRight(line, " \n")); err != nil {
				return err
			}
		}
		return nil
	}
}

// printWire prints the timeline: each kind of packet with its first one.
func (r *Result) printWire(w io.Writer) error {
	fmt.Fprintf(w, "\nOn the wire, UDP port 4791, seen from %s: the first packet of each kind\n\n", r.From)
	t, flush := table(w)
	fmt.Fprintln(t, "  step\tms\t\topcode\tPSN\tbytes\tpackets\theaders")
	for _, s := range r.Wire {
		name := s.Step
		for _, l := range s.Packets {
			dir := "<-"
			if l.Sent {
				dir = "->"
			}
			fmt.Fprintf(t, "  %s\t%.3f\t%s\t%s\t%06x\t%d\t%d\t%s\n", name, l.Time, dir, l.Opcode, l.PSN, l.Bytes, l.Count, l.Header)
			name = ""
		}
	}
	if err := flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "\n%d packets sent, %d received, %d sent again.\n", r.Counters.Sent, r.Counters.Received, r.Counters.Retransmitted)
	for _, c := range r.Checks {
		if !c.OK {
			_, err := fmt.Fprintln(w, "SOMETHING DIFFERS.")
			return err
		}
	}
	_, err := fmt.Fprintln(w, "Everything arrived as it was sent.")
	return err
}

// size is a number of bytes.
func size(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.2f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.4g MiB", float64(n)/(1<<20))
	case n >= 10<<10:
		return fmt.Sprintf("%.4g KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d B", n)
}
