package nodeinstall

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pullpass/pullpass/internal/node/hostfs"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// rejects makes the kubelet of the host refuse a configuration that has this text.
func (h *host) rejects(text string) {
	h.kubelet.sick = func() error {
		if strings.Contains(h.files()["/"+ownProvider], text) {
			return errors.New("ill")
		}
		return nil
	}
}

// with returns the desired state with a different provider configuration.
func with(d Desired, duration string) Desired {
	d.Provider = []byte(strings.Replace(testProvider, "0s", duration, 1))
	return d
}

// silent is a watcher that does not tell the outcome, as when its unit was removed.
type silent struct{ *host }

func (s silent) Watch(ctx context.Context) error { _ = s.host.Watch(ctx); return nil }

// The state says that the kubelet refused the configuration, when the watcher does not.
func TestARejectionThatOnlyTheStateSays(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		h.apply(desired("v1.36.2"))
		h.rejects("1s")
		h.watcher = silent{h}
		if _, err := h.Apply(t.Context(), with(desired("v1.36.2"), "1s")); !errors.Is(err, ErrRejected) {
			t.Errorf("error %v", err)
		}
	})
}

// With a rejected configuration, the files of the current one stay, no restart is needed, and what is not
// wanted any more is not removed: the kubelet still has its provider.
func TestWhatARejectedPlanDoes(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		const quay = "etc/containerd/certs.d/quay.io/hosts.toml"
		d := desired("v1.36.2")
		d.Hosts["quay.io"] = []byte(testHosts)
		h.apply(d)
		h.rejects("1s")
		next := with(desired("v1.36.2"), "1s")
		if _, err := h.Apply(t.Context(), next); !errors.Is(err, ErrRejected) || h.read(quay) != testHosts {
			t.Errorf("error %v", err)
		}
		restarts := h.kubelet.restarts
		h.Installer = *New(Config{Tree: h.tree, Watcher: unready{}})
		testkit.Remove(t, filepath.Join(h.dir, hostsTOML))
		if _, err := h.Apply(t.Context(), next); !errors.Is(err, ErrRejected) || errors.Is(err, errUnready) || h.read(quay) != testHosts || h.read(hostsTOML) != testHosts {
			t.Errorf("error %v", err)
		}
		if s := testkit.Value(readState(h.tree))(t); s.Entries["/"+quay].Written.Mode == 0 || s.Pending != nil || h.kubelet.restarts != restarts {
			t.Errorf("%+v, %+v, %d restarts", s.Entries, s.Pending, h.kubelet.restarts)
		}

		// Files that the kubelet does not read do not make it another configuration.
		other := with(desired("v1.36.2"), "1s")
		other.Hosts["ghcr.io"], other.Plugin = []byte("OTHER\n"), []byte("OTHER\n")
		if plan := testkit.Value(h.Status(other))(t); !plan.Rejected {
			t.Errorf("%+v", plan)
		}

		// A restart that is due needs the watcher all the same.
		testkit.Must(t, alone(h.tree, func(s *state) error { s.Pending = &pending{}; return s.save() }))
		h.untouched(errUnready, "unready", func() error { _, err := h.Apply(t.Context(), next); return err })
		h.Installer = *New(Config{Tree: h.tree, Watcher: h})
		h.expectUninstalled()
	})
}

// A configuration that runs already is not rejected, whatever is remembered.
func TestACurrentConfigurationIsNotRejected(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		digest := h.apply(desired("v1.36.2")).Digest
		testkit.Must(t, alone(h.tree, func(s *state) error { s.Rejected = []string{digest}; return s.save() }))
		if plan := h.apply(desired("v1.36.2")); plan.Rejected || !plan.isDone() {
			t.Errorf("%+v", plan)
		}
	})
}

// A restart that is due stays due when a later change fails.
func TestARestartThatIsDueStaysDue(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		h.apply(desired("v1.36.2"))
		h.watcher = lost{errors.New("the power is gone")}
		if _, err := h.Apply(t.Context(), with(desired("v1.36.2"), "1s")); err == nil {
			t.Fatal("it was not interrupted")
		}
		d := desired("v1.36.2")
		d.Plugin = []byte("NEW\n")
		h.watcher = swapping{h, func() { h.put(eksPlugin, "swapped") }}
		if _, err := h.Apply(t.Context(), d); !errors.Is(err, hostfs.ErrChanged) {
			t.Errorf("error %v", err)
		}
		h.watcher = h
		if plan, err := h.Status(desired("v1.36.2")); err != nil || !plan.Restart || !plan.Pending {
			t.Errorf("%+v, %v", plan, err)
		}
		if h.apply(d); h.kubelet.restarts != 2 {
			t.Errorf("%d restarts", h.kubelet.restarts)
		}
		h.expectUninstalled()
	})
}

// The kubelet's last file fails, so the ones before are put back when the host boots.
func TestTheLastChangeFails(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		others := strings.Replace(h.read(eksFlags), "a=b", "x=y", 1)
		h.watcher = swapping{h, func() { h.put(eksFlags, others) }}
		if _, err := h.Apply(t.Context(), desired("v1.36.2")); !errors.Is(err, hostfs.ErrChanged) {
			t.Errorf("error %v", err)
		}
		if plan, err := h.Status(desired("v1.36.2")); err != nil || !plan.Pending || !plan.Restart || h.files()[undoLink] == "" {
			t.Errorf("%+v, %v", plan, err)
		}
		h.watcher = h
		h.apply(desired("v1.36.2"))
		h.uninstall()
		h.before["/"+eksFlags] = strings.Replace(h.before["/"+eksFlags], "a=b", "x=y", 1)
		h.expect("after uninstall", h.files(), h.before)
	})
}

// The disk fails after the file is in place. It is ours all the same.
func TestAFileIsWrittenAndTheDiskFails(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		done := false
		h.tree.Failing = func(name string) error {
			if _, err := os.Lstat(filepath.Join(h.dir, filepath.Dir(hostsTOML))); done || err != nil || name != "/"+hostsTOML {
				return nil
			}
			done = true
			h.put(hostsTOML, testHosts)
			testkit.Must(t, os.Chmod(filepath.Join(h.dir, hostsTOML), 0o644))
			return unix.EIO
		}
		if _, err := h.Apply(t.Context(), desired("v1.36.2")); !errors.Is(err, unix.EIO) || !done {
			t.Errorf("error %v", err)
		}
		h.tree.Failing = nil
		h.apply(desired("v1.36.2"))
		h.expectUninstalled()
	})
}

// Another process has ended the same work meanwhile.
func TestOthersEndTheWork(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		h.watcher = then{h, func(*Installer) {
			testkit.Value(New(Config{Tree: h.tree, Watcher: h}).Apply(t.Context(), desired("v1.36.2")))(t)
		}}
		h.apply(desired("v1.36.2"))
		h.watcher = then{h, func(*Installer) {
			testkit.Value(New(Config{Tree: h.tree, Watcher: h}).Uninstall(t.Context()))(t)
		}}
		h.expectUninstalled()

		// It began something else.
		h.watcher = h
		h.apply(desired("v1.36.2"))
		h.watcher = then{h, func(*Installer) {
			testkit.Must(t, alone(h.tree, func(s *state) error { s.Pending = &pending{Restarted: true}; return s.save() }))
		}}
		if _, err := h.Uninstall(t.Context()); err == nil || !strings.Contains(err.Error(), "were installed meanwhile") {
			t.Errorf("error %v", err)
		}
		h.watcher = h
		h.expectUninstalled()
	})
}

// An uninstall restarts the kubelet only if that had our files, and says what it changes.
func TestWhatAnUninstallDoes(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		h.kubelet.sick = func() error {
			if h.files()["/"+eksFlags] != h.before["/"+eksFlags] {
				return errors.New("ill")
			}
			return nil
		}
		if _, err := h.Apply(t.Context(), desired("v1.36.2")); !errors.Is(err, ErrRejected) {
			t.Errorf("error %v", err)
		}
		// The kubelet has its own files again, so it is not restarted.
		h.watcher = unready{}
		h.uninstall()
		h.expect("after uninstall", h.files(), h.before)

		h.watcher, h.kubelet.sick = h, nil
		h.apply(desired("v1.36.2"))
		testkit.Remove(t, filepath.Join(h.dir, hostsTOML))
		testkit.Must(t, alone(h.tree, func(s *state) error { s.Pending = &pending{Uninstall: true, Restarted: true}; return s.save() }))
		restarts := h.kubelet.restarts
		h.watcher = unready{} // the restart of the interrupted uninstall has been
		changes := testkit.Value(h.Uninstall(t.Context()))(t)
		var paths []string
		for _, c := range changes {
			paths = append(paths, c.Path)
		}
		if want := []string{"/" + eksFlags, "/etc/pullpass/credential-providers/platform.json", "/" + ownProvider, "/" + eksPlugin}; !slices.Equal(paths, want) || h.kubelet.restarts != restarts {
			t.Errorf("%q, want %q; %d restarts", paths, want, h.kubelet.restarts-restarts)
		}
		h.expect("after uninstall", h.files(), h.before)
	})
}

// A file that others wrote in a way that cannot be changed stays as it is, and so does everything else.
func TestUninstallOfWhatCannotBeChanged(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		h.apply(desired("v1.36.2"))
		h.put(eksFlags, h.read(eksFlags)+"OTHER=a \\\n b\n")
		h.untouched(errForm, eksFlags, func() error { _, err := h.Uninstall(t.Context()); return err })

		h = newHost(t, "eks")
		h.apply(desired("v1.33.5"))
		h.put(eksConfig, "{")
		h.untouched(ErrProvider, eksConfig, func() error { _, err := h.Uninstall(t.Context()); return err })
	})
}

// Our whole file that others changed is removed.
func TestUninstallOfWhatOthersChanged(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		h.apply(desired("v1.36.2"))
		h.put(hostsTOML, "of another owner")
		h.expectUninstalled()
	})
}

// The kubelet's flags of others are removed with the whole file.
func TestTheFileOfFlagsIsRemoved(t *testing.T) {
	onHost(t, "kubeadm", func(t *testing.T, h *host) {
		h.apply(desired("v1.36.2"))
		testkit.Remove(t, filepath.Join(h.dir, "etc/default/kubelet"))
		if plan := h.apply(desired("v1.36.2")); !slices.Equal(actions(plan), []string{"create /etc/default/kubelet: the kubelet's flags are to name Pullpass"}) {
			t.Errorf("%q", actions(plan))
		}
		h.expectWanted("kubeadm", "want/")
		h.expectUninstalled()
	})
}

// An administrator gives the kubelet our own file by a flag. It stays ours.
func TestAFlagOfOthersNamesOurFile(t *testing.T) {
	onHost(t, "kubeadm", func(t *testing.T, h *host) {
		const config = "etc/pullpass/credential-provider.yaml"
		h.apply(desired("v1.33.5"))
		h.put("var/lib/kubelet/kubeadm-flags.env", "KUBELET_KUBEADM_ARGS=\""+configFlag+"=/"+config+"\"\n")
		h.apply(desired("v1.33.5"))
		h.put(config, h.read(config)+"# of others\n")
		if h.apply(with(desired("v1.33.5"), "1s")); !strings.Contains(h.read(config), `"1s"`) || !strings.Contains(h.read(config), "# of others") {
			t.Error(h.read(config))
		}
	})
}

// A kubelet gets the file that we would create only by a flag, so one of others there is not its own.
func TestAFileOfOthersThatTheKubeletDoesNotHave(t *testing.T) {
	onHost(t, "kubeadm", func(t *testing.T, h *host) {
		h.put("etc/pullpass/credential-provider.yaml", testProvider)
		h.before = h.files()
		h.untouched(ErrForeign, "credential-provider.yaml", func() error { _, err := h.Apply(t.Context(), desired("v1.33.5")); return err })
		h.apply(desired("v1.36.2"))
		h.expectWanted("kubeadm", "want/")
	})
}

// Files of an interrupted apply that are neither there nor wanted are left out of the plan.
func TestThePlanAfterAnInterruptedApply(t *testing.T) {
	onHost(t, "kubeadm", func(t *testing.T, h *host) {
		h.onlyRecord(desired("v1.33.5"))
		plan := testkit.Value(h.Status(desired("v1.36.2")))(t)
		if text := strings.Join(actions(plan), "\n"); strings.Contains(text, "credential-provider.yaml") {
			t.Error(text)
		}
	})
}

// An empty list of others gets our providers. Then the form in which others write it does not matter.
func TestAnEmptyListOfProviders(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		h.put(eksConfig, `{"apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig", "providers": []}`)
		h.apply(desired("v1.33.5"))
		h.put(eksConfig, strings.Join(strings.Fields(h.read(eksConfig)), ""))
		if plan := h.apply(desired("v1.33.5")); len(plan.Changes) > 0 {
			t.Errorf("%q", actions(plan))
		}
	})
}

// containerd is told what it reads by default, or that it has no certificate to name.
func TestSettingsOfContainerd(t *testing.T) {
	t.Parallel()
	h := newHost(t, "kubeadm")
	h.put("etc/containerd/config.toml", "version = 3\n[plugins.'io.containerd.cri.v1.images']\nregistry.config_path = '/a'\ndiscard_unpacked_layers = false\n")
	testkit.Value(h.Status(desired("v1.36.2")))(t)
	h = newHost(t, "eks")
	d := desired("v1.36.2")
	d.Client = "/kubelet.pem" // no hosts.toml names it
	testkit.Value(h.Status(d))(t)
}

// Links are resolved as on the host, where they lead somewhere.
func TestRepairableBehindLinks(t *testing.T) {
	onHost(t, "microk8s", func(t *testing.T, h *host) {
		h.apply(desired("v1.36.2"))
		hosts := filepath.Join(h.dir, "var/snap/microk8s/8120/args/certs.d/ghcr.io/hosts.toml")
		if files := h.Repairable(); !slices.Contains(files, hosts) {
			t.Errorf("%q", files)
		}
		testkit.Remove(t, filepath.Join(h.dir, "var/snap/microk8s/current"))
		h.link("var/snap/microk8s/current", "current")
		if files := h.Repairable(); !slices.Contains(files, strings.Replace(hosts, "8120", "current", 1)) {
			t.Errorf("%q", files)
		}
	})
}

// Without an install, nothing is edited in the arguments of a plugin that is not one.
func TestArgumentsOfNoProvider(t *testing.T) {
	t.Parallel()
	if got, err := withCertsDir([]byte("kind: Secret\n"), "/x"); !errors.Is(err, ErrProvider) {
		t.Errorf("%q, %v", got, err)
	}
}

// Others remove a file while the kubelet is watched. A roll-back puts it back.
func TestAFileIsRemovedWhileWatching(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		h.kubelet.sick = func() error {
			if h.kubelet.restarts < 2 {
				_ = os.Remove(filepath.Join(h.dir, eksFlags))
				return errors.New("ill")
			}
			return nil
		}
		if _, err := h.Apply(t.Context(), desired("v1.36.2")); !errors.Is(err, ErrRejected) || h.files()["/"+eksFlags] != h.before["/"+eksFlags] {
			t.Errorf("error %v, %s", err, h.files()["/"+eksFlags])
		}
		h.expectUninstalled()
	})
}

// Others replace a file while the kubelet is watched, which is healthy without it. The next command repairs it.
func TestAFileIsReplacedWhileWatching(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		d, flags := desired("v1.36.2"), h.read(eksFlags)
		for name, change := range map[string]func(){
			eksFlags:    func() { h.put(eksFlags, flags) },
			hostsTOML:   func() { h.put(hostsTOML, "server = \"https://example.com\"\n") },
			ownProvider: func() { h.put(ownProvider, strings.Replace(testProvider, "0s", "2s", 1)) },
		} {
			restarts := h.kubelet.restarts
			h.kubelet.sick = func() error { change(); return nil }
			_, err := h.Apply(t.Context(), d)
			if !errors.Is(err, ErrChanged) || errors.Is(err, ErrRejected) || !strings.HasSuffix(err.Error(), "run it again, which repairs them: "+h.tree.Path("/"+name)) || h.kubelet.restarts != restarts+1 {
				t.Errorf("%s: error %v, %d restarts", name, err, h.kubelet.restarts-restarts)
			}
			h.kubelet.sick = nil
			h.apply(d)
			h.expectWanted("eks", "want/")
			h.expectUninstalled()
		}
		// A file that the trial did not write.
		h.apply(d)
		h.kubelet.sick = func() error { h.put(eksFlags, flags); return nil }
		d.Provider = []byte(strings.Replace(testProvider, "0s", "1s", 1))
		if _, err := h.Apply(t.Context(), d); !errors.Is(err, ErrChanged) || !strings.HasSuffix(err.Error(), h.tree.Path("/"+eksFlags)) {
			t.Errorf("error %v", err)
		}
		// The kubelet has not tried the provider yet.
		h.kubelet.sick = func() error {
			if h.read(eksFlags) != flags {
				return errors.New("ill")
			}
			return nil
		}
		if _, err := h.Apply(t.Context(), d); !errors.Is(err, ErrRejected) {
			t.Errorf("error %v", err)
		}
		h.expectUninstalled()
	})
}

// The second restart cannot be requested, so it stays due.
func TestTheRestartAfterARollBackFails(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		h.apply(desired("v1.36.2"))
		h.rejects("1s")
		noBus := errors.New("no bus")
		h.watcher = watching{h, failingSecond{&h.kubelet, h.kubelet.restarts + 1, noBus}}
		if _, err := h.Apply(t.Context(), with(desired("v1.36.2"), "1s")); !errors.Is(err, ErrRejected) || !errors.Is(err, noBus) {
			t.Errorf("error %v", err)
		}
		if plan, err := h.Status(desired("v1.36.2")); err != nil || !plan.Restart || !plan.Pending {
			t.Errorf("%+v, %v", plan, err)
		}
	})
}

// failingSecond is a kubelet whose restarts fail after some.
type failingSecond struct {
	*fakeKubelet
	after int
	err   error
}

func (k failingSecond) Restart(ctx context.Context) error {
	if k.restarts >= k.after {
		return k.err
	}
	return k.fakeKubelet.Restart(ctx)
}

// A kubelet that ended several times, or that systemd cannot be asked about, may be healthy in the end.
func TestAKubeletThatIsHealthyInTheEnd(t *testing.T) {
	for name, ended := range map[string]func() (int, error){
		"it ended before":   func() (int, error) { return hopeless, nil },
		"systemd is silent": func() (int, error) { return 0, errors.New("systemctl is busy") },
	} {
		t.Run(name, func(t *testing.T) {
			onHost(t, "eks", func(t *testing.T, h *host) {
				h.kubelet.ended = ended
				h.apply(desired("v1.36.2"))
			})
		})
	}
}

// The previous kubelet is gone, however the new one fails. So an uninstall is not made again.
func TestAKubeletThatFailsAfterAnUninstall(t *testing.T) {
	ill := errors.New("ill")
	for name, ended := range map[string]func() (int, error){
		"it ended for good":     func() (int, error) { return 0, ErrUnhealthy },
		"it ended three times":  func() (int, error) { return hopeless, nil },
		"it is started again":   func() (int, error) { return 0, ErrStarting },
		"it does not get there": nil,
	} {
		t.Run(name, func(t *testing.T) {
			onHost(t, "eks", func(t *testing.T, h *host) {
				h.apply(desired("v1.36.2"))
				h.kubelet.sick, h.kubelet.ended = func() error { return ill }, ended
				if _, err := h.Uninstall(t.Context()); !errors.Is(err, ErrUnhealthy) || name != "it ended for good" && !errors.Is(err, ill) || h.kubelet.restarts != 2 {
					t.Errorf("%d restarts, error %v", h.kubelet.restarts, err)
				}
				if h.uninstall(); h.kubelet.restarts != 2 {
					t.Errorf("%d restarts", h.kubelet.restarts)
				}
				h.expect("after another uninstall", h.files(), h.before)
			})
		})
	}
}

// Others take the lock, or change the node, before the first write of a step.
func TestOthersTakeTheLockFirst(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		h.apply(desired("v1.36.2"))
		testkit.Must(t, alone(h.tree, func(s *state) error { s.Pending = &pending{}; return s.save() }))
		for name, step := range map[string]func(*state) error{
			"clean": func(s *state) error { return s.clean() },
			"watch": nil,
		} {
			var unlock func() error
			take := func() {
				var ok bool
				var err error
				if unlock, ok, err = h.tree.Lock(lockFile, true); err != nil || !ok {
					t.Error(ok, err)
				}
			}
			var err error
			if step != nil {
				err = alone(h.tree, func(s *state) error { take(); return step(s) })
			} else {
				h.tree.Failing = func(name string) error {
					if name == stateFile {
						h.tree.Failing = nil
						take()
					}
					return nil
				}
				err = h.Watch(t.Context())
			}
			if !errors.Is(err, ErrBusy) || h.kubelet.restarts != 1 {
				t.Errorf("%s: %d restarts, error %v", name, h.kubelet.restarts, err)
			}
			testkit.Must(t, unlock())
		}
	})
}

// A user who owns a directory on the way to our files can replace them. An installed node is repaired all the same:
// without hosts.toml, containerd would send tokens elsewhere.
func TestADirectoryOfAnotherUser(t *testing.T) {
	if os.Getuid() != 0 {
		return // only root can give a directory to another user
	}
	for _, dir := range []string{"usr/local", "usr/local/libexec/pullpass", "etc/pullpass", "etc/containerd/certs.d", "etc/default", "var/lib/pullpass"} {
		t.Run(dir, func(t *testing.T) {
			onHost(t, "kubeadm", func(t *testing.T, h *host) {
				d, name := desired("v1.36.2"), filepath.Join(h.dir, dir)
				testkit.Must(t, os.MkdirAll(name, 0o755))
				h.before = h.files()
				testkit.Must(t, os.Chown(name, 1000, 0))
				h.untouched(hostfs.ErrOwner, filepath.Base(dir)+": ", func() error { _, err := h.Status(d); return err })
				h.untouched(hostfs.ErrOwner, filepath.Base(dir)+": ", func() error { _, err := h.Apply(t.Context(), d); return err })
				testkit.Must(t, os.Chown(name, 0, 1000))
				h.apply(d)
				testkit.Must(t, os.Chown(name, 1000, 0))
				testkit.Remove(t, filepath.Join(h.dir, hostsTOML))
				if changes := testkit.Value(h.Repair(d))(t); len(changes) != 1 {
					t.Errorf("repaired: %v", changes)
				}
				h.expectUninstalled()
			})
		})
	}
}
