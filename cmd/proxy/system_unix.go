//go:build unix

package main

import (
	"io/fs"
	"os"
	"syscall"
)

// forbidCoreImages keeps the kernel from storing the memory of a crashed process, which holds keys and tokens. A file of one
// byte is too short for an image. Of a program in kernel.core_pattern, one is the only limit that counts (fs/coredump.c).
func forbidCoreImages() error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_CORE, &limit); err != nil {
		return err
	}
	limit.Cur = min(limit.Max, 1)
	return syscall.Setrlimit(syscall.RLIMIT_CORE, &limit)
}

// keepOwner gives a file the owner of another.
func keepOwner(f *os.File, of fs.FileInfo) error {
	if owner, ok := of.Sys().(*syscall.Stat_t); ok {
		return f.Chown(int(owner.Uid), int(owner.Gid))
	}
	return nil
}
