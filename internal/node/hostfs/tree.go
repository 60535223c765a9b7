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
	"time"

	"golang.org/x/sys/unix"
)

// File is a regular file, a symbolic link or a directory.
type File struct {
	Mode    fs.FileMode // type and permissions
	UID     int
	GID     int
	Content []byte // of a regular file
	Link    string // of a link, as written
}

// Equal reports whether two files are the same, except for their names and times.
func (f File) Equal(other File) bool {
	return f.Mode == other.Mode && f.UID == other.UID && f.GID == other.GID && f.Link == other.Link && bytes.Equal(f.Content, other.Content)
}

// Lookup returns the file of the name, with at most limit bytes of a regular file. Its error is
// fs.ErrNotExist if the file does not exist.
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
	switch kind := f.Mode.Type(); kind {
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

// content does not block: the name may now belong to a FIFO instead of the regular file that was
// checked.
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

// Names returns the sorted names in a directory. It returns none if the directory does not exist.
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

// Exists reports whether the name exists, even as a link to a missing file. Units of systemd are
// such links when a host's root is mounted elsewhere.
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

// Owned returns ErrOwner if a user other than root owns a directory on the way to the file, also by links. A
// missing directory is of no user.
func (t *Tree) Owned(name string) error {
	w, _, _, err := t.walk(name, true)
	if err == nil {
		w.close()
	}
	return ignoreMissing(err)
}

// Mode follows links, and returns the type and the permissions of the file.
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

// Times returns when a file was last modified, and when it was last changed in any way: a file that was moved
// here keeps the time of its modification. It does not follow a link in the last name.
func (t *Tree) Times(name string) (modified, changed time.Time, err error) {
	w, dir, base, err := t.parent(name)
	if err != nil {
		return modified, changed, err
	}
	defer w.close()
	at, err := dir.Open(".")
	if err == nil {
		defer func() { _ = at.Close() }() // nothing was written
		var stat unix.Stat_t
		if err = unix.Fstatat(int(at.Fd()), base, &stat, unix.AT_SYMLINK_NOFOLLOW); err == nil {
			return time.Unix(stat.Mtim.Unix()), time.Unix(stat.Ctim.Unix()), nil
		}
	}
	return modified, changed, fmt.Errorf("%s: %w", t.Path(name), reason(err))
}

// Follow returns the path that links lead to, including a link in the last name.
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
		case errors.Is(err, syscall.EINVAL): // not a link
			return real, nil
		case err != nil:
			return "", fmt.Errorf("%s: %w", t.Path(name), reason(err))
		}
		if name = target; !path.IsAbs(target) {
			// path.Join would be wrong: a .. of the target is relative to the directory of the
			// link.
			name = path.Dir(real) + "/" + target
		}
	}
	return "", fmt.Errorf("%s: %w", t.Path(name), ErrLoop)
}

// Replace replaces a file or link atomically and durably. A regular file that replaces a regular
// file keeps its extended attributes. old is the file at the time of the decision, or nil for none.
// If the file has changed since, the error is ErrChanged and nothing is written.
func (t *Tree) Replace(name string, old *File, next File) error {
	return t.change(name, func(dir *os.Root, base string) error {
		// A crash may have left it.
		if err := ignoreMissing(dir.Remove(temporary(base))); err != nil {
			return err
		}
		attributesOf := ""
		if old != nil && old.Mode.IsRegular() {
			attributesOf = base
		}
		if err := write(dir, temporary(base), next, attributesOf); err != nil {
			// The attributes of a file that is gone cannot be copied, for example.
			if changed := matches(dir, base, old); changed != nil {
				err = changed
			}
			return errors.Join(err, ignoreMissing(dir.Remove(temporary(base))))
		}
		// As late as possible, because writing takes time.
		if err := matches(dir, base, old); err != nil {
			return errors.Join(err, dir.Remove(temporary(base)))
		}
		return dir.Rename(temporary(base), base)
	})
}

// write creates a file. If attributesOf is set, it copies the extended attributes of that file.
func write(dir *os.Root, name string, next File, attributesOf string) error {
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
	// The owner comes first, because chown clears setuid.
	err = errors.Join(err, f.Chown(next.UID, next.GID))
	err = errors.Join(err, f.Chmod(next.Mode))
	if attributesOf != "" {
		// The attributes come last: a new owner clears capabilities, and an access control list
		// contains the mode.
		err = errors.Join(err, copyAttributes(f, dir, attributesOf))
	}
	return errors.Join(err, f.Sync(), f.Close())
}

// Remove removes an unchanged file or link, or an empty directory.
func (t *Tree) Remove(name string, old *File) error {
	return t.change(name, func(dir *os.Root, base string) error {
		if err := matches(dir, base, old); err != nil {
			return err
		}
		return dir.Remove(base)
	})
}

// Mkdir creates a directory in an existing one.
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

// matches compares the current file with the expected one.
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

// sync makes a rename survive a loss of power.
func sync(dir *os.Root) error {
	f, err := dir.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// reason removes the path, which is relative to an inner directory.
func reason(err error) error {
	if pathError, ok := errors.AsType[*fs.PathError](err); ok && !strings.Contains(pathError.Path, "/") {
		return pathError.Err
	}
	return err
}

// NewFile returns a file that belongs to this process's user.
func NewFile(perm fs.FileMode, content []byte) File {
	return File{Mode: perm, UID: os.Getuid(), GID: os.Getgid(), Content: content}
}

// NewLink returns a symbolic link that belongs to this process's user.
func NewLink(target string) File {
	return File{Mode: fs.ModeSymlink | 0o777, UID: os.Getuid(), GID: os.Getgid(), Link: target}
}
