// Package store is the storage behind a block target: memory, or a file with its
// protection tuples in a second file.
package store

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"

	"github.com/verbena-rdma/verbena/examples/blocktarget/internal/proto"
)

// Store is a row of blocks, each with a protection tuple if it has protection. It may be
// used by several goroutines. A block and its tuple change together.
type Store struct {
	bs     int
	blocks int64
	data   file
	pi     file // nil: no protection
	slow   bool

	mu sync.RWMutex
}

// file is what data, or tuples, are in.
type file interface {
	io.ReaderAt
	io.WriterAt
	Sync() error
	Close() error
}

// escape is what the tuple of a block says that was never written: application tag
// 0xFFFF and reference tag 0xFFFFFFFF, which check nothing, as on a formatted drive.
var escape = bytes.Repeat([]byte{0xFF}, 64<<10)

// NewMemory makes a store in memory. EINVAL: bad sizes; ENOMEM: there is not as much.
func NewMemory(size int64, blockSize int, protect bool) (*Store, error) {
	if err := check(size, blockSize); err != nil {
		return nil, err
	}
	if err := room(size); err != nil {
		return nil, err
	}
	s := &Store{bs: blockSize, blocks: size / int64(blockSize), data: memory(make([]byte, size))}
	if protect {
		s.pi = memory(bytes.Repeat([]byte{0xFF}, int(s.blocks)*proto.TupleLen))
	}
	return s, nil
}

// Open makes a store of the file at path. One that is missing, or shorter, gets the
// size; size 0: as it is. The tuples are in path.pi; blocks that have none there are not
// checked until they are written. EINVAL: bad sizes.
func Open(path string, size int64, blockSize int, protect bool) (s *Store, err error) {
	if err := checkBlock(blockSize); err != nil { // before a file is made
		return nil, err
	}
	flags := os.O_RDWR
	if size > 0 {
		flags |= os.O_CREATE
	}
	f, err := os.OpenFile(path, flags, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	fi, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !fi.Mode().IsRegular():
		return nil, fmt.Errorf("%s: not a regular file: %w", path, syscall.EINVAL)
	case size == 0:
		if size = fi.Size() / int64(blockSize) * int64(blockSize); size == 0 {
			return nil, fmt.Errorf("%s: shorter than a block; say how long it shall be: %w", path, syscall.EINVAL)
		}
	}
	if err = check(size, blockSize); err != nil {
		return nil, err
	}
	if fi.Size() < size {
		if err = f.Truncate(size); err != nil {
			return nil, err
		}
	}
	s = &Store{bs: blockSize, blocks: size / int64(blockSize), data: f, slow: true}
	if protect {
		if s.pi, err = openTuples(path+".pi", s.blocks*proto.TupleLen); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// openTuples opens the file of tuples, and fills what is missing with escapes.
func openTuples(path string, size int64) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	at, err := f.Seek(0, io.SeekEnd)
	for at -= at % proto.TupleLen; err == nil && at < size; {
		n := min(size-at, int64(len(escape)))
		_, err = f.WriteAt(escape[:n], at)
		at += n
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func checkBlock(n int) error {
	if n < 512 || n > 4096 || n&(n-1) != 0 {
		return fmt.Errorf("block size %d, want 512, 1024, 2048 or 4096: %w", n, syscall.EINVAL)
	}
	return nil
}

func check(size int64, blockSize int) error {
	if err := checkBlock(blockSize); err != nil {
		return err
	}
	switch {
	case size <= 0 || size%int64(blockSize) != 0:
		return fmt.Errorf("%d bytes, want a multiple of the block size %d: %w", size, blockSize, syscall.EINVAL)
	}
	return nil
}

// BlockSize is the size of a block in bytes.
func (s *Store) BlockSize() int { return s.bs }

// Blocks is the number of blocks.
func (s *Store) Blocks() int64 { return s.blocks }

// Protected reports whether each block has a tuple.
func (s *Store) Protected() bool { return s.pi != nil }

// Slow reports whether reading and writing may wait for a disk.
func (s *Store) Slow() bool { return s.slow }

// Read reads blocks into the slices of data, from block on, and their tuples into pi
// (nil: not wanted). The slices of data need not be of whole blocks, but are together.
func (s *Store) Read(data, pi [][]byte, block int64) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := each(s.data.ReadAt, data, block*int64(s.bs)); err != nil || pi == nil {
		return err
	}
	return each(s.pi.ReadAt, pi, block*proto.TupleLen)
}

// Write writes blocks and their tuples, as Read reads them. pi nil, on a store with
// tuples: they become escapes.
func (s *Store) Write(data, pi [][]byte, block int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := each(s.data.WriteAt, data, block*int64(s.bs)); err != nil || s.pi == nil {
		return err
	}
	if pi != nil {
		return each(s.pi.WriteAt, pi, block*proto.TupleLen)
	}
	n := 0
	for _, b := range data {
		n += len(b)
	}
	at := block * proto.TupleLen
	for n = n / s.bs * proto.TupleLen; n > 0; {
		k := min(n, len(escape))
		if _, err := s.pi.WriteAt(escape[:k], at); err != nil {
			return err
		}
		n -= k
		at += int64(k)
	}
	return nil
}

func each(f func([]byte, int64) (int, error), list [][]byte, at int64) error {
	for _, b := range list {
		if _, err := f(b, at); err != nil {
			return err
		}
		at += int64(len(b))
	}
	return nil
}

// Sync returns when what was written is on the storage.
func (s *Store) Sync() error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	err := s.data.Sync()
	if s.pi != nil {
		err = errors.Join(err, s.pi.Sync())
	}
	return err
}

// Close closes the files.
func (s *Store) Close() error {
	err := s.data.Close()
	if s.pi != nil {
		err = errors.Join(err, s.pi.Close())
	}
	return err
}

// memory is a file in memory, of a fixed length.
type memory []byte

func (m memory) ReadAt(b []byte, at int64) (int, error) {
	if at > int64(len(m)) || int64(len(b)) > int64(len(m))-at {
		return 0, io.ErrUnexpectedEOF
	}
	return copy(b, m[at:]), nil
}

func (m memory) WriteAt(b []byte, at int64) (int, error) {
	if at > int64(len(m)) || int64(len(b)) > int64(len(m))-at {
		return 0, io.ErrShortWrite
	}
	return copy(m[at:], b), nil
}

func (m memory) Sync() error  { return nil }
func (m memory) Close() error { return nil }
