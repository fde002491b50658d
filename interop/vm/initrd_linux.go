package vm

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/verbena-rdma/verbena/interop/vm/proto"
)

// agentPackage is the guest's init program.
const agentPackage = "github.com/verbena-rdma/verbena/interop/vm/agent"

// guestModules: crc32_generic first, since rdma_rxe takes its CRC from the crypto layer and refuses the netdev without one.
var guestModules = []string{
	"crc32_generic", "crc32c_generic", "virtio_pci", "virtio_console", "virtio_net", "9pnet_virtio", "9p",
	"rdma_rxe", "rdma_ucm", "ib_uverbs", "ib_umad",
}

// buildAgent compiles the agent into dir. It must run somewhere inside the module.
func buildAgent(ctx context.Context, dir string) (string, error) {
	out := filepath.Join(dir, "agent")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", out, agentPackage)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if b, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the guest's agent: %w: %s", err, b)
	}
	return out, nil
}

// writeInitrd writes the guest's initial file system: the agent as init, the modules and the agent's configuration.
func writeInitrd(file, agent string, modules []string, boot proto.Boot) error {
	var out bytes.Buffer
	c := cpioWriter{w: &out}
	for _, d := range []string{"dev", "proc", "sys", "root", "modules"} {
		c.add(d, 0o040755, nil)
	}
	init, err := os.ReadFile(agent)
	if err != nil {
		return err
	}
	c.add("init", 0o100755, init)
	for _, m := range modules {
		b, err := os.ReadFile(m)
		if err != nil {
			return err
		}
		name := "modules/" + filepath.Base(m)
		c.add(name, 0o100644, b)
		boot.Modules = append(boot.Modules, "/"+name)
	}
	b, err := json.Marshal(boot)
	if err != nil {
		return err
	}
	c.add(strings.TrimPrefix(proto.BootFile, "/"), 0o100644, b)
	c.add("TRAILER!!!", 0, nil)
	return os.WriteFile(file, out.Bytes(), 0o600)
}

// cpioWriter writes the "newc" format that the kernel unpacks (Documentation/driver-api/early-userspace/buffer-format.rst).
type cpioWriter struct {
	w     io.Writer
	inode int
}

func (c *cpioWriter) add(name string, mode int, data []byte) {
	c.inode++
	// Magic, inode, mode, uid, gid, links, mtime, file size, device (2), special device (2), name size, checksum.
	fmt.Fprintf(c.w, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
		c.inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name)+1, 0)
	const header = 110
	fmt.Fprintf(c.w, "%s\x00%s", name, zeros(header+len(name)+1))
	_, _ = c.w.Write(data) // to memory
	_, _ = io.WriteString(c.w, zeros(len(data)))
}

// zeros pads n bytes to a multiple of 4.
func zeros(n int) string { return "\x00\x00\x00"[:-n&3] }
