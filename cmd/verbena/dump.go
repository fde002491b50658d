package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/cli"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/dump"
)

func newDump() *cobra.Command {
	var c dump.Config
	var qps []string
	cmd := &cobra.Command{
		Use:   "dump FILE...",
		Short: "Print the RoCE packets of captures",
		Long: `dump prints a line for each RoCE packet of captures, pcapng or pcap; - is the standard input. Packets of several files
come in the order of their time, with the number of the file before each.

Devices write captures when VERBENA_PCAP names a file: VERBENA_PCAP=/tmp/{device}-{pid}.pcapng. In such a file > is a packet that
the device sent, < one that it received. Then come the addresses, the opcode, the queue pair that the packet is for, its sequence
number (psn), flags, and what the headers of the opcode say:

  ackreq, solicited    an acknowledgement is asked for; the receiver is to be woken
  ipid                 identification of the IPv4 header
  va, rkey, dmalen     address, key and length of an RDMA request
  msn                  message number of a response, behind ACK, or NAK and RNR with the reason
  srcqp, qkey          of a datagram: the sender's queue pair, the Q_Key
  imm, invalidate      immediate data; the key to invalidate
  srq                  number of the shared receive queue (XRC)
  len                  bytes of payload`,
		Example: "  verbena dump -c 20 /tmp/demo-*.pcapng\n  verbena dump --qp 0x1a2b3c --op read /tmp/demo-1.pcapng",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.Usagef("%s needs a file (see: %s --help)", cmd.CommandPath(), cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if c.Count < 0 {
				return cli.Usagef("-c/--count %d: want 0 (all) or more", c.Count)
			}
			for _, q := range qps {
				n, err := strconv.ParseUint(q, 0, 24)
				if err != nil {
					return cli.Usagef("-q/--qp %q: want a queue pair's number of 24 bits, 0x1a2b3c or decimal", q)
				}
				c.QPs = append(c.QPs, uint32(n))
			}
			return dumpFiles(cmd, args, c)
		},
	}
	f := cmd.Flags()
	f.IntVarP(&c.Count, "count", "c", 0, "print at most this `number` of packets")
	f.BoolVarP(&c.Hex, "hex", "x", false, "print payload too")
	f.StringSliceVarP(&qps, "qp", "q", nil, "print only packets to this queue pair `number`, and datagrams from it (may be repeated)")
	f.StringVar(&c.Op, "op", "", "print only packets whose opcode has this `text` in its name, as write or ack")
	return cmd
}

// dumpFiles prints captures.
func dumpFiles(cmd *cobra.Command, names []string, c dump.Config) error {
	var in []dump.Input
	for _, name := range names {
		if name == "-" {
			in = append(in, dump.Input{Name: name, R: cmd.InOrStdin()})
			continue
		}
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		in = append(in, dump.Input{Name: name, R: f})
	}
	sums, err := dump.Print(cmd.OutOrStdout(), in, c)
	if err != nil {
		return err
	}
	var all dump.Summary
	for _, s := range sums {
		all.Packets += s.Packets
		all.Dropped += s.Dropped
	}
	if all.Dropped > 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "%d packets were not captured: the file was written too slowly\n", all.Dropped)
	}
	if all.Packets == 0 {
		return fmt.Errorf("%s: no RoCE packets (UDP port 4791)", strings.Join(names, ", "))
	}
	return nil
}
