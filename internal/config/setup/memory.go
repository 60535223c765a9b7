package setup

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
)

const (
	// containerPart is the part of a container's limit that Go may use. The rest is for memory that
	// Go does not count: the program's own pages, and the kernel's for its sockets.
	containerPart = 0.9

	// usualContainer is the chart's default limit. It determines the caches if there is no limit.
	// The upper bound is four times as much, which is enough for 400,000 identities. Expired
	// entries are removed only when their room is needed, so larger caches would waste memory.
	usualContainer = 256 << 20
	mostContainer  = 4 * usualContainer
	leastContainer = usualContainer / 4
)

// CacheBytes are the bounds of the caches whose need depends on the size of the clusters. Together
// they have 17/32 of the memory that Go may use. The rest is for connections and requests, the
// clusters' objects and everything of fixed size.
type CacheBytes struct {
	Verified int // tokens of clusters
	Issued   int // tokens for registries
	owners   int // of token ids, if replay is checked without Redis
	limits   int // buckets
}

// cachesFor computes the bounds of the caches from the memory that Go may use.
func cachesFor(limit int64) CacheBytes {
	if limit == math.MaxInt64 { // no limit
		limit = goPart(usualContainer)
	}
	all := int(min(max(limit, goPart(leastContainer)), goPart(mostContainer)))
	return CacheBytes{Verified: all / 32 * 9, Issued: all / 16, owners: all / 8, limits: all / 16}
}

// Caches returns the bounds for the present memory limit of the process.
func Caches() CacheBytes { return cachesFor(debug.SetMemoryLimit(-1)) }

func goPart(container int64) int64 { return int64(containerPart * float64(container)) }

// LimitMemory sets the garbage collector's limit from the container's limit, as GOMEMLIMIT would.
// Go detects the container's processors, but not its memory. Without this, garbage may grow to the
// size of all live memory, and the kernel kills the process.
//
// root is the file system. goMemLimit is the environment variable GOMEMLIMIT. Go itself has read
// it, and it has priority.
func LimitMemory(root fs.FS, goMemLimit string, logger *slog.Logger) {
	if goMemLimit != "" {
		return
	}
	container, err := containerLimit(root)
	if err != nil {
		logger.Warn("the container's memory limit cannot be read, so Go's garbage collector does not know it; set GOMEMLIMIT to nine tenths of it", "error", err)
		return
	}
	if container < math.MaxInt64 {
		debug.SetMemoryLimit(goPart(container))
	}
}

// containerLimit returns the lowest memory limit of the cgroups of this process (Linux,
// cgroups(7)). math.MaxInt64 means that there is none.
//
// In a container, the file system shows its own cgroup as the topmost one. With cgroup v1 the path
// may be that of the host, which is not visible. So all directories of the path that exist are
// read.
func containerLimit(root fs.FS) (int64, error) {
	own, err := fs.ReadFile(root, "proc/self/cgroup")
	if errors.Is(err, fs.ErrNotExist) {
		return math.MaxInt64, nil // not Linux
	}
	if err != nil {
		return 0, err
	}
	least := int64(math.MaxInt64)
	for lines := bufio.NewScanner(bytes.NewReader(own)); lines.Scan(); {
		// ID:CONTROLLERS:PATH; cgroup v2 has the id 0 and names no controllers.
		_, rest, _ := strings.Cut(lines.Text(), ":")
		controllers, group, _ := strings.Cut(rest, ":")
		mount, file := "sys/fs/cgroup", "memory.max"
		if controllers != "" {
			if !strings.Contains(","+controllers+",", ",memory,") {
				continue
			}
			mount, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		}
		for group = path.Clean("/" + group); ; group = path.Dir(group) {
			limit, err := readLimit(root, path.Join(mount, group, file))
			if err != nil {
				return 0, err
			}
			least = min(least, limit)
			if group == "/" {
				break
			}
		}
	}
	return least, nil
}

func readLimit(root fs.FS, name string) (int64, error) {
	text, err := fs.ReadFile(root, name)
	value := strings.TrimSpace(string(text))
	if errors.Is(err, fs.ErrNotExist) || value == "max" {
		return math.MaxInt64, nil
	}
	if err != nil {
		return 0, err
	}
	limit, err := strconv.ParseInt(value, 10, 64)
	if err != nil || limit <= 0 {
		return 0, fmt.Errorf("/%s holds %.40q, which is not a limit", name, value)
	}
	// Without a limit, cgroup v1 has the largest number of whole pages.
	if limit >= math.MaxInt64/2 {
		return math.MaxInt64, nil
	}
	return limit, nil
}
