package rollout

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/pullpass/pullpass/internal/cluster/controller"
	"github.com/pullpass/pullpass/internal/node/progress"
)

const (
	// A turn lasts longer than a restart and a roll-back, which take 90 seconds each unless the
	// unit is slow to start. These continue if the Agent cannot reach the API server or has ended.
	// If they take longer, the node is not Ready when its turn is over, and the roll-out stops.
	turnDuration = 5 * time.Minute
	turnRenewal  = 20 * time.Second
	// turnFresh is how long after a renewal a restart may begin.
	turnFresh = time.Minute

	// revisionKey is an annotation: the revision to which the holder's node is being changed. Without a holder,
	// it is the revision with which the last node became Ready, or empty if that node did not.
	revisionKey = "pullpass.dev/revision"
)

var (
	// errNotOurTurn prevents a restart while this node does not have the turn.
	errNotOurTurn = errors.New("it is not the turn of this node")
	errLost       = errors.New("the turn of this node ended before it was done: the Lease could not be renewed, or another node has it")
	errConflicts  = fmt.Errorf("other nodes changed the Lease %d times in a row", conflicts)
)

func setStop(found *coordinationv1.Lease, s *Stop) {
	if s == nil {
		delete(found.Annotations, progress.StopKey)
		return
	}
	text, _ := json.Marshal(s) // it has only strings
	annotate(found, progress.StopKey, string(text))
}

func annotate(found *coordinationv1.Lease, key, value string) {
	if found.Annotations == nil {
		found.Annotations = map[string]string{}
	}
	found.Annotations[key] = value
}

// identity names a node in the Lease. A recreated node of the same name has a different identity.
func identity(node, uid string) string { return node + "/" + uid }

// turn is the turn of this node. All methods except allowed are for one goroutine.
type turn struct {
	lease     controller.Lease
	cluster   cluster
	node, uid string
	log       *slog.Logger

	stop func() // ends the renewals; nil: none

	mu      sync.Mutex
	alone   bool      // this restart does not affect other nodes
	renewed time.Time // zero, which is long ago: this node does not have the turn
}

// isOwn reports whether the Stop is because of this node. A different node can write any UID into its
// Stop, but this node could not remove that.
func (t *turn) isOwn(s *Stop) bool { return s != nil && s.UID == t.uid && s.Node == t.node }

// allowed is called right before the kubelet is restarted.
func (t *turn) allowed() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.alone || t.lease.Now().Before(t.renewed.Add(turnFresh)) {
		return nil
	}
	return errNotOurTurn
}

// hasWorked reports whether a node became Ready with a revision, and none failed with it.
func (t *turn) hasWorked(ctx context.Context, revision string) bool {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	found, err := t.lease.Read(ctx)
	if err != nil {
		return false // acquire reports it
	}
	s := progress.StopOf(found)
	return controller.Holder(found) == "" && found.Annotations[revisionKey] == revision && (s == nil || s.Revision != revision)
}

// acquire begins the turn, and returns a context that ends if the turn is lost. Otherwise it returns
// why this node must wait.
//
// A node with alone set does not run any pods of users yet, so it does not wait. But it does not
// get a change that has failed elsewhere.
func (t *turn) acquire(ctx context.Context, revision string, alone bool) (during context.Context, wait string, err error) {
	asking, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	found, err := t.lease.Read(asking)
	if err != nil {
		return nil, "", err
	}
	if s := progress.StopOf(found); s != nil && s.Revision == revision && !t.isOwn(s) {
		node, err := t.cluster.get(ctx, s.Node)
		if err != nil {
			return nil, "", err
		}
		if node != nil && string(node.UID) == s.UID {
			return nil, s.String(), nil
		}
		setStop(found, nil) // the node is gone, so the cause cannot be examined there
	}
	if alone {
		t.set(true, time.Time{})
		return ctx, "", nil
	}
	if t.lease.Taken(found) {
		return nil, waiting, nil
	}
	if wait, err := t.supersede(asking, found, revision); wait != "" || err != nil {
		return nil, wait, err
	}
	began := t.lease.Now()
	t.lease.Claim(found)
	annotate(found, revisionKey, revision)
	if is, err := t.lease.Write(asking, found); !is {
		return nil, waiting, err
	}
	t.set(false, began)
	during, lose := context.WithCancel(ctx)
	renewing, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { t.renew(renewing, lose); close(done) }()
	t.stop = func() { stop(); <-done; lose() }
	return during, "", nil
}

// waiting does not name the holder: otherwise all nodes would write their Records at each turn.
const waiting = "the turn of other nodes comes first"

// supersede judges the node whose turn expired without a result, if there is one. If that node is
// not Ready, the roll-out stops.
func (t *turn) supersede(ctx context.Context, found *coordinationv1.Lease, revision string) (wait string, err error) {
	holder := controller.Holder(found)
	if holder == "" || holder == t.lease.Identity {
		return "", nil
	}
	name, uid, _ := strings.Cut(holder, "/")
	node, err := t.cluster.get(ctx, name)
	if node == nil || string(node.UID) != uid || isReady(node) {
		return "", err
	}
	s := &Stop{Node: name, UID: uid, Revision: found.Annotations[revisionKey], Reason: "it was restarted, is not Ready, and its installer says nothing"}
	setStop(found, s)
	found.Spec.HolderIdentity = new(string)
	annotate(found, revisionKey, "") // with which no node became Ready
	if _, err := t.lease.Write(ctx, found); err != nil {
		return "", err
	}
	if s.Revision == revision {
		return s.String(), nil
	}
	return waiting, nil // the next pass finds no holder
}

func (t *turn) set(alone bool, renewed time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.alone, t.renewed = alone, renewed
}

// renew calls lose when a different node has the turn, or may have it.
func (t *turn) renew(ctx context.Context, lose func()) {
	for {
		select {
		case <-time.After(turnRenewal):
		case <-ctx.Done():
			return
		}
		began := t.lease.Now()
		isHeld, err := t.hold(ctx)
		t.mu.Lock()
		if isHeld {
			t.renewed = began
		}
		isLost := err == nil && !isHeld || !began.Before(t.renewed.Add(turnDuration-turnRenewal))
		t.mu.Unlock()
		switch {
		case ctx.Err() != nil:
			return
		case isLost:
			t.log.Error(errLost.Error(), "error", err)
			lose()
			return
		case err != nil:
			t.log.Warn("cannot renew the turn of this node", "error", err)
		}
	}
}

// hold renews the Lease, and reports whether this node still has it. Other nodes may write the Lease
// at any time, to stop the roll-out, so a conflict does not mean that the turn is lost.
func (t *turn) hold(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	for range conflicts {
		found, err := t.lease.Read(ctx)
		if err != nil || controller.Holder(found) != t.lease.Identity {
			return false, err
		}
		t.lease.Claim(found)
		if is, err := t.lease.Write(ctx, found); is || err != nil {
			return is, err
		}
	}
	return false, errConflicts
}

// end passes the turn to other nodes, and publishes whether they may get the same change. worked is
// the revision with which this node is Ready. If that fails, the turn expires and the next node judges
// this one.
func (t *turn) end(ctx context.Context, failure *Stop, worked string) (isPublished bool) {
	t.leave()
	// The end is published even when the Agent is stopped.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
	defer cancel()
	err := t.publish(ctx, failure, worked)
	if err != nil {
		t.log.Warn("cannot say that the turn of this node has ended", "error", err)
	}
	return err == nil
}

func (t *turn) publish(ctx context.Context, failure *Stop, worked string) error {
	for range conflicts {
		if isDone, err := t.release(ctx, failure, worked); isDone || err != nil {
			return err
		}
	}
	return errConflicts
}

// leave ends this program's part in the turn. The node keeps the turn, because its kubelet may be
// restarting. The next program on the node continues it.
func (t *turn) leave() {
	if t.stop != nil {
		t.stop()
		t.stop = nil
	}
	t.set(false, time.Time{})
}

func (t *turn) release(ctx context.Context, failure *Stop, worked string) (bool, error) {
	found, err := t.lease.Read(ctx)
	if err != nil {
		return false, err
	}
	now := progress.StopOf(found)
	ours := controller.Holder(found) == t.lease.Identity
	if !ours && failure == nil && !t.isOwn(now) {
		return true, nil
	}
	if !ours && now != nil && failure != nil && *now == *failure {
		return true, nil
	}
	if ours {
		found.Spec.HolderIdentity = new(string)
		annotate(found, revisionKey, worked)
	}
	if failure != nil || t.isOwn(now) {
		setStop(found, failure)
	}
	return t.lease.Write(ctx, found)
}
