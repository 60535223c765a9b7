package machine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/e2e/testenv"
)

const cgroupRoot = "/sys/fs/cgroup"

// enterScript goes into the machine's cgroups and namespaces. Its arguments: the root directory, the host name, the network,
// the other script, and the cgroups that have to be entered, each followed by how it is mounted.
const enterScript = `root=$1 name=$2 network=$3 boot=$4
shift 4
groups=
while [ $# -gt 0 ]; do
	echo $$ >"$1/cgroup.procs"
	groups="$groups $2"
	shift 2
done
exec nsenter --net="$network" unshare --mount --pid --uts --ipc --cgroup --fork --kill-child sh -euc "$boot" sh "$root" "$name" $groups
`

// bootScript mounts the same as a container engine does for its containers, and is replaced by systemd. There are only the devices
// that each program expects, and nothing of the tests' machine can be written.
const bootScript = `root=$1
echo "$2" >/proc/sys/kernel/hostname
shift 2
mount --make-rprivate /
mount --rbind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t tmpfs -o mode=0755 tmpfs "$root/run"
mount -t tmpfs -o mode=0755 tmpfs "$root/dev"
for device in null zero full random urandom tty kmsg; do
	: >"$root/dev/$device"
	mount --bind "/dev/$device" "$root/dev/$device"
done
: >"$root/dev/console"
mount --bind /dev/null "$root/dev/console"
mkdir "$root/dev/pts" "$root/dev/shm" "$root/dev/mqueue"
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
mount -t tmpfs tmpfs "$root/dev/shm"
mount -t mqueue mqueue "$root/dev/mqueue"
if [ "$1" = cgroup2 ]; then
	mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
else
	mount -t tmpfs -o mode=0755 tmpfs "$root/sys/fs/cgroup"
	for group; do
		mkdir "$root/sys/fs/cgroup/$group"
		case $group in
		unified) mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup/$group" ;;
		systemd) mount -t cgroup -o none,name=systemd cgroup "$root/sys/fs/cgroup/$group" ;;
		*) mount -t cgroup -o "$group" cgroup "$root/sys/fs/cgroup/$group" ;;
		esac
	done
fi
cd "$root"
pivot_root . .
umount -l .
mount --make-rshared /
exec env -i container=other PATH=/usr/sbin:/usr/bin LANG=C /lib/systemd/systemd --system --log-target=journal --show-status=false
`

// joined returns the machine's cgroups, and how each is mounted in it: cgroup2 for the one of version 2, or else the name of
// its directory.
func (m *Machine) joined(t testing.TB) (groups []string) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(cgroupRoot, "cgroup.controllers")); err == nil {
		delegate(t, cgroupRoot, m.group)
		return []string{filepath.Join(cgroupRoot, m.group), "cgroup2"}
	}
	roots := testenv.Value(filepath.Glob(filepath.Join(cgroupRoot, "*", "cgroup.procs")))(t)
	for _, root := range roots {
		root = filepath.Dir(root)
		if filepath.Base(root) == "cpuset" {
			inherit(t, root, m.group)
		}
		groups = append(groups, filepath.Join(root, m.group), filepath.Base(root))
	}
	return groups
}

// delegate lets a cgroup of version 2 have the controllers of those above it.
func delegate(t testing.TB, root, group string) {
	t.Helper()
	for dir := root; ; {
		for _, controller := range strings.Fields(testenv.ReadFile(t, filepath.Join(dir, "cgroup.controllers"))) {
			testenv.Must(t, os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+controller), 0o644))
		}
		var next string
		if next, group, _ = strings.Cut(strings.TrimPrefix(group, "/"), "/"); group == "" {
			return
		}
		dir = filepath.Join(dir, next)
	}
}

// inherit gives a cgroup of cpuset what those above it have: in version 1 a new one has no processor, and takes no process.
func inherit(t testing.TB, root, group string) {
	t.Helper()
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		value := testenv.ReadFile(t, filepath.Join(root, file))
		dir := root
		for part := range strings.SplitSeq(strings.Trim(group, "/"), "/") {
			dir = filepath.Join(dir, part)
			testenv.Must(t, os.WriteFile(filepath.Join(dir, file), []byte(value), 0o644))
		}
	}
}
