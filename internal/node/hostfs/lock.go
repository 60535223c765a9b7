package hostfs

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// errOpen means that others may open the lock file, so it does not protect anything.
var errOpen = errors.New("others may open it, and so take the lock; remove it")

// Lock locks the file, also against other containers. ok is false while another process holds the
// lock. Any process that may open a file may lock it (flock(2)), so only the owner may open it.
//
// If create is set, Lock creates a missing file. Otherwise the error is fs.ErrNotExist. unlock
// removes the file.
func (t *Tree) Lock(name string, create bool) (unlock func() error, ok bool, err error) {
	w, dir, base, err := t.parent(name)
	if err != nil {
		return nil, false, err
	}
	f, ok, err := lock(dir, base, create)
	if !ok {
		w.close()
		if err != nil {
			err = fmt.Errorf("%s: %w", t.Path(name), reason(err))
		}
		return nil, false, err
	}
	return func() error {
		defer w.close()
		err := ignoreMissing(dir.Remove(base))
		// Closing is not enough: a program that is being started briefly shares the file.
		return errors.Join(err, syscall.Flock(int(f.Fd()), syscall.LOCK_UN), f.Close())
	}, true, nil
}

func lock(dir *os.Root, base string, create bool) (f *os.File, ok bool, err error) {
	flags := os.O_RDWR | syscall.O_NONBLOCK
	if create {
		flags |= os.O_CREATE
	}
	if f, err = dir.OpenFile(base, flags, 0o600); err != nil {
		return nil, false, err
	}
	if err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err == nil {
		err = isLock(dir, base, f)
	}
	if err == nil {
		return f, true, nil
	}
	_ = f.Close() // nothing was written
	if errors.Is(err, syscall.EWOULDBLOCK) || errors.Is(err, ErrChanged) {
		return nil, false, nil
	}
	return nil, false, err
}

// isLock returns ErrChanged if the file was removed since it was opened.
func isLock(dir *os.Root, base string, f *os.File) error {
	opened, err := f.Stat()
	if err != nil {
		return err
	}
	now, err := dir.Lstat(base)
	if ignoreMissing(err) != nil {
		return err
	}
	if !os.SameFile(opened, now) { // nor is a missing file
		return ErrChanged
	}
	if file := fileOf(opened); !file.Mode.IsRegular() || file.Mode.Perm()&0o077 != 0 || file.UID != os.Getuid() {
		return errOpen
	}
	return nil
}
