package hostfs

import (
	"errors"
	"io/fs"
	"os"
	"path"
)

// A file is written under a temporary name, and the file that it replaces is kept under a second
// name, both in the same directory. Both names derive from the file's name, so that the remains of
// a crash can be found. Programs ignore them: the names begin with a dot and have unknown
// extensions.
func temporary(base string) string { return "." + base + ".pullpass" }

func kept(base string) string { return "." + base + ".pullpass-before" }

// Temporary returns the path under which a file is written.
func Temporary(name string) string { return path.Join(path.Dir(name), temporary(path.Base(name))) }

// Kept returns the path under which Keep keeps a file.
func Kept(name string) string { return path.Join(path.Dir(name), kept(path.Base(name))) }

// Keep keeps the current file or link under a second name, which stays when the first name is given
// to a different file. So PutBack needs no disk space.
func (t *Tree) Keep(name string) error {
	return t.change(name, func(dir *os.Root, base string) error { return dir.Link(base, kept(base)) })
}

// PutBack replaces the current file by the kept one. Its error is fs.ErrNotExist if nothing was
// kept, or if it was already put back.
func (t *Tree) PutBack(name string) error {
	return t.change(name, func(dir *os.Root, base string) error {
		if err := dir.Rename(kept(base), base); err != nil {
			return err
		}
		// rename(2) does nothing for two names of the same file.
		return ignoreMissing(dir.Remove(kept(base)))
	})
}

// Clean removes the remains of a crash during Replace. If all is set, it also removes the file that
// Keep kept.
func (t *Tree) Clean(name string, all bool) error {
	left := []string{Temporary(name)}
	if all {
		left = append(left, Kept(name))
	}
	var err error
	for _, name := range left {
		is, failure := t.Exists(name)
		if is {
			failure = t.change(name, func(dir *os.Root, base string) error { return ignoreMissing(dir.Remove(base)) })
		}
		err = errors.Join(err, failure)
	}
	return err
}

// Rename renames a file within its directory, and replaces the file that has the new name.
func (t *Tree) Rename(name, base string) error {
	return t.change(name, func(dir *os.Root, from string) error { return dir.Rename(from, base) })
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
