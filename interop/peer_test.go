//go:build interop && linux

package interop

import (
	"bufio"
	"context"
	"crypto/sha256"
	"crypto/sha3"
	_ "embed"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
)

// A peer is a process that does verbs as it is told, one request at a time: peer.py on the kernel's rxe0 in the guest, or this test
// binary on Verbena in the network namespace. Tests hold both ends and so know what each must report.
type peer struct {
	name string
	// kernel: rdma_rxe's statuses and habits are to be expected.
	kernel bool

	in  *bufio.Reader
	out io.WriteCloser
	end func() error
	// broken: it is gone, or out of step.
	broken bool
}

// request is a command. Op says which fields count:
//
//	qp       makes a queue pair in INIT with Size bytes of memory: Type, Family, Access, QPAccess, QKey
//	connect  takes it to RTS: GID, QPN, PSN, PeerPSN, MTU, Timeout, RetryCnt, RNRRetry, RNRTimer, RDAtomic
//	fill     writes stream(Seed) of Length bytes at Off; digest and bytes read there
//	recv     posts a receive; send posts a send and tells the key that it binds; poll waits for Count completions
//	state    tells the queue pair's state, events all asynchronous events since the last time, counters Verbena's counters
//	window, free window, bind: a memory window of type Kind; the binding of one of type 1 at Off, with Length and Access
//	attach, detach: multicast group GID
//	close    destroys the queue pair and its memory
type request struct {
	Op     string
	QP     int       `json:",omitempty"`
	Type   string    `json:",omitempty"`
	Family int       `json:",omitempty"`
	Size   int       `json:",omitempty"`
	Access ib.Access // of the memory, or of a window
	// QPAccess are the queue pair's rights.
	QPAccess ib.Access `json:",omitempty"`
	QKey     ib.QKey   `json:",omitempty"`

	GID      string `json:",omitempty"`
	QPN      ib.QPN `json:",omitempty"`
	PSN      uint32 `json:",omitempty"`
	PeerPSN  uint32 `json:",omitempty"`
	MTU      int    `json:",omitempty"`
	Timeout  uint8  `json:",omitempty"`
	RetryCnt uint8  `json:",omitempty"`
	RNRRetry uint8  `json:",omitempty"`
	RNRTimer uint8  `json:",omitempty"`
	RDAtomic uint8  `json:",omitempty"`

	Off, Length int
	Seed        uint64

	WRID       uint64
	Opcode     ib.WROpcode
	Flags      ib.SendFlags `json:",omitempty"`
	SGEs       [][2]int     `json:",omitempty"` // offset and length in the queue pair's memory
	BadLKey    bool         `json:",omitempty"`
	Imm        uint32       `json:",omitempty"`
	InvKey     ib.RKey      `json:",omitempty"`
	RKey       ib.RKey      `json:",omitempty"`
	RemoteAddr uint64       `json:",omitempty"`
	CompareAdd uint64       `json:",omitempty"`
	Swap       uint64       `json:",omitempty"`

	Count     int   `json:",omitempty"`
	TimeoutMS int64 `json:",omitempty"`

	MW   int       `json:",omitempty"`
	Kind ib.MWType `json:",omitempty"`
	// KeyByte is the low byte of the key that a bind of type 2 gives; the kernel's peer takes the next one whatever it is.
	KeyByte uint8 `json:",omitempty"`
}

// reply answers a request. Err and Errno are those of the verb that failed.
type reply struct {
	Err   string
	Errno syscall.Errno

	QP    int
	QPN   ib.QPN
	GID   string
	Addr  uint64
	RKey  ib.RKey
	MW    int
	State ib.QPState
	WCs   []completion

	Events   []ib.EventType
	Counters map[string]uint64
	Text     string
}

// completion is what both sides tell of one.
type completion struct {
	WRID   uint64
	Status ib.WCStatus
	Opcode ib.WCOpcode
	Len    uint32
	Flags  ib.WCFlags
	Imm    uint32
	InvKey ib.RKey
	SrcQP  ib.QPN
}

// refusal is the error of a verb at the peer, with its errno.
func (a *reply) refusal(p *peer, r *request) error {
	if a.Err == "" {
		return nil
	}
	return fmt.Errorf("%s: %s: %s: %w", p.name, r.Op, a.Err, a.Errno)
}

// stream is the content of a seed: its SHAKE128, which both languages have.
func stream(seed uint64, length int) []byte {
	return sha3.SumSHAKE128(binary.LittleEndian.AppendUint64(nil, seed), length)
}

func digest(b []byte) string {
	d := sha256.Sum256(b)
	return hex.EncodeToString(d[:])
}

// ask carries out a request. A verb that failed is in the reply.
func (p *peer) ask(r *request) (_ *reply, err error) {
	if p.broken {
		return nil, fmt.Errorf("%s is gone", p.name)
	}
	defer func() {
		if err != nil {
			p.broken = true
			err = errors.Join(fmt.Errorf("%s: %q: %w", p.name, r.Op, err), p.end())
		}
	}()
	b, err := json.Marshal(r)
	if err == nil {
		_, err = p.out.Write(append(b, '\n'))
	}
	if err != nil {
		return nil, err
	}
	// Its end ends the reading.
	late := time.AfterFunc(patience+20*time.Second, func() { _ = p.end() })
	defer late.Stop()
	line, err := p.in.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	a := &reply{}
	if err := json.Unmarshal(line, a); err != nil {
		return nil, fmt.Errorf("%w: %s", err, line)
	}
	return a, nil
}

// do is ask for what must work.
func (p *peer) do(t *testing.T, r *request) *reply {
	t.Helper()
	begin := time.Now()
	a, err := p.ask(r)
	if err == nil {
		err = a.refusal(p, r)
	}
	if d := time.Since(begin); d > slow {
		t.Logf("%s: %q took %.1f s", p.name, r.Op, d.Seconds())
	}
	if err != nil {
		t.Fatal(err)
	}
	return a
}

//go:embed peer.py
var peerScript []byte

// theKernel is the kernel's peer of all tests: starting peer.py in a translated guest takes seconds.
var theKernel *peer

// peers gives both. Verbena's ends with the test, since it holds its address, which the next program wants; that it can close its device
// is part of the test.
func peers(t *testing.T) (ours, kernel *peer) {
	t.Helper()
	if err := guest.SetMTU(t.Context(), jumbo); err != nil {
		t.Fatal(err)
	}
	if theKernel == nil || theKernel.broken {
		theKernel = startKernel(t)
	}
	ours = startOurs(t)
	t.Cleanup(func() {
		if err := ours.end(); err != nil {
			t.Error(err)
		}
	})
	return ours, theKernel
}

// endKernel ends the kernel's peer.
func endKernel() error {
	if theKernel == nil {
		return nil
	}
	return theKernel.end()
}

// startKernel runs peer.py in the guest and connects to it.
func startKernel(t *testing.T) *peer {
	t.Helper()
	const script = "/tmp/peer.py"
	if err := guest.WriteFile(t.Context(), script, peerScript); err != nil {
		t.Fatal(err)
	}
	port := nextPort()
	run, err := guest.Spawn(context.WithoutCancel(t.Context()), "python3", script, strconv.Itoa(port))
	if err != nil {
		t.Fatal(err)
	}
	end := func() error {
		_ = run.Kill(syscall.SIGKILL)
		ctx, cancel := context.WithTimeout(context.Background(), runTimeout)
		defer cancel()
		r, err := run.Wait(ctx)
		if err == nil && len(r.Stderr) > 0 {
			err = errors.New(r.String())
		}
		return err
	}
	listen, cancel := context.WithTimeout(t.Context(), runTimeout)
	defer cancel()
	var conn net.Conn
	if err = guest.WaitListen(listen, port); err == nil {
		err = guest.Net().Do(func() (err error) {
			conn, err = net.DialTCP("tcp4", nil, &net.TCPAddr{IP: guest.IPv4().AsSlice(), Port: port})
			return err
		})
	}
	if err != nil {
		t.Fatal(errors.Join(err, end()))
	}
	return &peer{name: "kernel", kernel: true, in: bufio.NewReader(conn), out: conn, end: sync.OnceValue(func() error {
		conn.Close()
		return end()
	})}
}

// peerEnv makes the test binary a peer.
const peerEnv = "VERBENA_INTEROP_PEER"

// startOurs runs this binary in the network namespace as a peer.
func startOurs(t *testing.T) *peer {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), peerEnv+"="+guest.Net().Interface())
	cmd.Stderr = os.Stderr
	if err := guest.InNetns(cmd); err != nil {
		t.Fatal(err)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return &peer{name: "verbena", in: bufio.NewReader(out), out: in, end: sync.OnceValue(func() error {
		in.Close() // it closes its device and ends by itself
		late := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
		defer late.Stop()
		if err := cmd.Wait(); err != nil {
			return fmt.Errorf("verbena's peer: %w", err)
		}
		return nil
	})}
}
