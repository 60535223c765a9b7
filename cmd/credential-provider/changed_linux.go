package main

import (
	"io/fs"
	"syscall"
	"time"
)

// changed returns the time of the last change of a file, its times and its name. Any program can set
// the time of the content.
func changed(info fs.FileInfo) time.Time {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return time.Unix(stat.Ctim.Unix())
	}
	return info.ModTime()
}
