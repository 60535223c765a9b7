//go:build unix

package signing

import (
	"errors"
	"os"
	"syscall"
)

// tryLock locks the file until it is closed. isBusy reports that a later attempt can succeed.
func tryLock(f *os.File) (isBusy bool, err error) {
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	return errors.Is(err, syscall.EWOULDBLOCK) || errors.Is(err, syscall.EINTR), err
}
