package hostfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
)

// maxLinks is how many the kernel follows, too (path_resolution(7)).
const maxLinks = 40

var (
	// ErrLoop is what a path is whose links have no end.
	ErrLoop = errors.New("too many symbolic links")
	// ErrWritable is what a directory is that everybody may write: whoever can put
	// files there decides what the kubelet runs as root.
	ErrWritable = errors.New("a directory that everybody may write")
	// ErrChanged is what a file is that is no longer what it was said to be.
	ErrChanged = errors.New("changed meanwhile")
	// ErrNotRegular is what neither is a regular file nor a link nor a directory.
	ErrNotRegular = errors.New("not a regular file")
	// ErrTooLarge is what a file is that has more bytes than are read.
	ErrTooLarge = errors.New("too large")
)

// Tree is the file system of a host. It may be used concurrently; writers of the
// same file exclude each other with Lock.
type Tree struct{ root *os.Root }

// Open returns the tree below a directory.
func Open(dir string) (*Tree, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &Tree{root}, nil
}

func (t *Tree) Close() error { return t.root.Close() }

// Path returns how the process calls a file of the host, for messages.
func (t *Tree) Path(name string) string { return path.Join(t.root.Name(), name) }

// walker holds the directories on the way, the root first.
type walker struct {
	open []*os.Root
	dirs []string // their names
}

func (w *walker) close() {
	for _, dir := range w.open[1:] { // the first is the tree's
		_ = dir.Close()
	}
}

// parent opens the directory that a path leads to, without its last name. The
// caller closes the walker, whose last directory that is.
func (t *Tree) parent(name string) (w *walker, dir *os.Root, base string, err error) {
	clean := path.Clean(name)
	if !path.IsAbs(name) || clean == "/" {
		return nil, nil, "", fmt.Errorf("%q is not an absolute path of a file", name)
	}
	w = &walker{open: []*os.Root{t.root}}
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

// step opens a directory, and nothing that took its place since it was looked at.
func (w *walker) step(at *os.Root, name string, info fs.FileInfo) error {
	if !info.IsDir() {
		return &fs.PathError{Op: "open", Path: name, Err: errors.New("not a directory")}
	}
	if info.Mode().Perm()&0o002 != 0 {
		return fmt.Errorf("%s: %w", name, ErrWritable)
	}
	next, err := at.OpenRoot(name)
	if err != nil {
		return err
	}
	opened, err := next.Stat(".")
	if err != nil || !os.SameFile(info, opened) {
		_ = next.Close()
		return errors.Join(err, fmt.Errorf("%s: %w", name, ErrChanged))
	}
	w.open, w.dirs = append(w.open, next), append(w.dirs, name)
	return nil
}
