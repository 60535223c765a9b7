package nodeinstall

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pullpass/pullpass/internal/node/hostfs"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// Without its restart, the kubelet would continue to send tokens through a provider whose
// hosts.toml is gone.
func TestUninstallOwesARestart(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		h.apply(desired("v1.36.2"))
		for _, test := range []struct {
			watcher Watcher
			want    error
		}{{lost{errors.New("systemd-run failed")}, errIncomplete}, {lost{nil}, errNotRestarted}} {
			h.watcher = test.watcher
			if _, err := h.Uninstall(t.Context()); !errors.Is(err, test.want) || h.kubelet.restarts != 1 || h.read(hostsTOML) != testHosts || h.read(eksPlugin) != testPlugin {
				t.Errorf("%d restarts, error %v", h.kubelet.restarts, err)
			}
		}
		h.watcher = h
		h.kubelet.lost = errors.New("systemctl failed") // the previous kubelet still runs
		if _, err := h.Uninstall(t.Context()); !errors.Is(err, h.kubelet.lost) || !errors.Is(err, errIncomplete) || h.read(hostsTOML) != testHosts {
			t.Errorf("error %v", err)
		}
		if plan, err := h.Status(desired("v1.36.2")); err != nil || !plan.Pending || !plan.Restart {
			t.Errorf("%+v, %v", plan, err)
		}
		h.kubelet.lost = nil
		h.uninstall()
		if h.kubelet.restarts != 3 {
			t.Errorf("%d restarts", h.kubelet.restarts)
		}
		h.expect("after uninstall", h.files(), h.before)
	})
}

// A kubelet that could not be restarted because it has exited sends no tokens.
func TestUninstallUnderAKubeletThatHasEnded(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		h.apply(desired("v1.36.2"))
		h.kubelet.lost = ErrUnhealthy
		h.kubelet.ended = func() (int, error) { return 0, ErrUnhealthy }
		if _, err := h.Uninstall(t.Context()); !errors.Is(err, ErrUnhealthy) {
			t.Errorf("error %v", err)
		}
		h.uninstall()
		h.expect("after another uninstall", h.files(), h.before)
	})
}

// An interrupted uninstall is ended first. So a kubelet that does not become healthy gets its
// configuration from before Pullpass.
func TestApplyAfterAnInterruptedUninstall(t *testing.T) {
	for _, platform := range []string{"eks", "microk8s", "k3s"} {
		for _, version := range []string{"v1.36.2", "v1.33.5"} {
			t.Run(platform+"/"+version, func(t *testing.T) {
				onHost(t, platform, func(t *testing.T, h *host) {
					h.apply(desired(version))
					installed := h.files()
					h.watcher = lost{errors.New("the power is gone")}
					if _, err := h.Uninstall(t.Context()); err == nil {
						t.Fatal("it was not interrupted")
					}
					h.watcher = h
					h.kubelet.sick = func() error {
						for name, text := range h.files() {
							if installed[name] == text && restartable(t, h, name) && h.before[name] != text {
								return errors.New("connection refused")
							}
						}
						return nil
					}
					if _, err := h.Apply(t.Context(), desired(version)); !errors.Is(err, ErrRejected) || h.kubelet.restarts != 3 {
						t.Errorf("%d restarts, error %v", h.kubelet.restarts, err)
					}
					h.expectNothing()
					if plan, err := h.Status(desired(version)); err != nil || !plan.Rejected || plan.Pending {
						t.Errorf("%+v, %v", plan, err)
					}
					h.untouched(ErrRejected, "", func() error { _, err := h.Apply(t.Context(), desired(version)); return err })
					h.expectUninstalled()
				})
			})
		}
	}
}

// The files of the interrupted uninstall are not ours any more, also those that the next version has elsewhere.
func TestApplyOfAnotherVersionAfterAnInterruptedUninstall(t *testing.T) {
	for _, platform := range []string{"eks", "kubeadm", "k3s"} {
		t.Run(platform, func(t *testing.T) {
			onHost(t, platform, func(t *testing.T, h *host) {
				h.apply(desired("v1.33.5"))
				h.watcher = lost{errors.New("the power is gone")}
				if _, err := h.Uninstall(t.Context()); err == nil {
					t.Fatal("it was not interrupted")
				}
				h.watcher = h
				h.apply(desired("v1.36.2"))
				h.expectWanted(platform, "want/")
				h.expectUninstalled()
			})
		})
	}
}

// Apply removes the files that an interrupted uninstall has left, and the plan reports it.
func TestThePlanAfterAnInterruptedUninstall(t *testing.T) {
	for _, version := range []string{"v1.36.2", "v1.33.5"} {
		t.Run(version, func(t *testing.T) {
			onHost(t, "eks", func(t *testing.T, h *host) {
				h.apply(desired(version))
				testkit.Must(t, alone(h.tree, func(s *state) error {
					s.Pending = &pending{Uninstall: true}
					return s.save()
				}))
				plan := testkit.Value(h.Status(desired(version)))(t)
				if got, want := actions(plan), actions(h.apply(desired(version))); len(got) == 0 || !slices.Equal(got, want) {
					t.Errorf("the plan was %q, and apply did %q", got, want)
				}
			})
		})
	}
}

// An interrupted apply is rolled back even if the next desired state is a rejected one. The kubelet
// must not keep an untested configuration.
func TestARejectedApplyAfterAnInterruptedOne(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		h.apply(desired("v1.36.2"))
		provider := func(duration string) Desired {
			d := desired("v1.36.2")
			d.Provider = []byte(strings.Replace(testProvider, "0s", duration, 1))
			return d
		}
		h.kubelet.sick = func() error {
			if h.read(ownProvider) != testProvider {
				return errors.New("ill")
			}
			return nil
		}
		if _, err := h.Apply(t.Context(), provider("1s")); !errors.Is(err, ErrRejected) {
			t.Fatal(err)
		}
		h.watcher = lost{errors.New("the pod is gone")}
		if _, err := h.Apply(t.Context(), provider("2s")); err == nil || h.read(ownProvider) == testProvider {
			t.Fatal(err)
		}
		h.watcher = h
		if _, err := h.Apply(t.Context(), provider("1s")); !errors.Is(err, ErrRejected) || h.read(ownProvider) != testProvider || h.kubelet.restarts != 4 {
			t.Errorf("%d restarts, error %v", h.kubelet.restarts, err)
		}
		if plan := h.apply(desired("v1.36.2")); len(plan.Changes) > 0 || plan.Pending {
			t.Errorf("%q", actions(plan))
		}
	})
}

// After an interrupted roll-back, a restart of the kubelet is due.
func TestARollBackThatNobodyTriedOwesARestart(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		ctx, shutDown := context.WithCancel(t.Context())
		h.kubelet.sick = func() error { shutDown(); return errors.New("going down") }
		if _, err := h.Apply(ctx, desired("v1.36.2")); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
		h.kubelet.sick = nil
		if h.uninstall(); h.kubelet.restarts != 2 {
			t.Errorf("%d restarts", h.kubelet.restarts)
		}
		h.expect("after uninstall", h.files(), h.before)
	})
}

// The unit of RKE2 counts as started when all its parts run. This takes longer than patience.
func TestAKubeletThatStartsSlowly(t *testing.T) {
	for name, test := range map[string]struct {
		takes time.Duration
		want  error
	}{"within five minutes": {startLimit - time.Second, nil}, "not within five minutes": {startLimit + time.Second, ErrRejected}} {
		t.Run(name, func(t *testing.T) {
			onHost(t, "rke2", func(t *testing.T, h *host) {
				h.watcher = slow{h, test.takes}
				if _, err := h.Apply(t.Context(), desired("v1.36.2")); !errors.Is(err, test.want) {
					t.Errorf("error %v, want %v", err, test.want)
				}
			})
		})
	}
}

// slow is a kubelet whose unit starts slowly with a new configuration.
type slow struct {
	*host
	takes time.Duration
}

func (s slow) Watch(ctx context.Context) error { return Watch(ctx, s.tree, s) }

func (s slow) Restart(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(s.dir, ownProvider)); err != nil {
		return s.kubelet.Restart(ctx)
	}
	select {
	case <-time.After(s.takes):
		return s.kubelet.Restart(ctx)
	case <-ctx.Done():
		return errors.Join(ErrUnhealthy, ctx.Err()) // systemctl was killed
	}
}

func (s slow) Healthy(ctx context.Context) error      { return s.kubelet.Healthy(ctx) }
func (s slow) Ended(ctx context.Context) (int, error) { return s.kubelet.Ended(ctx) }

// A user of the node locks all files that the user may open.
func TestAUserLocksTheHost(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		for _, name := range []string{"", "run", "etc", "var/lib"} {
			f := testkit.Value(os.Open(filepath.Join(h.dir, name)))(t)
			defer f.Close()
			testkit.Must(t, syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB))
		}
		h.apply(desired("v1.36.2"))
		h.expectUninstalled()
	})
}

// Extended attributes of others stay on their files when we edit these.
func TestExtendedAttributesOfEditedFiles(t *testing.T) {
	for _, version := range []string{"v1.36.2", "v1.33.5"} {
		t.Run(version, func(t *testing.T) {
			onHost(t, "eks", func(t *testing.T, h *host) {
				for _, name := range []string{eksFlags, eksConfig} {
					testkit.Must(t, unix.Setxattr(filepath.Join(h.dir, name), "user.owner", []byte("nodeadm"), 0))
				}
				h.before = h.files()
				expect := func(when string) {
					t.Helper()
					for _, name := range []string{"/" + eksFlags, "/" + eksConfig} {
						if text := h.files()[name]; !strings.HasPrefix(text, "-rw-r--r-- of nodeadm\n") {
							t.Errorf("%s: %s: %s", when, name, text)
						}
					}
				}
				h.apply(desired(version))
				expect("apply")
				d := desired(version)
				d.Provider = []byte(strings.Replace(testProvider, "0s", "1s", 1))
				h.kubelet.sick = func() error {
					for name, text := range h.files() {
						if restartable(t, h, name) && (strings.Contains(text, "1s") && strings.Contains(text, "pullpass-credential-provider")) {
							return errors.New("ill")
						}
					}
					return nil
				}
				if _, err := h.Apply(t.Context(), d); !errors.Is(err, ErrRejected) {
					t.Error(err)
				}
				expect("roll-back")
				h.uninstall()
				expect("uninstall")
				h.expect("after uninstall", h.files(), h.before)
			})
		})
	}
}

// The flags are removed first and added last: a kubelet that is started meanwhile exits if they
// name a missing file.
func TestFlagsGoFirst(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for _, platform := range Profiles() {
			h := newHost(t, platform)
			h.apply(desired("v1.36.2"))
			changes := testkit.Value(h.Uninstall(t.Context()))(t)
			flags := slices.IndexFunc(changes, func(c Change) bool { return c.Restart })
			if name := changes[flags].Path; flags != 0 || strings.HasPrefix(name, ownConfigDir) {
				t.Errorf("%s: %s goes first", platform, name)
			}
		}
	})
}

// A file with the name of a kept file belongs to others, or to a crash whose record is gone.
func TestARollBackInstallsNothingElse(t *testing.T) {
	for _, left := range []string{"a file", "a link", "a pipe", "a file with another mode"} {
		for version, name := range map[string]string{"v1.36.2": eksFlags, "v1.33.5": eksConfig} { // the file that is changed
			t.Run(left+"/"+version, func(t *testing.T) {
				onHost(t, "eks", func(t *testing.T, h *host) {
					kept := hostfs.Kept("/" + name)
					switch left {
					case "a file":
						h.put(kept, "of another owner")
					case "a link":
						h.link(kept, "/etc/passwd")
					case "a pipe":
						testkit.Must(t, syscall.Mkfifo(filepath.Join(h.dir, kept), 0o600))
					case "a file with another mode":
						h.put(kept, h.read(name))
						testkit.Must(t, os.Chmod(filepath.Join(h.dir, kept), 0o666))
					}
					h.kubelet.sick = func() error {
						if h.kubelet.restarts < 2 {
							return errors.New("ill")
						}
						return nil
					}
					if _, err := h.Apply(t.Context(), desired(version)); !errors.Is(err, ErrRejected) {
						t.Error(err)
					}
					if got := h.files()["/"+name]; got != h.before["/"+name] {
						t.Error(got)
					}
					h.expectUninstalled()
				})
			})
		}
	}
}

// An apply that ends right after its record is written has kept no file and created no directory.
func TestARollBackOfWhatWasOnlyRecorded(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		h.put(hostfs.Kept("/"+eksFlags), "of another owner")
		h.onlyRecord(desired("v1.36.2"))
		h.kubelet.lost = errors.New("ill")
		if err := h.Watch(t.Context()); !errors.Is(err, h.kubelet.lost) || strings.Contains(err.Error(), "rolling back") {
			t.Errorf("error %v", err)
		}
		h.kubelet.lost = nil
		if got := h.files()["/"+eksFlags]; got != h.before["/"+eksFlags] {
			t.Error(got)
		}
		h.expectUninstalled()
	})
}

// onlyRecord begins an apply that ends when its record is written.
func (h *host) onlyRecord(d Desired) {
	h.t.Helper()
	testkit.Must(h.t, alone(h.tree, func(s *state) error {
		plan, err := newPlan(h.tree, s, "", d)
		if err != nil {
			return err
		}
		s.Profile, s.Unit, s.Pending = plan.Profile, plan.Unit, &pending{Restarted: true, Digest: plan.Digest}
		if err := s.save(); err != nil {
			return err
		}
		if _, err = s.record(plan.Changes); err != nil {
			return err
		}
		return s.save()
	}))
}

// Changes by others after an interrupted apply stay, whatever the progress of the apply.
func TestOthersChangeWhatAnInterruptedApplyLeft(t *testing.T) {
	const flags = "etc/default/kubelet"
	for name, interrupt := range map[string]func(*host, Desired){
		"recorded": (*host).onlyRecord,
		"written": func(h *host, d Desired) {
			h.watcher = lost{errors.New("the pod is gone")}
			_, _ = h.Apply(h.t.Context(), d) // it returns the interruption as an error
			h.watcher = h
		},
	} {
		for _, next := range []string{"apply", "uninstall"} {
			t.Run(name+"/"+next, func(t *testing.T) {
				onHost(t, "kubeadm", func(t *testing.T, h *host) {
					h.apply(desired("v1.33.5")) // with other flags
					interrupt(h, desired("v1.36.2"))
					h.put(flags, strings.Replace(h.read(flags), "=\"", "=\"--of-others ", 1))
					if next == "apply" {
						if h.apply(desired("v1.36.2")); h.read(flags) != "KUBELET_EXTRA_ARGS=\"--of-others "+pluginsFlag+"="+ownPluginDir+" "+configFlag+"="+ownConfigDir+"\"\n" {
							t.Error(h.read(flags))
						}
					}
					h.uninstall()
					h.before["/"+flags] = "-rw-r--r--\nKUBELET_EXTRA_ARGS=\"--of-others\"\n"
					h.before["/etc/default"] = "drwxr-xr-x"
					h.expect("after uninstall", h.files(), h.before)
				})
			})
		}
	}
}

// If there is no kept file to restore, the file stays, and so does the record of our part in it.
func TestAKeptFileThatOthersChanged(t *testing.T) {
	for name, spoil := range map[string]func(h *host, kept string){
		"changed": func(h *host, kept string) { h.put(kept, "of another owner") },
		"removed": func(h *host, kept string) { testkit.Remove(h.t, filepath.Join(h.dir, kept)) },
	} {
		for _, sick := range []bool{false, true} {
			t.Run(fmt.Sprint(name, sick), func(t *testing.T) {
				onHost(t, "eks", func(t *testing.T, h *host) {
					h.watcher = lost{errors.New("the pod is gone")}
					if _, err := h.Apply(t.Context(), desired("v1.36.2")); err == nil {
						t.Fatal("it was not interrupted")
					}
					h.watcher = h
					written := h.read(eksFlags)
					spoil(h, hostfs.Kept("/"+eksFlags))
					if sick {
						h.kubelet.lost = errors.New("ill")
						if err := h.Watch(t.Context()); !errors.Is(err, h.kubelet.lost) || h.read(eksFlags) != written {
							t.Errorf("error %v, %s", err, h.read(eksFlags))
						}
						h.kubelet.lost = nil
					}
					if h.apply(desired("v1.36.2")); h.read(eksFlags) != written {
						t.Error(h.read(eksFlags))
					}
					h.expectUninstalled()
				})
			})
		}
	}
}

// then is a watcher, after which others change the node before the command continues.
type then struct {
	*host
	do func(others *Installer)
}

func (w then) Watch(ctx context.Context) error {
	if err := w.host.Watch(ctx); err != nil {
		return err
	}
	w.do(New(Config{Tree: w.tree, Watcher: lost{errors.New("the pod is gone")}}))
	return nil
}

// A command must not end work that others began meanwhile: it would forget a restart that is due.
func TestACommandThatOthersFollow(t *testing.T) {
	next := desired("v1.36.2")
	next.Provider = []byte(strings.Replace(testProvider, "0s", "1s", 1))
	for name, test := range map[string]struct {
		others func(*host, *Installer)
		want   error
	}{
		"apply":     {func(h *host, others *Installer) { _, _ = others.Apply(h.t.Context(), next) }, errNotRestarted},
		"uninstall": {func(h *host, others *Installer) { _, _ = others.Uninstall(h.t.Context()) }, errNotRestarted},
		"an uninstall that needs no restart any more": {func(h *host, others *Installer) {
			_, _ = others.Uninstall(h.t.Context())
			testkit.Must(h.t, h.Watch(h.t.Context()))
		}, ErrBusy},
	} {
		t.Run(name, func(t *testing.T) {
			onHost(t, "eks", func(t *testing.T, h *host) {
				h.watcher = then{h, func(i *Installer) { test.others(h, i) }}
				if _, err := h.Apply(t.Context(), desired("v1.36.2")); !errors.Is(err, test.want) {
					t.Errorf("error %v", err)
				}
				h.watcher = h
				if plan, err := h.Status(next); err != nil || !plan.Pending {
					t.Errorf("%+v, %v", plan, err)
				}
				h.expectUninstalled()
			})
		})
	}
	t.Run("uninstall, then uninstall by another process", func(t *testing.T) {
		onHost(t, "eks", func(t *testing.T, h *host) {
			h.apply(desired("v1.36.2"))
			h.watcher = then{h, func(others *Installer) {
				h.watcher = h
				h.uninstall()
				h.apply(desired("v1.36.2"))
				_, _ = others.Uninstall(t.Context())
			}}
			if _, err := h.Uninstall(t.Context()); !errors.Is(err, errNotRestarted) || h.read(hostsTOML) != testHosts {
				t.Errorf("error %v", err)
			}
			h.expectUninstalled()
		})
	})
}

// Files that an uninstall has removed are not restored before the uninstall has ended.
func TestRepairDuringAnUninstall(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		h.apply(desired("v1.36.2"))
		testkit.Must(t, alone(h.tree, func(s *state) error {
			s.Pending = &pending{Uninstall: true, Restarted: true}
			return s.save()
		}))
		testkit.Remove(t, filepath.Join(h.dir, hostsTOML))
		if changes, err := h.Repair(desired("v1.36.2")); len(changes) > 0 || err != nil {
			t.Errorf("%v, %v", changes, err)
		}
		h.expectUninstalled()
	})
}

// A command that has written nothing yet has no lock, so others can change the node first.
func TestOthersAreFaster(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		unlock := func() error { return nil }
		for name, others := range map[string]func(){
			"they change the node": func() {
				var err error
				unlock, _, err = h.tree.Lock(lockFile, true)
				testkit.Must(t, err)
			},
			"they have changed it": func() { h.apply(desired("v1.36.2")) },
		} {
			err := alone(h.tree, func(s *state) error {
				others()
				return s.save()
			})
			if !errors.Is(err, ErrBusy) {
				t.Errorf("%s: error %v", name, err)
			}
			testkit.Must(t, unlock())
			unlock = func() error { return nil }
			h.uninstall()
		}
		h.expect("after uninstall", h.files(), h.before)
	})
}
