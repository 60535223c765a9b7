package hostfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
)

// maxLinks is the limit of the kernel (path_resolution(7)).
const maxLinks = 40

var (
	// ErrLoop means that a path has too many links.
	ErrLoop = errors.New("too many symbolic links")
	// ErrWritable means that any user may write to a directory. A user who can put files there
	// decides which program the kubelet runs as root.
	ErrWritable = errors.New("a directory that any user may write to")
	// ErrOwner means that a user other than root owns a directory, who can do the same.
	ErrOwner = errors.New("a directory of a user other than root, who may write to it; give it to root (chown)")
	// ErrChanged means that a file is no longer as expected.
	ErrChanged = errors.New("changed meanwhile")
	// ErrNotRegular means that a file is not a regular file, a link or a directory.
	ErrNotRegular = errors.New("not a regular file")
	// ErrTooLarge means that a file is larger than the limit.
	ErrTooLarge = errors.New("too large")
)

// Tree is the file system of a host. It is safe for concurrent use. Writers of the same file
// exclude each other with Lock.
type Tree struct {
	root *os.Root
	// Failing is asked before each operation, and its error is that of the operation; nil: none
	// fails. Tests set it, before they use the tree.
	Failing func(name string) error
}

// Open returns the tree below a directory.
func Open(dir string) (*Tree, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &Tree{root: root}, nil
}

func (t *Tree) Close() error { return t.root.Close() }

// Path returns the path of a host's file as this process sees it, for messages.
func (t *Tree) Path(name string) string { return path.Join(t.root.Name(), name) }

// walker holds the directories on the path, the root first.
type walker struct {
	open   []*os.Root
	dirs   []string // their names
	owners bool     // only root may own the directories
}

func (w *walker) close() {
	for _, dir := range w.open[1:] { // the first is the tree's
		_ = dir.Close()
	}
}

// parent opens the directory of a path without its last name. The caller closes the walker, whose
// last directory it is.
func (t *Tree) parent(name string) (w *walker, dir *os.Root, base string, err error) {
	return t.walk(name, false)
}

func (t *Tree) walk(name string, owners bool) (w *walker, dir *os.Root, base string, err error) {
	clean := path.Clean(name)
	if !path.IsAbs(name) || clean == "/" {
		return nil, nil, "", fmt.Errorf("%q is not an absolute path of a file", name)
	}
	if t.Failing != nil {
		if err := t.Failing(name); err != nil {
			return nil, nil, "", fmt.Errorf("%s: %w", t.Path(name), err)
		}
	}
	w = &walker{open: []*os.Root{t.root}, owners: owners}
	if err := w.enter(path.Dir(clean)); err != nil {
		w.close()
		return nil, nil, "", fmt.Errorf("%s: %w", t.Path(name), err)
	}
	return w, w.open[len(w.open)-1], path.Base(clean), nil
}

func (w *walker) enter(dir string) error {
	rest := strings.Split(dir, "/")
	for links := 0; len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		at := w.open[len(w.open)-1]
		switch name {
		case "", ".":
			continue
		case "..":
			if len(w.open) > 1 {
				_ = at.Close()
				w.open, w.dirs = w.open[:len(w.open)-1], w.dirs[:len(w.dirs)-1]
			}
			continue
		}
		info, err := at.Lstat(name)
		if err != nil {
			return err
		}
		if info.Mode().Type() != fs.ModeSymlink {
			if err := w.step(at, name, info); err != nil {
				return err
			}
			continue
		}
		if links++; links > maxLinks {
			return ErrLoop
		}
		target, err := at.Readlink(name)
		if err != nil {
			return err
		}
		if path.IsAbs(target) {
			w.close()
			w.open, w.dirs = w.open[:1], nil
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return nil
}

// step opens a directory, but not a file that has replaced it since it was checked.
func (w *walker) step(at *os.Root, name string, info fs.FileInfo) error {
	if !info.IsDir() {
		return &fs.PathError{Op: "open", Path: name, Err: syscall.ENOTDIR}
	}
	if info.Mode().Perm()&0o002 != 0 {
		return fmt.Errorf("%s: %w", name, ErrWritable)
	}
	// The tests of this package do not always run as root.
	if owner := fileOf(info).UID; w.owners && owner != 0 && owner != os.Getuid() {
		return fmt.Errorf("%s: %w", name, ErrOwner)
	}
	next, err := at.OpenRoot(name)
	if err != nil {
		return err
	}
	opened, err := next.Stat(".")
	if !os.SameFile(info, opened) { // nor is one of which nothing is known
		_ = next.Close()
		return errors.Join(err, fmt.Errorf("%s: %w", name, ErrChanged))
	}
	w.open, w.dirs = append(w.open, next), append(w.dirs, name)
	return nil
}
