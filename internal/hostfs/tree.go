package hostfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
)

// File is what has a name: a regular file, a symbolic link or a directory.
type File struct {
	Mode    fs.FileMode // type and permissions
	UID     int
	GID     int
	Content []byte // of a regular file
	Link    string // of a link, as written
}

// Equal reports whether two files are the same but for their names and times.
func (f File) Equal(other File) bool {
	return f.Mode == other.Mode && f.UID == other.UID && f.GID == other.GID && f.Link == other.Link && bytes.Equal(f.Content, other.Content)
}

// Lookup returns what has the name; of a regular file no more than limit bytes.
// Its error is fs.ErrNotExist where nothing has it.
func (t *Tree) Lookup(name string, limit int64) (File, error) {
	w, dir, base, err := t.parent(name)
	if err != nil {
		return File{}, err
	}
	defer w.close()
	f, err := lookup(dir, base, limit)
	if err != nil {
		return File{}, fmt.Errorf("%s: %w", t.Path(name), err)
	}
	return f, nil
}

func lookup(dir *os.Root, base string, limit int64) (File, error) {
	info, err := dir.Lstat(base)
	if err != nil {
		return File{}, reason(err)
	}
	f := fileOf(info)
	switch info.Mode().Type() {
	case fs.ModeDir:
		return f, nil
	case fs.ModeSymlink:
		f.Link, err = dir.Readlink(base)
		return f, reason(err)
	case 0:
		f.Content, err = content(dir, base, info, limit)
		return f, err
	}
	return File{}, ErrNotRegular
}

func fileOf(info fs.FileInfo) File {
	f := File{Mode: info.Mode()}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		f.UID, f.GID = int(stat.Uid), int(stat.Gid)
	}
	return f
}

// content waits for nobody: what is no longer the regular file that was looked at
// may be a FIFO.
func content(dir *os.Root, base string, info fs.FileInfo, limit int64) ([]byte, error) {
	f, err := dir.OpenFile(base, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, reason(err)
	}
	defer func() { _ = f.Close() }() // nothing was written
	opened, err := f.Stat()
	if err != nil {
		return nil, reason(err)
	}
	if !os.SameFile(info, opened) {
		return nil, ErrChanged
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, reason(err)
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%w: it has more than %d bytes", ErrTooLarge, limit)
	}
	return data, nil
}

// Names returns what is in a directory, sorted, and nothing of one that is not there.
func (t *Tree) Names(dir string) ([]string, error) {
	w, at, _, err := t.parent(path.Join(dir, "name"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer w.close()
	entries, err := fs.ReadDir(at.FS(), ".")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", t.Path(dir), reason(err))
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	slices.Sort(names)
	return names, nil
}

// Exists reports whether anything has the name, a link to nothing too: units of
// systemd are such links where a host's root is looked at from elsewhere.
func (t *Tree) Exists(name string) (bool, error) {
	w, dir, base, err := t.parent(name)
	if err == nil {
		defer w.close()
		_, err = dir.Lstat(base)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Mode returns what kind of file links lead to, and who may do what with it.
func (t *Tree) Mode(name string) (fs.FileMode, error) {
	name, err := t.Follow(name)
	if err != nil {
		return 0, err
	}
	w, dir, base, err := t.parent(name)
	if err != nil {
		return 0, err
	}
	defer w.close()
	info, err := dir.Lstat(base)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", t.Path(name), reason(err))
	}
	return info.Mode(), nil
}

// Follow returns the path that links lead to, the last name's too.
func (t *Tree) Follow(name string) (string, error) {
	for range maxLinks {
		w, dir, base, err := t.parent(name)
		if err != nil {
			return "", err
		}
		real := "/" + path.Join(append(slices.Clone(w.dirs), base)...)
		target, err := dir.Readlink(base)
		w.close()
		switch {
		case errors.Is(err, syscall.EINVAL): // no link
			return real, nil
		case err != nil:
			return "", fmt.Errorf("%s: %w", t.Path(name), reason(err))
		}
		if name = target; !path.IsAbs(target) {
			// Not path.Join: a .. of the target is that of where the link stands.
			name = path.Dir(real) + "/" + target
		}
	}
	return "", fmt.Errorf("%s: %w", t.Path(name), ErrLoop)
}

// temporary is the name under which a file is written. No program takes it for
// its own: its end is no known one, and it begins with a dot.
func temporary(base string) string { return "." + base + ".pullpass" }

// Replace puts a file or link in the place of what is there, at once and for
// good. old is what was there when it was decided, or nil for nothing: if it is
// something else by now, the error is ErrChanged and nothing is written.
func (t *Tree) Replace(name string, old *File, next File) error {
	return t.change(name, func(dir *os.Root, base string) error {
		// One that a crash left.
		if err := dir.Remove(temporary(base)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := write(dir, temporary(base), next); err != nil {
			return errors.Join(err, ignoreMissing(dir.Remove(temporary(base))))
		}
		// As late as can be: writing takes its time.
		if err := matches(dir, base, old); err != nil {
			return errors.Join(err, dir.Remove(temporary(base)))
		}
		return dir.Rename(temporary(base), base)
	})
}

func write(dir *os.Root, name string, next File) error {
	if next.Mode.Type() == fs.ModeSymlink {
		if err := dir.Symlink(next.Link, name); err != nil {
			return err
		}
		return dir.Lchown(name, next.UID, next.GID)
	}
	f, err := dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(next.Content)
	// The owner first: it takes setuid away.
	err = errors.Join(err, f.Chown(next.UID, next.GID))
	err = errors.Join(err, f.Chmod(next.Mode), f.Sync())
	return errors.Join(err, f.Close())
}

// Remove removes a file or link that is still what it was, or a directory that
// has nothing in it.
func (t *Tree) Remove(name string, old *File) error {
	return t.change(name, func(dir *os.Root, base string) error {
		if err := matches(dir, base, old); err != nil {
			return err
		}
		return dir.Remove(base)
	})
}

// Mkdir makes a directory in one that is there.
func (t *Tree) Mkdir(name string, perm fs.FileMode) error {
	return t.change(name, func(dir *os.Root, base string) error {
		if err := dir.Mkdir(base, perm); err != nil {
			return err
		}
		return dir.Chmod(base, perm) // whatever the umask is
	})
}

func (t *Tree) change(name string, do func(dir *os.Root, base string) error) error {
	w, dir, base, err := t.parent(name)
	if err != nil {
		return err
	}
	defer w.close()
	if err = do(dir, base); err == nil {
		err = sync(dir)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", t.Path(name), reason(err))
	}
	return nil
}

// matches compares what is there with what was there.
func matches(dir *os.Root, base string, old *File) error {
	limit := int64(0)
	if old != nil {
		limit = int64(len(old.Content))
	}
	now, err := lookup(dir, base, limit)
	switch {
	case errors.Is(err, fs.ErrNotExist) && old == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, ErrTooLarge), err == nil && (old == nil || !now.Equal(*old)):
		return ErrChanged
	}
	return err
}

// sync makes a rename outlive a loss of power.
func sync(dir *os.Root) error {
	f, err := dir.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// Lock takes the host, as long as nobody calls the function that it returns. ok
// is false while somebody else has it, in another container too: the lock is on
// the root directory, so that it leaves no file behind.
func (t *Tree) Lock() (unlock func() error, ok bool, err error) {
	f, err := t.root.Open(".")
	if err != nil {
		return nil, false, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, false, nil
		}
		return nil, false, fmt.Errorf("%s: %w", t.root.Name(), err)
	}
	// Not by closing alone: a program that is being started has the file, too, for a moment.
	return func() error { return errors.Join(syscall.Flock(int(f.Fd()), syscall.LOCK_UN), f.Close()) }, true, nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// reason leaves out the path, which is one within a directory.
func reason(err error) error {
	var pathError *fs.PathError
	if errors.As(err, &pathError) && !strings.Contains(pathError.Path, "/") {
		return pathError.Err
	}
	return err
}

// NewFile returns a file of this process's user.
func NewFile(perm fs.FileMode, content []byte) File {
	return File{Mode: perm, UID: os.Getuid(), GID: os.Getgid(), Content: content}
}

// NewLink returns a symbolic link of this process's user.
func NewLink(target string) File {
	return File{Mode: fs.ModeSymlink | 0o777, UID: os.Getuid(), GID: os.Getgid(), Link: target}
}
