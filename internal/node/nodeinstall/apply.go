package nodeinstall

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/node/hostfs"
)

var (
	// ErrBusy means that another process is changing the node.
	ErrBusy = errors.New("another pullpass node-install changes this node; wait for it")
	// ErrRejected means that the kubelet did not become healthy with a configuration. It is not
	// retried.
	ErrRejected = errors.New("the kubelet did not come back with this configuration, and has the one before; " +
		"see its log (journalctl), also for whether containerd answered it; then change the configuration, or run pullpass node-install uninstall to try the same again")
	// ErrUnhealthy means that the kubelet does not become healthy with the previous configuration
	// either.
	ErrUnhealthy = errors.New("the kubelet does not answer that it is healthy; see its log (journalctl)")

	// ErrStarting means that the kubelet does not run at the moment.
	ErrStarting = errors.New("the kubelet has ended, and systemd starts it again")

	// ErrStopped means that another program stops the kubelet, which says nothing about its
	// configuration.
	ErrStopped = errors.New("another program has stopped the kubelet; start it")

	// ErrChanged means that the kubelet may have been healthy without the files that were to be tested.
	ErrChanged = errors.New("another program changed files while the kubelet was restarted; end it, or run it again, which repairs them")

	errUntested = errors.New("the kubelet has a configuration that was not tested; run the same command again, which restores the previous one first; a boot of the node restores it, too")

	errIncomplete = errors.New("uninstall is not complete; run the same command again, which completes it")

	errNotRestarted = errors.New("the kubelet was not restarted, although it is due; run it again")
)

// Watcher runs Watch outside of the pod, so that neither a restart of the kubelet nor the end of
// the pod stops it.
type Watcher interface {
	// Ready is called before anything is written.
	Ready(ctx context.Context) error
	// Watch returns when Watch has ended, with its error.
	Watch(ctx context.Context) error
}

// Config configures an Installer.
type Config struct {
	Tree    *hostfs.Tree
	Profile string // empty: detected
	Watcher Watcher
}

// Installer changes one node. Installers on the same node exclude each other.
type Installer struct {
	tree    *hostfs.Tree
	profile string
	watcher Watcher
}

func New(c Config) *Installer { return &Installer{c.Tree, c.Profile, c.Watcher} }

// Status returns the plan of Apply.
func (i *Installer) Status(d Desired) (*Plan, error) {
	s, err := readState(i.tree)
	if err != nil {
		return nil, err
	}
	return newPlan(i.tree, s, i.profile, d)
}

// Apply brings the node to the desired state, and returns what it did. If no work is due, it writes
// nothing.
func (i *Installer) Apply(ctx context.Context, d Desired) (plan *Plan, err error) {
	owed := false
	err = alone(i.tree, func(s *state) error {
		if plan, err = newPlan(i.tree, s, i.profile, d); err != nil || plan.isDone() {
			return err
		}
		if s.owed() || plan.Restart && !plan.Rejected {
			if err := i.watcher.Ready(ctx); err != nil {
				return err
			}
		}
		if err := s.endInterrupted(); err != nil {
			return err
		}
		err := s.apply(plan)
		owed = s.owed()
		return err
	})
	if err != nil || plan.isDone() {
		return plan, err
	}
	if owed {
		digest := plan.Digest
		if plan.Rejected {
			digest = "" // the kubelet is not restarted with this configuration
		}
		if err := i.watch(ctx, digest, plan.Changes); err != nil {
			return plan, err
		}
	}
	return plan, alone(i.tree, func(s *state) error {
		if err := s.finish(plan); err != nil || !owed {
			return err
		}
		return i.expectDone(s, d)
	})
}

// expectDone returns an error if another program changed files while the kubelet was restarted. The
// kubelet may have been healthy without them.
func (i *Installer) expectDone(s *state, d Desired) error {
	plan, err := newPlan(i.tree, s, i.profile, d)
	if err != nil || plan.isDone() {
		return err
	}
	var paths []string
	for _, c := range plan.Changes {
		paths = append(paths, i.tree.Path(c.Path))
	}
	return fmt.Errorf("%w: %s", ErrChanged, strings.Join(paths, ", "))
}

// endInterrupted restores the kubelet's files to their state before an interrupted command. Every
// other command begins with it. Then a roll-back of that command restores a complete configuration,
// and the files of others byte for byte.
func (s *state) endInterrupted() error {
	if s.Pending == nil {
		return nil
	}
	if err := s.save(); err != nil {
		return err
	}
	switch {
	case len(s.Pending.Before) > 0:
		return s.rollBack(false, false)
	case !s.Pending.Uninstall:
		return nil
	}
	if _, err := s.takeAway(true); err != nil {
		return err
	}
	if err := s.clean(); err != nil {
		return err
	}
	maps.DeleteFunc(s.Entries, func(_ string, e entry) bool { return e.Restart })
	s.Pending = &pending{Restarted: s.Pending.Restarted, Late: map[string]*version{}}
	for name := range s.Entries {
		s.Pending.Late[name] = nil
	}
	return s.save()
}

// late reports whether a change waits for the restart. Without the hosts.toml of a registry,
// containerd would send it the tokens of a kubelet that still has the provider for it.
func late(c Change) bool { return c.next == nil && !c.Restart }

// isDamaged reports whether others have changed a file of ours that the kubelet does not read.
func (s *state) isDamaged(c Change) bool {
	e, isOurs := s.Entries[c.Path]
	if !isOurs || c.Restart {
		return false
	}
	intact := []version{e.Written}
	if s.Pending != nil && s.Pending.Late[c.Path] != nil {
		intact = append(intact, *s.Pending.Late[c.Path])
	}
	return c.old == nil || !slices.Contains(intact, versionOf(*c.old))
}

// apply makes the changes that precede the restart.
func (s *state) apply(plan *Plan) error {
	var changes []Change
	for _, c := range plan.Changes {
		// Damaged files are written even then: without hosts.toml, a kubelet with the previous
		// provider would also send tokens elsewhere. Other files stay as that provider needs them.
		if !late(c) && (!plan.Rejected || s.isDamaged(c)) {
			changes = append(changes, c)
		}
	}
	if plan.Rejected && len(changes) == 0 && s.Pending == nil {
		return ErrRejected
	}
	s.Profile, s.Unit = plan.Profile, plan.Unit
	if s.Pending == nil {
		s.Pending = &pending{Restarted: true}
	}
	s.Pending.Digest = plan.Digest
	// From here on, every command knows of interrupted work.
	if err := s.save(); err != nil {
		return err
	}
	entries, late, restarted := maps.Clone(s.Entries), maps.Clone(s.Pending.Late), s.Pending.Restarted
	made, err := s.carryOut(changes)
	if err != nil {
		return errors.Join(fmt.Errorf("%w; run it again", err), s.abandon(changes[made:], entries, late, restarted))
	}
	return nil
}

// carryOut makes changes that the state already records, and returns how many it has made.
func (s *state) carryOut(changes []Change) (made int, err error) {
	if err := s.clean(); err != nil {
		return 0, err
	}
	dirs, err := s.record(changes)
	if err != nil {
		return 0, err
	}
	if err := s.mkdirs(dirs); err != nil {
		return 0, err
	}
	if slices.ContainsFunc(changes, func(c Change) bool { return c.Restart }) {
		if err := s.keepBefore(); err != nil {
			return 0, err
		}
	}
	for made, c := range changes {
		if err := s.change(c); err != nil {
			// The file exists, although its directory could not be synced.
			if now, failed := lookup(s.tree, c.Path); failed == nil && (Change{old: now, next: c.next}).isNone() {
				made++
			}
			return made, err
		}
	}
	return len(changes), nil
}

// record writes changes into the state: the previous file, the next one, and the directories that
// are needed for it. It returns these directories.
func (s *state) record(changes []Change) (dirs []string, err error) {
	need := func(dir string) error {
		missing, err := missingDirs(s.tree, dir)
		for _, dir := range missing {
			if !slices.Contains(dirs, dir) {
				dirs = append(dirs, dir)
			}
		}
		return err
	}
	isTrial := slices.ContainsFunc(changes, func(c Change) bool { return c.Restart })
	for _, c := range changes {
		if c.original != nil {
			err = s.keep(*c.original)
		}
		if err == nil && c.next != nil {
			err = need(path.Dir(c.Path))
		}
		if err != nil {
			return nil, err
		}
		switch {
		case c.Restart:
			s.recordBefore(c)
		case isTrial:
			s.recordLate(c.Path)
		}
		if c.entry != nil {
			s.Entries[c.Path] = *c.entry
		}
	}
	return dirs, nil
}

// recordBefore notes the files that a roll-back restores.
func (s *state) recordBefore(c Change) {
	p := s.Pending
	p.Restarted = false
	if p.Before == nil {
		p.Before, p.Entries = map[string]*version{}, map[string]entry{}
	}
	if was, had := s.Entries[c.Path]; had {
		p.Entries[c.Path] = was
	}
	p.Before[c.Path] = nil
	if c.old != nil {
		p.Before[c.Path] = new(versionOf(*c.old))
	}
}

// recordLate notes a file that a roll-back restores after the restart. After a trial that was not
// ended, this is the file from before that trial.
func (s *state) recordLate(name string) {
	p := s.Pending
	if _, is := p.Late[name]; is {
		return
	}
	if p.Late == nil {
		p.Late = map[string]*version{}
	}
	p.Late[name] = nil
	if e, isOurs := s.Entries[name]; isOurs {
		p.Late[name] = &e.Written
	}
}

// keepBefore keeps the files that a roll-back restores. It replaces files that others have left
// under the same names.
func (s *state) keepBefore() error {
	for _, name := range slices.Sorted(maps.Keys(s.Pending.Before)) {
		err := s.tree.Clean(name, true)
		if err == nil && s.Pending.Before[name] != nil {
			err = s.tree.Keep(name)
		}
		if err != nil {
			return err
		}
	}
	err := s.eachLate(func(name string) error {
		v := s.Pending.Late[name]
		if v == nil {
			return nil
		}
		current, err := lookup(s.tree, name)
		if err != nil {
			return err
		}
		if current == nil || versionOf(*current) != *v {
			return nil // it is kept since an earlier trial
		}
		if err := s.tree.Clean(name, true); err != nil {
			return err
		}
		return s.tree.Keep(name)
	})
	if err != nil {
		return err
	}
	return s.standBy()
}

// change makes one change, which the state already records.
func (s *state) change(c Change) error {
	switch {
	case c.isNone():
		return nil
	case c.next != nil:
		return s.tree.Replace(c.Path, c.old, *c.next)
	}
	return s.tree.Remove(c.Path, c.old)
}

// abandon restores the state as it was before changes that were not made.
func (s *state) abandon(changes []Change, entries map[string]entry, late map[string]*version, restarted bool) error {
	if err := s.clean(); err != nil {
		return err
	}
	for _, c := range changes {
		if e, had := entries[c.Path]; had {
			s.Entries[c.Path] = e
		} else {
			delete(s.Entries, c.Path)
		}
		delete(s.Pending.Before, c.Path)
		delete(s.Pending.Entries, c.Path)
		v, had := late[c.Path]
		if !had {
			delete(s.Pending.Late, c.Path)
		}
		if err := s.tree.Clean(c.Path, v == nil); err != nil {
			return err
		}
	}
	if len(s.Pending.Before) > 0 {
		return errors.Join(s.save(), s.standBy())
	}
	if s.Pending.Restarted = restarted; s.owed() {
		return s.save()
	}
	return s.settle()
}

// finish makes the changes that follow the restart, and ends the pending work.
func (s *state) finish(plan *Plan) error {
	if s.Pending == nil {
		return nil
	}
	switch {
	case s.owed():
		return errNotRestarted
	case s.Pending.Uninstall:
		return ErrBusy
	}
	if !plan.Rejected {
		s.Pending.Late = nil // the plan has judged these files
	}
	for _, c := range plan.Changes {
		if late(c) && !plan.Rejected {
			if err := s.change(c); err != nil {
				return fmt.Errorf("%w; run it again", err)
			}
		}
	}
	if err := s.clean(); err != nil {
		return err
	}
	for _, c := range plan.Changes {
		if c.entry == nil && !plan.Rejected {
			delete(s.Entries, c.Path)
		}
	}
	err := s.settle()
	if plan.Rejected {
		err = errors.Join(ErrRejected, err)
	}
	return err
}

// Uninstall restores the original state of the node. Later changes by others in a file stay.
func (i *Installer) Uninstall(ctx context.Context) (changes []Change, err error) {
	owed := false
	err = alone(i.tree, func(s *state) error {
		if s.read == nil {
			if s.Pending != nil {
				return s.settle()
			}
			return nil
		}
		begun := s.Pending != nil && s.Pending.Uninstall
		for name, e := range s.Entries {
			if _, err := s.undo(name); err != nil {
				return err
			}
			if e.Restart && !begun {
				owed = true // the kubelet may have been started with it
			}
		}
		if owed = owed || s.owed(); owed {
			if err := i.watcher.Ready(ctx); err != nil {
				return err
			}
		}
		if !begun {
			if err := s.endInterrupted(); err != nil {
				return err
			}
			s.Pending = &pending{Uninstall: true, Restarted: !owed}
		}
		if err := s.save(); err != nil {
			return err
		}
		changes, err = s.takeAway(true)
		return err
	})
	if err != nil {
		return nil, err
	}
	if owed {
		if err := i.watch(ctx, "", nil); err != nil {
			return changes, fmt.Errorf("%w; %w", errIncomplete, err)
		}
	}
	return changes, alone(i.tree, func(s *state) error {
		switch {
		case s.read == nil:
			return nil // there was nothing, or a different process has ended it
		case s.Pending == nil || !s.Pending.Uninstall:
			return fmt.Errorf("%d files were installed meanwhile; end what runs apply here, and run it again", len(s.Entries))
		case s.owed():
			return errNotRestarted
		}
		rest, err := s.takeAway(false)
		changes = append(changes, rest...)
		if err != nil {
			return err
		}
		if err := s.clean(); err != nil {
			return err
		}
		s.Entries, s.Rejected = map[string]entry{}, nil
		return s.settle()
	})
}

// takeAway removes our parts of the files that the kubelet reads, or of all files. It returns the
// changes. The state continues to record the files.
func (s *state) takeAway(restart bool) (changes []Change, err error) {
	for _, name := range s.paths() {
		if restart && !s.Entries[name].Restart {
			continue
		}
		c, err := s.undo(name)
		if !c.isNone() {
			err = s.change(c)
			c.Reason = "uninstall"
			changes = append(changes, c)
		}
		if err != nil {
			return changes, fmt.Errorf("%w; run it again", err)
		}
	}
	return changes, nil
}

// watch has the kubelet restarted, and returns the result. A watcher that was ended, such as for lack of
// memory, is started once more: without it, nothing would roll back the changes.
func (i *Installer) watch(ctx context.Context, digest string, changes []Change) error {
	err := i.watcher.Watch(ctx)
	s, stateErr := readState(i.tree)
	if err != nil && stateErr == nil && ctx.Err() == nil {
		switch {
		case s.isTrial():
			err = i.watchAgain(ctx, changes, err)
		case slices.Contains(s.Rejected, digest) && s.owed(): // only the restart with the previous files is due
			err = i.watchAgain(ctx, nil, err)
		}
		s, stateErr = readState(i.tree)
	}
	switch {
	case stateErr != nil:
		return errors.Join(err, stateErr)
	case slices.Contains(s.Rejected, digest) && !errors.Is(err, ErrRejected):
		return errors.Join(ErrRejected, err, alone(i.tree, func(s *state) error {
			if s.owed() {
				return nil
			}
			return s.settle() // for a second watcher, it was a restart like any other
		}))
	case err != nil && s.isTrial() && ctx.Err() == nil:
		return fmt.Errorf("%w; %w", errUntested, err)
	}
	return err
}

// watchAgain starts the watcher again if none runs, and the trial is as apply began it. A watcher that
// was ended during its roll-back has restored files: a healthy kubelet would prove nothing then.
func (i *Installer) watchAgain(ctx context.Context, changes []Change, failure error) error {
	isAsBegun := true
	err := alone(i.tree, func(*state) error {
		for _, c := range changes {
			if !c.Restart {
				continue
			}
			now, err := lookup(i.tree, c.Path)
			if err != nil {
				return err
			}
			if !(Change{old: now, next: c.next}).isNone() {
				isAsBegun = false
			}
		}
		return nil
	})
	if err != nil || !isAsBegun {
		return errors.Join(failure, err)
	}
	if err := i.watcher.Watch(ctx); err != nil {
		return fmt.Errorf("%w; the watcher was started again: %w", failure, err)
	}
	return nil
}
