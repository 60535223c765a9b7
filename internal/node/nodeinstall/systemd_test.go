package nodeinstall

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pullpass/pullpass/internal/node/hostfs"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// testStat is of a process whose name contains text that looks like fields.
const testStat = "17 (pull) S 9 (pass) S 1 17 17 0 -1 4194560 1 0 0 0 1 1 0 0 20 0 8 0 5000 123 45 18446744073709551615 1 1\n"

// commands records the commands for the host.
func commands(h *host, root string, failure error) (Systemd, *[]*exec.Cmd) {
	var all []*exec.Cmd
	h.put("usr/bin/systemctl", "")
	h.put("bin/systemd-run", "")
	h.put("proc/17/stat", testStat)
	return Systemd{Tree: h.tree, HostRoot: root, PID: 17, Stat: []byte(testStat), Run: func(c *exec.Cmd) ([]byte, error) {
		all = append(all, c)
		if c.Args[1] == "show" {
			return []byte("NRestarts=17\nActiveState=active\n"), failure
		}
		return []byte(" said why\n"), failure
	}}, &all
}

func TestSystemd(t *testing.T) {
	t.Parallel()
	h := newHost(t, "eks")
	s, run := commands(h, "/host", nil)
	testkit.Must(t, s.Ready(t.Context()))
	testkit.Must(t, s.Watch(t.Context()))
	command := (*run)[0]
	want := []string{"/bin/systemd-run", "--unit=pullpass-node-install", "--description=Pullpass: restart of the kubelet", "--collect", "--quiet", "--property=Type=oneshot",
		"/proc/17/exe", "node-install", "watch", "--host-root=/"}
	if command.Path != want[0] || !slices.Equal(command.Args, want) || command.SysProcAttr.Chroot != "/host" || command.Dir != "/" {
		t.Errorf("%q in %+v", command.Args, command.SysProcAttr)
	}

	s, run = commands(h, "/", nil)
	testkit.Must(t, s.RestartUnit(t.Context(), "kubelet.service"))
	// The drop-ins of the disk count, and a unit that has ended too often is started all the same.
	for i, want := range [][]string{{"/usr/bin/systemctl", "daemon-reload"}, {"/usr/bin/systemctl", "reset-failed", "kubelet.service"}} {
		if !slices.Equal((*run)[i].Args, want) {
			t.Errorf("%q, want %q", (*run)[i].Args, want)
		}
	}
	if command := (*run)[2]; !slices.Equal(command.Args, []string{"/usr/bin/systemctl", "restart", "kubelet.service"}) || command.SysProcAttr != nil {
		t.Errorf("%q in %+v", command.Args, command.SysProcAttr)
	}

	// systemd-run does not say that another program has stopped the kubelet.
	failure := errors.New("exit status 1")
	testkit.Must(t, alone(h.tree, func(s *state) error { s.Unit = "kubelet.service"; return s.save() }))
	for state, isStopped := range map[string]bool{"active": false, "inactive": true} {
		s.Run = func(c *exec.Cmd) ([]byte, error) {
			if slices.Equal(c.Args[1:], []string{"show", "--property=NRestarts,ActiveState,Result", "kubelet.service"}) {
				return []byte("NRestarts=0\nActiveState=" + state + "\n"), nil
			}
			return nil, failure
		}
		if err := s.Watch(t.Context()); !errors.Is(err, failure) || errors.Is(err, ErrStopped) != isStopped {
			t.Errorf("%s: error %v", state, err)
		}
	}

	s, _ = commands(h, "/host", failure)
	if err := s.Watch(t.Context()); !errors.Is(err, failure) || err.Error() != "systemd-run on the host: exit status 1: said why; journalctl -u pullpass-node-install on the host has the reason" {
		t.Errorf("error %v", err)
	}
}

// The watcher is a different process: it reads the unit from the state.
func TestHostKubelet(t *testing.T) {
	onHost(t, "k3s", func(t *testing.T, h *host) {
		h.apply(desired("v1.36.2"))
		s, run := commands(h, "/", nil)
		testkit.Must(t, (&HostKubelet{Systemd: s}).Restart(t.Context()))
		if args := (*run)[2].Args; args[2] != "k3s-agent.service" {
			t.Errorf("%q", args)
		}
	})
}

// A failure of systemd itself proves nothing about the kubelet's configuration.
func TestARestartThatFails(t *testing.T) {
	noBus := &exec.ExitError{Stderr: []byte("Failed to connect to bus")}
	for name, test := range map[string]struct {
		failure, showFailure error
		state, text          string
		isUnhealthy          bool
	}{
		"no such program":                 {failure: errors.New("no such program"), state: "failed"},
		"no bus":                          {failure: noBus, showFailure: noBus},
		"refused, it goes on":             {failure: &exec.ExitError{}, state: "active"},
		"it has ended":                    {failure: &exec.ExitError{}, state: "failed", isUnhealthy: true},
		"it is started again":             {failure: &exec.ExitError{}, state: "activating", isUnhealthy: true},
		"it was stopped":                  {failure: &exec.ExitError{}, state: "inactive"},
		"it is being stopped":             {failure: &exec.ExitError{}, state: "deactivating\nResult=success"},
		"it is ending":                    {failure: &exec.ExitError{}, state: "deactivating\nResult=exit-code", isUnhealthy: true},
		"it was stopped while it started": {failure: &exec.ExitError{}, state: "failed", text: "Job for kubelet.service canceled.\n"},
	} {
		t.Run(name, func(t *testing.T) {
			onHost(t, "eks", func(t *testing.T, h *host) {
				h.apply(desired("v1.36.2"))
				s, _ := commands(h, "/", nil)
				s.Run = func(c *exec.Cmd) ([]byte, error) {
					if c.Args[1] == "show" {
						c.Path, c.Args = "/bin/sh", []string{"sh", "-c", "exit 0"} // it is not run after its context has ended
						if err := c.Run(); err != nil {
							return nil, err
						}
						return []byte("NRestarts=17\nActiveState=" + test.state + "\n"), test.showFailure
					}
					return []byte(test.text), test.failure
				}
				// The time limit of the start has passed.
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				k := &HostKubelet{Systemd: s}
				if err := k.Restart(ctx); !errors.Is(err, test.failure) || errors.Is(err, ErrUnhealthy) != test.isUnhealthy {
					t.Errorf("error %v", err)
				}

				// A good configuration is then tried again.
				d := desired("v1.36.2")
				d.Provider = []byte(strings.Replace(testProvider, "0s", "1s", 1))
				h.watcher = watching{h, k}
				_, err := h.Apply(t.Context(), d)
				if errors.Is(err, ErrRejected) != test.isUnhealthy || !errors.Is(err, test.failure) {
					t.Errorf("error %v", err)
				}
				if plan, err := h.Status(d); err != nil || plan.Rejected != test.isUnhealthy || !plan.Restart || h.read(ownProvider) != testProvider {
					t.Errorf("%+v, %v", plan, err)
				}
			})
		})
	}
}

// watching is a host with a different kubelet.
type watching struct {
	*host
	kubelet Kubelet
}

func (w watching) Watch(ctx context.Context) error { return Watch(ctx, w.tree, w.kubelet) }

// systemd continues its earlier count, and reports when it gives up.
func TestEnded(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		h.apply(desired("v1.36.2"))
		s, _ := commands(h, "/", nil)
		answer := "NRestarts=17\nActiveState=active\n"
		s.Run = func(c *exec.Cmd) ([]byte, error) {
			if want := []string{"/usr/bin/systemctl", "show", "--property=NRestarts,ActiveState,Result", "kubelet.service"}; c.Args[1] == "show" && !slices.Equal(c.Args, want) {
				t.Errorf("%q", c.Args)
			}
			return []byte(answer), nil
		}
		k := &HostKubelet{Systemd: s}
		testkit.Must(t, k.Restart(t.Context()))
		for _, test := range []struct {
			answer, text string
			times        int
			isGone       bool
		}{
			{"NRestarts=17\nActiveState=active\n", "<nil>", 0, false},
			{"ActiveState=activating\nNRestarts=20\n", "systemd starts it again", 3, false},
			{"NRestarts=17\nActiveState=failed\n", "kubelet.service has ended, and systemd does not start it again", 0, true},
			{"NRestarts=17\nActiveState=inactive\n", "another program has stopped the kubelet; start it: kubelet.service is inactive", 0, false},
			{"NRestarts=0\nActiveState=deactivating\nResult=success\n", "another program has stopped the kubelet; start it: kubelet.service is inactive", -17, false},
			{"NRestarts=18\nActiveState=deactivating\nResult=exit-code\n", "<nil>", 1, false},
			{"NRestarts=18\nActiveState=active\nResult=success\n", "<nil>", 1, false},
			{"ActiveState=active\n", "invalid syntax", -17, false},
			{"ActiveState=failed\n", "invalid syntax", -17, false},
		} {
			answer = test.answer
			times, err := k.Ended(t.Context())
			if times != test.times || errors.Is(err, ErrUnhealthy) != test.isGone || !strings.Contains(fmt.Sprint(err), test.text) {
				t.Errorf("%q: %d, %v", test.answer, times, err)
			}
		}
	})
}

// A program that is missing, silent or cannot be looked for is named.
func TestProgramsOfSystemd(t *testing.T) {
	t.Parallel()
	h := newHost(t, "eks")
	s, _ := commands(h, "/host", nil)
	failure := errors.New("exit status 1")
	s.Run = func(*exec.Cmd) ([]byte, error) { return []byte(" \n"), failure }
	if err := s.RestartUnit(t.Context(), "x"); textOf(err) != "systemctl on the host: exit status 1" {
		t.Errorf("error %v", err)
	}
	if _, _, err := s.Restarts(t.Context(), "x"); !errors.Is(err, failure) {
		t.Errorf("error %v", err)
	}
	h.tree.Failing = func(name string) error {
		if name == "/usr/bin/systemd-run" {
			return unix.EIO
		}
		return nil
	}
	if err := s.Ready(t.Context()); !errors.Is(err, unix.EIO) {
		t.Errorf("error %v", err)
	}
	h.tree.Failing = nil
	testkit.Remove(t, filepath.Join(h.dir, "usr/bin/systemctl"))
	if err := s.RestartUnit(t.Context(), "x"); !errors.Is(err, ErrProfile) || !strings.Contains(err.Error(), "usr/bin/systemctl is not there") {
		t.Errorf("error %v", err)
	}
	testkit.Remove(t, filepath.Join(h.dir, "proc/17/stat"))
	h.put("proc/17/stat/x", "")
	if err := s.Ready(t.Context()); !errors.Is(err, hostfs.ErrNotRegular) {
		t.Errorf("error %v", err)
	}
}

func TestHealthz(t *testing.T) {
	t.Parallel()
	status := http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
	defer server.Close()
	k := &HostKubelet{Client: server.Client(), URL: server.URL}
	testkit.Must(t, k.Healthy(t.Context()))
	status = http.StatusInternalServerError
	if err := k.Healthy(t.Context()); err == nil || !strings.HasSuffix(err.Error(), ": 500 Internal Server Error") {
		t.Errorf("error %v", err)
	}
	if err := (&HostKubelet{URL: ":"}).Healthy(t.Context()); err == nil {
		t.Error("an address that is none is healthy")
	}
	server.Close()
	if err := k.Healthy(t.Context()); err == nil {
		t.Error("a kubelet that does not listen is healthy")
	}
}
