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

	"github.com/pullpass/pullpass/internal/hostfs"
)

// watchUnit is the unit under which the watcher runs. While it does, systemd starts
// no second one.
const watchUnit = "pullpass-node-install"

// Systemd runs programs of the host in the host's root directory. From a pod, that
// needs hostPID, so that systemctl talks to the host's systemd, and a privileged
// container for chroot(2). nsenter is not needed: no image has to bring it along,
// and where there is no systemd, Ready says so instead of exit code 127.
type Systemd struct {
	Tree     *hostfs.Tree
	HostRoot string
	PID      int    // of this process
	Stat     []byte // its /proc/self/stat
	// Run is (*exec.Cmd).CombinedOutput.
	Run func(*exec.Cmd) ([]byte, error)
}

var _ Watcher = Systemd{}

// Ready says what of systemd is missing.
func (s Systemd) Ready(context.Context) error {
	// sd_booted(3)
	if is, err := s.Tree.Exists("/run/systemd/system"); err != nil || !is {
		return errors.Join(err, fmt.Errorf("%w: systemd does not run the host (%s is not there), so nothing would restart the kubelet; see pullpass node-install print", ErrProfile, s.Tree.Path("/run/systemd/system")))
	}
	// Else systemd would be told to run another program of the host.
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

// Watch has systemd run "node-install watch" on the host, and waits for its end.
// It goes on if this process does not.
func (s Systemd) Watch(ctx context.Context) error {
	// A unit of type oneshot has started when it has ended. --wait would need D-Bus, which minimal nodes such as kind's do not have.
	_, err := s.run(ctx, "systemd-run", "--unit="+watchUnit, "--description=Pullpass: restart of the kubelet", "--collect", "--quiet", "--property=Type=oneshot",
		// It leads to this program even if the host has no such file.
		fmt.Sprintf("/proc/%d/exe", s.PID), "node-install", "watch", "--host-root=/")
	if err != nil {
		return fmt.Errorf("%w; journalctl -u %s on the host has the reason", err, watchUnit)
	}
	return nil
}

// process returns what tells a process from others that have its number, by its
// stat: when it was started (proc_pid_stat(5), field 22).
func process(stat []byte) string {
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 20 {
		return ""
	}
	return fields[19]
}

// RestartUnit restarts a unit, and returns when it was started.
func (s Systemd) RestartUnit(ctx context.Context, unit string) error {
	_, err := s.run(ctx, "systemctl", "restart", unit)
	return err
}

// Restarts returns how often systemd has started a unit again, because it had ended
// by itself, and whether it will do so once more if it has.
func (s Systemd) Restarts(ctx context.Context, unit string) (times int, isOver bool, err error) {
	out, err := s.run(ctx, "systemctl", "show", "--property=NRestarts,ActiveState", unit)
	if err != nil {
		return 0, false, err
	}
	values := map[string]string{}
	for line := range strings.Lines(out) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		values[key] = value
	}
	times, err = strconv.Atoi(values["NRestarts"])
	return times, values["ActiveState"] == "failed" || values["ActiveState"] == "inactive", err
}

func (s Systemd) run(ctx context.Context, name string, args ...string) (string, error) {
	program, err := s.find(name)
	if err != nil {
		return "", err
	}
	command := exec.CommandContext(ctx, program, args...)
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

// HostKubelet is the kubelet of a host with systemd, for a process in the host's
// network.
type HostKubelet struct {
	Systemd Systemd
	Client  *http.Client
	URL     string // of its healthz

	unit     string
	restarts int // that systemd counted before
}

var _ Kubelet = (*HostKubelet)(nil)

// DefaultHealthz is where kubelets answer unless their configuration says otherwise
// (healthzBindAddress, healthzPort); those of k3s, RKE2 and MicroK8s, too.
const DefaultHealthz = "http://127.0.0.1:10248/healthz"

func (k *HostKubelet) Restart(ctx context.Context) error {
	s, err := readState(k.Systemd.Tree)
	if err != nil {
		return err
	}
	k.unit = s.Unit
	err = k.Systemd.RestartUnit(ctx, k.unit)
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		return fmt.Errorf("%w: %w", ErrUnhealthy, err)
	}
	if err == nil {
		// systemd does not forget what it counted of a unit that it was to start again anyway.
		k.restarts, _, err = k.Systemd.Restarts(ctx, k.unit)
	}
	return err
}

func (k *HostKubelet) Ended(ctx context.Context) (int, error) {
	restarts, isOver, err := k.Systemd.Restarts(ctx, k.unit)
	if err == nil && isOver {
		err = fmt.Errorf("%w: %s has ended, and systemd does not start it again", ErrUnhealthy, k.unit)
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
