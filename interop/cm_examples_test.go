//go:build interop && linux

package interop

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/rdmacm"
	"github.com/verbena-rdma/verbena/verbs"
)

// exampleSize is the length of the messages of rdma_client and its relatives.
const exampleSize = 16

// example does what the program of librdmacm does of that name, over RC.
func (p *cmPeer) example(name string) error {
	ai := &rdmacm.AddrInfo{PortSpace: rdmacm.PSTCP, QPType: ib.RC, Dst: p.addr}
	attr := &verbs.QPInitAttr{
		Type: ib.RC, SQSigAll: true,
		Cap: ib.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: exampleSize},
	}
	serves := strings.HasSuffix(name, "server")
	if serves {
		ai.Flags, ai.Src, ai.Dst = rdmacm.RAIPassive, p.addr, netip.AddrPort{}
		if name == "rdma_xserver" {
			attr = nil // made by hand, with a shared receive queue
		}
	}
	id, err := p.m.CreateEP(p.ctx, ai, nil, attr)
	if err != nil {
		return err
	}
	conn := id
	if serves {
		if err := id.Listen(0); err != nil {
			return err
		}
		if conn, err = id.GetRequest(p.ctx); err != nil {
			return err
		}
	}
	if name == "rdma_xserver" {
		if err := conn.CreateSRQ(nil, &ib.SRQAttr{MaxWR: 1, MaxSGE: 1}); err != nil {
			return err
		}
		if err := conn.CreateQP(nil, &verbs.QPInitAttr{
			Type: ib.RC, SQSigAll: true, SRQ: conn.SRQ(), Cap: ib.QPCap{MaxSendWR: 1, MaxSendSGE: 1},
		}); err != nil {
			return err
		}
	}
	if err := p.converse(conn, serves, strings.HasPrefix(name, "rdma_x")); err != nil {
		return err
	}
	if serves {
		conn.DestroyEP(p.ctx)
	}
	id.DestroyEP(p.ctx)
	return nil
}

// converse sends to the server and back; the programs with an x send to the server only.
func (p *cmPeer) converse(id *rdmacm.ID, serves, oneWay bool) error {
	out, in := content(ofConnect, exampleSize), make([]byte, exampleSize)
	mr, err := id.RegMsgs(in)
	if err != nil {
		return err
	}
	if serves || !oneWay {
		if err := id.PostRecv(0, in, mr); err != nil {
			return err
		}
	}
	begin := id.Connect
	if serves {
		begin = id.Accept
	}
	if err := begin(p.ctx, nil); err != nil {
		return err
	}
	send := func() error {
		if err := id.PostSend(0, out, nil, ib.SendInline); err != nil {
			return err
		}
		wc, err := id.GetSendComp(p.ctx)
		return errors.Join(err, wc.Err())
	}
	recv := func() error {
		wc, err := id.GetRecvComp(p.ctx)
		if err := errors.Join(err, wc.Err()); err != nil {
			return err
		}
		fmt.Printf("RECEIVED %d\n", wc.ByteLen)
		return nil
	}
	steps := []func() error{send, recv}
	if serves {
		steps = []func() error{recv, send}
	}
	if oneWay {
		steps = steps[:1]
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	// The peer may have been faster.
	if err := id.Disconnect(p.ctx); err != nil && !errors.Is(err, syscall.EINVAL) {
		return err
	}
	return mr.Dereg()
}

// TestCMExamples: librdmacm's smallest programs, whose endpoints and helper calls this side makes by package rdmacm.
func TestCMExamples(t *testing.T) {
	kernelContent(t)
	for _, d := range both(t) {
		for _, kind := range []string{"rdma_", "rdma_x"} {
			t.Run(d.server.name+"-serves/"+kind, func(t *testing.T) {
				port := nextPort()
				p := cmPair{server: d.server, client: d.client, port: port}
				for _, e := range []struct {
					s    *side
					name string
					args *[]string
				}{{d.server, kind + "server", &p.serverArgs}, {d.client, kind + "client", &p.clientArgs}} {
					if e.s.name != "kernel" {
						*e.args = e.s.cmpeer(t, e.name, d.server.ip4, strconv.Itoa(port))
						continue
					}
					*e.args = []string{e.name, "-p", strconv.Itoa(port)}
					if e.s == d.client {
						*e.args = append(*e.args, "-s", d.server.ip4)
					}
					if kind == "rdma_x" {
						*e.args = append(*e.args, "-c", "r")
					}
				}
				serverOut, clientOut := p.run(t)
				ours := serverOut
				if d.client.name != "kernel" {
					ours = clientOut
				}
				if !strings.Contains(ours, "DONE") || (kind == "rdma_" || d.client.name == "kernel") && !strings.Contains(ours, "RECEIVED 16\n") {
					t.Errorf("verbena's side:\n%s", ours)
				}
			})
		}
	}
}
