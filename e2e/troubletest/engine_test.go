package troubletest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/isolate"
	"github.com/pullpass/pullpass/e2e/process"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/testenv"
)

const (
	startLimit = 3 * time.Minute
	// containerdSocket is that of the engine's own containerd.
	containerdSocket = "/run/docker/containerd/containerd.sock"
)

// startEngine runs Debian's container engine, with BuildKit inside.
func (s *site) startEngine(t *testing.T) {
	t.Helper()
	// It ends with the namespaces: file by file, it could not be removed while something is mounted there.
	dir := testenv.Value(os.MkdirTemp("", "docker-"))(t)
	config := testenv.WriteFile(t, filepath.Join(dir, "daemon.json"), "{}")
	cmd := exec.Command(programs.Dockerd(t), "--config-file", config, "--log-level", "warn", "--data-root", filepath.Join(dir, "data"),
		"--cgroup-parent", filepath.Join("/", isolate.Cgroup(), "docker"), "--bridge=none", "--iptables=false")
	cmd.Env = append(os.Environ(), "SSL_CERT_FILE="+s.ca.File)
	daemon := process.Start(t, cmd)
	daemon.Await(t, startLimit, func(ctx context.Context) error {
		return exec.CommandContext(ctx, programs.Docker(t), "version").Run()
	})
}
