package roce

// Limits of an IDTracker.
const (
	idLow       = 128       // identifications below are those of the segments of one send
	idLearnLow  = 16        // so many of them, and nothing else, make an address that sends no others
	idWindow    = 4096      // how far a counting sender may go on, or packets be reordered
	idTracks    = 4         // counters that one address may have (several network cards or programs behind it)
	idFade      = 512       // a counter not seen in so many packets is forgotten
	idCostBad   = 1024      // one implausible packet in 1024 in the long run ...
	idCostLimit = 4 * 1024  // ... or 4 at once are more than corruption explains: the sender does not fit the model
	idTick      = 1_000_000 // fastest clock tick of a Linux kernel, in ns
	idMaxTicks  = 0x10000   // more ticks make no difference
	idCostMax   = 4 * 4096  // keeps the way back to strict checking finite: so many plausible packets
)

// IDTracker judges the identifications that Path.Solve finds, for one peer address and one of ours. Solve lets one corrupt packet in 65536 pass,
// with a random identification. Real senders do not choose theirs at random, so most of those can be recognised:
//
//   - A sender that uses UDP sockets with segmentation offload, as this stack does, gives the k-th datagram of a send the
//     identification k. Values below 128 are always plausible.
//   - Others count. The Linux kernel has one counter for a pair of addresses (and for other pairs, by hash), so it counts the
//     packets of all queue pairs, and other packets too. A value is plausible within 4096 of the last one in either direction.
//
// The first packets of an address are believed, since nothing is known of it. After that a counter may still jump: the kernel
// adds a random number of clock ticks up to the time it was idle (PlausibleAt allows for that), and senders restart. So an
// implausible value is remembered, and if the next implausible one continues it, that is a counter from then on: a jump costs one
// packet, which the sender's retransmission replaces. Two corrupt packets that pass Solve and agree are rarer than 1 in 2^32.
// Up to four counters are known at a time.
//
// No sender is locked out: when implausible values come more often than corruption can explain, the model does not fit the sender,
// and everything is accepted until its values have been plausible for some thousand packets.
//
// The zero value is ready. An IDTracker is not safe for concurrent use. It holds no pointer and allocates nothing.
type IDTracker struct {
	now    int64 // latest time seen
	tracks [idTracks]idTrack
	cand   idTrack // implausible value that waits for its successor; life 0 = none
	cost   uint16  // weight of recent implausible packets
	low    uint8   // low values seen while nothing else was known, saturating at idLearnLow
	open   bool    // everything is accepted
}

// idTrack is a counter of the sender.
type idTrack struct {
	seen int64  // time of the last packet
	last uint16 // furthest value
	life uint16 // packets until it is forgotten; 0 = unused
}

// match reports whether id continues the counter at time now, and follows it.
func (k *idTrack) match(now int64, id uint16) bool {
	ahead := idWindow + int(min(max(now-k.seen, 0)/idTick, idMaxTicks))
	switch {
	case int(id-k.last) <= ahead:
		k.last = id
	case k.last-id > idWindow:
		return false
	}
	k.life, k.seen = idFade, now
	return true
}

// Plausible is PlausibleAt for callers without a clock: no time has passed since the last packet.
func (t *IDTracker) Plausible(id uint16) bool { return t.PlausibleAt(t.now, id) }

// PlausibleAt reports whether a packet with the solved identification id, received at now (in ns, of any epoch), is what its sender
// would send, and learns from it. If not, the packet should be dropped and counted. A counter's window grows by one for every
// clock tick since its last packet (1 ms is the fastest tick there is), so after a minute of silence anything is plausible.
func (t *IDTracker) PlausibleAt(now int64, id uint16) bool {
	t.now = max(t.now, now)
	if t.judge(id) {
		if t.cost > 0 {
			t.cost--
		} else {
			t.open = false
		}
		return true
	}
	t.cost = min(t.cost+idCostBad, idCostMax)
	if t.cost >= idCostLimit {
		t.open = true
	}
	return t.open
}

// judge decides by the model alone.
func (t *IDTracker) judge(id uint16) bool {
	hit, known := false, false
	for i := range t.tracks {
		k := &t.tracks[i]
		if k.life == 0 {
			continue
		}
		known = true
		if hit || !k.match(t.now, id) {
			k.life--
		} else {
			hit = true
		}
	}
	switch {
	case hit:
		return true
	case id < idLow:
		if t.low < idLearnLow {
			t.low++
		}
		return true
	case !known && t.low < idLearnLow, t.cand.life != 0 && t.cand.match(t.now, id):
		t.cand.life = 0
		t.learn(id)
		return true
	}
	t.cand = idTrack{seen: t.now, last: id, life: 1}
	return false
}

// learn adds a counter, in place of the one that was silent longest.
func (t *IDTracker) learn(id uint16) {
	oldest := &t.tracks[0]
	for i := range t.tracks {
		if t.tracks[i].life < oldest.life {
			oldest = &t.tracks[i]
		}
	}
	*oldest = idTrack{seen: t.now, last: id, life: idFade}
}
