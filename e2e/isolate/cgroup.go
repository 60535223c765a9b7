package isolate

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	cgroupRoot = "/sys/fs/cgroup"
	// removeLimit is for the kernel, which lets go of a cgroup a moment after its last process.
	removeLimit = 10 * time.Second
)

// hierarchies are the directories in which a cgroup may be made: one for each controller in version 1, and one in version 2.
func hierarchies() ([]string, error) {
	if _, err := os.Stat(filepath.Join(cgroupRoot, "cgroup.controllers")); err == nil {
		return []string{cgroupRoot}, nil
	}
	found, err := filepath.Glob(filepath.Join(cgroupRoot, "*", "cgroup.procs"))
	for i, file := range found {
		found[i] = filepath.Dir(file)
	}
	return found, err
}

// MakeCgroup makes a cgroup below that of the tests, in each hierarchy, and returns its path as the kubelet takes it.
func MakeCgroup(name string) (string, error) {
	path := filepath.Join("/", Cgroup(), name)
	roots, err := hierarchies()
	if err != nil {
		return "", err
	}
	for _, root := range roots {
		if err := os.MkdirAll(filepath.Join(root, path), 0o755); err != nil {
			return "", err
		}
	}
	return path, nil
}

// RemoveCgroup removes what MakeCgroup returned, with all below it. Its processes have ended.
func RemoveCgroup(path string) error { return removeCgroups(path) }

func removeCgroups(group string) error {
	roots, err := hierarchies()
	if err != nil {
		return err
	}
	for _, root := range roots {
		for deadline := time.Now().Add(removeLimit); ; time.Sleep(50 * time.Millisecond) {
			err := removeTree(filepath.Join(root, group))
			if err == nil {
				break
			}
			if time.Now().After(deadline) {
				return err
			}
		}
	}
	return nil
}

// removeTree removes directories, from the innermost; the files in a cgroup cannot be removed, and go with it.
func removeTree(path string) error {
	entries, err := os.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, entry := range entries {
		if entry.IsDir() {
			err = errors.Join(err, removeTree(filepath.Join(path, entry.Name())))
		}
	}
	if err != nil {
		return err
	}
	return syscall.Rmdir(path)
}

// removeStale removes what runs left behind that were killed outside. Errors are those of runs that are alive after all.
func removeStale() {
	roots, _ := hierarchies()
	for _, dir := range append(roots, os.TempDir()) {
		left, _ := filepath.Glob(filepath.Join(dir, workPrefix+"*"))
		for _, path := range left {
			pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(path), workPrefix), "-")
			if _, err := strconv.Atoi(pid); err != nil {
				continue
			}
			if _, err := os.Stat(filepath.Join("/proc", pid)); errors.Is(err, fs.ErrNotExist) {
				_ = removeTree(path)
			}
		}
	}
}
