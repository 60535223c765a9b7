package rollout

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pullpass/pullpass/internal/node/nodeinstall"
)

const (
	// maxRepairs within repairWindow are made at once. After that, repairs have an interval, so that
	// two programs that rewrite the files do not keep the node busy. The plugin gives no token
	// meanwhile.
	maxRepairs     = 6
	repairWindow   = time.Minute
	repairInterval = repairWindow / maxRepairs

	busyInterval = 500 * time.Millisecond // while the installation itself changes
)

// keeper restores files as soon as a change is reported. It restarts nothing, and does not wait for
// the API server.
type keeper struct {
	installer *nodeinstall.Installer

	mu        sync.Mutex
	installed *nodeinstall.Desired // nil: nothing is restored
	isCurrent bool                 // it is the current one, not only the desired one
	repairs   []time.Time          // within the last repairWindow
	count     uint64
	contested time.Time // when maxRepairs was last reached or exceeded; zero, which is long ago: never
	reason    string
}

// keep sets the current installation.
func (k *keeper) keep(d *nodeinstall.Desired) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.installed, k.isCurrent = d, true
}

// begin sets the desired installation, and returns the one by which files are restored. That is the current
// one if it is known: this Agent may have been started while its node waits.
func (k *keeper) begin(d *nodeinstall.Desired) nodeinstall.Desired {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.isCurrent {
		k.installed = d
	}
	return *k.installed
}

// repaired notes a repair, and returns the delay until the next one.
func (k *keeper) repaired(changes []nodeinstall.Change, now time.Time) (wait time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.count += uint64(len(changes))
	for len(k.repairs) > 0 && now.Sub(k.repairs[0]) >= repairWindow {
		k.repairs = k.repairs[1:]
	}
	k.repairs = append(k.repairs, now)
	if len(k.repairs) < maxRepairs {
		return 0
	}
	k.contested = now
	k.reason = fmt.Sprintf("another program changes %s again and again (%d times within %s); end it, or have it leave these files alone (docs/how-to/kubelet.md). Until then pulls are anonymous whenever they are not as they are to be",
		pathsOf(changes), maxRepairs, repairWindow)
	return repairInterval
}

// fight returns why the node is not Ready, although its files are correct at the moment.
func (k *keeper) fight(now time.Time) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if now.Sub(k.contested) >= driftInterval {
		return nil
	}
	return errors.New(k.reason)
}

func (k *keeper) repairsSoFar() uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.count
}

func pathsOf(changes []nodeinstall.Change) string {
	var paths []string
	for _, c := range changes {
		paths = append(paths, c.Path)
	}
	return strings.Join(paths, ", ")
}

// Files returns the paths of the files that Repair restores, as this process sees them.
func (a *Agent) Files() []string { return a.keeper.installer.Repairable() }

// Applied has a message when an installation may have changed what Files returns.
func (a *Agent) Applied() <-chan struct{} { return a.applied }

// Repair restores the node's files that others have changed. The caller calls it after a change of
// one of them, never concurrently. It returns when the next repair may follow.
func (a *Agent) Repair(ctx context.Context) error {
	k := a.keeper
	for {
		k.mu.Lock()
		installed := k.installed
		k.mu.Unlock()
		if installed == nil {
			return nil
		}
		changes, err := k.installer.Repair(*installed)
		if errors.Is(err, nodeinstall.ErrBusy) {
			if !sleep(ctx, busyInterval) {
				return nil
			}
			continue
		}
		if len(changes) == 0 {
			return err
		}
		a.toldRepair(changes)
		isKnown := k.fight(time.Now()) != nil
		if wait := k.repaired(changes, time.Now()); wait > 0 {
			if !isKnown {
				select {
				case a.fought <- struct{}{}: // the pass writes it to the Record
				default:
				}
			}
			sleep(ctx, wait)
		}
		return err
	}
}

func (a *Agent) toldRepair(changes []nodeinstall.Change) {
	a.config.Logger.Warn("another program changed files of the node, which were put back", "node", a.config.Node, "files", pathsOf(changes))
	a.event(corev1.EventTypeWarning, "NodeInstallRepaired", "another program changed "+pathsOf(changes)+", which was put back")
}

// sleep reports whether ctx lasted until the end of d.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
