package demo

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// repost is how many receives are posted at a time; as often a send is signaled,
// so that the send queue empties.
const repost = 16

// rally plays n exchanges with the peer: an 8-byte number goes into its memory
// by RDMA WRITE with immediate, and comes back the same way. The side with rtt
// serves, and tells it how long each exchange took.
func (s *side) rally(ctx context.Context, n int, to *contact, rtt func(time.Duration)) error {
	var num [8]byte
	wr := verbs.SendWR{
		Opcode: ib.WRRDMAWriteWithImm, InlineData: num[:], RemoteAddr: to.SmallAddr + pingAt, RKey: to.SmallKey,
	}
	send := func(i int) error {
		binary.NativeEndian.PutUint64(num[:], uint64(i))
		wr.ImmData, wr.Flags = uint32(i), ib.SendInline
		if i%repost == 0 {
			wr.Flags |= ib.SendSignaled
		}
		return s.rc.PostSendOne(&wr)
	}
	for i := 1; i <= n; i++ {
		start := time.Now()
		if rtt != nil {
			if err := send(i); err != nil {
				return err
			}
		}
		if err := s.ping(ctx, i); err != nil {
			return err
		}
		if rtt == nil {
			if err := send(i); err != nil {
				return err
			}
		} else {
			rtt(time.Since(start))
		}
		if i%repost == 0 {
			if err := s.postPings(repost); err != nil {
				return err
			}
		}
	}
	return nil
}

// ping waits for ping i and checks what it wrote.
func (s *side) ping(ctx context.Context, i int) error {
	for {
		wcs, err := s.wait(ctx)
		if err != nil {
			return err
		}
		for j := range wcs {
			if wcs[j].Opcode != ib.WCRecvRDMAWithImm {
				continue // a send of ours
			}
			if got := binary.NativeEndian.Uint64(s.bytes(pingAt, 8)); got != uint64(i) || wcs[j].ImmData != uint32(i) {
				return fmt.Errorf("ping %d: the memory holds %d, the immediate data is %d: %w", i, got, wcs[j].ImmData, ErrDiffers)
			}
			return nil
		}
	}
}
