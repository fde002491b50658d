//go:build interop && linux

package interop

import (
	_ "embed"
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
)

//go:embed blockpeer/blockpeer.c
var blockpeerSource []byte

const blockpeerPath = "/tmp/blockpeer"

var blockpeer = sync.OnceValue(func() error { return compileForGuest("blockpeer", blockpeerSource, blockpeerPath) })

// blocktarget builds the example once.
var blocktarget = sync.OnceValues(func() (string, error) {
	path := filepath.Join(tempDir, "blocktarget")
	cmd := exec.Command("go", "build", "-o", path, "github.com/verbena-rdma/verbena/examples/blocktarget")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building blocktarget: %w: %s", err, out)
	}
	return path, nil
})

var blockSum = regexp.MustCompile(`(?m)^MOVED (\d+) bytes at a time, sum ([0-9a-f]{16})$`)

// TestBlockTarget: the block target serves a client whose memory is registered with the kernel's device: it READs what the client writes to
// the blocks, and WRITEs what the client reads, by requests of all lengths, many at a time, with and without protection information. The
// file has what the client says it has written, and a block that the client has made wrong is refused.
func TestBlockTarget(t *testing.T) {
	kernelContent(t)
	program, err := blocktarget()
	if err != nil {
		t.Fatal(err)
	}
	if err := blockpeer(); err != nil {
		t.Fatal(err)
	}
	ours, kernel := ourSide(t), kernelSide()
	for _, c := range []struct {
		name string
		args []string
	}{
		{"plain", nil},
		{"registered memory", []string{"--force-mr"}},
		{"type 1", []string{"--t10", "1"}},
		{"type 3, long blocks", []string{"--t10", "3", "--block-size", "4096"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			port := nextPort()
			disk := filepath.Join(t.TempDir(), "disk")
			const size = 1<<20 + 12<<10
			args := append([]string{
				program, "serve", "--bind", ours.ip4, "--port", strconv.Itoa(port), "--file", disk, "--size", strconv.Itoa(size),
				"--max-length", "256K",
			}, c.args...)
			p := cmPair{
				server: ours, client: kernel, port: port, forever: true,
				serverArgs: args, clientArgs: []string{blockpeerPath, ours.ip4, strconv.Itoa(port)},
			}
			serverOut, clientOut := p.run(t)
			moved := blockSum.FindAllStringSubmatch(clientOut, -1)
			if len(moved) < 3 || !strings.HasSuffix(clientOut, "DONE\n") || strings.Contains(c.name, "type") != strings.Contains(clientOut, "REFUSED\n") {
				t.Fatalf("the client:\n%s\nthe target:\n%s", clientOut, serverOut)
			}
			b, err := os.ReadFile(disk)
			if err != nil {
				t.Fatal(err)
			}
			h := fnv.New64a()
			h.Write(b)
			if sum := fmt.Sprintf("%016x", h.Sum64()); sum != moved[len(moved)-1][2] || len(b) != size {
				t.Errorf("the file's %d bytes have the checksum %s, the client wrote %s", len(b), sum, moved[len(moved)-1][2])
			}
			t.Logf("%d lengths; %s", len(moved), strings.TrimSpace(serverOut[strings.LastIndex(strings.TrimSpace(serverOut), "\n")+1:]))
		})
	}
}
