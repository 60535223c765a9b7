//go:build unix

package upstream

import "syscall"

// readNow reads what has arrived, without waiting.
func readNow(fd uintptr, p []byte) (int, error) { return syscall.Read(int(fd), p) }
