package target

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/examples/blocktarget/internal/client"
	"github.com/verbena-rdma/verbena/examples/blocktarget/internal/proto"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/rdmacm"
	"github.com/verbena-rdma/verbena/verbs"
)

// A client that was interrupted has requests under way, whose answers and memory are not
// those of what comes later: it takes no more.
func TestInterruptedClient(t *testing.T) {
	r := newRig(t, memoryStore(t, 4<<20, 512, true), Config{Protection: 1, MaxLength: 64 << 10}, soft.Limits{})
	cl := r.dial(client.Config{Depth: 4})
	data := random(1<<20, 3)
	ctx, cancel := context.WithCancel(t.Context())
	err := cl.Write(ctx, bytes.NewReader(data), 1<<20, 0, func(int) { cancel() })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
	back := make(memWriter, 1<<20)
	if err := cl.Read(t.Context(), back, 1<<20, 2<<20, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("read afterwards: %v", err)
	}
	if err := cl.Flush(t.Context()); !errors.Is(err, context.Canceled) {
		t.Errorf("flush afterwards: %v", err)
	}
	if err := cl.Close(); err != nil {
		t.Error(err)
	}
}

// A target that answers a request twice, or another length than was asked for: the client
// ends with an error, and takes nothing for what it is not.
func TestClientOfABadTarget(t *testing.T) {
	const tag = 1 // of two slots the last is used first
	for name, answers := range map[string][]proto.Response{
		"twice":         {{Tag: tag, Length: 4096}, {Tag: tag, Length: 4096}},
		"half of it":    {{Tag: tag, Length: 2048}},
		"another's tag": {{Tag: 0, Length: 4096}},
		"no slot's tag": {{Tag: 1 << 31, Length: 4096}},
	} {
		t.Run(name, func(t *testing.T) {
			tgt, cli := newHost(t, soft.Limits{}), newHost(t, soft.Limits{})
			at := netip.AddrPortFrom(tgt.addr, 7475)
			ready, ended := make(chan struct{}), make(chan error, 1)
			go func() { ended <- badTarget(t.Context(), tgt, at, ready, answers) }()
			<-ready
			cl, err := client.Dial(t.Context(), cli.m, client.Config{Source: cli.addr, Target: at, Depth: 2})
			if err != nil {
				t.Fatal(err, <-ended)
			}
			err = cl.Write(t.Context(), bytes.NewReader(make([]byte, 4096)), 4096, 0, nil)
			if name == "twice" && err == nil { // the second one may come after the end of the first request
				err = cl.Flush(t.Context())
			}
			if !errors.Is(err, syscall.EPROTO) {
				t.Errorf("%v, want EPROTO", err)
			}
			if err := errors.Join(cl.Close(), <-ended); err != nil {
				t.Error(err)
			}
		})
	}
}

// badTarget takes one client and answers its first request so.
func badTarget(ctx context.Context, h *host, at netip.AddrPort, ready chan<- struct{}, answers []proto.Response) (err error) {
	l, err := h.m.NewID(nil, rdmacm.PSTCP, nil)
	if err == nil {
		err = errors.Join(l.Bind(at), l.Listen(1))
	}
	close(ready)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Destroy(context.Background())) }()
	id, err := l.GetRequest(ctx)
	if err != nil {
		return err
	}
	pd, err := id.Verbs().AllocPD()
	if err != nil {
		return err
	}
	mr, err := pd.RegMR(make([]byte, 4*proto.RequestLen), ib.AccessLocalWrite)
	if err != nil {
		return err
	}
	defer func() {
		end := context.Background()
		err = errors.Join(err, id.DestroyQP(end), mr.Dereg(), pd.Dealloc(), id.Destroy(end))
	}()
	if err := id.CreateQP(pd, &verbs.QPInitAttr{Cap: ib.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: 64}}); err != nil {
		return err
	}
	for i := range 4 {
		if err := id.PostRecv(uint64(i), mr.Bytes()[i*proto.RequestLen:(i+1)*proto.RequestLen], mr); err != nil {
			return err
		}
	}
	geom := proto.Geometry{Depth: 2, BlockSize: 512, Blocks: 8, MaxLength: 4096}
	if err := id.Accept(ctx, &rdmacm.ConnParam{PrivateData: geom.Append(nil), RNRRetryCount: 7}); err != nil {
		return err
	}
	if _, err := id.GetRecvComp(ctx); err != nil {
		return err
	}
	for i := range answers {
		var b [proto.ResponseLen]byte
		answers[i].Put(b[:])
		if err := id.PostSend(0, b[:], nil, ib.SendInline|ib.SendSignaled); err != nil {
			return err
		}
	}
	for range answers {
		if _, err := id.GetSendComp(ctx); err != nil {
			return err
		}
	}
	return nil
}
