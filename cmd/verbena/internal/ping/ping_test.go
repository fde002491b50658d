package ping

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/cli"
)

// The message is a __be64 and two __be32 in C.
func TestInfo(t *testing.T) {
	i := info{Addr: 0x0000_7F12_3456_789A, RKey: 0x00AB_CDEF, Size: 100}
	b := make([]byte, infoLen)
	i.put(b)
	if got := hex.EncodeToString(b); got != "00007f123456789a"+"00abcdef"+"00000064" {
		t.Errorf("%s", got)
	}
	if got, err := parse(b); err != nil || got != i {
		t.Errorf("%+v %v", got, err)
	}
	for n := range 40 {
		if _, err := parse(make([]byte, n)); (err == nil) != (n == infoLen) {
			t.Errorf("%d bytes: %v", n, err)
		} else if err != nil && !strings.Contains(err.Error(), "received bogus data") {
			t.Error(err)
		}
	}
}

func TestInfoRandom(t *testing.T) {
	seed := rand.Uint64()
	t.Log("seed", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 1000 {
		b := make([]byte, infoLen)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		i, err := parse(b)
		if err != nil {
			t.Fatal(err)
		}
		back := make([]byte, infoLen)
		if i.put(back); !bytes.Equal(b, back) {
			t.Fatalf("%x became %x", b, back)
		}
	}
}

// The data as rping 44 shows it with -v -S 30 and more.
func TestFill(t *testing.T) {
	for _, c := range []struct {
		n, size int
		want    string
	}{
		{0, 23, "rdma-ping-0: ABCDEFGHI\x00"},
		{1, 30, "rdma-ping-1: BCDEFGHIJKLMNOPQ\x00"},
		{57, 24, "rdma-ping-57: zABCDEFGH\x00"},
		{58, 24, "rdma-ping-58: ABCDEFGHI\x00"},
		{2147483647, 23, "rdma-ping-2147483647: \x00"},
		{0, 80, "rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyzABCDEFGH\x00"},
	} {
		b := bytes.Repeat([]byte{0xFF}, c.size)
		if fill(b, c.n); string(b) != c.want {
			t.Errorf("ping %d, %d bytes:\n%q, want\n%q", c.n, c.size, b, c.want)
		}
		if got := string(text(b)); got != strings.TrimSuffix(c.want, "\x00") {
			t.Errorf("text %q", got)
		}
	}
	if got := text([]byte("abc")); string(got) != "abc" {
		t.Errorf("without end: %q", got)
	}
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		change func(*Config)
		say    string // "": it is fine
	}{
		{func(c *Config) { c.Server = true }, ""},
		{func(c *Config) { c.Client, c.Addr = true, "x" }, ""},
		{func(c *Config) {}, "give -s to be the server, or -c"},
		{func(c *Config) { c.Server, c.Client = true, true }, "give -s to be the server, or -c"},
		{func(c *Config) { c.Client = true }, "-a address"},
		{func(c *Config) { c.Client, c.Addr, c.Persistent = true, "x", true }, "-P/--persistent"},
		{func(c *Config) { c.Server, c.Source = true, "x" }, "-I/--source"},
		{func(c *Config) { c.Server, c.Size = true, 22 }, "-S/--size 22: want 23 to 65535"},
		{func(c *Config) { c.Server, c.Size = true, 65536 }, "-S/--size 65536: want 23 to 65535"},
		{func(c *Config) { c.Server, c.Size = true, 23 }, ""},
		{func(c *Config) { c.Server, c.Size = true, 65535 }, ""},
		{func(c *Config) { c.Server, c.Count = true, -1 }, "-C/--count -1"},
		{func(c *Config) { c.Server, c.Port = true, 0 }, "-p/--port 0"},
		{func(c *Config) { c.Server, c.Port = true, 65536 }, "-p/--port 65536"},
	} {
		cfg := Default()
		c.change(&cfg)
		err := cfg.Check()
		switch {
		case c.say == "" && err != nil:
			t.Errorf("%+v: %v", cfg, err)
		case c.say != "" && (!errors.As(err, new(*cli.UsageError)) || !strings.Contains(err.Error(), c.say)):
			t.Errorf("%+v: %v, want %q", cfg, err, c.say)
		}
	}
}
