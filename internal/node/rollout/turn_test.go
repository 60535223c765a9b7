package rollout

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pullpass/pullpass/internal/cluster/controller"
	"github.com/pullpass/pullpass/internal/node/progress"
	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// ourself is the identity of the node of newTurn.
const ourself = "node/uid"

// newTurn returns the turn of a node, and its log.
func (f *fleet) newTurn() (*turn, *bytes.Buffer) {
	core, leases, _, err := newClients(f.rest())
	testkit.Must(f.t, err)
	log := &bytes.Buffer{}
	return &turn{
		lease:   controller.Lease{Client: leases, Namespace: namespace, Name: progress.LeaseName, Identity: ourself, Duration: turnDuration, Now: time.Now},
		cluster: cluster{client: core, namespace: namespace}, node: "node", uid: "uid", log: slog.New(slog.NewTextHandler(log, nil)),
	}, log
}

// putLease writes the Lease, whose holder was being changed to a revision.
func (f *fleet) putLease(holder, revision string, s *Stop) {
	annotations := kubetest.Object{revisionKey: revision}
	if s != nil {
		text, err := json.Marshal(s)
		testkit.Must(f.t, err)
		annotations[progress.StopKey] = string(text)
	}
	f.api.Put("leases", kubetest.Object{
		"metadata": kubetest.Object{"name": progress.LeaseName, "namespace": namespace, "annotations": annotations},
		"spec":     kubetest.Object{"holderIdentity": holder},
	})
}

// holder returns that of the Lease.
func (f *fleet) holder() string {
	spec, _ := f.api.Object("leases", namespace, progress.LeaseName)["spec"].(kubetest.Object)
	holder, _ := spec["holderIdentity"].(string)
	return holder
}

var forbidden = kubetest.Status(http.StatusForbidden, "Forbidden", "not yours")

// same compares what two Stops say; nil: none.
func same(a, b *Stop) bool { return a == nil && b == nil || a != nil && b != nil && *a == *b }

// A node gets the turn if no other has it, and no change that has failed on a node that is still there.
// An API server that does not answer is an error, and nothing is changed then.
func TestWhoGetsTheTurn(t *testing.T) {
	ofOther, ofOld := &Stop{Node: "other", UID: "other-uid", Revision: "r", Reason: "it failed"}, &Stop{Node: "other", UID: "other-uid", Revision: "old", Reason: "it failed"}
	ofOurs, ofOurNames := &Stop{Node: "node", UID: "uid", Revision: "r", Reason: "it failed"}, &Stop{Node: "node", UID: "uid-before", Revision: "r", Reason: "it failed"}
	silent := func(revision string) *Stop {
		return &Stop{Node: "other", UID: "other-uid", Revision: revision, Reason: "it was restarted, is not Ready, and its installer says nothing"}
	}
	for name, test := range map[string]struct {
		holder, revision string // of the Lease, before
		isOver           bool   // the Lease has expired
		stop             *Stop
		other, ours      string // UID of the Node, and whether it is Ready: "uid", "uid not Ready"; empty: no Node
		alone            bool
		fails            string // a request
		answer           http.HandlerFunc

		wait, err   string
		holderAfter string
		stopAfter   *Stop
	}{
		"it is free":                    {holderAfter: ourself},
		"ours already":                  {holder: ourself, isOver: true, ours: "uid not Ready", holderAfter: ourself},
		"others have it":                {holder: "other/other-uid", other: "other-uid", wait: waiting, holderAfter: "other/other-uid"},
		"of a Ready node, and over":     {holder: "other/other-uid", isOver: true, other: "other-uid", holderAfter: ourself},
		"of a lost node, with ours":     {holder: "other/other-uid", isOver: true, revision: "r", other: "other-uid not Ready", wait: silent("r").String(), stopAfter: silent("r")},
		"of a lost node, with another":  {holder: "other/other-uid", isOver: true, revision: "old", other: "other-uid not Ready", wait: waiting, stopAfter: silent("old")},
		"of a node that is gone":        {holder: "other/other-uid", isOver: true, holderAfter: ourself},
		"of a node that is another":     {holder: "other/other-uid", isOver: true, other: "new-uid not Ready", holderAfter: ourself},
		"of an unknown node":            {holder: "other/other-uid", isOver: true, other: "other-uid", fails: "get nodes", answer: forbidden, err: "not yours", holderAfter: "other/other-uid"},
		"the Stop cannot be written":    {holder: "other/other-uid", isOver: true, other: "other-uid not Ready", fails: "put leases", answer: forbidden, err: "not yours", holderAfter: "other/other-uid"},
		"the Lease cannot be read":      {fails: "get leases", answer: forbidden, err: "not yours"},
		"the Lease cannot be written":   {fails: "put leases", answer: forbidden, wait: waiting, err: "not yours"},
		"others are faster":             {fails: "put leases", answer: kubetest.Status(http.StatusConflict, "Conflict", "changed"), wait: waiting},
		"it failed elsewhere":           {stop: ofOther, other: "other-uid", wait: ofOther.String(), stopAfter: ofOther},
		"another change failed":         {stop: ofOld, other: "other-uid", holderAfter: ourself, stopAfter: ofOld},
		"it failed on a node that went": {stop: ofOther, holderAfter: ourself},
		"it failed on a former node":    {stop: ofOther, other: "new-uid", holderAfter: ourself},
		"it failed on an unknown node":  {stop: ofOther, other: "other-uid", fails: "get nodes", answer: forbidden, err: "not yours", stopAfter: ofOther},
		"it failed here":                {stop: ofOurs, ours: "uid", holderAfter: ourself, stopAfter: ofOurs},
		"it failed on ours before":      {stop: ofOurNames, ours: "uid", holderAfter: ourself},
		"a new node":                    {holder: "other/other-uid", other: "other-uid", alone: true, holderAfter: "other/other-uid"},
		"a new node, and it failed":     {stop: ofOther, other: "other-uid", alone: true, wait: ofOther.String(), stopAfter: ofOther},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, 0, func(t *testing.T, f *fleet) {
				for node, text := range map[string]string{"other": test.other, "node": test.ours} {
					if uid, notReady, _ := strings.Cut(text, " "); uid != "" {
						status := map[bool]string{true: "True", false: "False"}[notReady == ""]
						f.api.Put("nodes", kubetest.Object{
							"metadata": kubetest.Object{"name": node, "uid": uid},
							"status":   kubetest.Object{"conditions": []any{kubetest.Object{"type": "Ready", "status": status}}},
						})
					}
				}
				f.putLease(test.holder, test.revision, test.stop)
				turn, _ := f.newTurn()
				testkit.Value(turn.lease.Read(t.Context()))(t)
				if test.isOver {
					time.Sleep(turnDuration)
				}
				if test.fails != "" {
					f.api.Fail(test.fails, test.answer)
				}
				during, wait, err := turn.acquire(t.Context(), "r", test.alone)
				if wait != test.wait || (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
					t.Errorf("it waits for %q, error %v; want %q, %q", wait, err, test.wait, test.err)
				}
				got := test.wait == "" && test.err == ""
				if (during != nil) != got || (turn.allowed() == nil) != got {
					t.Errorf("during %v, allowed %v", during, turn.allowed())
				}
				if f.holder() != test.holderAfter || !same(f.stopped(), test.stopAfter) {
					t.Errorf("the holder is %q, stopped: %v; want %q, %v", f.holder(), f.stopped(), test.holderAfter, test.stopAfter)
				}
				// Once the Stop of a node that said nothing is removed, one node tries its change, not all.
				if lease, err := turn.lease.Read(t.Context()); err == nil && f.holder() == "" && lease.Annotations[revisionKey] != "" && test.holder != "" {
					t.Errorf("the revision %q counts as one that worked", lease.Annotations[revisionKey])
				}
				turn.leave()
			})
		})
	}
}

// A node ends its own turn alone, and writes and removes its own Stop alone. A text that is already there is
// not written again.
func TestWhatTheEndOfATurnWrites(t *testing.T) {
	failure, before, ofOther := &Stop{Node: "node", UID: "uid", Revision: "r", Reason: "it failed"}, &Stop{Node: "node", UID: "uid", Revision: "r", Reason: "it failed before"}, &Stop{Node: "other", UID: "other-uid", Revision: "r", Reason: "it failed"}
	conflict := kubetest.Status(http.StatusConflict, "Conflict", "changed")
	for name, test := range map[string]struct {
		holder        string
		stop, failure *Stop
		conflicts     int // the first writes that fail
		answer        http.HandlerFunc

		holderAfter string
		stopAfter   *Stop
		writes      int
		told        string
	}{
		"ours":                              {holder: ourself, writes: 1},
		"ours, and it failed":               {holder: ourself, failure: failure, stopAfter: failure, writes: 1},
		"ours, and it failed likewise":      {holder: ourself, stop: failure, failure: failure, stopAfter: failure, writes: 1},
		"ours, and it works now":            {holder: ourself, stop: before, writes: 1},
		"ours, and it failed elsewhere":     {holder: ourself, stop: ofOther, stopAfter: ofOther, writes: 1},
		"of others":                         {holder: "other/other-uid", holderAfter: "other/other-uid"},
		"of others, and it failed":          {holder: "other/other-uid", failure: failure, holderAfter: "other/other-uid", stopAfter: failure, writes: 1},
		"of others, and it failed likewise": {holder: "other/other-uid", stop: failure, failure: failure, holderAfter: "other/other-uid", stopAfter: failure},
		"of others, and it failed again":    {holder: "other/other-uid", stop: before, failure: failure, holderAfter: "other/other-uid", stopAfter: failure, writes: 1},
		"of others, and it works now":       {holder: "other/other-uid", stop: before, holderAfter: "other/other-uid", writes: 1},
		"of others, and it failed there":    {holder: "other/other-uid", stop: ofOther, holderAfter: "other/other-uid", stopAfter: ofOther},
		"of none":                           {},
		"others write it too":               {holder: ourself, conflicts: 1, answer: conflict, writes: 2},
		"others write it all the time":      {holder: ourself, conflicts: 99, answer: conflict, holderAfter: ourself, writes: conflicts, told: "5 times in a row"},
		"it cannot be written":              {holder: ourself, conflicts: 99, answer: forbidden, holderAfter: ourself, writes: 1, told: "not yours"},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, 0, func(t *testing.T, f *fleet) {
				f.putLease(test.holder, "r", test.stop)
				turn, log := f.newTurn()
				left := test.conflicts
				if left > 0 {
					f.api.Fail("put leases", func(w http.ResponseWriter, r *http.Request) {
						if left--; left == 0 {
							f.api.Fail("put leases", nil)
						}
						test.answer(w, r)
					})
				}
				turn.end(t.Context(), test.failure, "")
				if writes := f.api.Count("put leases"); writes != test.writes {
					t.Errorf("%d writes, want %d", writes, test.writes)
				}
				if f.holder() != test.holderAfter || !same(f.stopped(), test.stopAfter) {
					t.Errorf("the holder is %q, stopped: %v; want %q, %v", f.holder(), f.stopped(), test.holderAfter, test.stopAfter)
				}
				if text := log.String(); (text == "") != (test.told == "") || !strings.Contains(text, test.told) {
					t.Errorf("the log is %q, want %q", text, test.told)
				}
			})
		})
	}
}

// Others have the turn at once when the Lease says so. An API server that does not answer ends the turn only after its time.
func TestRenewals(t *testing.T) {
	for name, test := range map[string]struct {
		disturb func(*fleet)
		lasts   time.Duration // of the turn
		told    string
	}{
		"others take the Lease":    {func(f *fleet) { f.putLease("other/other-uid", "r", nil) }, turnRenewal, "ended before it was done"},
		"it is deleted":            {func(f *fleet) { f.api.Remove("leases", namespace, progress.LeaseName) }, turnRenewal, "ended before it was done"},
		"it cannot be read":        {func(f *fleet) { f.api.Fail("get leases", forbidden) }, turnDuration - turnRenewal, "cannot renew the turn of this node\" error=\"the Lease " + progress.LeaseName + ": not yours"},
		"it cannot be written":     {func(f *fleet) { f.api.Fail("put leases", forbidden) }, turnDuration - turnRenewal, "cannot renew the turn of this node\" error=\"the Lease " + progress.LeaseName + ": not yours"},
		"nothing happens":          {func(*fleet) {}, 0, ""},
		"the agent ends meanwhile": {func(f *fleet) { f.api.Fail("get leases", kubetest.Hang) }, 0, ""},
		"others write a Stop there": {func(f *fleet) {
			f.putLease(ourself, "r", &Stop{Node: "other", UID: "other-uid", Revision: "x", Reason: "it failed"})
		}, 0, ""},
		"others write in the moment": {func(f *fleet) { f.api.Fail("put leases", once(f)) }, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, 0, func(t *testing.T, f *fleet) {
				f.putLease("", "", nil)
				turn, log := f.newTurn()
				during, _, err := turn.acquire(t.Context(), "r", false)
				testkit.Must(t, err)
				test.disturb(f)
				if test.lasts > 0 {
					time.Sleep(test.lasts - time.Second)
					if during.Err() != nil {
						t.Errorf("it is lost after less than %s", test.lasts)
					}
					time.Sleep(2 * time.Second)
					if during.Err() == nil {
						t.Errorf("it is not lost after %s", test.lasts)
					}
				} else {
					time.Sleep(turnRenewal + time.Second)
					if during.Err() != nil || turn.allowed() != nil {
						t.Errorf("it is lost: %v, %v", during.Err(), turn.allowed())
					}
				}
				turn.leave()
				f.api.Count("")
				time.Sleep(2 * turnRenewal)
				synctest.Wait()
				if requests := f.api.Asked(); len(requests) > 0 {
					t.Errorf("after the turn: %q", requests)
				}
				if text := log.String(); (text == "") != (test.told == "") || !strings.Contains(text, test.told) {
					t.Errorf("the log is %q, want %q", text, test.told)
				}
			})
		})
	}
}

// once answers one write with a conflict.
func once(f *fleet) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		f.api.Fail("put leases", nil)
		kubetest.Status(http.StatusConflict, "Conflict", "changed")(w, r)
	}
}

func newLease(stop string) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"a": "b", progress.StopKey: stop}}}
}

// A Stop is the text that this package writes, and no other.
func TestWhatIsAStop(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]*Stop{
		``: nil, `null`: nil, `{`: nil, `{"node":"a","uid":1}`: nil, `{"uid":"u","node":"a"}`: nil, `{"node":"a","node":"b","uid":"u"}`: nil,
		`{"node":"a","uid":"u","revision":"r","reason":"x"}`: {Node: "a", UID: "u", Revision: "r", Reason: "x"},
	} {
		found := newLease(text)
		if got := progress.StopOf(found); !same(got, want) {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
		setStop(found, nil)
		if _, is := found.Annotations[progress.StopKey]; is || found.Annotations["a"] != "b" {
			t.Errorf("%s: %v", text, found.Annotations)
		}
	}
}
