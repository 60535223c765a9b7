package nodeinstall

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"

	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/node/hostfs"
)

// A host can lose power while the kubelet is watched, or before. It would then start the kubelet
// with an untested configuration. So a unit of systemd restores the previous files before the
// kubelet starts. The unit needs none of our programs: they may be gone with the pod, and without a
// kubelet the pod does not come back.
const (
	undoUnit   = "pullpass-node-install-undo.service"
	undoFile   = "/etc/systemd/system/" + undoUnit
	undoLink   = "/etc/systemd/system/multi-user.target.wants/" + undoUnit
	undoScript = stateDir + "/undo"
	undoState  = stateDir + "/state.before.json"
	undoBoot   = stateDir + "/state.boot.json" // the state after undoScript

	// undoRejected is the state after a roll-back that the kubelet caused. Like the other one, it
	// is written in advance, because the disk may be full at that time.
	undoRejected = stateDir + "/state.rejected.json"
)

// standBy writes the data for a roll-back, and the unit. The unit has no effect without its link.
// So the link is written last and removed first.
func (s *state) standBy() error {
	dirs, err := missingDirs(s.tree, path.Dir(undoLink))
	if err != nil {
		return err
	}
	if err := s.mkdirs(dirs); err != nil {
		return err
	}
	before, rejected := s.rolledBack(), s.rolledBack()
	rejected.Rejected = append(slices.Clone(s.Rejected), s.Pending.Digest)
	boot := s.rolledBack()
	for name := range boot.Pending.Late {
		boot.undoEntry(name)
	}
	boot.Pending.Late = nil
	stateBefore, err := before.content()
	if err != nil {
		return err
	}
	stateBoot, err := boot.content()
	if err != nil {
		return err
	}
	stateRejected, err := rejected.content()
	if err != nil {
		return err
	}
	for _, f := range []struct {
		name string
		file hostfs.File
	}{
		{undoState, hostfs.NewFile(0o600, stateBefore)},
		{undoRejected, hostfs.NewFile(0o600, stateRejected)},
		{undoBoot, hostfs.NewFile(0o600, stateBoot)},
		{undoScript, hostfs.NewFile(0o600, s.Pending.script())},
		{undoFile, hostfs.NewFile(0o644, fmt.Appendf(nil, `# Written by pullpass node-install, which removes it when the kubelet is healthy.
[Unit]
Description=Pullpass: restore the files from before an unfinished restart of the kubelet
ConditionPathExists=%s
RequiresMountsFor=%s
Before=%s
[Service]
Type=oneshot
ExecStart=/bin/sh %s
`, undoScript, stateDir, s.Unit, undoScript))},
		{undoLink, hostfs.NewLink(undoFile)},
	} {
		if err := put(s.tree, f.name, f.file, maxFileBytes); err != nil {
			return err
		}
	}
	return nil
}

// kept returns the file that a roll-back restores. It returns nil for a file that others have left
// under that name.
func (s *state) kept(name string) (*hostfs.File, error) {
	f, err := lookup(s.tree, hostfs.Kept(name))
	if errors.Is(err, hostfs.ErrNotRegular) || f != nil && versionOf(*f) != *s.Pending.before(name) {
		return nil, nil
	}
	return f, err
}

// undone returns the result of a roll-back for a file, and whether the roll-back changes it. A
// roll-back leaves a file without a replacement. Unless it is forced, it also leaves a file that
// others have changed since. It changes none of which it returns an error.
func (s *state) undone(name string, current *hostfs.File, forced bool) (next *hostfs.File, is bool, err error) {
	before := s.Pending.before(name)
	isOurs := forced || current != nil && versionOf(*current) == s.Entries[name].Written
	switch {
	case before == nil:
		return nil, isOurs || current == nil, nil
	case current != nil && versionOf(*current) == *before:
		return current, true, nil
	case !isOurs:
		return current, false, nil
	}
	next, err = s.kept(name)
	return next, next != nil, err
}

func (s *state) standDown() error {
	for _, name := range []string{undoLink, undoFile, undoScript, undoRejected, undoBoot, undoState} {
		if err := remove(s.tree, name); err != nil {
			return err
		}
	}
	return nil
}

// rolledBack returns the state after a roll-back. It is not known whether the kubelet was started
// with the restored files.
func (s *state) rolledBack() *state {
	after := *s
	after.Entries = maps.Clone(s.Entries)
	for name := range s.Pending.Before {
		delete(after.Entries, name)
		if e, had := s.Pending.Entries[name]; had {
			after.Entries[name] = e
		}
	}
	after.Pending = &pending{Late: s.Pending.Late}
	return &after
}

// restore restores a file, and removes what was kept of it.
func (s *state) restore(name string) error {
	before := s.Pending.before(name)
	current, err := lookup(s.tree, name)
	switch {
	case err != nil:
	case before == nil:
		err = remove(s.tree, name)
	case current == nil || versionOf(*current) != *before:
		err = s.tree.PutBack(name)
	}
	if err != nil {
		return err // the kept file is needed by the next attempt
	}
	// A kept file whose original was not changed yet may belong to others.
	return s.tree.Clean(name, true)
}

func (s *state) isRestorable(name string) (bool, error) {
	if s.Pending.before(name) == nil {
		return true, nil // a file that the trial added need not be readable
	}
	current, err := lookup(s.tree, name)
	if err != nil {
		return false, err
	}
	_, is, err := s.undone(name, current, true)
	return is, err
}

// eachLate calls do for each file of Late that can be restored. It forgets the others.
func (s *state) eachLate(do func(name string) error) error {
	staying := map[string]bool{} // directories of files that cannot be restored
	for _, name := range s.Pending.lateNames() {
		dir := path.Dir(name)
		is, err := s.isRestorable(name)
		if err != nil {
			return err
		}
		if !is || staying[dir] {
			staying[dir] = true
			delete(s.Pending.Late, name)
			continue
		}
		if err := do(name); err != nil {
			return err
		}
	}
	return nil
}

// lateNames returns the files of Late in the order in which they are restored: hosts.toml goes before
// the CA that it names.
func (p *pending) lateNames() []string {
	names := slices.Sorted(maps.Keys(p.Late))
	slices.Reverse(names)
	return names
}

// undoEntry records that a file of Late is restored.
func (s *state) undoEntry(name string) {
	if before := s.Pending.Late[name]; before != nil {
		s.Entries[name] = entry{Written: *before}
	} else {
		delete(s.Entries, name)
	}
}

// endTrial restores the files that the kubelet does not read, after a roll-back. Until the kubelet is
// restarted, it may send tokens that only the hosts.toml of the trial keeps from other hosts.
func (s *state) endTrial() error {
	if s.Pending == nil {
		return nil
	}
	return s.eachLate(func(name string) error {
		if err := s.restore(name); err != nil {
			return err
		}
		s.undoEntry(name)
		return nil
	})
}

// script does the same as rollBack and endTrial, in a shell: no kubelet runs that could send tokens.
// The state comes last but for the unit itself, so that the script can be repeated until then.
func (p *pending) script() []byte {
	var b bytes.Buffer
	b.WriteString("set -eu\n")
	for _, name := range append(slices.Sorted(maps.Keys(p.Before)), p.lateNames()...) {
		to, kept := term.ShellWord(name), term.ShellWord(hostfs.Kept(name))
		if p.before(name) == nil {
			fmt.Fprintf(&b, "rm -f %s %s\n", to, term.ShellWord(hostfs.Temporary(name)))
			continue
		}
		// mv refuses two names of the same file, which is one that was not changed yet.
		fmt.Fprintf(&b, "if [ -e %s ] || [ -L %s ]; then rm -f %s; mv -T %s %s; fi\nrm -f %s\n", kept, kept, to, kept, to, term.ShellWord(hostfs.Temporary(name)))
	}
	fmt.Fprintf(&b, "sync\nmv -f %s %s\nrm -f %s %s %s %s %s\n", undoBoot, stateFile, undoLink, undoFile, undoScript, undoRejected, undoState)
	return b.Bytes()
}
