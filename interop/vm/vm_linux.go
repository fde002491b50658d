package vm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/interop/vm/proto"
)

// Config says how to boot a guest. The zero value is good.
type Config struct {
	// Net is the network to join; nil makes one that is closed with the VM.
	Net *Net
	// Kernel to boot; nil is FindKernel's.
	Kernel *Kernel
	// Accel is AccelKVM or AccelTCG; empty finds out.
	Accel string
	// MTU of the guest's interface, bytes; 0 is 9000.
	MTU int
	// Memory in MiB; 0 is 1024.
	Memory int
	// Modules are loaded in the guest beside those for rxe, such as nvmet_rdma.
	Modules []string
	// BootTimeout is 0 for five minutes, which is for a busy machine: 10 s is usual.
	BootTimeout time.Duration
}

// VM is a running guest with the device rxe0 on its interface eth0. Its methods may be used concurrently.
type VM struct {
	net     *Net
	ownNet  bool
	tap     string
	number  int
	dir     string
	accel   string
	release string
	kernel  *Kernel
	cmd     *exec.Cmd
	exited  chan struct{}
	exitErr error // valid once exited is closed
	agent   *agent
}

// Start boots a guest and returns when rxe0 is there. On an error nothing is left behind; the error has the console's end.
func Start(ctx context.Context, cfg Config) (_ *VM, err error) {
	if _, err := exec.LookPath(qemuBinary); err != nil {
		return nil, fmt.Errorf("%w: run interop/setup.sh", err)
	}
	if cfg.Kernel == nil {
		if cfg.Kernel, err = FindKernel(); err != nil {
			return nil, err
		}
	}
	if cfg.Accel == "" {
		if cfg.Accel, err = chooseAccel(ctx, cfg.Kernel); err != nil {
			return nil, err
		}
	}
	if cfg.MTU == 0 {
		cfg.MTU = maxMTU
	}
	if cfg.Memory == 0 {
		cfg.Memory = 1024
	}
	if cfg.BootTimeout == 0 {
		cfg.BootTimeout = 5 * time.Minute
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.BootTimeout)
	defer cancel()

	v := &VM{net: cfg.Net, accel: cfg.Accel, kernel: cfg.Kernel, exited: make(chan struct{})}
	defer func() {
		if err != nil {
			if tail := v.consoleTail(); tail != "" {
				err = fmt.Errorf("%w; end of the guest's console:\n%s", err, tail)
			}
			err = errors.Join(fmt.Errorf("booting the guest (%s): %w", cfg.Accel, err), v.Close())
		}
	}()
	if v.dir, err = os.MkdirTemp("", "verbena-vm"); err != nil {
		return nil, err
	}
	if v.net == nil {
		if v.net, err = NewNet(); err != nil {
			return nil, err
		}
		v.ownNet = true
	}
	if v.tap, v.number, err = v.net.addTap(); err != nil {
		return nil, err
	}
	return v, v.boot(ctx, &cfg)
}

func (v *VM) boot(ctx context.Context, cfg *Config) error {
	binary, err := buildAgent(ctx, v.dir)
	if err != nil {
		return err
	}
	modules, err := cfg.Kernel.modules(append(append([]string{}, guestModules...), cfg.Modules...))
	if err != nil {
		return err
	}
	boot := proto.Boot{Hostname: fmt.Sprintf("guest%d", v.number), MTU: cfg.MTU}
	for _, ip := range []netip.Addr{v.IPv4(), v.IPv6()} {
		boot.Addrs = append(boot.Addrs, netip.PrefixFrom(ip, prefixLen(ip)).String())
	}
	initrd := filepath.Join(v.dir, "initrd")
	if err := writeInitrd(initrd, binary, modules, boot); err != nil {
		return err
	}

	socket := filepath.Join(v.dir, "agent.sock")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return err
	}
	defer listener.Close()
	mac := fmt.Sprintf("52:54:00:77:00:%02x", v.number)
	v.cmd = exec.Command(qemuBinary, qemuArgs(cfg.Accel, cfg.Kernel, initrd, v.consolePath(), socket, v.tap, mac, cfg.Memory)...)
	var qemuOut strings.Builder
	v.cmd.Stdout, v.cmd.Stderr = &qemuOut, &qemuOut
	done, err := startProcess(v.cmd, v.net)
	if err != nil {
		v.cmd = nil
		return err
	}
	go func() {
		v.exitErr = <-done
		if out := strings.TrimSpace(qemuOut.String()); out != "" {
			v.exitErr = fmt.Errorf("%w: %s", errors.Join(errors.New("QEMU ended"), v.exitErr), out)
		}
		listener.Close()
		close(v.exited)
	}()

	deadline, _ := ctx.Deadline()
	_ = listener.SetDeadline(deadline)
	conn, err := listener.Accept()
	if err != nil {
		return v.orExit(err)
	}
	v.agent = newAgent(conn)
	hello, err := v.agent.hello(ctx)
	if err != nil {
		return v.orExit(err)
	}
	v.release = string(hello.Data)
	return nil
}

// orExit prefers the reason why QEMU ended over what followed from it.
func (v *VM) orExit(err error) error {
	select {
	case <-v.exited:
		if v.exitErr != nil {
			return v.exitErr
		}
		return fmt.Errorf("QEMU ended: %w", err)
	default:
		return err
	}
}

// Close ends QEMU and removes the tap and, if the VM made it, the network.
func (v *VM) Close() error {
	var errs []error
	if v.cmd != nil {
		_ = v.cmd.Process.Kill() // has ended already, or ends now
		<-v.exited
	}
	if v.agent != nil {
		v.agent.close()
	}
	switch {
	case v.ownNet:
		errs = append(errs, v.net.Close())
	case v.tap != "":
		errs = append(errs, v.net.removeTap(v.tap))
	}
	if v.dir != "" {
		errs = append(errs, os.RemoveAll(v.dir))
	}
	return errors.Join(errs...)
}

// IPv4 is the guest's IPv4 address.
func (v *VM) IPv4() netip.Addr { return netip.AddrFrom4([4]byte{10, 77, 0, byte(v.number)}) }

// IPv6 is the guest's unique local IPv6 address.
func (v *VM) IPv6() netip.Addr {
	a := hostIPv6.As16()
	a[15] = byte(v.number)
	return netip.AddrFrom16(a)
}

// Net is the network that the guest is in.
func (v *VM) Net() *Net { return v.net }

// Tap is the name of the guest's tap device in the network namespace, for captures.
func (v *VM) Tap() string { return v.tap }

// Netns is the path of the network namespace of the guest's tap.
func (v *VM) Netns() string { return v.net.Path() }

// InNetns changes cmd to run on the host side of the guest's network; see Net.InNetns.
func (v *VM) InNetns(cmd *exec.Cmd) error { return v.net.InNetns(cmd) }

// Accel is the accelerator in use, AccelKVM or AccelTCG.
func (v *VM) Accel() string { return v.accel }

// Release is the guest kernel's release.
func (v *VM) Release() string { return v.release }

// Kernel is what was booted.
func (v *VM) Kernel() *Kernel { return v.kernel }

// SetMTU sets the MTU of the guest's interface, of its tap and of the bridge; rxe0's active MTU follows.
func (v *VM) SetMTU(ctx context.Context, mtu int) error {
	if err := v.net.setMTU(v.tap, mtu); err != nil {
		return err
	}
	_, err := v.agent.call(ctx, &proto.Request{Op: proto.OpMTU, Value: mtu})
	return err
}

// Counters are rxe0's hw_counters.
func (v *VM) Counters(ctx context.Context) (map[string]uint64, error) {
	r, err := v.agent.call(ctx, &proto.Request{Op: proto.OpCounters, Path: "/sys/class/infiniband/rxe0/ports/1/hw_counters"})
	return r.Values, err
}

// KernelLog is the guest kernel's log, in which rxe complains about packets (such as "bad ICRC").
func (v *VM) KernelLog(ctx context.Context) (string, error) {
	r, err := v.agent.call(ctx, &proto.Request{Op: proto.OpLog})
	return string(r.Data), err
}

// ReadFile reads a file as the guest sees it.
func (v *VM) ReadFile(ctx context.Context, path string) ([]byte, error) {
	r, err := v.agent.call(ctx, &proto.Request{Op: proto.OpRead, Path: path})
	return r.Data, err
}

// WriteFile makes an executable file in the guest; only /tmp and /run can be written there.
func (v *VM) WriteFile(ctx context.Context, path string, data []byte) error {
	_, err := v.agent.call(ctx, &proto.Request{Op: proto.OpWrite, Path: path, Data: data})
	return err
}

// WaitListen waits until a TCP socket listens on port in the guest.
func (v *VM) WaitListen(ctx context.Context, port int) error {
	_, err := v.agent.call(ctx, &proto.Request{Op: proto.OpListen, Value: port, TimeoutMS: remaining(ctx).Milliseconds()})
	return err
}

func (v *VM) consolePath() string { return filepath.Join(v.dir, "console") }

// consoleTail is the end of what the guest printed.
func (v *VM) consoleTail() string {
	b, err := os.ReadFile(v.consolePath())
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b[max(0, len(b)-4000):]))
}
