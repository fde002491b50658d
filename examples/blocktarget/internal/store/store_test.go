package store

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
)

func cut(b []byte, at ...int) (list [][]byte) {
	from := 0
	for _, a := range append(at, len(b)) {
		list = append(list, b[from:a])
		from = a
	}
	return list
}

func TestStores(t *testing.T) {
	const bs, n = 512, 64
	path := filepath.Join(t.TempDir(), "disk.img")
	for _, protect := range []bool{false, true} {
		mem, err := NewMemory(n*bs, bs, protect)
		if err != nil {
			t.Fatal(err)
		}
		file, err := Open(path, n*bs, bs, protect)
		if err != nil {
			t.Fatal(err)
		}
		for name, s := range map[string]*Store{"memory": mem, "file": file} {
			if s.BlockSize() != bs || s.Blocks() != n || s.Protected() != protect || s.Slow() != (name == "file") {
				t.Errorf("%s: %+v", name, s)
			}
			data, pi := make([]byte, 4*bs), make([]byte, 4*8)
			for i := range data {
				data[i] = byte(i * 11)
			}
			for i := range pi {
				pi[i] = byte(i + 1)
			}
			tuples := func(b []byte) [][]byte {
				if protect {
					return cut(b, 8)
				}
				return nil
			}
			if err := s.Write(cut(data, 700, 1536), tuples(pi), 7); err != nil {
				t.Fatal(name, err)
			}
			got, gotPI := make([]byte, 4*bs), make([]byte, 4*8)
			if err := s.Read(cut(got, 1), tuples(gotPI), 7); err != nil || !bytes.Equal(got, data) || protect && !bytes.Equal(gotPI, pi) {
				t.Errorf("%s: %v, other bytes", name, err)
			}
			// Without tuples: those of before are no longer true.
			if err := s.Write(cut(data[:bs]), nil, 8); err != nil {
				t.Fatal(name, err)
			}
			if protect {
				if err := s.Read(cut(got), tuples(gotPI), 7); err != nil || !slices.Equal(gotPI[8:16], escape[:8]) || !bytes.Equal(gotPI[16:], pi[16:]) {
					t.Errorf("%s: %v, tuples % x", name, err, gotPI)
				}
			}
			if s.Read(cut(got), nil, n-1) == nil || name == "memory" && s.Write(cut(data), nil, n-1) == nil {
				t.Errorf("%s: beyond the end", name)
			}
			if err := errors.Join(s.Sync(), s.Close()); err != nil {
				t.Error(name, err)
			}
		}
		// The file, and its tuples, are as they were left; a longer device has new blocks.
		again, err := Open(path, 2*n*bs, bs, protect)
		if err != nil {
			t.Fatal(err)
		}
		b, pi := make([]byte, bs), make([]byte, 8)
		if err := again.Read([][]byte{b}, nil, 7); err != nil || b[1] != 11 {
			t.Error(err, b[:4])
		}
		if protect {
			if err := again.Read([][]byte{b}, [][]byte{pi}, 2*n-1); err != nil || !bytes.Equal(pi, escape[:8]) || b[0] != 0 {
				t.Errorf("%v, tuple of a new block % x", err, pi)
			}
			if err := again.Read([][]byte{b}, [][]byte{pi}, 7); err != nil || pi[0] != 1 {
				t.Errorf("%v, tuple % x", err, pi)
			}
		}
		if err := again.Close(); err != nil {
			t.Error(err)
		}
		if s, err := Open(path, 0, bs, false); err != nil || s.Blocks() < n {
			t.Error(err)
		} else {
			s.Close()
		}
		os.Remove(path)
	}
}

func TestRefusals(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	full := filepath.Join(dir, "full")
	if err := os.WriteFile(full, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	open := func(path string, size int64, bs int) error { _, err := Open(path, size, bs, false); return err }
	memory := func(size int64, bs int) error { _, err := NewMemory(size, bs, false); return err }
	for what, err := range map[string]error{
		"block size": memory(4096, 1000), "small blocks": memory(4096, 256), "large blocks": memory(1<<20, 8192),
		"half a block": memory(1000, 512), "nothing": memory(0, 512), "less": memory(-512, 512),
		"empty file": open(empty, 0, 512), "directory": open(dir, 0, 512), "odd size": open(filepath.Join(dir, "x"), 1000, 512),
		"no blocks": open(full, 0, 0), "blocks below 0": open(full, 0, -512),
	} {
		if !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.EISDIR) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := open(filepath.Join(dir, "none"), 0, 512); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
