package nodeinstall

import (
	"maps"
	"path"
	"slices"
)

// Repair restores files that others have changed, at once and without a restart. It covers files
// that the kubelet does not read when it starts. The most important one is hosts.toml: without it,
// containerd asks the registry behind the gateway. It does not wait for a turn. A file that is as
// Apply wrote it stays, whatever is desired. Of one that is not, the former content is not kept, and
// the node pulls nothing without the file: it gets the desired content.
func (i *Installer) Repair(d Desired) (repaired []Change, err error) {
	err = alone(i.tree, func(s *state) error {
		if s.Pending != nil && s.Pending.Uninstall {
			return nil // the uninstall removes files on purpose
		}
		plan, err := newPlan(i.tree, s, i.profile, d)
		if err != nil {
			return err
		}
		var changes []Change
		for _, c := range plan.Changes {
			if s.isRepair(c) || c.next != nil && s.isDamaged(c) {
				changes = append(changes, c)
			}
		}
		if len(changes) == 0 {
			return nil
		}
		// Apply ends interrupted commands.
		isAlone := s.Pending == nil
		if isAlone {
			s.Pending = &pending{Restarted: true}
		}
		if err := s.save(); err != nil {
			return err
		}
		made, err := s.carryOut(changes)
		repaired = changes[:made]
		if err == nil && isAlone {
			err = s.settle()
		}
		return err
	})
	return repaired, err
}

// isRepair reports whether a change brings back what Apply wrote last into a file that the kubelet does
// not read.
func (s *state) isRepair(c Change) bool {
	return !c.Restart && c.entry != nil && c.entry.Written == s.Entries[c.Path].Written
}

// Repairable returns the paths of the files that Repair restores, as this process sees them.
func (i *Installer) Repairable() (paths []string) {
	s, err := readState(i.tree)
	if err != nil {
		return nil // Apply reports it
	}
	for _, name := range slices.Sorted(maps.Keys(s.Entries)) {
		if s.Entries[name].Restart {
			continue
		}
		// Resolve links as on the host.
		if dir, err := i.tree.Follow(path.Dir(name)); err == nil {
			name = path.Join(dir, path.Base(name))
		}
		paths = append(paths, i.tree.Path(name))
	}
	return paths
}
