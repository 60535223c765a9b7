package nodeinstall

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// A kubelet that does not become healthy gets its previous configuration, and the same
// configuration is never retried.
func TestRollBack(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		h.apply(desired("v1.36.2"))
		installed := h.files()
		d := desired("v1.36.2")
		d.Provider = []byte(strings.Replace(testProvider, "0s", "1s", 1))
		ill := errors.New("connection refused")
		h.kubelet.sick = func() error {
			if h.read(ownProvider) != testProvider {
				return ill
			}
			return nil
		}
		start := time.Now()
		_, err := h.Apply(t.Context(), d)
		if !errors.Is(err, ErrRejected) || !errors.Is(err, ErrUnhealthy) || !errors.Is(err, ill) || h.kubelet.restarts != 3 {
			t.Errorf("error %v, %d restarts", err, h.kubelet.restarts)
		}
		if took := time.Since(start); took < patience || took > patience+10*time.Second {
			t.Errorf("it took %s", took)
		}
		got := h.files()
		got["/var/lib/pullpass/node-install/state.json"] = installed["/var/lib/pullpass/node-install/state.json"]
		for name := range got {
			if strings.HasPrefix(name, backupDir+"/") && installed[name] == "" {
				delete(got, name)
			}
		}
		h.expect("after the roll-back", got, installed)

		h.kubelet.sick = nil
		h.untouched(ErrRejected, "", func() error { _, err := h.Apply(t.Context(), d); return err })
		if plan, err := h.Status(d); err != nil || !plan.Rejected {
			t.Errorf("%+v, %v", plan, err)
		}
		testkit.Remove(t, filepath.Join(h.dir, hostsTOML)) // the kubelet's current configuration still needs it
		if _, err := h.Apply(t.Context(), d); !errors.Is(err, ErrRejected) || h.read(hostsTOML) != testHosts {
			t.Errorf("error %v", err)
		}
		if plan := h.apply(desired("v1.36.2")); len(plan.Changes) > 0 {
			t.Errorf("%q", actions(plan))
		}
		h.expectUninstalled()
		if h.apply(d); h.read(ownProvider) != string(d.Provider) {
			t.Error("after uninstall it is not tried again")
		}
	})
}

// A roll-back of the first installation restores the files that the kubelet reads.
func TestRollBackOfTheFirst(t *testing.T) {
	for _, version := range []string{"v1.36.2", "v1.33.5"} {
		t.Run(version, func(t *testing.T) {
			onHost(t, "eks", func(t *testing.T, h *host) {
				h.kubelet.sick = func() error {
					if h.files()["/"+eksFlags] != h.before["/"+eksFlags] || h.files()["/"+eksConfig] != h.before["/"+eksConfig] {
						return errors.New("flapping")
					}
					return nil
				}
				if _, err := h.Apply(t.Context(), desired(version)); !errors.Is(err, ErrRejected) {
					t.Errorf("error %v", err)
				}
				s := testkit.Value(readState(h.tree))(t)
				if len(s.Entries) > 0 || s.Pending != nil {
					t.Errorf("%+v", s)
				}
				h.expectNothing()
				h.untouched(ErrRejected, "", func() error { _, err := h.Apply(t.Context(), desired(version)); return err })
				h.expectUninstalled()
			})
		})
	}
}

// An untested configuration is rolled back, and may be tried again.
func TestNobodyCouldRestart(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		h.kubelet.lost = errors.New("no such program")
		if _, err := h.Apply(t.Context(), desired("v1.36.2")); !errors.Is(err, h.kubelet.lost) || errors.Is(err, ErrRejected) {
			t.Errorf("error %v", err)
		}
		if got := h.files()["/"+eksFlags]; got != h.before["/"+eksFlags] || h.kubelet.restarts != 1 {
			t.Errorf("%d restarts, %s", h.kubelet.restarts, got)
		}
		h.kubelet.lost = nil
		h.apply(desired("v1.36.2"))
		h.expectWanted("eks", "want/")
	})
}

// The host is shut down while the kubelet is watched: it starts with its previous configuration.
func TestShutdownWhileWatching(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		ctx, shutDown := context.WithCancel(t.Context())
		h.kubelet.sick = func() error { shutDown(); return errors.New("going down") }
		if _, err := h.Apply(ctx, desired("v1.36.2")); !errors.Is(err, context.Canceled) || errors.Is(err, ErrRejected) {
			t.Errorf("error %v", err)
		}
		if got := h.files()["/"+eksFlags]; got != h.before["/"+eksFlags] || h.kubelet.restarts != 1 {
			t.Errorf("%d restarts, %s", h.kubelet.restarts, got)
		}
		h.kubelet.sick = nil
		h.apply(desired("v1.36.2"))
		h.expectWanted("eks", "want/")
	})
}

// Another program, such as an upgrade of the kubelet, stops the kubelet while it is watched.
func TestStoppedWhileWatching(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		stopped := fmt.Errorf("%w: it is inactive", ErrStopped)
		h.kubelet.ended = func() (int, error) { return 0, stopped }
		start := time.Now()
		if _, err := h.Apply(t.Context(), desired("v1.36.2")); !errors.Is(err, ErrStopped) || errors.Is(err, ErrUnhealthy) || errors.Is(err, ErrRejected) {
			t.Errorf("error %v", err)
		}
		if took := time.Since(start); took < patience {
			t.Errorf("it took %s", took)
		}
		// The kubelet is not started again: the other program knows why it has stopped it.
		if got := h.files()["/"+eksFlags]; got != h.before["/"+eksFlags] || h.kubelet.restarts != 1 {
			t.Errorf("%d restarts, %s", h.kubelet.restarts, got)
		}
		// This time, the other program starts it again.
		begun := time.Now()
		h.kubelet.ended = func() (int, error) {
			if time.Since(begun) < time.Minute {
				return 0, stopped
			}
			return 0, nil
		}
		h.apply(desired("v1.36.2"))
		h.expectWanted("eks", "want/")
	})
}

// systemd answers slowly at the end of the watch, or no longer.
func TestStoppedAtTheEndOfTheWatch(t *testing.T) {
	for name, answer := range map[string]func(ago time.Duration) error{
		"it is slow": func(time.Duration) error { time.Sleep(7 * time.Second); return ErrStopped },
		"it is silent": func(ago time.Duration) error {
			if ago > patience-5*time.Second {
				return errors.New("no answer")
			}
			return ErrStopped
		},
	} {
		t.Run(name, func(t *testing.T) {
			onHost(t, "eks", func(t *testing.T, h *host) {
				start := time.Now()
				h.kubelet.sick = func() error { return errors.New("connection refused") }
				h.kubelet.ended = func() (int, error) { return 0, answer(time.Since(start)) }
				if _, err := h.Apply(t.Context(), desired("v1.36.2")); !errors.Is(err, ErrStopped) || errors.Is(err, ErrUnhealthy) || errors.Is(err, ErrRejected) {
					t.Errorf("error %v", err)
				}
				if took := time.Since(start); took > patience+10*time.Second {
					t.Errorf("it took %s", took)
				}
				if plan := testkit.Value(h.Status(desired("v1.36.2")))(t); plan.Rejected || h.kubelet.restarts != 1 {
					t.Errorf("%d restarts, %+v", h.kubelet.restarts, plan)
				}
				h.kubelet.sick, h.kubelet.ended = nil, nil
				h.apply(desired("v1.36.2"))
			})
		})
	}
}

// The watcher is paused for longer than its patience, perhaps with the kubelet, which still gets its time.
func TestAPauseOfTheWatcher(t *testing.T) {
	for name, test := range map[string]struct {
		needs      time.Duration // of the kubelet, after the pause
		isRejected bool
	}{
		"the kubelet is healthy": {},
		"the kubelet needs time": {needs: time.Minute},
		"the kubelet stays ill":  {needs: patience, isRejected: true},
	} {
		t.Run(name, func(t *testing.T) {
			onHost(t, "eks", func(t *testing.T, h *host) {
				looks, thaw := 0, time.Time{}
				h.kubelet.sick = func() error {
					if looks++; looks == 3 {
						time.Sleep(2 * patience)
						thaw = time.Now()
					}
					if h.kubelet.restarts == 1 && looks > 2 && time.Since(thaw) < test.needs {
						return errors.New("starting")
					}
					return nil
				}
				if _, err := h.Apply(t.Context(), desired("v1.36.2")); errors.Is(err, ErrRejected) != test.isRejected || !test.isRejected && err != nil {
					t.Errorf("error %v", err)
				}
			})
		})
	}
}

// The other program starts the kubelet with the restored files: no restart is due any more.
func TestUninstallUnderAKubeletThatIsStopped(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		h.apply(desired("v1.36.2"))
		h.kubelet.ended = func() (int, error) { return 0, ErrStopped }
		if _, err := h.Uninstall(t.Context()); !errors.Is(err, ErrStopped) || h.kubelet.restarts != 2 {
			t.Errorf("%d restarts, error %v", h.kubelet.restarts, err)
		}
		h.kubelet.ended = nil
		h.expectUninstalled()
		if h.kubelet.restarts != 2 {
			t.Errorf("%d restarts", h.kubelet.restarts)
		}
	})
}

// A roll-back is not possible: the original files are already restored.
func TestAKubeletThatDoesNotComeBackAfterUninstall(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		h.apply(desired("v1.36.2"))
		h.kubelet.sick = func() error { return errors.New("ill") }
		if _, err := h.Uninstall(t.Context()); !errors.Is(err, ErrUnhealthy) || errors.Is(err, ErrRejected) || h.kubelet.restarts != 2 {
			t.Errorf("%d restarts, error %v", h.kubelet.restarts, err)
		}
		h.uninstall()
		h.expect("after another uninstall", h.files(), h.before)
	})
}

// A DaemonSet that continues during an uninstall is reported, and the state stays.
func TestAnApplyDuringAnUninstall(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		h.apply(desired("v1.36.2"))
		h.watcher = both{h}
		if _, err := h.Uninstall(t.Context()); err == nil || !strings.Contains(err.Error(), "were installed meanwhile") {
			t.Errorf("error %v", err)
		}
		h.watcher = h
		h.expectUninstalled()
	})
}

type both struct{ *host }

func (b both) Watch(ctx context.Context) error {
	testkit.Must(b.t, b.host.Watch(ctx))
	_, err := New(Config{Tree: b.tree, Watcher: b.host}).Apply(ctx, desired("v1.36.2"))
	return err
}

// A kubelet that responds only at times, because it is restarted again and again, is not healthy.
func TestAFlappingKubelet(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		asked := 0
		h.kubelet.sick = func() error {
			if asked++; asked%steady == 0 {
				return errors.New("starting")
			}
			return nil
		}
		if _, err := h.Apply(t.Context(), desired("v1.36.2")); !errors.Is(err, ErrRejected) {
			t.Errorf("error %v", err)
		}
	})
}

// The pod ends before the kubelet was restarted. The next one continues, and knows which files to
// restore.
func TestInterrupted(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		gone := errors.New("the pod is gone")
		h.watcher = lost{gone}
		if _, err := h.Apply(t.Context(), desired("v1.36.2")); !errors.Is(err, gone) || h.kubelet.restarts != 0 {
			t.Errorf("error %v", err)
		}
		h.watcher = lost{nil}
		if _, err := h.Apply(t.Context(), desired("v1.36.2")); err == nil || !strings.Contains(err.Error(), "was not restarted") {
			t.Errorf("error %v", err)
		}
		h.watcher = h
		h.kubelet.sick = func() error {
			if h.files()["/"+eksFlags] != h.before["/"+eksFlags] {
				return errors.New("ill")
			}
			return nil
		}
		d := desired("v1.36.2")
		d.Provider = []byte(strings.Replace(testProvider, "0s", "1s", 1))
		if _, err := h.Apply(t.Context(), d); !errors.Is(err, ErrRejected) {
			t.Errorf("error %v", err)
		}
		h.kubelet.sick = nil
		h.apply(desired("v1.36.2"))
		h.expectWanted("eks", "want/")
	})
}

type lost struct{ err error }

func (l lost) Ready(context.Context) error { return nil }
func (l lost) Watch(context.Context) error { return l.err }

// Without a watcher, nothing is written.
func TestNobodyToWatch(t *testing.T) {
	t.Parallel()
	h := newHost(t, "eks")
	h.watcher = Systemd{Tree: h.tree, HostRoot: h.dir, PID: 17, Stat: []byte(testStat)}
	h.untouched(ErrProfile, "is not this process: give the pod hostPID", func() error { _, err := h.Apply(t.Context(), desired("v1.36.2")); return err })
	h.put("proc/17/stat", strings.Replace(testStat, " 5000 ", " 12 ", 1)) // the host's own process 17
	h.untouched(ErrProfile, "is not this process: give the pod hostPID", func() error { _, err := h.Apply(t.Context(), desired("v1.36.2")); return err })
	h.put("proc/17/stat", strings.Replace(testStat, " S 1 ", " R 1 ", 1))
	h.untouched(ErrProfile, "usr/bin/systemctl is not there", func() error { _, err := h.Apply(t.Context(), desired("v1.36.2")); return err })
	testkit.Remove(t, filepath.Join(h.dir, "run"))
	h.untouched(ErrProfile, "systemd does not run the host", func() error { _, err := h.Apply(t.Context(), desired("v1.36.2")); return err })
}

// A kubelet that exits again and again is given up before the end of patience.
func TestAKubeletThatEnds(t *testing.T) {
	for name, test := range map[string]struct {
		times int
		err   error
		limit time.Duration
	}{
		"three times":                {hopeless, nil, 10 * time.Second},
		"for good":                   {0, ErrUnhealthy, 10 * time.Second},
		"twice":                      {hopeless - 1, nil, patience},
		"three times, and again":     {hopeless, ErrStarting, 10 * time.Second},
		"three times, but uncounted": {hopeless, errors.New("systemctl is busy"), patience},
	} {
		t.Run(name, func(t *testing.T) {
			onHost(t, "eks", func(t *testing.T, h *host) {
				isOld := func() bool { return h.files()["/"+eksFlags] == h.before["/"+eksFlags] }
				h.kubelet.sick = func() error {
					if isOld() {
						return nil
					}
					return errors.New("connection refused")
				}
				h.kubelet.ended = func() (int, error) { return test.times, test.err }
				start := time.Now()
				if _, err := h.Apply(t.Context(), desired("v1.36.2")); !errors.Is(err, ErrRejected) || !isOld() {
					t.Errorf("error %v", err)
				}
				if took := time.Since(start); took > test.limit+10*time.Second || took < test.limit-10*time.Second {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

// Any user of the node can listen at the address of the kubelet's healthz while the kubelet does not.
func TestAnotherProgramRespondsForTheKubelet(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		start := time.Now()
		isOld := func() bool { return h.files()["/"+eksFlags] == h.before["/"+eksFlags] }
		h.kubelet.ended = func() (int, error) { // it runs for two of every eleven seconds
			if took := time.Since(start); !isOld() && took%(11*time.Second) >= 2*time.Second {
				return int(took / (11 * time.Second)), ErrStarting
			}
			return 0, nil
		}
		if _, err := h.Apply(t.Context(), desired("v1.36.2")); !errors.Is(err, ErrRejected) || !errors.Is(err, ErrStarting) || !isOld() {
			t.Errorf("error %v", err)
		}
	})
}

// The host loses power after the kubelet's files were written, and before the kubelet was seen
// healthy with them.
func TestPowerLoss(t *testing.T) {
	for _, test := range []struct{ platform, version string }{{"eks", "v1.36.2"}, {"eks", "v1.33.5"}, {"k3s", "v1.36.2"}, {"microk8s", "v1.36.2"}} {
		t.Run(test.platform+"/"+test.version, func(t *testing.T) {
			onHost(t, test.platform, func(t *testing.T, h *host) {
				if test.platform == "eks" {
					testkit.Must(t, os.Chmod(filepath.Join(h.dir, eksConfig), 0o755|fs.ModeSetgid))
					h.before = h.files()
				}
				for _, change := range []string{"", "1s"} { // the first installation, and a change of it
					d := desired(test.version)
					if change != "" {
						h.apply(d)
						d.Provider = []byte(strings.Replace(testProvider, "0s", change, 1))
					}
					was := h.files()
					h.watcher = lost{errors.New("the power is gone")}
					if _, err := h.Apply(t.Context(), d); err == nil {
						t.Error("it went on")
					}
					h.boot()
					for name, text := range h.files() {
						if e := restartable(t, h, name); e && was[name] != text {
							t.Errorf("%s:\n%s\nwant\n%s", name, text, was[name])
						}
					}
					s, err := readState(h.tree)
					if err != nil || len(s.Pending.Before) > 0 || len(s.Rejected) > 0 {
						t.Errorf("%+v, %q, %v", s.Pending, s.Rejected, err)
					}
					h.boot() // nothing is left to undo
					h.watcher = h
					if plan := h.apply(d); !plan.Restart {
						t.Errorf("%+v", plan)
					}
				}
				h.expectUninstalled()
			})
		})
	}
}

// restartable reports whether the kubelet reads the file when it starts.
func restartable(t *testing.T, h *host, name string) bool {
	t.Helper()
	return name == "/"+eksFlags || name == "/"+eksConfig || strings.HasPrefix(name, "/etc/pullpass/") && !strings.HasSuffix(name, "credential-providers") ||
		strings.HasPrefix(name, "/etc/rancher/k3s/config.yaml.d/") || name == "/var/lib/rancher/credentialprovider/config.yaml" || name == "/var/snap/microk8s/8120/args/kubelet"
}

// boot does the same as systemd with the unit that stands by.
func (h *host) boot() {
	h.t.Helper()
	unit, err := os.ReadFile(filepath.Join(h.dir, undoLink))
	if errors.Is(err, fs.ErrNotExist) {
		// The link target is a path on the host.
		if target, err := os.Readlink(filepath.Join(h.dir, undoLink)); err == nil {
			unit = []byte(h.read(target))
		} else if h.files()[undoScript] != "" || h.files()[undoFile] != "" || h.files()[undoState] != "" {
			h.t.Error("the unit is there, and is not enabled")
		} else {
			return
		}
	}
	for _, line := range []string{"\nBefore=", "\nType=oneshot\n", "\nExecStart=/bin/sh " + undoScript + "\n"} {
		if !strings.Contains(string(unit), line) {
			h.t.Errorf("%q is not in the unit\n%s", line, unit)
		}
	}
	script := strings.ReplaceAll(h.read(undoScript), " /", " "+h.dir+"/")
	if output, err := exec.Command("sh", "-c", script).CombinedOutput(); err != nil {
		h.t.Fatalf("%v: %s\n%s", err, output, script)
	}
}

// The names, modes and links of files are arbitrary.
func TestUndoScript(t *testing.T) {
	t.Parallel()
	p := pending{Late: map[string]*version{
		"/b/ca.crt":     nil,
		"/b/hosts.toml": {Mode: 0o644, SHA256: "abc"},
	}, Before: map[string]*version{
		"/a/it's here":  nil,
		"/a/$(link) x":  {Mode: fs.ModeSymlink | 0o777, UID: 1, GID: 2, Link: "-n `x`"},
		"/a/file;x.yml": {Mode: 0o640 | fs.ModeSetuid | fs.ModeSticky, UID: 3, GID: 4, SHA256: "abc"},
	}}
	want := `set -eu
if [ -e '/a/.$(link) x.pullpass-before' ] || [ -L '/a/.$(link) x.pullpass-before' ]; then rm -f '/a/$(link) x'; mv -T '/a/.$(link) x.pullpass-before' '/a/$(link) x'; fi
rm -f '/a/.$(link) x.pullpass'
if [ -e '/a/.file;x.yml.pullpass-before' ] || [ -L '/a/.file;x.yml.pullpass-before' ]; then rm -f '/a/file;x.yml'; mv -T '/a/.file;x.yml.pullpass-before' '/a/file;x.yml'; fi
rm -f '/a/.file;x.yml.pullpass'
rm -f '/a/it'\''s here' '/a/.it'\''s here.pullpass'
if [ -e /b/.hosts.toml.pullpass-before ] || [ -L /b/.hosts.toml.pullpass-before ]; then rm -f /b/hosts.toml; mv -T /b/.hosts.toml.pullpass-before /b/hosts.toml; fi
rm -f /b/.hosts.toml.pullpass
rm -f /b/ca.crt /b/.ca.crt.pullpass
sync
mv -f /var/lib/pullpass/node-install/state.boot.json /var/lib/pullpass/node-install/state.json
rm -f /etc/systemd/system/multi-user.target.wants/pullpass-node-install-undo.service /etc/systemd/system/pullpass-node-install-undo.service /var/lib/pullpass/node-install/undo /var/lib/pullpass/node-install/state.rejected.json /var/lib/pullpass/node-install/state.before.json
`
	if got := string(p.script()); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

// A file that cannot be put back stays kept, so that the next attempt puts it back.
func TestARollBackThatFailsIsRepeated(t *testing.T) {
	t.Parallel()
	const config = "/etc/eks/image-credential-provider/config.json"
	for n := range 3 { // the roll-back reads it twice, and puts it back
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			onHost(t, "eks", func(t *testing.T, h *host) {
				h.apply(desired("v1.33.5"))
				before := withoutRecord(h.files())
				next, operations, fails := desired("v1.33.5"), 0, false
				next.Provider = []byte(strings.Replace(testProvider, "ghcr.io", "quay.io", 1))
				next.Hosts = map[string][]byte{"quay.io": []byte(testHosts)}
				h.kubelet.sick = func() error { fails = true; return errors.New("sick") }
				h.tree.Failing = func(name string) error {
					if fails && name == config {
						if operations++; operations == n+1 {
							return unix.EIO
						}
					}
					return nil
				}
				if _, err := h.Apply(t.Context(), next); !errors.Is(err, unix.EIO) {
					t.Errorf("%d operations: %v", operations, err)
				}
				h.tree.Failing = nil
				if _, err := h.Apply(t.Context(), next); !errors.Is(err, ErrRejected) {
					t.Error(err)
				}
				for name, text := range withoutRecord(h.files()) {
					if strings.HasPrefix(name, "/etc/eks") && text != before[name] {
						t.Errorf("%s: %s", name, text)
					}
				}
			})
		})
	}
}
