package machinetest

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/testenv"
)

const undoLink = "/etc/systemd/system/multi-user.target.wants/pullpass-node-install-undo.service"

// broken is a node whose kubelet ends with what is installed: it has not switched on what 1.33 needs.
func broken(t *testing.T, h *host) {
	bare := h.tree(t)

	// The pod is gone as soon as the kubelet is, and only systemd sees how it goes on.
	beat, first := h.ready(t), h.process(t)
	ended := h.tries(t, first)
	start := time.Now()
	h.killInstaller(t)
	<-ended
	testenv.Await(t, podLimit, "the kubelet is back", func() bool { now := h.ready(t); return now != "" && now != beat })
	testenv.Await(t, podLimit, "the watcher is done", func() bool { return !h.isWatched(t) })
	h.saw("a kubelet that ends: rolled back without the pod", "ready %.0f s after its end", time.Since(start).Seconds())

	rolledBack, process := h.tree(t), h.process(t)
	output, err := h.install(t.Context(), append([]string{"apply"}, h.desired(t, registryName)...)...)
	if err == nil || !strings.Contains(output, "the kubelet did not come back with this configuration") || h.process(t) != process {
		t.Errorf("the second try: %v", err)
	}
	same(t, "after the second try", h.tree(t), rolledBack)
	h.saw("the same configuration again", "not tried")
	h.leave(t, bare)

	// The machine loses power while the kubelet is watched: no process watches it any more.
	ended = h.tries(t, h.process(t))
	beat = h.ready(t)
	if _, err := os.Lstat(h.Path(undoLink)); err != nil {
		t.Error(err)
	}
	h.PowerOff(t)
	<-ended
	h.Boot(t)
	testenv.Await(t, podLimit, "the kubelet is back", func() bool { now := h.ready(t); return now != "" && now != beat })
	if _, err := os.Lstat(h.Path(undoLink)); err == nil {
		t.Error("the unit that stood by is there still")
	}
	output, err = h.install(t.Context(), append([]string{"plan"}, h.desired(t, registryName)...)...)
	if err != nil || !strings.Contains(output, ", with a restart of ") {
		t.Errorf("plan says %s, %v", output, err)
	}
	h.saw("the power was gone while the kubelet was watched", "it started with what it had")
	h.leave(t, bare)

	// The watcher alone is killed, such as for lack of memory.
	ended = h.tries(t, h.process(t))
	testenv.Value(h.Run(t.Context(), "systemctl", "kill", "--signal=KILL", "pullpass-node-install.service"))(t)
	if output := <-ended; !strings.Contains(output, "the kubelet did not come back with this configuration") {
		t.Errorf("apply says %s", output)
	}
	h.saw("the watcher was killed", "another was started")
	h.leave(t, bare)
}

// tries starts to install, and returns when the kubelet was restarted. The output follows.
func (h *host) tries(t *testing.T, process string) (ended chan string) {
	t.Helper()
	args := append([]string{"apply"}, h.desired(t, registryName)...)
	ended = make(chan string, 1)
	go func() {
		output, _ := h.install(context.WithoutCancel(t.Context()), args...)
		ended <- output
	}()
	testenv.Await(t, podLimit, "the kubelet is restarted", func() bool { return h.process(t) != process })
	return ended
}

// killInstaller ends what would be in the pod, at once.
func (h *host) killInstaller(t *testing.T) {
	t.Helper()
	testenv.Value(h.Run(t.Context(), "sh", "-euc", `for p in /proc/[0-9]*; do
	case $(tr '\0' ' ' <"$p/cmdline") in
	*"node-install"" apply "* | *"systemd""-run "*) # not this shell:
		 kill -KILL "${p#/proc/}" ;;
	esac
done`))(t)
}

// isWatched says whether the watcher runs: a unit of type oneshot is never active.
func (h *host) isWatched(t *testing.T) bool {
	t.Helper()
	state := testenv.Value(h.Run(t.Context(), "systemctl", "show", "--property=ActiveState", "--value", "pullpass-node-install.service"))(t)
	return strings.TrimSpace(state) != "inactive"
}

// leave uninstalls.
func (h *host) leave(t *testing.T, bare map[string]string) {
	t.Helper()
	testenv.Value(h.install(t.Context(), "uninstall"))(t)
	same(t, "after uninstall", h.tree(t), bare)
}
