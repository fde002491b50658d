package cm

import (
	"strings"

	"github.com/verbena-rdma/verbena/internal/wire/mad"
)

// attrs is the number of messages of connection management.
const attrs = int(mad.AttrAPR-mad.AttrREQ) + 1

// Drop says why a message was dropped.
type Drop uint8

// Reasons to drop.
const (
	DropShort         Drop = iota // fewer than 256 bytes
	DropBaseVersion               // unknown base version
	DropClass                     // not connection management, or another method than Send
	DropClassVersion              // another class version (a REQ and a SIDR_REQ are answered besides)
	DropAttr                      // unknown message
	DropUnknownID                 // no connection has these ids
	DropState                     // the connection does not expect it in its state
	DropQPN                       // a DREQ for another queue pair than the connection's
	DropBacklog                   // the listener has as many undecided requests as its backlog
	DropPending                   // Config.MaxPending requests are undecided
	DropConns                     // Config.MaxConns connections exist
	DropAlternatePath             // LAP and APR: there are no alternate paths over RoCE, Linux drops them too
	drops             = int(DropAlternatePath) + 1
)

var dropNames = [drops]string{
	"short", "base_version", "class", "class_version", "attribute", "unknown_id", "state", "qpn", "backlog", "pending", "conns",
	"alternate_path",
}

// String returns the name of the reason.
func (d Drop) String() string {
	if int(d) < drops {
		return dropNames[d]
	}
	return "unknown"
}

// Counters count since New, by message (AttrID - AttrREQ) or reason. The first four groups are named and counted as Linux's
// counters of the port are (cm_rx_msgs and so on).
type Counters struct {
	RxMsgs       [attrs]uint64 // messages received, of a known class and version
	RxDuplicates [attrs]uint64 // of these, duplicates and strays
	TxMsgs       [attrs]uint64 // messages sent, repetitions included
	TxRetries    [attrs]uint64 // of these, repetitions because no answer came
	Drops        [drops]uint64
}

// Rx returns how many messages of a kind came in.
func (c *Counters) Rx(a mad.AttrID) uint64 { return at(&c.RxMsgs, a) }

// Dup returns how many of them were duplicates or strays.
func (c *Counters) Dup(a mad.AttrID) uint64 { return at(&c.RxDuplicates, a) }

// Tx returns how many messages of a kind were sent.
func (c *Counters) Tx(a mad.AttrID) uint64 { return at(&c.TxMsgs, a) }

// Retries returns how many of them were repetitions.
func (c *Counters) Retries(a mad.AttrID) uint64 { return at(&c.TxRetries, a) }

func at(v *[attrs]uint64, a mad.AttrID) uint64 { return v[a-mad.AttrREQ] }

// Each calls f for every counter: "cm_rx_msgs.req", ..., "cm_drops.backlog".
func (c *Counters) Each(f func(name string, v uint64)) {
	for _, g := range [...]struct {
		name string
		v    *[attrs]uint64
	}{
		{"cm_rx_msgs.", &c.RxMsgs},
		{"cm_rx_duplicates.", &c.RxDuplicates},
		{"cm_tx_msgs.", &c.TxMsgs},
		{"cm_tx_retries.", &c.TxRetries},
	} {
		for i, v := range g.v {
			f(g.name+strings.ToLower((mad.AttrREQ+mad.AttrID(i)).String()), v)
		}
	}
	for i, v := range c.Drops {
		f("cm_drops."+dropNames[i], v)
	}
}

func (m *Manager) drop(d Drop)        { m.counters.Drops[d]++ }
func (m *Manager) dup(a mad.AttrID)   { m.counters.RxDuplicates[a-mad.AttrREQ]++ }
func (m *Manager) stray(a mad.AttrID) { m.dup(a); m.drop(DropUnknownID) }
