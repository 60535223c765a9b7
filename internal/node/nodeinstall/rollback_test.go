package nodeinstall

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

const (
	quayHosts = "etc/containerd/certs.d/quay.io/hosts.toml"
	ghcrCA    = "etc/containerd/certs.d/ghcr.io/ca.crt"
)

// trial returns a desired state that changes every file, and adds a registry and a CA.
func trial() Desired {
	d := desired("v1.36.2")
	d.Plugin, d.CA = []byte("NEW PLUGIN\n"), []byte("CA\n")
	d.Hosts = map[string][]byte{"ghcr.io": []byte("NEW HOSTS\n"), "quay.io": []byte("NEW HOSTS\n")}
	d.Provider = []byte(strings.Replace(testProvider, `["ghcr.io"]`, `["ghcr.io", "quay.io"]`, 1))
	return d
}

// expectNothing expects that nothing of ours is on the host, except for the state.
func (h *host) expectNothing() {
	h.t.Helper()
	h.expect("nothing is installed", h.installation(), h.before)
}

// installation returns all files except the state.
func (h *host) installation() map[string]string {
	files := h.files()
	maps.DeleteFunc(files, func(name, _ string) bool { return strings.HasPrefix(name, path.Dir(stateDir)) })
	return files
}

// onlyFiles leaves out directories: a boot does not remove those of the trial.
func onlyFiles(files map[string]string) map[string]string {
	files = maps.Clone(files)
	maps.DeleteFunc(files, func(_, text string) bool { return text[0] == 'd' })
	return files
}

// reject has the kubelet's configuration remembered as a rejected one.
func (h *host) reject(d Desired) {
	h.t.Helper()
	digest := testkit.Value(h.Status(d))(h.t).Digest
	testkit.Must(h.t, alone(h.tree, func(s *state) error { s.Rejected = []string{digest}; return s.save() }))
}

// A roll-back restores all files: those of containerd and the plugin when the kubelet has its
// previous provider again. So containerd sends no pull to the gateway without a token, nor a token
// past it.
func TestARollBackRestoresTheOtherFiles(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		h.apply(desired("v1.36.2"))
		installed := h.installation()
		restarted := h.kubelet.restarts
		h.kubelet.ended = func() (int, error) {
			if h.kubelet.restarts > restarted && (h.read(quayHosts) != "NEW HOSTS\n" || h.read(hostsTOML) != "NEW HOSTS\n" || h.read(eksPlugin) != "NEW PLUGIN\n") {
				t.Error("a file is restored before the kubelet has restarted")
			}
			return 0, nil
		}
		h.rejects("quay.io")
		if _, err := h.Apply(t.Context(), trial()); !errors.Is(err, ErrRejected) {
			t.Errorf("error %v", err)
		}
		h.kubelet.ended = nil
		h.expect("after the roll-back", h.installation(), installed)
		if s := testkit.Value(readState(h.tree))(t); s.Pending != nil || len(s.Entries) != 5 || s.Entries["/"+hostsTOML].Written.SHA256 != digestOf([]byte(testHosts)) {
			t.Errorf("%+v", s)
		}
		h.untouched(ErrRejected, "", func() error { _, err := h.Apply(t.Context(), trial()); return err })

		// The version of the rejected configuration is better than none.
		testkit.Remove(t, filepath.Join(h.dir, hostsTOML))
		h.put(eksPlugin, "of another owner")
		testkit.Remove(t, filepath.Join(h.dir, ownProvider)) // the kubelet reads it
		if _, err := h.Apply(t.Context(), trial()); !errors.Is(err, ErrRejected) || h.read(hostsTOML) != "NEW HOSTS\n" || h.read(eksPlugin) != "NEW PLUGIN\n" || h.files()["/"+quayHosts]+h.files()["/"+ownProvider] != "" {
			t.Errorf("error %v", err)
		}
		if h.apply(desired("v1.36.2")); h.kubelet.restarts != restarted+3 {
			t.Errorf("%d restarts", h.kubelet.restarts)
		}
		h.expect("after another apply", h.installation(), installed)
		h.expectUninstalled()
	})
}

// After a loss of power, all files are those of before the trial, without a next command.
func TestTheOtherFilesAfterAPowerLoss(t *testing.T) {
	for name, next := range map[string]func(t *testing.T, h *host, installed map[string]string){
		"the same again": func(t *testing.T, h *host, _ map[string]string) {
			h.kubelet.sick = nil
			h.apply(trial())
			if h.read(quayHosts) != "NEW HOSTS\n" || h.read(hostsTOML) != "NEW HOSTS\n" {
				t.Errorf("%v", h.installation())
			}
		},
		"the same again, rejected": func(t *testing.T, h *host, installed map[string]string) {
			if _, err := h.Apply(t.Context(), trial()); !errors.Is(err, ErrRejected) {
				t.Errorf("error %v", err)
			}
			h.expect("after the roll-back", h.installation(), installed)
		},
		"a rejected one": func(t *testing.T, h *host, installed map[string]string) {
			d := with(trial(), "1s")
			h.reject(d)
			restarts := h.kubelet.restarts
			if _, err := h.Apply(t.Context(), d); !errors.Is(err, ErrRejected) || h.kubelet.restarts != restarts+1 {
				t.Errorf("%d restarts, error %v", h.kubelet.restarts-restarts, err)
			}
			h.expect("after a rejected apply", h.installation(), installed)
		},
		"one with the provider before": func(_ *testing.T, h *host, _ map[string]string) {
			d := trial()
			d.Provider = []byte(testProvider)
			h.apply(d)
		},
		"the one before": func(_ *testing.T, h *host, installed map[string]string) {
			h.apply(desired("v1.36.2"))
			h.expect("after the apply", h.installation(), installed)
		},
		"a trial of others": func(t *testing.T, h *host, installed map[string]string) {
			d := trial()
			d.Hosts["gcr.io"] = []byte(testHosts)
			d.Hosts["quay.io"] = []byte("NEWER HOSTS\n")
			h.watcher = lost{errors.New("the power is gone")}
			if _, err := h.Apply(t.Context(), d); err == nil {
				t.Error("it went on")
			}
			h.boot()
			h.watcher = h
			if _, err := h.Apply(t.Context(), trial()); !errors.Is(err, ErrRejected) {
				t.Errorf("error %v", err)
			}
			h.expect("after the roll-back", h.installation(), installed)
		},
		"uninstall": func(*testing.T, *host, map[string]string) {},
	} {
		t.Run(name, func(t *testing.T) {
			onHost(t, "eks", func(t *testing.T, h *host) {
				h.apply(desired("v1.36.2"))
				installed := h.installation()
				h.rejects("quay.io")
				h.watcher = lost{errors.New("the power is gone")}
				if _, err := h.Apply(t.Context(), trial()); err == nil {
					t.Fatal("it was not interrupted")
				}
				h.boot()
				h.expect("after the boot", onlyFiles(h.installation()), onlyFiles(installed))
				for _, d := range []Desired{trial(), desired("v1.36.2")} {
					plan := testkit.Value(h.Status(d))(t)
					if text := strings.Join(actions(plan), "\n"); !plan.Pending || !plan.Restart || strings.Contains(text, "another program") || bytes.Equal(d.Plugin, []byte(testPlugin)) != (text == "") {
						t.Errorf("%+v:\n%s", plan, text)
					}
				}
				h.watcher = h
				next(t, h, installed)
				if s := testkit.Value(readState(h.tree))(t); name != "uninstall" && s.Pending != nil {
					t.Errorf("%+v", s.Pending)
				}
				h.expectUninstalled()
			})
		})
	}
}

// The kubelet keeps the provider of the trial, because others have changed its files. So containerd
// keeps the hosts.toml.
func TestTheOtherFilesOfATrialThatStays(t *testing.T) {
	onHost(t, "kubeadm", func(t *testing.T, h *host) {
		const flags = "etc/default/kubelet"
		h.watcher = lost{errors.New("the pod is gone")}
		if _, err := h.Apply(t.Context(), desired("v1.36.2")); err == nil {
			t.Fatal("it was not interrupted")
		}
		h.put(flags, h.read(flags)+"# of others\n")
		h.watcher = h
		d := with(desired("v1.36.2"), "1s")
		h.reject(d)
		if _, err := h.Apply(t.Context(), d); !errors.Is(err, ErrRejected) || h.read(hostsTOML) != testHosts {
			t.Errorf("error %v", err)
		}
	})
}

// A hosts.toml that others changed before the trial cannot be restored, so the CA that it names stays.
func TestHostsThatCannotBeRestored(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		h.apply(desired("v1.36.2"))
		h.put(hostsTOML, "of another owner")
		h.rejects("quay.io")
		if _, err := h.Apply(t.Context(), trial()); !errors.Is(err, ErrRejected) || h.read(hostsTOML) != "NEW HOSTS\n" || h.read(ghcrCA) != "CA\n" || h.files()["/"+filepath.Dir(quayHosts)] != "" {
			t.Errorf("error %v, %v", err, h.installation())
		}
		h.expectUninstalled()
	})
}

// The unit leaves them alone at boot, too.
func TestHostsThatCannotBeRestoredAtBoot(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		h.apply(desired("v1.36.2"))
		h.put(hostsTOML, "of another owner")
		h.watcher = lost{errors.New("the power is gone")}
		if _, err := h.Apply(t.Context(), trial()); err == nil {
			t.Fatal("it was not interrupted")
		}
		h.boot()
		if h.read(hostsTOML) != "NEW HOSTS\n" || h.read(ghcrCA) != "CA\n" || h.read(eksPlugin) != testPlugin || h.files()["/"+quayHosts] != "" {
			t.Errorf("%v", h.installation())
		}
		if text := strings.Join(actions(testkit.Value(h.Status(trial()))(t)), "\n"); strings.Contains(text, "another program") || strings.Contains(text, "ca.crt of ghcr.io") {
			t.Error(text)
		}
		h.watcher = h
		h.expectUninstalled()
	})
}

// The disk is full before a file of the kubelet is written. So the kubelet keeps its provider, and
// containerd its files.
func TestATrialThatDoesNotBegin(t *testing.T) {
	for name, prepare := range map[string]func(*host){
		"the first": func(*host) {},
		"a change":  func(h *host) { h.apply(desired("v1.36.2")) },
	} {
		t.Run(name, func(t *testing.T) {
			onHost(t, "eks", func(t *testing.T, h *host) {
				prepare(h)
				installed := h.installation()
				fail := func(d Desired, prefix string) {
					t.Helper()
					isFull := true
					h.tree.Failing = func(name string) error {
						if _, err := os.Lstat(filepath.Join(h.dir, undoLink)); err == nil && isFull && strings.HasPrefix(name, prefix) {
							isFull = false
							return unix.ENOSPC
						}
						return nil
					}
					if _, err := h.Apply(t.Context(), d); !errors.Is(err, unix.ENOSPC) {
						t.Errorf("error %v", err)
					}
					h.tree.Failing = nil
				}
				fail(trial(), ownConfigDir+"/")
				h.expect("after the failure", h.installation(), installed)
				if s := testkit.Value(readState(h.tree))(t); s.Pending != nil {
					t.Errorf("%+v", s.Pending)
				}

				// After a loss of power, a restart is due, and the files wait for it.
				h.watcher = lost{errors.New("the power is gone")}
				if _, err := h.Apply(t.Context(), trial()); err == nil {
					t.Error("it went on")
				}
				h.boot()
				if fail(trial(), ownConfigDir+"/"); h.read(quayHosts) != "NEW HOSTS\n" {
					t.Error(h.read(quayHosts))
				}
				next := trial()
				next.Hosts["ghcr.io"] = []byte("NEWER HOSTS\n")
				if fail(next, "/"+hostsTOML); h.read(hostsTOML) != "NEW HOSTS\n" {
					t.Error(h.read(hostsTOML))
				}
				h.watcher = h
				h.rejects("quay.io")
				if _, err := h.Apply(t.Context(), trial()); !errors.Is(err, ErrRejected) {
					t.Errorf("error %v", err)
				}
				h.expect("after the roll-back", h.installation(), installed)
				h.expectUninstalled()
			})
		})
	}
}

// The restart after the roll-back is not requested at first, so the trial's kubelet may still run.
func TestTheOtherFilesWaitForTheRestart(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		h.apply(desired("v1.36.2"))
		installed := h.installation()
		h.rejects("quay.io")
		noBus := errors.New("no bus")
		h.watcher = watching{h, failingSecond{&h.kubelet, h.kubelet.restarts + 1, noBus}}
		if _, err := h.Apply(t.Context(), trial()); !errors.Is(err, noBus) || h.read(quayHosts) != "NEW HOSTS\n" {
			t.Errorf("error %v", err)
		}
		if _, err := h.Apply(t.Context(), trial()); !errors.Is(err, noBus) || h.read(quayHosts) != "NEW HOSTS\n" {
			t.Errorf("error %v", err)
		}
		h.watcher = h
		if _, err := h.Apply(t.Context(), trial()); !errors.Is(err, ErrRejected) {
			t.Errorf("error %v", err)
		}
		h.expect("after the restart", h.installation(), installed)
		h.expectUninstalled()
	})
}

// Without a change of the kubelet's files, its provider may name the registry already.
func TestFilesWithoutATrialStay(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		h.apply(desired("v1.36.2"))
		d := trial()
		d.Provider = []byte(testProvider)
		h.tree.Failing = func(name string) error {
			if _, err := os.Lstat(filepath.Join(h.dir, quayHosts)); err == nil && name == "/"+eksPlugin {
				h.tree.Failing = nil
				return unix.ENOSPC
			}
			return nil
		}
		if _, err := h.Apply(t.Context(), d); !errors.Is(err, unix.ENOSPC) || h.read(quayHosts) != "NEW HOSTS\n" || h.read(hostsTOML) != "NEW HOSTS\n" {
			t.Errorf("error %v", err)
		}
		h.expectUninstalled()
	})
}

// gone is a watcher whose pod ends after the restart.
type gone struct{ *host }

var errGone = errors.New("the pod is gone")

func (g gone) Watch(ctx context.Context) error { return errors.Join(g.host.Watch(ctx), errGone) }

// A trial that has succeeded is not undone, although its command was interrupted after that.
func TestATrialThatHasSucceeded(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		h.apply(desired("v1.36.2"))
		h.watcher = gone{h}
		if _, err := h.Apply(t.Context(), trial()); !errors.Is(err, errGone) {
			t.Errorf("error %v", err)
		}
		h.watcher = h
		d := with(desired("v1.36.2"), "1s")
		h.reject(d)
		if _, err := h.Apply(t.Context(), d); !errors.Is(err, ErrRejected) || h.read(quayHosts) != "NEW HOSTS\n" || h.read(hostsTOML) != "NEW HOSTS\n" || !strings.Contains(h.read(ownProvider), "quay.io") {
			t.Errorf("error %v", err)
		}
		h.expectUninstalled()
	})
}

// killed is a watcher that is killed at first: before it restarts the kubelet, while it watches it,
// during its roll-back, or while it watches the kubelet with its previous files.
type killed struct {
	*host
	when  string
	times int
}

var errKilled = errors.New("systemd-run on the host: exit status 1")

func (k *killed) Watch(ctx context.Context) error {
	if k.times--; k.times < 0 {
		return k.host.Watch(ctx)
	}
	switch k.when {
	case "watching":
		testkit.Must(k.t, k.kubelet.Restart(ctx))
	case "rolling back":
		testkit.Must(k.t, k.kubelet.Restart(ctx))
		k.tree.Failing = func(name string) error {
			if name == undoRejected && k.read(ownProvider) == testProvider {
				return unix.EIO
			}
			return nil
		}
		_ = k.host.Watch(ctx)
		k.tree.Failing = nil
	case "rolled back":
		if !testkit.Value(readState(k.tree))(k.t).isTrial() {
			break // it is killed again, before the restart
		}
		_ = watching{k.host, failingSecond{&k.kubelet, k.kubelet.restarts + 1, errKilled}}.Watch(ctx)
	}
	return errKilled
}

// A watcher that was killed is started once more, and goes on. Otherwise, the error says that the kubelet has an
// untested configuration, which the next command ends.
func TestAWatcherThatIsKilled(t *testing.T) {
	for _, test := range []struct {
		when      string
		times     int
		isSick    bool
		want      error
		isTrial   bool // after the command
		installed bool
	}{
		{"starting", 1, false, nil, false, true},
		{"watching", 1, false, nil, false, true},
		{"starting", 1, true, ErrRejected, false, false},
		{"watching", 1, true, ErrRejected, false, false},
		{"starting", 2, true, errUntested, true, true},
		{"watching", 2, false, errUntested, true, true},
		{"rolling back", 1, true, errUntested, true, false},
		{"rolled back", 1, true, ErrRejected, false, false},
		{"rolled back", 2, true, ErrRejected, false, false},
	} {
		t.Run(fmt.Sprint(test.when, test.times, test.isSick), func(t *testing.T) {
			onHost(t, "eks", func(t *testing.T, h *host) {
				h.apply(desired("v1.36.2"))
				installed := h.installation()
				if test.isSick {
					h.rejects("quay.io")
				}
				watcher := &killed{h, test.when, test.times}
				h.watcher = watcher
				if _, err := h.Apply(t.Context(), trial()); !errors.Is(err, test.want) || test.want != nil && test.when != "rolled back" && !errors.Is(err, errKilled) {
					t.Errorf("error %v", err)
				}
				switch {
				case test.when != "rolled back":
				case test.times == 1:
					h.expect("after the command", h.installation(), installed)
				case h.read(quayHosts) != "NEW HOSTS\n": // the kubelet may still have the provider of the trial
					t.Error("a file is restored before the kubelet has restarted")
				}
				if s := testkit.Value(readState(h.tree))(t); s.isTrial() != test.isTrial || strings.Contains(h.read(ownProvider), "quay.io") != test.installed {
					t.Errorf("%+v, %s", s.Pending, h.read(ownProvider))
				}
				if test.isTrial && watcher.times > 0 {
					t.Error("the watcher was not started again")
				}
				h.watcher = h
				switch _, err := h.Apply(t.Context(), trial()); {
				case test.isSick && !errors.Is(err, ErrRejected), !test.isSick && err != nil:
					t.Errorf("error %v", err)
				case test.isSick:
					h.expect("after the roll-back", h.installation(), installed)
				}
				h.expectUninstalled()
			})
		})
	}
}

// A hosts.toml that goes after the restart is there still.
func TestAWatcherThatIsKilledWithChangesAfterTheRestart(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		h.apply(trial())
		h.watcher = &killed{h, "watching", 1}
		if _, err := h.Apply(t.Context(), desired("v1.36.2")); err != nil || h.files()["/"+quayHosts] != "" {
			t.Errorf("error %v", err)
		}
		h.watcher = h
		h.expectUninstalled()
	})
}

// The pod of apply ends while the watcher goes on, and a watcher of an uninstall is not started again: the
// kubelet has its files from before Pullpass.
func TestAWatcherThatIsNotStartedAgain(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		ctx, end := context.WithCancel(t.Context())
		watcher := &ending{killed{h, "starting", 2}, end}
		h.watcher = watcher
		if _, err := h.Apply(ctx, desired("v1.36.2")); !errors.Is(err, errKilled) || errors.Is(err, errUntested) || watcher.times != 1 {
			t.Errorf("%d times, error %v", watcher.times, err)
		}
		h.watcher = h
		h.apply(desired("v1.36.2"))
		h.watcher = watcher
		if _, err := h.Uninstall(t.Context()); !errors.Is(err, errKilled) || errors.Is(err, errUntested) || watcher.times != 0 {
			t.Errorf("%d times, error %v", watcher.times, err)
		}
		h.watcher = h
		h.expectUninstalled()
	})
}

type ending struct {
	killed
	end func()
}

func (e *ending) Watch(ctx context.Context) error {
	e.end()
	return e.killed.Watch(ctx)
}
