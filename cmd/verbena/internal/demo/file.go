package demo

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"syscall"
)

// source is the file that is sent.
type source struct {
	f    *os.File
	name string
	size int64
	made bool // by us
	left bool // made, and to be removed at the end
}

// openFile opens the file that the user names.
func openFile(path string) (s *source, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("cannot send the file: %w", err)
		}
	}()
	// Before it is opened: opening a pipe would wait for its writer.
	fi, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file: %w", path, syscall.EINVAL)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	return &source{f: f, name: path, size: fi.Size()}, nil
}

// makeFile makes a file of random bytes.
func makeFile(size int64) (s *source, err error) {
	f, err := os.CreateTemp("", "verbena-demo-*.bin")
	if err != nil {
		return nil, fmt.Errorf("make a file to send: %w", err)
	}
	// Without a name nothing is left of it however we end. Where an open file
	// cannot be removed, close does it.
	s = &source{f: f, name: f.Name(), size: size, made: true, left: os.Remove(f.Name()) != nil}
	var seed [32]byte
	for i := range seed {
		seed[i] = byte(rand.Uint32())
	}
	if _, err = io.CopyN(f, rand.NewChaCha8(seed), size); err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		s.close()
		return nil, fmt.Errorf("make a file of %d bytes to send: %w", size, err)
	}
	return s, nil
}

// read fills b with the next bytes.
func (s *source) read(b []byte) error {
	if _, err := io.ReadFull(s.f, b); err != nil {
		return fmt.Errorf("read %s: %w", s.name, err)
	}
	return nil
}

func (s *source) close() {
	s.f.Close()
	if s.left {
		os.Remove(s.name)
	}
}
