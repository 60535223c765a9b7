package node

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/pullpass/pullpass/e2e/process"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/testenv"
)

const (
	crioSocket = "/run/crio/crio.sock"

	// Settings for the machines of the tests, as for containerd.
	crioConfig = `[crio]
root = "%[1]s/storage"
runroot = "/run/containers/storage"
storage_driver = "overlay"
log_dir = "/var/log/pods"
version_file = "/run/crio/version"
clean_shutdown_file = "%[1]s/clean.shutdown"
[crio.api]
listen = "` + crioSocket + `"
stream_address = "%[2]s"
[crio.runtime]
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
default_runtime = "runc"
pinns_path = "%[3]s"
namespaces_dir = "/run/crio/ns"
container_exits_dir = "/run/crio/exits"
container_attach_socket_dir = "/run/crio/attach"
apparmor_profile = ""
seccomp_profile = ""
hooks_dir = []
[crio.runtime.runtimes.runc]
runtime_path = "%[4]s"
runtime_root = "/run/crio/runc"
monitor_path = "%[5]s"
[crio.image]
pause_image = "` + sandboxImage + `"
signature_policy = "/etc/containers/policy.json"
[crio.network]
network_dir = "/etc/crio/cni"
plugin_dirs = ["/usr/lib/cni"]
[crio.nri]
enable_nri = false
`
)

func (n *Node) startCRIO(t testing.TB) {
	t.Helper()
	n.view.write(t, "/etc/containers/policy.json", `{"default": [{"type": "insecureAcceptAnything"}]}`, 0o644)
	n.view.write(t, "/etc/crio/cni/10-e2e.conflist", n.networkConfig(), 0o644)
	config := fmt.Sprintf(crioConfig, n.dir, n.config.Address, programs.Pinns(t), programs.Runc(t), programs.Conmon(t))
	n.view.write(t, "/etc/crio/crio.conf", config, 0o644)
	n.view.write(t, "/etc/containers/registries.conf.d/shortnames.conf", "[aliases]\n"+n.config.Aliases, 0o644)
	archive := filepath.Join(n.dir, "pause.tar")
	SaveImage(t, archive, sandboxImage)
	storage := fmt.Sprintf("containers-storage:[overlay@%s/storage+/run/containers/storage]", n.dir)
	if output, err := n.view.command(programs.Skopeo(t), "copy", "docker-archive:"+archive, storage+sandboxImage).CombinedOutput(); err != nil {
		t.Fatalf("skopeo copy: %v: %s", err, output)
	}
	n.hideHugePages(t)
	crio := process.Start(t, n.view.command(programs.CRIO(t), "--config=/etc/crio/crio.conf", "--config-dir="))
	crio.Await(t, startLimit, func(ctx context.Context) error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", n.view.path(crioSocket))
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// hideHugePages takes the controller out of /proc/cgroups: CRI-O limits huge pages if the kernel knows them, and the machines of
// the tests do not mount its hierarchy.
func (n *Node) hideHugePages(t testing.TB) {
	t.Helper()
	known := regexp.MustCompile(`(?m)^hugetlb\t.*\n`).ReplaceAllString(testenv.ReadFile(t, "/proc/cgroups"), "")
	file := testenv.WriteFile(t, filepath.Join(n.dir, "cgroups"), known)
	if output, err := n.view.command("mount", "--bind", file, "/proc/cgroups").CombinedOutput(); err != nil {
		t.Fatalf("mount /proc/cgroups: %v: %s", err, output)
	}
}
