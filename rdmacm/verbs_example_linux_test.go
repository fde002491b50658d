package rdmacm_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"net/netip"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/rdmacm"
	"github.com/verbena-rdma/verbena/verbs"
)

var exampleAttr = verbs.QPInitAttr{Cap: ib.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: 64}}

// serveMemory offers 64 bytes of memory to one client, and waits until it says that it has
// written them. Where they are, and their key, it tells when it accepts.
func serveMemory(ctx context.Context, l *rdmacm.ID) error {
	id, err := l.GetRequest(ctx)
	if err != nil {
		return err
	}
	defer id.DestroyEP(ctx)
	memory := make([]byte, 64)
	mr, err := id.RegWrite(memory)
	if err != nil {
		return err
	}
	defer rdmacm.DeregMR(mr)
	if err := id.PostRecv(1, nil, nil); err != nil { // before the client may send
		return err
	}
	where := binary.BigEndian.AppendUint64(nil, mr.Addr())
	where = binary.BigEndian.AppendUint32(where, uint32(mr.RKey()))
	p := id.Event().Conn // what the client asked for ...
	p.PrivateData = where
	if err := id.Accept(ctx, &p); err != nil {
		return err
	}
	wc, err := id.GetRecvComp(ctx)
	if err = errors.Join(err, wc.Err()); err != nil {
		return err
	}
	fmt.Printf("the client wrote %q\n", memory[:12])
	return nil
}

// One side writes into the memory of the other one.
func ExampleID_PostWrite() {
	check := func(err error) {
		if err != nil {
			log.Fatal(err)
		}
	}
	ctx := context.Background()
	// Programs have the manager of rdma.NewHost, which knows every device. Here it is
	// one on the loopback interface.
	m := rdmacm.NewManager(rdmacm.WithProviders(soft.NewProvider(soft.WithAddrs("lo", netip.MustParseAddr("127.3.14.16")))))
	defer m.Close()

	ai, err := rdmacm.GetAddrInfo(ctx, "127.3.14.16", "7471", &rdmacm.AddrInfo{Flags: rdmacm.RAIPassive})
	check(err)
	attr := exampleAttr
	l, err := m.CreateEP(ctx, ai, nil, &attr)
	check(err)
	defer l.DestroyEP(ctx)
	check(l.Listen(0))
	done := make(chan error, 1)
	go func() { done <- serveMemory(ctx, l) }()

	ai, err = rdmacm.GetAddrInfo(ctx, "127.3.14.16", "7471", nil)
	check(err)
	attr = exampleAttr
	id, err := m.CreateEP(ctx, ai, nil, &attr)
	check(err)
	defer id.DestroyEP(ctx)
	check(id.Connect(ctx, nil))
	where := id.Event().Conn.PrivateData
	addr, rkey := binary.BigEndian.Uint64(where), ib.RKey(binary.BigEndian.Uint32(where[8:]))

	buf := []byte("hello, world")
	mr, err := id.RegMsgs(buf)
	check(err)
	defer rdmacm.DeregMR(mr)
	check(id.PostWrite(1, buf, mr, 0, addr, rkey))
	check(id.PostSend(2, nil, nil, ib.SendSignaled)) // tells that it is there
	wc, err := id.GetSendComp(ctx)
	check(errors.Join(err, wc.Err()))
	fmt.Println("completed", wc.WRID)
	check(<-done)
	// Unordered output:
	// completed 2
	// the client wrote "hello, world"
}
