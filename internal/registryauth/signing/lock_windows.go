package signing

import (
	"errors"
	"os"
)

// tryLock fails. Programs for Windows link this package for its types, and manage no directory.
func tryLock(*os.File) (isBusy bool, err error) {
	return false, errors.New("a directory of signing keys is managed only on Unix")
}
