package workload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

	"github.com/verbena-rdma/verbena/bench"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

const roleMember = "verbena/member"

// How the processes have their addresses.
const (
	shareAlone   = "alone"   // one each, shared with nobody
	shareBeside3 = "beside3" // the same one, as three more processes that do nothing
	shareHanded  = "handed"  // the same one, without the kernel's steering: they hand each other what they send
	shareRelayed = "relayed" // one each, the receiver's without steering: a third process, the steward, hands all datagrams over
)

// shareWorkloads is what it costs that processes share an address: WRITEs of 64 KiB from one process to another, both polling or
// both asleep.
func shareWorkloads() (list []bench.Workload) {
	for _, way := range []string{shareAlone, shareBeside3, shareHanded, shareRelayed} {
		for _, sleep := range []bool{false, true} {
			j := job{Kind: "bw", Op: ib.WRRDMAWrite, Size: 65536, Batch: 1, Share: way, Sleep: sleep}
			name := fmt.Sprintf("verbena/share_bw/65536/%s/poll", way)
			if sleep {
				name = fmt.Sprintf("verbena/share_bw/65536/%s/sleep", way)
			}
			list = append(list, bench.Workload{Name: name, Run: func(ctx context.Context, o bench.Options) (_ []bench.Measurement, err error) {
				a, b := addresses()
				if way == shareBeside3 || way == shareHanded {
					b = a
				}
				// The first member is the steward: somebody else than the two.
				if others := map[string]int{shareBeside3: 3, shareHanded: 1, shareRelayed: 1}[way]; others > 0 {
					for range others {
						m, startErr := bench.StartChild(ctx, roleMember, bench.AnyCore, job{Addr: a, Other: a, Share: way, QPs: 1})
						if startErr != nil {
							return nil, startErr
						}
						defer func() { err = errors.Join(err, m.Close()) }()
						var ready string
						if err := m.Read(&ready); err != nil {
							return nil, fmt.Errorf("%s: member: %w", name, err)
						}
					}
				}
				return runAt(ctx, o, name, j, a, b)
			}})
		}
	}
	return list
}

// openShared opens the device as programs do, with a provider.
func (s *side) openShared(addr netip.Addr) (driver.Device, error) {
	opts := []soft.Option{soft.WithAddrs("lo", addr)}
	if s.Sleep {
		opts = append(opts, soft.WithWaitSpin(-1))
	}
	switch s.Share {
	case shareAlone:
		opts = append(opts, soft.WithoutSharing())
	case shareHanded, shareRelayed:
		opts = append(opts, soft.WithoutSteering())
	}
	return soft.NewProvider(opts...).Open(context.Background(), "soft_lo")
}

// member has the address, too, and does nothing until the parent goes.
func member(args json.RawMessage, in *json.Decoder, out *json.Encoder) error {
	s := &side{}
	if err := json.Unmarshal(args, &s.job); err != nil {
		return err
	}
	if err := s.open(); err != nil {
		return err
	}
	defer s.dev.Close()
	qp, err := s.pd.CreateQP(&verbs.QPInitAttr{
		SendCQ: s.scq, RecvCQ: s.rcq, Type: ib.RC, Cap: ib.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	if err != nil {
		return err
	}
	if err := s.connect(qp, qp.Num()); err != nil {
		return err
	}
	if err := out.Encode("ready"); err != nil {
		return err
	}
	var word string
	_ = in.Decode(&word)
	return nil
}
