package rollout

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/node/nodeinstall"
	"github.com/pullpass/pullpass/internal/node/progress"
)

// work is one pass over the node.
type work struct {
	*Agent
	node   *corev1.Node // as last read
	before Record       // at the start of the pass
	now    Record
	next   time.Duration // until the next pass
	took   bool          // the turn, in this pass
}

// do returns an error only if the Record could not be written.
func (w *work) do(ctx context.Context) error {
	if w.config.Desired == nil {
		return w.remove(ctx)
	}
	desired, err := w.config.Desired(ctx, w.node.Status.NodeInfo.KubeletVersion)
	if runtime := w.node.Status.NodeInfo.ContainerRuntimeVersion; len(desired.Hosts) > 0 && runtime != "" && !strings.HasPrefix(runtime, "containerd://") {
		err = fmt.Errorf("the node runs %s, which reads no hosts.toml, so pods' tokens would go to the registries behind the gateway; see pullpass node-install print", term.QuoteName(runtime))
	}
	if err != nil {
		return w.fail(ctx, err)
	}
	w.now = Record{Version: w.config.Version, Revision: revisionOf(desired)}
	var plan *nodeinstall.Plan
	apply := func(ctx context.Context) (err error) {
		if plan, err = w.installer.Status(desired); err != nil {
			return err
		}
		// The kubelet is healthy with any hosts.toml and CA. Only a pull shows that they are good.
		if plan.Renews && !plan.Restart && w.turn.allowed() != nil && !w.turn.hasWorked(ctx, w.now.Revision) {
			return errNotOurTurn
		}
		plan, err = w.installer.Apply(ctx, desired)
		if plan != nil {
			w.now.Profile, w.now.Digest = plan.Profile, plan.Digest
		}
		if err == nil && len(plan.Changes) > 0 {
			select {
			case w.applied <- struct{}{}:
			default: // one is on its way
			}
		}
		return err
	}
	present := w.keeper.begin(&desired)
	isDone, err := w.change(ctx, apply, Installing)
	if isDone {
		// It may have been damaged while no Agent ran. Other errors are those of the next pass.
		if repaired, _ := w.keeper.installer.Repair(present); len(repaired) > 0 {
			w.toldRepair(repaired)
		}
		return err
	}
	w.keeper.keep(&desired)
	if err := w.keeper.fight(time.Now()); err != nil && !w.gate.restarted {
		return w.fail(ctx, err)
	}
	if w.before.State == Ready && w.before.Digest == w.now.Digest && w.before.Revision == w.now.Revision && !w.took {
		return w.ready(ctx)
	}
	return w.verify(ctx)
}

// change runs Apply or Uninstall, in the node's turn if it needs one. It reports whether the pass
// is done, as it is with each error.
func (w *work) change(ctx context.Context, do func(context.Context) error, state State) (isDone bool, err error) {
	w.gate.restarted = false
	err = do(ctx)
	if errors.Is(err, errNotOurTurn) {
		if !isReady(w.node) {
			return true, w.wait(ctx, "the node is not Ready")
		}
		isNew := w.config.Taint && progress.HasTaint(w.node) && age(w.node, time.Now()) < newLimit
		during, wait, takeErr := w.turn.acquire(ctx, w.now.Revision, isNew)
		if takeErr != nil {
			// The log of one pod of many does not say why the roll-out stands still. The Node does, if it
			// is only the Lease that cannot be read or written.
			return true, w.wait(ctx, takeErr.Error())
		}
		if wait != "" {
			return true, w.wait(ctx, wait)
		}
		w.took = true
		err = w.restart(during, do, state)
		if during.Err() != nil {
			err = errors.Join(errLost, err)
		}
		if w.gate.restarted {
			w.mu.Lock()
			w.status.Restarts++
			w.mu.Unlock()
		}
		if err != nil && !w.gate.restarted {
			w.turn.end(ctx, nil, "") // nothing happened that affects other nodes
		}
	}
	switch {
	case err == nil:
		return false, nil
	case errors.Is(err, nodeinstall.ErrBusy) && w.hasBegun(state):
		w.next = turnInterval
		return true, w.report(ctx, state, err.Error()) // its result is not known yet
	case errors.Is(err, nodeinstall.ErrBusy):
		return true, w.wait(ctx, err.Error())
	case errors.Is(err, nodeinstall.ErrRejected) && w.hasBegun(state):
		return true, w.stop(ctx, Rejected, err)
	case errors.Is(err, nodeinstall.ErrRejected):
		w.next = driftInterval
		return true, w.report(ctx, Rejected, err.Error())
	case errors.Is(err, nodeinstall.ErrChanged):
		err = w.stop(ctx, Failed, err)
		w.next = driftInterval // each attempt restarts the kubelet
		return true, err
	case w.gate.restarted:
		return true, w.stop(ctx, Failed, err)
	}
	return true, w.fail(ctx, err)
}

// hasBegun reports whether this change was begun, and no Record has its result. It may have been begun by an earlier
// pass, after which the program was stopped or did not reach the API server.
func (w *work) hasBegun(state State) bool {
	return w.gate.restarted || w.before.State == state && w.before.Revision == w.now.Revision
}

// restart runs a change in the node's turn. It writes the Record before any change, so that
// the Node shows the state if the change ends this program.
func (w *work) restart(ctx context.Context, do func(context.Context) error, state State) error {
	if err := w.report(ctx, state, ""); err != nil {
		return err
	}
	// A pull before the restart does not prove that the new configuration works.
	if err := w.await(ctx, pullLimit, func() (string, error) {
		pods, err := w.cluster.probes(ctx, w.node.Name)
		if len(pods) > 0 {
			return "the pod that has tried a pull is still there", err
		}
		return "", err
	}); err != nil {
		return err
	}
	heartbeat := ready(w.node).LastHeartbeatTime
	if err := do(ctx); err != nil {
		return err
	}
	if !w.gate.restarted {
		return nil // the kubelet reads no changed file, or a different process has restarted it meanwhile
	}
	return w.await(ctx, readyLimit, func() (string, error) {
		if err := w.read(ctx); err != nil {
			return "", err
		}
		if c := ready(w.node); c.LastHeartbeatTime.Equal(&heartbeat) {
			return "the kubelet is healthy, but has not written the status of the Node", nil
		}
		return w.notReady(), nil
	})
}

// verify makes the node Ready after a successful pull.
func (w *work) verify(ctx context.Context) error {
	if err := w.report(ctx, Verifying, ""); err != nil {
		return errors.Join(err, w.stop(ctx, Failed, err))
	}
	err := w.await(ctx, readyLimit, func() (string, error) {
		err := w.read(ctx)
		return w.notReady(), err
	})
	if err == nil && w.config.Probe {
		err = w.await(ctx, pullLimit, func() (string, error) { return w.pull(ctx) })
	}
	if err != nil {
		return w.stop(ctx, Failed, err)
	}
	return w.ready(ctx)
}

// pull returns why no image was pulled yet.
func (w *work) pull(ctx context.Context) (string, error) {
	pods, err := w.cluster.probes(ctx, w.node.Name)
	if err != nil {
		return "", err
	}
	why := "there is no pod yet that tries a pull; see the DaemonSet's events, if there is none"
	for i := range pods {
		if pods[i].DeletionTimestamp != nil {
			continue
		}
		var is bool
		if is, why = pulled(&pods[i]); is {
			return "", nil
		}
		why = "the pod that tries a pull does not get its image: " + why
	}
	return why, nil
}

func (w *work) notReady() string {
	c := ready(w.node)
	if c.Status == corev1.ConditionTrue {
		return ""
	}
	return fmt.Sprintf("the node is not Ready: %s: %s", c.Reason, c.Message)
}

// await polls until why returns an empty reason. After the limit, it returns the reason as an
// error.
func (w *work) await(ctx context.Context, limit time.Duration, why func() (string, error)) error {
	for deadline := time.Now().Add(limit); ; {
		reason, err := why()
		switch {
		case err == nil && reason == "":
			return nil
		case !time.Now().Before(deadline) && err != nil:
			return err
		case !time.Now().Before(deadline):
			return fmt.Errorf("%s (after %s)", reason, limit)
		}
		select {
		case <-time.After(pollInterval):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// read reads the Node again.
func (w *work) read(ctx context.Context) error {
	node, err := w.cluster.again(ctx, w.node)
	if err == nil {
		w.node = node
	}
	return err
}

func (w *work) wait(ctx context.Context, reason string) error {
	w.next = turnInterval
	return w.report(ctx, Waiting, reason)
}

func (w *work) fail(ctx context.Context, err error) error {
	w.next = retryInterval
	return w.report(ctx, Failed, err.Error())
}

// ready passes the turn to other nodes, and admits pods to the node.
func (w *work) ready(ctx context.Context) error {
	w.next = driftInterval
	w.now.State = Ready
	if err := w.write(ctx, true); err != nil {
		return err
	}
	w.done(ctx, w.before.State == Ready && !w.took)
	return nil
}

// done passes the turn to other nodes. A stopped program may not have ended its turn.
func (w *work) done(ctx context.Context, wasDone bool) {
	if !wasDone || !w.ended {
		w.turn.end(ctx, nil, w.now.Revision)
		w.ended = true
	}
}

// stop notes that this node's turn failed, so that no other node gets the same change.
func (w *work) stop(ctx context.Context, state State, err error) error {
	if ctx.Err() != nil {
		return err // this program is being stopped; the next one continues
	}
	ctx = context.WithoutCancel(ctx) // without the Record, the next program would write a removed Stop again
	// The policy refuses a long text, and no other node would know of the failure.
	isPublished := w.turn.end(ctx, &Stop{Node: w.node.Name, UID: string(w.node.UID), Revision: w.now.Revision, Reason: term.Shorten(err.Error(), progress.MaxReason)}, "")
	if !isPublished && state == Rejected {
		state = Installing // it is not tried again: the next pass has to write the Stop
	}
	w.next = retryInterval
	return w.report(ctx, state, err.Error())
}

func (w *work) report(ctx context.Context, state State, reason string) error {
	w.now.State, w.now.Reason = state, reason
	return w.write(ctx, false)
}

// write writes the Record if it has changed.
func (w *work) write(ctx context.Context, untaint bool) error {
	was := progress.RecordOf(w.node)
	now := w.now.Following(was, time.Now())
	node, err := w.cluster.write(ctx, w.node, &now, untaint && w.config.Taint)
	if err != nil {
		return err
	}
	w.node = node
	w.told(node, was, now)
	return nil
}

// remove removes the installation.
func (w *work) remove(ctx context.Context) error {
	w.now = Record{Version: w.config.Version, Profile: w.before.Profile}
	var changes []nodeinstall.Change
	isDone, err := w.change(ctx, func(ctx context.Context) (err error) {
		changes, err = w.installer.Uninstall(ctx)
		return err
	}, Removing)
	if isDone {
		return err
	}
	w.next = driftInterval
	if _, err := w.cluster.write(ctx, w.node, nil, w.config.Taint); err != nil {
		return err
	}
	w.done(ctx, len(changes) == 0 && w.before == (Record{}))
	w.told(w.node, w.before, Record{})
	return nil
}
