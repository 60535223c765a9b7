package nodeinstall

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/node/hostfs"
)

// alone runs a step on the node's state exclusively. The lock is a file. If it does not exist, the
// step creates it before its first write. A step without work writes nothing, not even a lock.
func alone(tree *hostfs.Tree, do func(*state) error) error {
	unlock, ok, err := tree.Lock(lockFile, false)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		unlock = nil
	case err != nil:
		return err
	case !ok:
		return ErrBusy
	}
	s, err := readState(tree)
	if err == nil {
		s.unlock = unlock
		err = do(s)
		unlock = s.unlock
	}
	if unlock == nil {
		return err
	}
	return errors.Join(err, unlock())
}

// lock takes the lock if the step does not have it. It verifies that others have not changed the
// state since.
func (s *state) lock() error {
	if s.unlock != nil {
		return nil
	}
	unlock, ok, err := s.tree.Lock(lockFile, true)
	if err != nil {
		return err
	}
	if !ok {
		return ErrBusy
	}
	s.unlock = unlock
	now, err := readIfThere(s.tree, stateFile)
	if err == nil && !bytes.Equal(now, s.read) {
		err = ErrBusy
	}
	return err
}

// save writes the state if it has changed.
func (s *state) save() error {
	if err := s.lock(); err != nil {
		return err
	}
	missing, err := missingDirs(s.tree, stateDir)
	if err != nil {
		return err
	}
	s.own(missing)
	content, err := s.content()
	if err != nil {
		return err
	}
	if len(missing) == 0 {
		err = put(s.tree, stateFile, hostfs.NewFile(0o600, content), maxFileBytes)
	} else {
		err = s.first(missing, content)
	}
	s.read = content
	return err
}

func (s *state) content() ([]byte, error) {
	content, err := json.MarshalIndent(s, "", "  ")
	return append(content, '\n'), err
}

// own records directories that are to be created.
func (s *state) own(dirs []string) {
	for _, dir := range dirs {
		// A platform that resets its files at a start may have removed it.
		if !slices.Contains(s.Directories, dir) {
			s.Directories = append(s.Directories, dir)
		}
	}
}

// mkdirs saves the state with the directories, and then creates them.
func (s *state) mkdirs(dirs []string) error {
	s.own(dirs)
	if err := s.save(); err != nil {
		return err
	}
	for _, dir := range dirs {
		if err := s.tree.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// first creates the directories of the state under a temporary name, and renames them when the
// state is in them. So the state records every directory.
func (s *state) first(dirs []string, content []byte) error {
	if err := dropUnnamed(s.tree); err != nil {
		return err
	}
	top := dirs[0]
	err := func() error {
		for _, dir := range dirs {
			if err := s.tree.Mkdir(unnamed(top, dir), 0o755); err != nil {
				return err
			}
		}
		if err := s.tree.Replace(unnamed(top, stateFile), nil, hostfs.NewFile(0o600, content)); err != nil {
			return err
		}
		return s.tree.Rename(unnamed(top, top), path.Base(top))
	}()
	if err != nil {
		return errors.Join(err, dropUnnamed(s.tree))
	}
	return nil
}

// stateDirs returns the directories of the state's path, the outer ones first.
func stateDirs() (dirs []string) {
	for dir := stateDir; dir != "/"; dir = path.Dir(dir) {
		dirs = append(dirs, dir)
	}
	slices.Reverse(dirs)
	return dirs
}

// unnamed returns the path of a file below a directory that still has its temporary name.
func unnamed(top, name string) string {
	return hostfs.Temporary(top) + strings.TrimPrefix(name, top)
}

func hasUnnamed(tree *hostfs.Tree) (is bool, err error) {
	for _, top := range stateDirs() {
		if is, err = tree.Exists(unnamed(top, top)); is || err != nil {
			return is, err
		}
	}
	return tree.Exists(hostfs.Temporary(stateFile))
}

// dropUnnamed removes the directories of a state that is to be removed, or was never complete.
func dropUnnamed(tree *hostfs.Tree) error {
	for _, top := range stateDirs() {
		is, err := tree.Exists(unnamed(top, top))
		if err != nil {
			return err
		}
		if !is {
			continue
		}
		if err := remove(tree, unnamed(top, stateFile)); err != nil {
			return err
		}
		if err := tree.Clean(unnamed(top, stateFile), false); err != nil {
			return err
		}
		for _, dir := range slices.Backward(stateDirs()) {
			if strings.HasPrefix(dir, top) {
				if err := remove(tree, unnamed(top, dir)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// missingDirs returns the missing ones of a directory and its parents, the outer ones first.
func missingDirs(tree *hostfs.Tree, dir string) (missing []string, err error) {
	for ; dir != "/"; dir = path.Dir(dir) {
		is, err := tree.Exists(dir)
		if err != nil {
			return nil, err
		}
		if is {
			break
		}
		missing = append(missing, dir)
	}
	slices.Reverse(missing)
	return missing, nil
}

// clean removes temporary files that a crash left. It also removes the files for a roll-back,
// unless a roll-back is still possible.
func (s *state) clean() error {
	if err := s.lock(); err != nil {
		return err
	}
	var err error
	for name := range s.Entries {
		needed := false
		if s.owed() {
			_, needed = s.Pending.Before[name]
		}
		needed = needed || s.Pending.Late[name] != nil
		err = errors.Join(err, s.tree.Clean(name, !needed))
	}
	for _, name := range []string{stateFile, undoLink, undoFile, undoScript, undoState, undoBoot, undoRejected} {
		err = errors.Join(err, s.tree.Clean(name, false))
	}
	return errors.Join(err, dropUnnamed(s.tree))
}

// settle ends pending work, and removes all data that the state does not need any more.
func (s *state) settle() error {
	if err := s.endTrial(); err != nil {
		return err
	}
	s.Pending = &pending{Restarted: true}
	for _, end := range []func() error{s.clean, s.standDown, s.sweep, s.dropBackups} {
		if err := end(); err != nil {
			return err
		}
	}
	s.Pending = nil
	if len(s.Entries) == 0 && len(s.Rejected) == 0 {
		return s.forget()
	}
	return s.save()
}

// sweep removes directories that we created, if they are empty.
func (s *state) sweep() error {
	var kept []string
	for _, dir := range slices.Backward(s.Directories) {
		names, err := s.tree.Names(dir)
		if err != nil {
			return err
		}
		if len(names) > 0 {
			kept = append(kept, dir)
			continue
		}
		if err := remove(s.tree, dir); err != nil {
			return err
		}
	}
	slices.Reverse(kept)
	s.Directories = kept
	return nil
}

// forget removes the state when it is empty. Its directories are renamed first: otherwise, they
// could outlive the state that records them.
func (s *state) forget() error {
	for _, top := range stateDirs() {
		if isOnlyOurs, err := s.hasOnly(top); err != nil {
			return err
		} else if isOnlyOurs {
			if err := s.tree.Rename(top, path.Base(unnamed(top, top))); err != nil {
				return err
			}
			return dropUnnamed(s.tree)
		}
	}
	return remove(s.tree, stateFile)
}

// hasOnly reports whether a directory was created for the state and contains nothing else.
func (s *state) hasOnly(top string) (bool, error) {
	for name := stateFile; name != top; name = path.Dir(name) {
		names, err := s.tree.Names(path.Dir(name))
		if len(names) != 1 || !slices.Contains(s.Directories, path.Dir(name)) {
			return false, err
		}
	}
	return true, nil
}
