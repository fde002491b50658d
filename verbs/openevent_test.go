package verbs

import (
	"context"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// eager is a device whose target queue pairs have something to say before the call
// that opens them returns: others drive them meanwhile.
type eager struct {
	*fakeDevice
	told func()
}

func (eager) OpenXRCD(*driver.XRCDInitAttr) (driver.XRCD, error) { return fakeXRCD{}, nil }

func (eager) CreateXRCSRQ(driver.PD, driver.XRCD, driver.CQ, *ib.SRQAttr, driver.EventSink) (driver.SRQ, error) {
	panic("not called")
}

func (d eager) OpenXRCTarget(_ driver.XRCD, num ib.QPN, ev driver.EventSink) (driver.QP, error) {
	ev(ib.EventQPAccessErr)
	d.told()
	return &fakeQP{num: num}, nil
}

type fakeXRCD struct{}

func (fakeXRCD) Close() error { return nil }

// Events that come before the queue pair is whole wait until it is: what an
// application does with their queue pair at once would end it.
func TestOpenQPEventBeforeItReturns(t *testing.T) {
	done, cancel := context.WithCancel(context.Background())
	cancel()
	var c *Context
	c = NewContext(eager{newFake(), func() {
		if e, err := c.GetAsyncEvent(done); err == nil {
			t.Errorf("%v of a queue pair that is not there yet", e)
		}
	}})
	x, err := c.OpenXRCD(&XRCDInitAttr{})
	if err != nil {
		t.Fatal(err)
	}
	q, err := c.OpenQP(&QPOpenAttr{XRCD: x, QPNum: 7, Type: ib.XRCRecv})
	if err != nil {
		t.Fatal(err)
	}
	e, err := c.GetAsyncEvent(done)
	if err != nil || e.Type != ib.EventQPAccessErr || e.QP != q || e.QP.Num() != 7 {
		t.Fatalf("%v, %v", e, err)
	}
	e.Ack()
	if err := q.Destroy(); err != nil {
		t.Fatal(err)
	}
}
