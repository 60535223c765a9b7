package replicatest

import (
	"strings"
	"testing"

	"github.com/pullpass/pullpass/e2e/pullpass"
)

// unavailable is the reason of state.replay for an answer that only Redis has.
const unavailable = "unavailable"

// judgeLines judges what all replicas of a fleet wrote down, when its scenarios are over. A pod's request never counts as a replay;
// a request of others with its token always does, if the owner is known.
func (f *fleet) judgeLines(t *testing.T, forgets bool) {
	t.Helper()
	counts := map[string]int{}
	unseen := map[string]bool{} // tokens that were presented while their owners were unknown
	for _, replica := range f.all() {
		for _, e := range replica.Audit(t) {
			if e.Replay != nil && e.Replay.Reason == unavailable {
				unseen[e.CredentialID] = true
			}
		}
	}
	wrong := func(e pullpass.Event) bool {
		replay := e.Replay != nil && !e.Replay.Passed
		switch kind(strings.TrimPrefix(e.Client, "load/")) {
		case kindPull, kindKnown, kindForeign, kindGreedy, kindProbe:
			return replay && e.Replay.Reason != unavailable
		case kindReplayed:
			return !replay
		case kindStolen:
			return !replay && !forgets && !(f.mode == audit && unseen[e.CredentialID])
		case kindRevoked:
			return e.Reason != "revoked"
		}
		return false
	}
	for _, replica := range f.all() {
		for _, e := range replica.Audit(t) {
			if e.Replay != nil {
				counts[e.Client+" "+e.Replay.Reason]++
			}
			if wrong(e) {
				t.Errorf("%s: a wrong audit line: %+v, replay %+v", f.mode, e, e.Replay)
				return
			}
		}
	}
	f.load.mu.Lock()
	defer f.load.mu.Unlock()
	if f.load.accepted == 0 || f.load.refused == 0 {
		t.Errorf("%s: the registry accepted %d tokens and refused %d, want some of both", f.mode, f.load.accepted, f.load.refused)
	}
	f.report.note("%s: %d requests of pods, %d replays seen; the registry gave %d manifests for a sample of the tokens and refused %d of another namespace",
		f.mode, counts["load/pull "], counts["load/stolen other_caller"]+counts["load/replayed other_caller"], f.load.accepted, f.load.refused)
}
