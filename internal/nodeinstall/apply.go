package nodeinstall

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"

	"github.com/pullpass/pullpass/internal/hostfs"
)

var (
	// ErrBusy is the error while another process changes the node.
	ErrBusy = errors.New("another pullpass node-install changes this node; wait for it")
	// ErrRejected is the error of a configuration with which the kubelet did not come
	// back. It is not tried again.
	ErrRejected = errors.New("the kubelet did not come back with this configuration, and has the one before; " +
		"see its log (journalctl), then give another one, or run pullpass node-install uninstall to try the same again")
	// ErrUnhealthy is the error of a kubelet that does not come back with what was there before, either.
	ErrUnhealthy = errors.New("the kubelet does not answer that it is healthy; see its log (journalctl)")
)

// Watcher has Watch run where neither a restart of the kubelet nor the end of the
// pod ends it.
type Watcher interface {
	// Ready is asked before anything is written.
	Ready(ctx context.Context) error
	// Watch returns when Watch has ended, with its error.
	Watch(ctx context.Context) error
}

// Config is what an Installer needs.
type Config struct {
	Tree    *hostfs.Tree
	Profile string // empty: found out
	Watcher Watcher
}

// Installer changes one node. Several on one node exclude each other.
type Installer struct {
	tree    *hostfs.Tree
	profile string
	watcher Watcher
}

func New(c Config) *Installer { return &Installer{c.Tree, c.Profile, c.Watcher} }

// Status returns what Apply would do.
func (i *Installer) Status(d Desired) (*Plan, error) {
	s, err := readState(i.tree)
	if err != nil {
		return nil, err
	}
	return newPlan(i.tree, s, i.profile, d)
}

// Apply makes the node what is desired, and returns what it did. Where nothing has
// to be done, nothing is written.
func (i *Installer) Apply(ctx context.Context, d Desired) (*Plan, error) {
	plan, err := i.write(ctx, d)
	if err != nil || !plan.Restart && len(plan.Changes) == 0 {
		return plan, err
	}
	if plan.Restart {
		if err := i.watch(ctx, plan.Digest); err != nil {
			return plan, err
		}
	}
	return plan, i.alone(func(s *state) error {
		// What the kubelet no longer sends tokens through.
		for _, c := range plan.Changes {
			if late(c) {
				if err := i.execute(s, c); err != nil {
					return err
				}
			}
		}
		return i.tidy(s)
	})
}

// late reports whether a change waits for the restart: without the hosts.toml of
// a registry, containerd would send it the tokens of a kubelet that still has the
// provider for it.
func late(c Change) bool { return c.next == nil && !c.Restart }

func (i *Installer) write(ctx context.Context, d Desired) (plan *Plan, err error) {
	err = i.alone(func(s *state) error {
		if plan, err = newPlan(i.tree, s, i.profile, d); err != nil {
			return err
		}
		if plan.Restart && !plan.Rejected {
			if err := i.watcher.Ready(ctx); err != nil {
				return err
			}
		}
		s.Profile, s.Unit = plan.Profile, plan.Unit
		for _, c := range plan.Changes {
			if plan.Rejected && c.Restart {
				continue // without its hosts.toml, also the kubelet that has the provider before would send tokens elsewhere
			}
			if c.Restart {
				if s.Pending == nil {
					s.Pending = &pending{Before: map[string]*version{}, Entries: map[string]entry{}}
				}
				s.Pending.Digest = plan.Digest
			}
			if !late(c) {
				if err := i.execute(s, c); err != nil {
					return err
				}
			}
		}
		if plan.Rejected {
			return ErrRejected
		}
		return nil
	})
	return plan, err
}

// Uninstall leaves the node as it was. What others have changed in a file since
// stays in it.
func (i *Installer) Uninstall(ctx context.Context) (changes []Change, err error) {
	err = i.alone(func(s *state) error {
		for _, name := range slices.Sorted(maps.Keys(s.Entries)) {
			c, err := undo(i.tree, name, s.Entries[name])
			if err != nil {
				return err
			}
			c.Reason = "uninstall"
			changes = append(changes, c)
		}
		if !slices.ContainsFunc(changes, func(c Change) bool { return c.Restart }) {
			return nil
		}
		if err := i.watcher.Ready(ctx); err != nil {
			return err
		}
		s.Pending = &pending{}
		for _, c := range changes {
			if c.Restart {
				if err := i.execute(s, c); err != nil {
					return err
				}
			}
		}
		return s.save(i.tree)
	})
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(changes, func(c Change) bool { return c.Restart }) {
		if err := i.watch(ctx, ""); err != nil {
			return changes, err
		}
	}
	return changes, i.alone(func(s *state) error {
		for _, c := range changes {
			if !c.Restart {
				if err := i.execute(s, c); err != nil {
					return err
				}
			}
		}
		return i.forget(s)
	})
}

// watch has the kubelet restarted, and says what became of it.
func (i *Installer) watch(ctx context.Context, digest string) error {
	err := i.watcher.Watch(ctx)
	s, stateErr := readState(i.tree)
	switch {
	case stateErr != nil:
		return errors.Join(err, stateErr)
	case slices.Contains(s.Rejected, digest) && !errors.Is(err, ErrRejected):
		return errors.Join(ErrRejected, err)
	case s.Pending != nil && err == nil:
		return errors.New("the kubelet was not restarted, although it is due; run it again")
	}
	return err
}

// alone runs a step with the node's state while nobody else does.
func (i *Installer) alone(do func(*state) error) error { return alone(i.tree, do) }

func alone(tree *hostfs.Tree, do func(*state) error) error {
	unlock, ok, err := tree.Lock()
	if err != nil {
		return err
	}
	if !ok {
		return ErrBusy
	}
	s, err := readState(tree)
	if err == nil {
		err = do(s)
	}
	return errors.Join(err, unlock())
}

// execute makes a change. The state speaks of it first, and no longer if it fails.
func (i *Installer) execute(s *state, c Change) error {
	if err := mkdir(i.tree, s, backupDir); err != nil {
		return err
	}
	if c.next != nil {
		if err := mkdir(i.tree, s, path.Dir(c.Path)); err != nil {
			return err
		}
	}
	was, had := s.Entries[c.Path]
	before, err := i.remember(s, c, was, had)
	if err != nil {
		return err
	}
	if c.entry != nil {
		s.Entries[c.Path] = *c.entry
	} else {
		delete(s.Entries, c.Path)
	}
	if err := s.save(i.tree); err != nil {
		return err
	}
	switch {
	case c.next != nil:
		err = i.tree.Replace(c.Path, c.old, *c.next)
	case c.old != nil:
		err = i.tree.Remove(c.Path, c.old)
	}
	if err == nil {
		return nil
	}
	delete(s.Entries, c.Path)
	if had {
		s.Entries[c.Path] = was
	}
	if before {
		delete(s.Pending.Before, c.Path)
		delete(s.Pending.Entries, c.Path)
		if len(s.Pending.Before) == 0 {
			s.Pending = nil
		}
	}
	return errors.Join(fmt.Errorf("%w; run it again", err), s.save(i.tree))
}

// remember keeps what may have to be put back: by an uninstall, and by a roll-back,
// which is told whether it was new.
func (i *Installer) remember(s *state, c Change, was entry, had bool) (before bool, err error) {
	if c.original != nil {
		if err := keep(i.tree, *c.original); err != nil {
			return false, err
		}
	}
	if !c.Restart || s.Pending == nil || s.Pending.Before == nil {
		return false, nil
	}
	if _, known := s.Pending.Before[c.Path]; known {
		return false, nil // of an apply that was interrupted: that is what worked
	}
	s.Pending.Before[c.Path] = nil
	if c.old != nil {
		if err := keep(i.tree, *c.old); err != nil {
			return false, err
		}
		v := versionOf(*c.old)
		s.Pending.Before[c.Path] = &v
	}
	if had {
		s.Pending.Entries[c.Path] = was
	}
	return true, nil
}

// mkdir makes a directory and those that it needs.
func mkdir(tree *hostfs.Tree, s *state, dir string) error {
	is, err := tree.Exists(dir)
	if err != nil || is {
		return err
	}
	if err := mkdir(tree, s, path.Dir(dir)); err != nil {
		return err
	}
	if err := tree.Mkdir(dir, 0o755); err != nil {
		return err
	}
	// A platform that resets its files at a start has removed it, perhaps.
	if !slices.Contains(s.Directories, dir) {
		s.Directories = append(s.Directories, dir)
	}
	return nil
}

// tidy removes what is not needed any more.
func (i *Installer) tidy(s *state) error {
	if err := s.dropBackups(i.tree); err != nil {
		return err
	}
	if err := sweep(i.tree, s); err != nil {
		return err
	}
	return s.save(i.tree)
}

// forget removes the state as well.
func (i *Installer) forget(s *state) error {
	if len(s.Entries) > 0 {
		return fmt.Errorf("%d files were installed meanwhile; end what runs apply here, and run it again", len(s.Entries))
	}
	if err := s.standBy(i.tree); err != nil {
		return err
	}
	if err := s.dropBackups(i.tree); err != nil {
		return err
	}
	if err := remove(i.tree, stateFile); err != nil {
		return err
	}
	return sweep(i.tree, s)
}

// sweep removes the directories that were made and are empty.
func sweep(tree *hostfs.Tree, s *state) error {
	var kept []string
	for _, dir := range slices.Backward(s.Directories) {
		names, err := tree.Names(dir)
		if err != nil {
			return err
		}
		if len(names) > 0 {
			kept = append(kept, dir)
			continue
		}
		if err := remove(tree, dir); err != nil {
			return err
		}
	}
	slices.Reverse(kept)
	s.Directories = kept
	return nil
}
