// Package machine runs machines: systemd as process 1, with a root directory, a network and cgroups of its own. A machine
// changes itself with the real systemctl and systemd-run. The tests have to run inside namespaces of package isolate.
package machine

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/isolate"
	"github.com/pullpass/pullpass/e2e/process"
	"github.com/pullpass/pullpass/e2e/secrets"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// bootLimit is for a machine that is busy with other tests: alone, it takes a second.
const bootLimit = 2 * time.Minute

// Config configures a machine.
type Config struct {
	Name string
	// Number tells the machines of a test binary apart: it is in their addresses.
	Number int
	// Hosts are names by the address that they have for the machine.
	Hosts map[string]string
	// Programs are directories of the tests' machine that this one sees read-only, below the same path.
	Programs []string
}

// Machine is a machine that may be switched off and on.
type Machine struct {
	config Config
	dir    string
	group  string // its cgroup in each hierarchy
	init   *process.Process
	pid    int // of process 1, as the tests see it
}

// New makes a machine with Debian's programs and no configuration. It is switched off.
func New(t testing.TB, config Config) *Machine {
	t.Helper()
	m := &Machine{config: config, dir: t.TempDir()}
	t.Cleanup(func() { secrets.SeenFiles(m.dir) })
	m.makeRoot(t)
	m.connect(t)
	return m
}

// Name is its host name.
func (m *Machine) Name() string { return m.config.Name }

// Address is that of the machine for the tests.
func (m *Machine) Address() string { return fmt.Sprintf("10.97.%d.2", m.config.Number) }

// Gateway is where the machine finds what listens for the tests at that address.
func (m *Machine) gateway() string { return fmt.Sprintf("10.97.%d.1", m.config.Number) }

// Path is where the tests find what the machine sees at a path.
func (m *Machine) Path(path string) string { return filepath.Join(m.dir, "root", path) }

// Write writes a file of the machine.
func (m *Machine) Write(t testing.TB, path, content string, mode os.FileMode) {
	t.Helper()
	path = m.Path(path)
	testenv.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	testenv.Must(t, os.WriteFile(path, []byte(content), mode))
	testenv.Must(t, os.Chmod(path, mode))
}

// Link makes a symbolic link of the machine.
func (m *Machine) Link(t testing.TB, path, target string) {
	t.Helper()
	path = m.Path(path)
	testenv.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	testenv.Must(t, os.Symlink(target, path))
}

// Boot switches the machine on, and returns when systemd has started what is enabled.
func (m *Machine) Boot(t testing.TB) {
	t.Helper()
	group := testenv.Value(isolate.MakeCgroup(m.config.Name))(t)
	m.group = group
	cmd := exec.Command("sh", append([]string{"-euc", enterScript, "sh", m.Path("/"), m.config.Name, "/run/netns/" + m.config.Name, bootScript}, m.joined(t)...)...)
	m.init = process.Start(t, cmd)
	init := m.init
	t.Cleanup(func() { m.PowerOff(t) })
	m.init.Await(t, bootLimit, func(ctx context.Context) (err error) {
		if m.pid, err = child(m.init.PID()); err != nil {
			return err
		}
		state, err := m.Run(ctx, "systemctl", "is-system-running")
		if state = strings.TrimSpace(state); state != "running" && state != "degraded" {
			return fmt.Errorf("systemd is %q: %w", state, err)
		}
		return nil
	})
	t.Cleanup(func() {
		if m.init != init {
			return // it was switched on again
		}
		if secrets.Captures() {
			_, _ = m.Run(context.Background(), "journalctl", "--no-pager") // Run keeps what it prints
		}
		if t.Failed() {
			journal, _ := m.Run(context.Background(), "journalctl", "--boot", "--no-pager", "--lines=150")
			t.Logf("journal of %s:\n%s", m.config.Name, journal)
		}
	})
}

// PowerOff ends all processes of the machine at once, as a loss of power does. All written data is there after the next Boot.
func (m *Machine) PowerOff(t testing.TB) {
	t.Helper()
	m.init.Kill(t) // process 1 ignores what ends others
	// Its children end with it, but a moment later, and write below the root until then. Its cgroup stays as long.
	testenv.Must(t, isolate.RemoveCgroup(m.group))
}

// Run runs a program on the machine, as root and in its root directory, and returns what it printed.
func (m *Machine) Run(ctx context.Context, program string, args ...string) (string, error) {
	cmd := m.Command(ctx, program, args...)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	err := cmd.Run()
	_, _ = secrets.Seen(filepath.Base(program)).Write(output.Bytes()) // a run whose disk is full fails elsewhere
	if err != nil {
		err = fmt.Errorf("%s on %s: %w: %s", program, m.config.Name, err, &output)
	}
	return output.String(), err
}

// Command is a program of the machine.
func (m *Machine) Command(ctx context.Context, program string, args ...string) *exec.Cmd {
	pid := strconv.Itoa(m.pid)
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"--target=" + pid, "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--root", "--wd=/proc/" + pid + "/root", "--", program}, args...)...)
	cmd.Env = environment()
	return cmd
}

func environment() []string {
	return []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin", "LANG=C"}
}

// child is the only child of a process.
func child(pid int) (int, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(content)))
}

// connect gives the machine a network with a cable to that of the tests, which is its way to everywhere.
func (m *Machine) connect(t testing.TB) {
	t.Helper()
	name, near := m.config.Name, fmt.Sprintf("machine%d", m.config.Number)
	for _, args := range [][]string{
		{"netns", "add", name},
		{"link", "add", near, "type", "veth", "peer", "name", "eth0", "netns", name},
		{"address", "add", m.gateway() + "/30", "dev", near},
		{"link", "set", near, "up"},
		{"-netns", name, "address", "add", m.Address() + "/30", "dev", "eth0"},
		{"-netns", name, "link", "set", "eth0", "up"},
		{"-netns", name, "link", "set", "lo", "up"},
		{"-netns", name, "route", "add", "default", "via", m.gateway()},
	} {
		if output, err := exec.CommandContext(t.Context(), "ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %v: %v: %s", args, err, output)
		}
	}
}

// makeRoot makes the root directory: the files of Debian's packages, and a small /etc.
func (m *Machine) makeRoot(t testing.TB) {
	t.Helper()
	for _, dir := range []string{"etc/systemd/system", "var/lib", "var/log", "run", "tmp", "root", "home", "opt", "proc", "sys", "dev", "usr"} {
		testenv.Must(t, os.MkdirAll(m.Path(dir), 0o755))
	}
	for _, dir := range []string{"bin", "sbin", "lib", "lib64"} {
		m.Link(t, dir, "usr/"+dir)
	}
	upper, inner := filepath.Join(m.dir, "usr"), filepath.Join(m.dir, "inner")
	for _, dir := range []string{upper, inner} {
		testenv.Must(t, os.Mkdir(dir, 0o755))
	}
	m.mount(t, "overlay", "/usr", "overlay", 0, fmt.Sprintf("lowerdir=/usr,upperdir=%s,workdir=%s", upper, inner))
	for _, dir := range m.config.Programs {
		testenv.Must(t, os.MkdirAll(m.Path(dir), 0o755))
		m.mount(t, dir, dir, "", syscall.MS_BIND, "")
	}
	hosts := "127.0.0.1 localhost\n" + m.Address() + " " + m.config.Name + "\n"
	for name, address := range m.config.Hosts {
		hosts += address + " " + name + "\n"
	}
	m.Write(t, "/etc/hosts", hosts, 0o644)
	m.Write(t, "/etc/hostname", m.config.Name+"\n", 0o644)
	m.Write(t, "/etc/machine-id", fmt.Sprintf("%032x\n", m.config.Number+1), 0o444)
	m.Write(t, "/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n", 0o644)
	m.Write(t, "/etc/passwd", "root:x:0:0:root:/root:/bin/sh\n", 0o644)
	m.Write(t, "/etc/group", "root:x:0:\ntty:x:5:\nsystemd-journal:x:101:\n", 0o644)
	m.Write(t, "/etc/systemd/journald.conf", "[Journal]\nStorage=volatile\nReadKMsg=no\nAudit=no\n", 0o644)
	m.Link(t, "/var/run", "../run")
	m.Write(t, "/etc/ld.so.cache", testenv.ReadFile(t, "/etc/ld.so.cache"), 0o644)
	for _, unit := range unwanted() {
		m.Link(t, "/etc/systemd/system/"+unit, "/dev/null")
	}
}

// unwanted are the units of Debian's packages that need something that a machine of this kind lacks, or that change the kernel,
// which is also that of the tests.
func unwanted() []string {
	return []string{
		"cryptsetup.target", "dbus.service", "dbus.socket", "dev-hugepages.mount", "dev-mqueue.mount", "getty.target", "integritysetup.target",
		"kmod-static-nodes.service", "proc-sys-fs-binfmt_misc.automount", "sys-fs-fuse-connections.mount", "sys-kernel-config.mount",
		"sys-kernel-debug.mount", "sys-kernel-tracing.mount", "systemd-ask-password-console.path", "systemd-ask-password-wall.path",
		"systemd-binfmt.service", "systemd-firstboot.service", "systemd-initctl.socket", "systemd-journald-audit.socket", "systemd-logind.service",
		"systemd-machine-id-commit.service", "systemd-modules-load.service", "systemd-pcrphase.service", "systemd-pcrphase-sysinit.service",
		"systemd-random-seed.service", "systemd-remount-fs.service", "systemd-repart.service", "systemd-sysctl.service", "systemd-sysusers.service",
		"systemd-tmpfiles-clean.timer", "systemd-tmpfiles-setup.service", "systemd-tmpfiles-setup-dev.service", "systemd-update-utmp.service",
		"systemd-update-utmp-runlevel.service", "systemd-user-sessions.service", "veritysetup.target",
	}
}

func (m *Machine) mount(t testing.TB, source, place, kind string, flags uintptr, data string) {
	t.Helper()
	place = m.Path(place)
	if err := syscall.Mount(source, place, kind, flags, data); err != nil {
		t.Fatalf("mount %s on %s: %v", source, place, err)
	}
	t.Cleanup(func() { testenv.Must(t, syscall.Unmount(place, syscall.MNT_DETACH)) })
}
