//go:build unix

package nodeconfig

import (
	"io/fs"
	"syscall"
)

// ownerOf returns the uid of the owner, or 0 if it is not known.
func ownerOf(info fs.FileInfo) int {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(stat.Uid)
	}
	return 0
}
