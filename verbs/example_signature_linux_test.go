package verbs_test

import (
	"context"
	"fmt"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// A storage target keeps blocks with their protection information and hands out the
// blocks alone: each is checked on its way, and one that has rotten is found.
func ExampleSigMR() {
	ctx := context.Background()
	r := enter(ctx, "127.3.14.25")
	size := ib.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1}
	attr := &verbs.QPInitAttr{SendCQ: r.cq, RecvCQ: r.cq, Type: ib.RC, Cap: size, IntegrityEn: true}
	target, err := r.pd.CreateQP(attr)
	check(err)
	client, err := r.pd.CreateQP(attr)
	check(err)
	connect(target, 100, client.Num(), 200, r.gid)
	connect(client, 200, target.Num(), 100, r.gid)

	memory := make([]byte, 2*512)
	mr, err := r.pd.RegMR(memory, ib.AccessLocalWrite|ib.AccessRemoteWrite)
	check(err)

	// Two blocks of zeros, whose guard is 0, and their tuples: the reference tag is
	// the number of the block on the disk.
	blocks, tuples := make([]byte, 2*512), []byte{
		0, 0, 0, 0, 0, 0, 0, 7,
		0, 0, 0, 0, 0, 0, 0, 8,
	}
	sig, err := r.pd.AllocMRIntegrity(1, 1)
	check(err)
	_, err = sig.MapSGPI([][]byte{blocks}, 0, [][]byte{tuples}, 0, 4096)
	check(err)
	check(sig.SetSigAttrs(&ib.SigAttrs{
		CheckMask: ib.SigCheckGuard | ib.SigCheckRefTag,
		Mem: ib.SigDomain{SigType: ib.SigTypeT10DIF, DIF: ib.T10DIFDomain{
			BGType: ib.T10DIFCRC, PIInterval: 512, RefTag: 7, RefRemap: true, AppEscape: true,
		}},
	}))
	key := ib.IncRKey(sig.RKey())
	check(target.PostSendOne(&verbs.SendWR{
		Opcode: ib.WRRegMRIntegrity, Flags: ib.SendSignaled, RKey: key, Bind: &verbs.BindInfo{MR: sig, Access: ib.AccessLocalWrite},
	}))
	one(ctx, r.cq)

	write := func() {
		check(target.PostSendOne(&verbs.SendWR{
			Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGList: []verbs.SGE{sig.SGE(0, 1024)}, RemoteAddr: mr.Addr(), RKey: mr.RKey(),
		}))
		one(ctx, r.cq)
		if e, bad := sig.CheckStatus(); bad {
			fmt.Printf("block %d: %v, %#04x instead of %#04x\n", e.SigErrOffset/520, e.Type, e.Actual, e.Expected)
			return
		}
		fmt.Println("all blocks are good")
	}
	write()
	blocks[1023] = 1
	write()
	r.leave(target.Destroy, client.Destroy, sig.Dereg, mr.Dereg)
	// Output:
	// all blocks are good
	// block 1: bad guard, 0x0000 instead of 0x8bb7
}
