package vm

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Kernel is an unpacked kernel package.
type Kernel struct {
	// Release is the kernel's own name for itself, such as 6.1.0-57-amd64.
	Release string
	// Package is the version of the package that it came from.
	Package string
	// Image is the path of the boot image, ModuleDir that of the tree of modules.
	Image, ModuleDir string
}

// KernelDirEnv names an environment variable with a directory that holds vmlinuz and modules/, to test against another kernel.
const KernelDirEnv = "VERBENA_KERNEL_DIR"

// CacheDir is where interop/setup.sh puts kernels, and where this package remembers whether KVM works.
func CacheDir() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		dir = "/root/.cache" // the same default as in setup.sh
	}
	return filepath.Join(dir, "verbena-interop"), nil
}

// FindKernel finds the kernel in $VERBENA_KERNEL_DIR, or the newest one that interop/setup.sh unpacked.
func FindKernel() (*Kernel, error) {
	dir := os.Getenv(KernelDirEnv)
	if dir == "" {
		cache, err := CacheDir()
		if err != nil {
			return nil, err
		}
		found, _ := filepath.Glob(filepath.Join(cache, "kernel-*", "complete"))
		if len(found) == 0 {
			return nil, fmt.Errorf("no kernel in %s: run interop/setup.sh", cache)
		}
		slices.Sort(found)
		dir = filepath.Dir(found[len(found)-1])
	}
	k := &Kernel{
		Release:   strings.TrimPrefix(filepath.Base(dir), "kernel-"),
		Image:     filepath.Join(dir, "vmlinuz"),
		ModuleDir: filepath.Join(dir, "modules"),
	}
	if _, err := os.Stat(k.Image); err != nil {
		return nil, fmt.Errorf("kernel image: %w", err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "complete")); err == nil {
		k.Package = strings.TrimSpace(string(b))
	}
	return k, nil
}

// modules resolves names to the paths of these modules and all that they depend on, in load order. The kernel package has no
// modules.dep (its postinst would make it), so the dependencies are read from the modules themselves.
func (k *Kernel) modules(names []string) ([]string, error) {
	paths := map[string]string{}
	err := filepath.WalkDir(k.ModuleDir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".ko") {
			paths[moduleName(strings.TrimSuffix(d.Name(), ".ko"))] = path
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("kernel modules: %w", err)
	}
	var order []string
	seen := map[string]bool{}
	var visit func(name, by string) error
	visit = func(name, by string) error {
		name = moduleName(name)
		if seen[name] {
			return nil
		}
		seen[name] = true
		path, ok := paths[name]
		if !ok {
			return fmt.Errorf("kernel module %s (wanted by %s) is not under %s", name, by, k.ModuleDir)
		}
		deps, err := moduleDepends(path)
		if err != nil {
			return err
		}
		for _, d := range deps {
			if err := visit(d, name); err != nil {
				return err
			}
		}
		order = append(order, path)
		return nil
	}
	for _, n := range names {
		if err := visit(n, "the guest"); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// moduleName is the name under which the kernel knows a module.
func moduleName(s string) string { return strings.ReplaceAll(s, "-", "_") }

// moduleDepends reads the depends= entry of a module's .modinfo section.
func moduleDepends(path string) ([]string, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	defer f.Close()
	s := f.Section(".modinfo")
	if s == nil {
		return nil, fmt.Errorf("%s: %w", path, errors.New("no .modinfo section"))
	}
	b, err := s.Data()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for entry := range strings.SplitSeq(string(b), "\x00") {
		if deps, ok := strings.CutPrefix(entry, "depends="); ok && deps != "" {
			return strings.Split(deps, ","), nil
		}
	}
	return nil, nil
}
