package shard

import (
	"testing"
	"time"
)

// Looks call the thread when nobody has the role, go on for as long as somebody polls, end when a waiter has
// the role for long, and begin anew when it lets go.
func TestLooks(t *testing.T) {
	e, _ := newIdle(1)
	l := &looker{e: e, pause: pollQuiet}
	l.timer = time.AfterFunc(time.Hour, func() {})
	defer l.timer.Stop()
	called := func() bool {
		select {
		case <-e.nudge:
			return true
		default:
			return false
		}
	}
	again := func() bool { return l.timer.Stop() } // whether there would be another look

	again()
	if l.look(); !called() || again() {
		t.Error("nobody makes progress: the thread is to be called, and looks no more")
	}
	e.byThread.Store(true)
	if l.look(); called() || again() {
		t.Error("the thread is at it: no look is needed")
	}
	e.byThread.Store(false)
	for range 2 * parkAfter {
		e.lastPoll.Store(e.cfg.Clock() + int64(time.Hour)) // somebody polls
		if l.look(); called() || !again() || e.parked.Load() {
			t.Fatal("while somebody polls there is always another look")
		}
	}
	if l.pause != idleLook {
		t.Errorf("looks every %v", l.pause)
	}
	e.lastPoll.Store(-int64(time.Hour))
	if !e.tryRole() {
		t.Fatal("the role is taken")
	}
	for range parkAfter {
		if l.look(); called() || !again() || e.parked.Load() {
			t.Fatal("looks end too early")
		}
	}
	if l.look(); called() || again() || !e.parked.Load() {
		t.Error("a waiter has the role for long: looks are to end")
	}
	e.leaveRole()
	if l.again(); !again() || l.pause != pollQuiet {
		t.Error("looks do not begin anew")
	}
}
