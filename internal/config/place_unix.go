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
