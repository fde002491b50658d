package vm

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/interop/vm/proto"
)

// Accelerators of Config.Accel.
const (
	// AccelKVM is hardware virtualization.
	AccelKVM = "kvm"
	// AccelTCG is QEMU's own translation: it works everywhere, ten to twenty times slower.
	AccelTCG = "tcg"
)

// AccelEnv names an environment variable that chooses the accelerator.
const AccelEnv = "VERBENA_INTEROP_ACCEL"

const qemuBinary = "qemu-system-x86_64"

func machineArgs(accel string) []string {
	if accel == AccelKVM {
		// Inside a virtual machine the host may refuse to write the MSR of arch-capabilities, upon which QEMU aborts.
		return []string{"-accel", "kvm", "-cpu", "host,arch-capabilities=off"}
	}
	return []string{"-accel", "tcg,thread=multi", "-cpu", "max"}
}

func qemuArgs(accel string, k *Kernel, initrd, console, socket, tap, mac string, memory int) []string {
	return append(machineArgs(accel),
		"-smp", "2", "-m", fmt.Sprint(memory),
		"-nodefaults", "-display", "none", "-no-reboot",
		"-kernel", k.Image, "-initrd", initrd,
		// mitigations cost much under translation and protect nothing here; a panic ends QEMU.
		"-append", "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off net.ifnames=0 tsc=reliable random.trust_cpu=on printk.devkmsg=on",
		"-serial", "file:"+console,
		"-device", "virtio-rng-pci",
		"-device", "virtio-serial-pci",
		"-chardev", "socket,id=agent,path="+socket,
		"-device", "virtserialport,chardev=agent,name="+proto.PortName,
		"-netdev", "tap,id=net0,ifname="+tap+",script=no,downscript=no",
		"-device", "virtio-net-pci,netdev=net0,romfile=,mac="+mac,
		"-virtfs", "local,path=/,mount_tag="+proto.RootTag+",security_model=none,readonly=on,multidevs=remap",
	)
}

// startProcess starts cmd on a thread of its own, inside n if that is not nil, and kills it should this process die. The
// channel delivers the result of Wait.
func startProcess(cmd *exec.Cmd, n *Net) (<-chan error, error) {
	started, done := make(chan error), make(chan error, 1)
	go func() {
		// Pdeathsig is sent when the starting *thread* ends, so that thread stays until the process has ended.
		runtime.LockOSThread()
		if n != nil {
			if err := n.enter(); err != nil {
				started <- err
				return
			}
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
		err := cmd.Start()
		started <- err
		if err == nil {
			done <- cmd.Wait()
		}
	}()
	return done, <-started
}

var kvmProbe struct {
	sync.Mutex
	known, works bool
}

// chooseAccel returns AccelKVM where it works. That /dev/kvm opens says little (nested virtualization may hang), so a kernel
// is booted until it prints something; the verdict is remembered until the machine boots again.
func chooseAccel(ctx context.Context, k *Kernel) (string, error) {
	switch a := os.Getenv(AccelEnv); a {
	case AccelKVM, AccelTCG:
		return a, nil
	case "":
	default:
		return "", fmt.Errorf("%s=%s: want %s or %s", AccelEnv, a, AccelKVM, AccelTCG)
	}
	kvmProbe.Lock()
	defer kvmProbe.Unlock()
	if !kvmProbe.known {
		kvmProbe.works = kvmWorks(ctx, k)
		kvmProbe.known = ctx.Err() == nil
	}
	if kvmProbe.works {
		return AccelKVM, nil
	}
	return AccelTCG, nil
}

func kvmWorks(ctx context.Context, k *Kernel) bool {
	fd, err := unix.Open("/dev/kvm", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	_ = unix.Close(fd)

	bootID, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	verdict := ""
	if cache, err := CacheDir(); err == nil && len(bootID) > 0 {
		verdict = filepath.Join(cache, "kvm-"+strings.TrimSpace(string(bootID)))
		if b, err := os.ReadFile(verdict); err == nil {
			return string(b) == "works"
		}
	}
	works := kvmBoots(ctx, k)
	if verdict != "" && ctx.Err() == nil {
		b := "fails"
		if works {
			b = "works"
		}
		_ = os.WriteFile(verdict, []byte(b), 0o644) // a cache only
	}
	return works
}

// kvmBoots boots the kernel under KVM until it prints its version.
func kvmBoots(ctx context.Context, k *Kernel) bool {
	dir, err := os.MkdirTemp("", "verbena-kvm")
	if err != nil {
		return false
	}
	defer os.RemoveAll(dir)
	console := filepath.Join(dir, "console")
	cmd := exec.Command(qemuBinary, append(machineArgs(AccelKVM),
		"-m", "512", "-nodefaults", "-display", "none", "-no-reboot", "-kernel", k.Image, "-serial", "file:"+console,
		"-append", "console=ttyS0 earlyprintk=ttyS0 panic=-1")...)
	done, err := startProcess(cmd, nil)
	if err != nil {
		return false
	}
	kill := func() { _ = cmd.Process.Kill(); <-done }
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	late := time.After(5 * time.Second)
	for {
		if b, _ := os.ReadFile(console); strings.Contains(string(b), "Linux version") {
			kill()
			return true
		}
		select {
		case <-done:
			return false
		case <-late:
			kill()
			return false
		case <-ctx.Done():
			kill()
			return false
		case <-tick.C:
		}
	}
}
