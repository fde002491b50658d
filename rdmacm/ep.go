package rdmacm

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/verbs"
)

// resolveTimeout is what CreateEP gives ResolveAddr and ResolveRoute, as librdmacm.
const resolveTimeout = 2 * time.Second

// CreateEP makes a synchronous ID as ai says (rdma_create_ep). Passive: it is bound, and
// pd and attr are for the queue pairs that GetRequest makes. Active: address and route
// are resolved and the queue pair is created; its attr.Cap is updated. attr nil: no queue pair,
// pd is not looked at. Of a list the first entry counts.
// Errors are those of NewIDType, Bind, ResolveAddr, ResolveRoute and CreateQP; nothing is
// left then.
func (m *Manager) CreateEP(ctx context.Context, ai *AddrInfo, pd *verbs.PD, attr *verbs.QPInitAttr) (*ID, error) {
	const op = "create_ep"
	if ai == nil {
		return nil, paramErr(op, "ai", "is nil", syscall.EINVAL)
	}
	h := *ai
	if err := h.complete(); err != nil {
		return nil, opErr(op, err)
	}
	if n := len(h.ConnectData); n > MaxPrivateConnect {
		return nil, paramErr(op, "ConnectData", fmt.Sprintf("%d bytes, want at most %d", n, MaxPrivateConnect), syscall.EINVAL)
	}
	id, err := m.newID(op, nil, h.PortSpace, h.QPType, nil)
	if err != nil {
		return nil, err
	}
	if h.Flags&RAIPassive != 0 {
		err = id.passiveEP(&h, pd, attr)
	} else {
		err = id.activeEP(ctx, &h, pd, attr)
	}
	if err != nil {
		id.DestroyEP(context.WithoutCancel(ctx))
		return nil, err
	}
	return id, nil
}

func (id *ID) passiveEP(ai *AddrInfo, pd *verbs.PD, attr *verbs.QPInitAttr) error {
	if err := id.Bind(ai.Src); err != nil {
		return err
	}
	id.m.mu.Lock()
	defer id.m.mu.Unlock()
	if attr != nil {
		init := *attr
		init.Type = ai.QPType
		id.qpInit = &init
		if pd != nil {
			id.pd = pd
		}
	}
	return nil
}

func (id *ID) activeEP(ctx context.Context, ai *AddrInfo, pd *verbs.PD, attr *verbs.QPInitAttr) error {
	if err := id.ResolveAddr(ctx, ai.Src, ai.Dst, resolveTimeout); err != nil {
		return err
	}
	if len(ai.Route) > 0 {
		if err := id.SetIBPath(ai.Route...); err != nil {
			return err
		}
		if err := id.complete(ctx, EventRouteResolved); err != nil {
			return opErr("set_option", err)
		}
	} else if err := id.ResolveRoute(ctx, resolveTimeout); err != nil {
		return err
	}
	if attr != nil {
		attr.Type = ai.QPType
		if err := id.CreateQP(pd, attr); err != nil {
			return err
		}
	}
	id.m.mu.Lock()
	defer id.m.mu.Unlock()
	id.prefix = slices.Clone(ai.ConnectData)
	return nil
}
