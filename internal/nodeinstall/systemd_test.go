package nodeinstall

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/testkit"
)

// testStat is of a process whose name is no help to those who look for fields.
const testStat = "17 (pull) S 9 (pass) S 1 17 17 0 -1 4194560 1 0 0 0 1 1 0 0 20 0 8 0 5000 123 45 18446744073709551615 1 1\n"

// commands takes what would be run on the host.
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
	if command := (*run)[0]; !slices.Equal(command.Args, []string{"/usr/bin/systemctl", "restart", "kubelet.service"}) || command.SysProcAttr != nil {
		t.Errorf("%q in %+v", command.Args, command.SysProcAttr)
	}

	failure := errors.New("exit status 1")
	s, _ = commands(h, "/host", failure)
	if err := s.Watch(t.Context()); !errors.Is(err, failure) || err.Error() != "systemd-run on the host: exit status 1: said why; journalctl -u pullpass-node-install on the host has the reason" {
		t.Errorf("error %v", err)
	}
}

// The watcher is another process: it asks the state which unit that is.
func TestHostKubelet(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := newHost(t, "k3s")
		h.apply(desired("v1.36.2"))
		s, run := commands(h, "/", nil)
		testkit.Must(t, (&HostKubelet{Systemd: s}).Restart(t.Context()))
		if args := (*run)[0].Args; args[2] != "k3s-agent.service" {
			t.Errorf("%q", args)
		}
		for _, failure := range []error{errors.New("no such program"), &exec.ExitError{}} {
			s, _ := commands(h, "/", failure)
			_, ended := failure.(*exec.ExitError)
			if err := (&HostKubelet{Systemd: s}).Restart(t.Context()); !errors.Is(err, failure) || errors.Is(err, ErrUnhealthy) != ended {
				t.Errorf("error %v", err)
			}
		}
	})
}

// systemd counts on from what it had counted before, and says when it gives up.
func TestEnded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := newHost(t, "eks")
		h.apply(desired("v1.36.2"))
		s, _ := commands(h, "/", nil)
		answer := "NRestarts=17\nActiveState=active\n"
		s.Run = func(c *exec.Cmd) ([]byte, error) {
			if want := []string{"/usr/bin/systemctl", "show", "--property=NRestarts,ActiveState", "kubelet.service"}; c.Args[1] == "show" && !slices.Equal(c.Args, want) {
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
			{"ActiveState=activating\nNRestarts=20\n", "<nil>", 3, false},
			{"NRestarts=17\nActiveState=failed\n", "kubelet.service has ended, and systemd does not start it again", 0, true},
			{"NRestarts=17\nActiveState=inactive\n", "kubelet.service has ended, and systemd does not start it again", 0, true},
			{"ActiveState=active\n", "invalid syntax", -17, false},
		} {
			answer = test.answer
			times, err := k.Ended(t.Context())
			if times != test.times || errors.Is(err, ErrUnhealthy) != test.isGone || !strings.Contains(fmt.Sprint(err), test.text) {
				t.Errorf("%q: %d, %v", test.answer, times, err)
			}
		}
	})
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
	server.Close()
	if err := k.Healthy(t.Context()); err == nil {
		t.Error("a kubelet that does not listen is healthy")
	}
}
