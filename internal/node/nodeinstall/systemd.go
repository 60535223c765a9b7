package nodeinstall

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/pullpass/pullpass/internal/node/hostfs"
)

// showLimit is the time limit for systemd to return the state of a unit.
const showLimit = 30 * time.Second

// stopped is the ActiveState of a unit that was told to stop. One that ends with an error is failed, or
// activating.
const stopped = "inactive"

// watchUnit is the unit that runs the watcher. While it runs, systemd starts no second one.
const watchUnit = "pullpass-node-install"

// Systemd runs programs of the host in the host's root directory. From a pod, this needs hostPID,
// so that systemctl talks to the host's systemd. It also needs a privileged container for
// chroot(2). nsenter is not needed, so the image does not have to contain it. If systemd is
// missing, Ready returns an error instead of exit code 127.
type Systemd struct {
	Tree     *hostfs.Tree
	HostRoot string
	PID      int    // of this process
	Stat     []byte // its /proc/self/stat
	// Run is (*exec.Cmd).CombinedOutput.
	Run func(*exec.Cmd) ([]byte, error)
}

var _ Watcher = Systemd{}

// Ready returns an error if a part of systemd is missing.
func (s Systemd) Ready(context.Context) error {
	// sd_booted(3)
	if is, err := s.Tree.Exists("/run/systemd/system"); !is {
		return errors.Join(err, fmt.Errorf("%w: systemd does not run the host (%s is not there), so nothing would restart the kubelet; see pullpass node-install print", ErrProfile, s.Tree.Path("/run/systemd/system")))
	}
	// Otherwise systemd would be told to run a different program of the host.
	program, err := readIfThere(s.Tree, fmt.Sprintf("/proc/%d/stat", s.PID))
	if err != nil {
		return err
	}
	if process(program) != process(s.Stat) || len(s.Stat) == 0 {
		return fmt.Errorf("%w: %s is not this process: give the pod hostPID", ErrProfile, s.Tree.Path(fmt.Sprintf("/proc/%d", s.PID)))
	}
	for _, name := range []string{"systemctl", "systemd-run"} {
		if _, err := s.find(name); err != nil {
			return err
		}
	}
	return nil
}

// Watch makes systemd run "node-install watch" on the host, and waits for its end. It continues if
// this process ends.
func (s Systemd) Watch(ctx context.Context) error {
	// A unit of type oneshot counts as started when it has ended. --wait would need D-Bus, which
	// minimal nodes such as those of kind do not have.
	_, err := s.run(ctx, "systemd-run", "--unit="+watchUnit, "--description=Pullpass: restart of the kubelet", "--collect", "--quiet", "--property=Type=oneshot",
		// It leads to this program even if the host does not have the file.
		fmt.Sprintf("/proc/%d/exe", s.PID), "node-install", "watch", "--host-root=/")
	if err == nil {
		return nil
	}
	err = fmt.Errorf("%w; journalctl -u %s on the host has the reason", err, watchUnit)
	// Of the reasons, only this one is not about the configuration.
	if state, readErr := readState(s.Tree); readErr == nil {
		if _, is, showErr := s.Restarts(ctx, state.Unit); showErr == nil && is == stopped {
			err = fmt.Errorf("%w: %w", ErrStopped, err)
		}
	}
	return err
}

// process returns the start time of a process from its stat (proc_pid_stat(5), field 22). It
// distinguishes the process from others with the same number.
func process(stat []byte) string {
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 20 {
		return ""
	}
	return fields[19]
}

// RestartUnit restarts a unit, and returns when it was started.
func (s Systemd) RestartUnit(ctx context.Context, unit string) error {
	// The plan judges the unit and its drop-ins as they are on the disk, but systemd would start the unit
	// as it last read them. Nor would it start a unit that has ended five times within ten seconds,
	// unless the unit has other limits (StartLimitIntervalSec=): the kubelet would stay down after a
	// roll-back. If one of these fails, the restart decides.
	_, _ = s.run(ctx, "systemctl", "daemon-reload")
	_, _ = s.run(ctx, "systemctl", "reset-failed", unit)
	_, err := s.run(ctx, "systemctl", "restart", unit)
	return err
}

// Restarts returns how often systemd has restarted a unit that had ended by itself, and the unit's
// ActiveState.
func (s Systemd) Restarts(ctx context.Context, unit string) (times int, state string, err error) {
	out, err := s.run(ctx, "systemctl", "show", "--property=NRestarts,ActiveState,Result", unit)
	if err != nil {
		return 0, "", err
	}
	values := map[string]string{}
	for line := range strings.Lines(out) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		values[key] = value
	}
	if state = values["ActiveState"]; state == "deactivating" && values["Result"] == "success" {
		state = stopped // soon: it has not ended by itself
	}
	times, err = strconv.Atoi(values["NRestarts"])
	return times, state, err
}

func (s Systemd) run(ctx context.Context, name string, args ...string) (string, error) {
	program, err := s.find(name)
	if err != nil {
		return "", err
	}
	command := exec.CommandContext(ctx, program, args...) //nolint:gosec // constants of this package
	command.Dir = "/"
	if s.HostRoot != "/" {
		command.SysProcAttr = &syscall.SysProcAttr{Chroot: s.HostRoot}
	}
	out, err := s.Run(command)
	if err != nil {
		if text := strings.TrimSpace(string(out)); text != "" {
			err = fmt.Errorf("%w: %s", err, text)
		}
		return "", fmt.Errorf("%s on the host: %w", name, err)
	}
	return string(out), nil
}

func (s Systemd) find(name string) (program string, err error) {
	for _, dir := range []string{"/usr/bin/", "/bin/"} {
		if is, err := s.Tree.Exists(dir + name); err != nil || is {
			return dir + name, err
		}
	}
	return "", fmt.Errorf("%w: %s is not there; see pullpass node-install print", ErrProfile, s.Tree.Path("/usr/bin/"+name))
}

// HostKubelet is the kubelet of a host with systemd, for a process in the host's network.
type HostKubelet struct {
	Systemd Systemd
	Client  *http.Client
	URL     string // of its healthz

	unit     string
	restarts int // count of systemd before the restart
}

var _ Kubelet = (*HostKubelet)(nil)

// DefaultHealthz is the URL at which kubelets answer by default (healthzBindAddress, healthzPort),
// including those of k3s, RKE2 and MicroK8s.
const DefaultHealthz = "http://127.0.0.1:10248/healthz"

func (k *HostKubelet) Restart(ctx context.Context) error {
	s, err := readState(k.Systemd.Tree)
	if err != nil {
		return err
	}
	k.unit = s.Unit
	err = k.Systemd.RestartUnit(ctx, k.unit)
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		// systemctl does not distinguish a kubelet that did not start from a systemd that could not
		// be asked to start it.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), showLimit)
		defer cancel()
		_, state, showErr := k.Systemd.Restarts(ctx, k.unit)
		switch {
		case showErr != nil || state == "active":
		// A unit that is stopped during its ExecStartPre= has failed, but the job of its start was canceled.
		case state == stopped, strings.HasSuffix(err.Error(), " canceled."):
			err = fmt.Errorf("%w: %s is %s: %w", ErrStopped, k.unit, state, err)
		default:
			err = fmt.Errorf("%w: %s is %s: %w", ErrUnhealthy, k.unit, state, err)
		}
		return errors.Join(err, showErr)
	}
	if err == nil {
		// systemd keeps its count for a unit that it was about to restart anyway.
		k.restarts, _, err = k.Systemd.Restarts(ctx, k.unit)
	}
	return err
}

func (k *HostKubelet) Ended(ctx context.Context) (int, error) {
	restarts, state, err := k.Systemd.Restarts(ctx, k.unit)
	switch {
	case err != nil:
	case state == stopped:
		err = fmt.Errorf("%w: %s is %s", ErrStopped, k.unit, state)
	case state == "failed":
		err = fmt.Errorf("%w: %s has ended, and systemd does not start it again", ErrUnhealthy, k.unit)
	case state == "activating":
		err = ErrStarting
	}
	return restarts - k.restarts, err
}

func (k *HostKubelet) Healthy(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, k.URL, nil)
	if err != nil {
		return err
	}
	response, err := k.Client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }() // nothing was written
	_, err = io.Copy(io.Discard, io.LimitReader(response.Body, 1<<10))
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", k.URL, response.Status)
	}
	return err
}
