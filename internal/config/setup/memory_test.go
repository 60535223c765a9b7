package setup

import (
	"io/fs"
	"math"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/server/audit"
	"github.com/pullpass/pullpass/internal/state"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

func files(content ...string) fstest.MapFS {
	root := fstest.MapFS{}
	for i := 0; i < len(content); i += 2 {
		root[content[i]] = &fstest.MapFile{Data: []byte(content[i+1])}
	}
	return root
}

func TestContainerLimit(t *testing.T) {
	t.Parallel()
	const (
		self      = "proc/self/cgroup"
		none      = math.MaxInt64
		v1None    = "9223372036854771712\n"
		kubePath  = "/kubepods/burstable/pod1/abc"
		v1Process = "12:cpu,cpuacct:" + kubePath + "\n11:rdma:/\n4:memory:" + kubePath + "\n0::/system.slice/containerd.service\n"
	)
	for _, test := range []struct {
		name  string
		root  fs.FS
		want  int64
		fault string
	}{
		{"no Linux", files(), none, ""},
		{"v2, in a container", files(self, "0::/\n", "sys/fs/cgroup/memory.max", "268435456\n"), 256 << 20, ""},
		{"v2, without a limit", files(self, "0::/\n", "sys/fs/cgroup/memory.max", "max\n"), none, ""},
		{"v2, in the topmost cgroup of a machine", files(self, "0::/\n"), none, ""},
		{"v2, a service whose slice has less", files(self, "0::/system.slice/pullpass.service\n",
			"sys/fs/cgroup/system.slice/memory.max", "1000000\n", "sys/fs/cgroup/system.slice/pullpass.service/memory.max", "2000000\n"), 1000000, ""},
		{"v2, a cgroup above what is to be seen", files(self, "0::/../../other\n", "sys/fs/cgroup/memory.max", "3000000\n"), 3000000, ""},
		{"v1, in a container", files(self, v1Process, "sys/fs/cgroup/memory/memory.limit_in_bytes", "268435456\n"), 256 << 20, ""},
		{"v1, on the host", files(self, v1Process, "sys/fs/cgroup/memory/memory.limit_in_bytes", v1None,
			"sys/fs/cgroup/memory"+kubePath+"/memory.limit_in_bytes", "5000000\n"), 5000000, ""},
		{"v1, without a limit", files(self, v1Process, "sys/fs/cgroup/memory/memory.limit_in_bytes", v1None), none, ""},
		{"v1, of other controllers", files(self, "3:memory_recursive,cpu:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes", "1000\n"), none, ""},
		{"not a number", files(self, "0::/\n", "sys/fs/cgroup/memory.max", "much\n"), 0, `/sys/fs/cgroup/memory.max holds "much", which is not a limit`},
		{"nothing", files(self, "0::/\n", "sys/fs/cgroup/memory.max", "0\n"), 0, `holds "0", which is not a limit`},
		{"no file", files(self, "0::/\n", "sys/fs/cgroup/memory.max/x", ""), 0, "memory.max"},
	} {
		got, err := containerLimit(test.root)
		if test.fault != "" {
			if err == nil || !strings.Contains(err.Error(), test.fault) {
				t.Errorf("%s: %d, %v", test.name, got, err)
			}
		} else if got != test.want || err != nil {
			t.Errorf("%s: %d, %v; want %d", test.name, got, err, test.want)
		}
	}
}

func TestCachesFollowTheMemoryLimit(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		limit int64
		all   int
	}{
		{math.MaxInt64, 128345702}, {goPart(256 << 20), 128345702}, {goPart(512 << 20), 256691404},
		{goPart(1 << 40), 513382809}, {1, 32086425}, {goPart(64 << 20), 32086425},
	} {
		c := cachesFor(test.limit)
		if all := c.Verified + c.Issued + c.owners + c.limits; all < test.all-20 || all > test.all || c.Verified < all/2 || min(c.Issued, c.owners, c.limits) < all/9 {
			t.Errorf("%d: %+v, together %d", test.limit, c, all)
		}
	}
}

// Mistake: each bound is small, but their sum is not.
func TestBoundsFitTheChartsContainer(t *testing.T) {
	t.Parallel()
	values := testkit.Value(os.ReadFile("../../../deploy/helm/pullpass/values.yaml"))(t)
	match := regexp.MustCompile(`(?m)^  limits: \{memory: (\d+)Mi\}$`).FindSubmatch(values)
	if match == nil {
		t.Fatal("the chart has no limit of memory")
	}
	mebibytes := testkit.Value(strconv.ParseInt(string(match[1]), 10, 64))(t)
	container := mebibytes << 20
	if container != usualContainer {
		t.Errorf("the chart has a limit of %d MiB, want the default limit, %d MiB", mebibytes, usualContainer>>20)
	}
	const (
		program     = 16 << 20 // heap and stacks of an idle process
		connections = 64 << 20 // and what is worked on
	)
	limit := goPart(container)
	c := cachesFor(limit)
	fixed := int64(program + connections + exchange.OtherCacheBytes + audit.MaxPending + c.Verified + c.Issued + c.limits)
	for name, store := range map[string]int64{"in memory": int64(c.owners), "Redis": state.RedisCacheBytes} {
		all := fixed + store
		t.Logf("%s: %d of %d MiB", name, all>>20, limit>>20)
		if all > limit {
			t.Errorf("%s: the bounds are %d MiB together, and Go may use %d", name, all>>20, limit>>20)
		}
	}
}

// The limit of the test machine is unknown. The test only checks that it can be read.
func TestContainerLimitOfThisMachine(t *testing.T) {
	t.Parallel()
	if limit, err := containerLimit(os.DirFS("/")); err != nil || limit <= 0 {
		t.Errorf("%d, %v", limit, err)
	}
}
