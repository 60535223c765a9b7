package hostfs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// copyAttributes copies the extended attributes of the replaced file to a new file: SELinux labels,
// access control lists, capabilities, and attributes of users.
func copyAttributes(to *os.File, dir *os.Root, name string) error {
	from, err := dir.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }() // nothing was written
	// The kernel limits lists and values to this size (xattr(7)).
	names, value := make([]byte, 1<<16), make([]byte, 1<<16)
	n, err := unix.Flistxattr(int(from.Fd()), names)
	if errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("extended attributes: %w", err)
	}
	for name := range bytes.SplitSeq(names[:n], []byte{0}) {
		switch attribute := string(name); attribute {
		case "": // after the last one
		case "security.ima", "security.evm": // the kernel computes these from the content
		default:
			n, err := unix.Fgetxattr(int(from.Fd()), attribute, value)
			if err == nil {
				err = unix.Fsetxattr(int(to.Fd()), attribute, value[:n], 0)
			}
			if err != nil {
				return fmt.Errorf("extended attribute %s: %w", attribute, err)
			}
		}
	}
	return nil
}
