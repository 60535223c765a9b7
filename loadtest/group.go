package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const groups = "/sys/fs/cgroup"

// group is a cgroup with limits, of version 2, or one for each controller of version 1.
type group struct {
	dirs   []string
	memory string // directory
	isV2   bool
}

// newGroup needs root.
func newGroup(name string, millicores, memory int) (_ *group, err error) {
	g := &group{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("cgroups cannot be made here (as root, where they can be written, it works): %w", err), g.close())
		}
	}()
	quota := strconv.Itoa(millicores * 100) // µs of each tenth of a second
	limits := map[string]map[string]string{
		"memory": {"memory.limit_in_bytes": strconv.Itoa(memory)},
		"cpu":    {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": quota},
	}
	if _, err := os.Stat(filepath.Join(groups, "cgroup.controllers")); err == nil {
		g.isV2 = true
		limits = map[string]map[string]string{"": {"memory.max": strconv.Itoa(memory), "cpu.max": quota + " 100000"}}
		if err := os.WriteFile(filepath.Join(groups, "cgroup.subtree_control"), []byte("+cpu +memory"), 0o600); err != nil {
			return g, err
		}
	}
	for controller, values := range limits {
		dir := filepath.Join(groups, controller, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return g, err
		}
		g.dirs = append(g.dirs, dir)
		if controller != "cpu" {
			g.memory = dir
		}
		for file, value := range values {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(value), 0o600); err != nil {
				return g, err
			}
		}
	}
	return g, nil
}

// enter returns how the program is run in the group; nil: as it is.
func (g *group) enter(program string, arguments []string) (string, []string) {
	if g == nil {
		return program, arguments
	}
	script := ""
	for _, dir := range g.dirs {
		script += "echo $$ >" + dir + "/cgroup.procs && "
	}
	return "sh", append([]string{"-c", script + `exec "$@"`, "sh", program}, arguments...)
}

// kills returns how many processes the kernel has killed because the memory was full.
func (g *group) kills() (int, error) {
	file := "memory.oom_control"
	if g.isV2 {
		file = "memory.events"
	}
	text, err := os.ReadFile(filepath.Join(g.memory, file))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if number, ok := strings.CutPrefix(line, "oom_kill "); ok {
			return strconv.Atoi(strings.TrimSpace(number))
		}
	}
	return 0, nil // older kernels do not count; a process that was killed has ended
}

// peak returns how much memory the group had at most, in bytes: not the pages of the
// program that others have, too, and for that also those of what it has written.
func (g *group) peak() (float64, error) {
	file := "memory.max_usage_in_bytes"
	if g.isV2 {
		file = "memory.peak"
	}
	text, err := os.ReadFile(filepath.Join(g.memory, file))
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
}

// close removes the group, which must have no processes.
func (g *group) close() error {
	var errs []error
	for _, dir := range g.dirs {
		if err := os.Remove(dir); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
