//go:build unix

package config

import (
	"fmt"
	"io/fs"
	"syscall"
)

// fileID identifies a file, whatever its names are.
func fileID(info fs.FileInfo) (id string, ok bool) {
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "", false
	}
	return fmt.Sprintf("%d:%d", s.Dev, s.Ino), true
}

// checkWritableDirectory asks the kernel, which also knows of read-only file systems.
func checkWritableDirectory(name string) error {
	const writeAndSearch = 2 | 1 // W_OK and X_OK, which package syscall does not name
	if err := syscall.Access(name, writeAndSearch); err != nil {
		return &fs.PathError{Op: "access", Path: name, Err: err}
	}
	return nil
}
