package udp

import (
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/internal/pkt"
)

// batch makes a batch of n packets, fewer if it takes no more.
func batch(t testing.TB, p *Port, f *pkt.Flow, n, size int) *pkt.Tx {
	tx := pkt.NewTx(pkt.TxCaps{MaxSegs: p.Caps().MaxSegs})
	payload := make([]byte, size)
	for i := 0; i < n && !tx.Full(1); i++ {
		put(t, tx, f, i, payload)
	}
	return tx
}

// Sending and receiving allocate nothing.
func TestNoAllocations(t *testing.T) {
	for _, v := range variants {
		for _, addrs := range []int{1, 3} {
			t.Run(fmt.Sprintf("%s/%d", v.name, addrs), func(t *testing.T) {
				p := open(t, v.cfg)
				var f *pkt.Flow
				for range addrs {
					addr, local := addLoopback(t, p)
					f = flow(addr, addr, local)
				}
				rx := pkt.Rx{Dgrams: make([]pkt.Datagram, 0, turn)}
				tx := batch(t, p, f, 20, 1000)
				payload := make([]byte, 1000)
				bytes := uint64(0)
				n := testing.AllocsPerRun(50, func() {
					tx.Reset()
					for i := range 20 {
						put(t, tx, f, i, payload)
					}
					p.Send(tx)
					bytes += 20 * 1016
					for p.Stats().RxBytes < bytes {
						p.Recv(&rx)
					}
					p.Recv(&rx) // nothing there
					p.Kick()
					p.Wait(-1)
				})
				if n != 0 {
					t.Errorf("%v allocations", n)
				}
			})
		}
	}
}

// One goroutine sends 1 MiB in packets of 4 KiB payload and receives it. The
// batch is built once: what is measured is the port.
func BenchmarkOneThread(b *testing.B) {
	for _, v := range variants {
		b.Run(v.name, func(b *testing.B) {
			p := open(b, v.cfg)
			addr, local := addLoopback(b, p)
			tx := batch(b, p, flow(addr, addr, local), 240, 4096)
			sendReceive(b, p, tx, 4096)
		})
	}
}

// The same with packets of 64 bytes, 32 in a batch.
func BenchmarkSmall(b *testing.B) {
	for _, v := range variants {
		b.Run(v.name, func(b *testing.B) {
			p := open(b, v.cfg)
			addr, local := addLoopback(b, p)
			tx := batch(b, p, flow(addr, addr, local), 32, 64)
			sendReceive(b, p, tx, 64)
		})
	}
}

func sendReceive(b *testing.B, p *Port, tx *pkt.Tx, payload int) {
	rx := pkt.Rx{Dgrams: make([]pkt.Datagram, 0, turn)}
	want := uint64(0)
	for i := range tx.Msgs {
		want += uint64(tx.Msgs[i].Bytes)
	}
	b.SetBytes(int64(tx.Packets * payload))
	b.ReportAllocs()
	cpu := cpuTime()
	for b.Loop() {
		p.Send(tx)
		for got := uint64(0); got < want; {
			p.Recv(&rx)
			for i := range rx.Dgrams {
				got += uint64(len(rx.Dgrams[i].Data))
			}
		}
	}
	cpu = cpuTime() - cpu
	packets := float64(b.N) * float64(tx.Packets)
	b.ReportMetric(packets/1e6/b.Elapsed().Seconds(), "Mpkt/s")
	// On a machine that is busy with other things this is the number to look at.
	b.ReportMetric(packets*float64(payload)/float64(cpu), "GB/cpu-s")
	if st := p.Stats(); st.TxErrors+st.TxAgain+st.RxTrunc > 0 {
		b.Errorf("%+v", st)
	}
}

// cpuTime is the time that the process has spent on processors.
func cpuTime() time.Duration {
	var ru unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &ru)
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

// One goroutine sends, another receives; what the receiver has not taken yet
// is at most 1 MiB.
func BenchmarkTwoThreads(b *testing.B) {
	src, dst := open(b, Config{}), open(b, Config{})
	from, local := addLoopback(b, src)
	to, _ := addLoopback(b, dst)
	tx := batch(b, src, flow(from, to, local), 120, 4096)
	bytes := uint64(0)
	for i := range tx.Msgs {
		bytes += uint64(tx.Msgs[i].Bytes)
	}
	b.SetBytes(120 * 4096)
	b.ReportAllocs()
	var received atomic.Uint64
	var done atomic.Bool
	var receiver sync.WaitGroup
	receiver.Go(func() {
		rx := pkt.Rx{Dgrams: make([]pkt.Datagram, 0, turn)}
		for !done.Load() {
			n := uint64(0)
			p := dst.Recv(&rx)
			for i := range p {
				n += uint64(len(rx.Dgrams[i].Data))
			}
			add(&received, n)
		}
	})
	sentBytes := uint64(0)
	for b.Loop() {
		for sentBytes > received.Load()+bytes {
			runtime.Gosched()
		}
		src.Send(tx)
		sentBytes += bytes
	}
	for received.Load() < sentBytes {
		runtime.Gosched()
	}
	done.Store(true)
	receiver.Wait()
}

// Half a round trip of 8 bytes between two polling goroutines.
func BenchmarkPingPong(b *testing.B) {
	a, z := open(b, Config{}), open(b, Config{})
	aAddr, aLocal := addLoopback(b, a)
	zAddr, zLocal := addLoopback(b, z)
	ping := batch(b, a, flow(aAddr, zAddr, aLocal), 1, 8)
	pong := batch(b, z, flow(zAddr, aAddr, zLocal), 1, 8)
	var done atomic.Bool
	var echo sync.WaitGroup
	echo.Go(func() {
		rx := pkt.Rx{Dgrams: make([]pkt.Datagram, 0, turn)}
		for !done.Load() {
			if z.Recv(&rx) > 0 {
				z.Send(pong)
			}
		}
	})
	rx := pkt.Rx{Dgrams: make([]pkt.Datagram, 0, turn)}
	for b.Loop() {
		a.Send(ping)
		for a.Recv(&rx) == 0 {
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/2, "ns/half")
	done.Store(true)
	echo.Wait()
}

// A poll that finds nothing.
func BenchmarkEmptyRecv(b *testing.B) {
	for _, addrs := range []int{1, 2, 8} {
		b.Run(fmt.Sprint(addrs), func(b *testing.B) {
			p := open(b, Config{})
			for range addrs {
				addLoopback(b, p)
			}
			rx := pkt.Rx{Dgrams: make([]pkt.Datagram, 0, turn)}
			for b.Loop() {
				p.Recv(&rx)
			}
		})
	}
}

func BenchmarkKickAndWait(b *testing.B) {
	p := open(b, Config{})
	addLoopback(b, p)
	for b.Loop() {
		p.Kick()
		p.Wait(-1)
	}
}

// What it costs to found the sockets that an address is shared by.
func BenchmarkOpenSlots(b *testing.B) {
	for _, addr := range []netip.Addr{freeLoopback(b), netip.IPv6Loopback()} {
		b.Run(addr.String(), func(b *testing.B) {
			for b.Loop() {
				fds, err := openSlots(addr, slotCount)
				if err != nil {
					b.Fatal(err)
				}
				closeAll(fds)
			}
		})
	}
}
