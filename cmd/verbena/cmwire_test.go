package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/cli"
)

// captured runs a client to its proper end, and returns the packets that its device saw, each
// as a line with its payload in hex behind, without repetitions.
func captured(t *testing.T, args string) (packets []string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "client.pcapng")
	for {
		cmd := command(t, strings.Fields(args)...)
		cmd.Env = append(cmd.Env, "VERBENA_PCAP="+file)
		out, err := cmd.CombinedOutput()
		if err == nil {
			break
		}
		if !strings.Contains(string(out), "start the server first") || t.Context().Err() != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	r := verbena(t, "dump", "-x", file).want(t, cli.ExitOK)
	seen := map[string]bool{}
	psn := regexp.MustCompile(` psn=[0-9]+`)
	row := regexp.MustCompile(`^\t[0-9a-f]{4}  ((?:[0-9a-f]{2} )+)`)
	for line := range strings.Lines(r.stdout) {
		if m := row.FindStringSubmatch(line); m != nil {
			if len(packets) > 0 {
				packets[len(packets)-1] += strings.ReplaceAll(m[1], " ", "")
			}
			continue
		}
		_, packet, _ := strings.Cut(strings.TrimSpace(line), " ")
		key := packet
		if strings.Contains(packet, " CM ") { // each has a PSN of its own
			key = psn.ReplaceAllString(packet, "")
		}
		if seen[key] {
			packet = "" // sent again
		}
		seen[key] = true
		packets = append(packets, packet+" payload ")
	}
	return slices.DeleteFunc(packets, func(p string) bool { return strings.HasPrefix(p, " payload") })
}

// What a ping is on the wire, as rping's: the client describes its buffer in 16 bytes,
// big-endian: address, key, length; the server READs it and goes ahead; the client describes
// the sink; the server WRITEs there and goes ahead.
func TestPingWire(t *testing.T) {
	t.Parallel()
	a, b := loopAddr(), loopAddr()
	srv := startCM(t, a, fmt.Sprintf(pingServer, a))
	packets := captured(t, fmt.Sprintf(pingClient+" -C 1 -S 64", b, a))
	srv.end(t, cli.ExitOK)

	out, in := fmt.Sprintf("> %v -> %v ", b, a), fmt.Sprintf("< %v -> %v ", a, b)
	adv := `payload ([0-9a-f]{16})([0-9a-f]{8})00000040$`
	remote := `.* va=0x([0-9a-f]+) rkey=0x([0-9a-f]+) dmalen=64 `
	data := `payload 72646d612d70696e672d303a204142434445` // "rdma-ping-0: ABCDE"
	want := []string{
		out + `UD_SEND_ONLY .* CM REQ .* service=0x1061c06 RC .*resources=1 depth=1 `, // RDMA_PS_TCP, port 7174
		in + `UD_SEND_ONLY .* CM REP .*resources=1 depth=1 `,
		out + `UD_SEND_ONLY .* CM RTU `,
		out + `RC_SEND_ONLY .* len=16 ` + adv,
		in + `RC_RDMA_READ_REQUEST ` + remote,
		out + `RC_RDMA_READ_RESPONSE_ONLY .* len=64 ` + data,
		in + `RC_SEND_ONLY .* len=16 `,
		out + `RC_SEND_ONLY .* len=16 ` + adv,
		in + `RC_RDMA_WRITE_ONLY ` + remote + `len=64 ` + data,
		in + `RC_SEND_ONLY .* len=16 `,
		out + `UD_SEND_ONLY .* CM DREQ `,
		in + `UD_SEND_ONLY .* CM DREP `,
	}
	packets = slices.DeleteFunc(packets, func(p string) bool { return strings.Contains(p, " RC_ACKNOWLEDGE ") })
	if len(packets) != len(want) {
		t.Fatalf("%d packets, want %d:\n%s", len(packets), len(want), strings.Join(packets, "\n"))
	}
	groups := make([][]string, len(want))
	for i, w := range want {
		if groups[i] = regexp.MustCompile("^" + w).FindStringSubmatch(packets[i]); groups[i] == nil {
			t.Errorf("packet %d is\n%s\nwant\n%s", i, packets[i], w)
		}
	}
	if t.Failed() {
		return
	}
	for _, pair := range [][2]int{{3, 4}, {7, 8}} { // what is described is what the server uses
		told, used := groups[pair[0]], groups[pair[1]]
		for i := 1; i <= 2; i++ {
			if fromHex(t, told[i]) != fromHex(t, used[i]) {
				t.Errorf("the client told of %v, the server used %v", told[1:], used[1:])
			}
		}
	}
}

func fromHex(t *testing.T, s string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(s, 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// The immediate data of a datagram is the number of the sender's queue pair, which is how
// udaddy's server learns whom to answer.
func TestUdaddyWire(t *testing.T) {
	t.Parallel()
	a, b := loopAddr(), loopAddr()
	srv := startCM(t, a, fmt.Sprintf(udaddyServer+" -C 2 -S 8", a))
	packets := captured(t, fmt.Sprintf(udaddyClient+" -C 2 -S 8", b, a))
	srv.end(t, cli.ExitOK)
	sends := 0
	re := regexp.MustCompile(`UD_SEND_ONLY_WITH_IMMEDIATE .* srcqp=0x([0-9a-f]+) qkey=0x1234567 .*imm=0x([0-9a-f]+).* len=8 `)
	for _, p := range packets {
		if strings.Contains(p, " CM ") {
			continue
		}
		m := re.FindStringSubmatch(p)
		if m == nil || fromHex(t, m[1]) != fromHex(t, m[2]) {
			t.Errorf("%s", p)
		}
		sends++
	}
	if sends != 4 {
		t.Errorf("%d datagrams, want 4:\n%s", sends, strings.Join(packets, "\n"))
	}
	if !strings.Contains(packets[0], "CM SIDR_REQ ") || !strings.Contains(packets[0], "service=0x1111c06") {
		t.Errorf("first\n%s", packets[0])
	}
}
