package composetest

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/isolate"
	"github.com/pullpass/pullpass/e2e/process"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/testenv"
)

const (
	startLimit = 2 * time.Minute
)

// startEngine runs a dockerd where clients look for one, and puts the client with its plugins into PATH.
func startEngine(t *testing.T) {
	t.Helper()
	// It ends with the namespaces: file by file, it could not be removed while something is mounted there.
	dir := testenv.Value(os.MkdirTemp("", "docker-"))(t)
	bin, client := filepath.Join(dir, "bin"), filepath.Join(dir, "client")
	for path, program := range map[string]string{
		filepath.Join(bin, "docker"):                           programs.Docker(t),
		filepath.Join(client, "cli-plugins", "docker-compose"): programs.Compose(t),
		filepath.Join(client, "cli-plugins", "docker-buildx"):  programs.Buildx(t),
	} {
		testenv.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		testenv.Must(t, os.Symlink(program, path))
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	t.Setenv("DOCKER_CONFIG", client)
	t.Setenv("DOCKER_BUILDKIT", "1") // as newer clients do by themselves
	config := filepath.Join(dir, "daemon.json")
	testenv.WriteFile(t, config, "{}")

	daemon := process.Start(t, exec.Command(programs.Dockerd(t), "--config-file", config, "--log-level", "warn",
		"--data-root", filepath.Join(dir, "data"), "--cgroup-parent", filepath.Join("/", isolate.Cgroup(), "docker")))
	daemon.Await(t, startLimit, func(ctx context.Context) error {
		return exec.CommandContext(ctx, "docker", "version").Run()
	})
}

// run returns what a program prints.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	return pipe(t, nil, name, args...)
}

func pipe(t *testing.T, stdin io.Reader, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s%s", cmd, err, stdout.Bytes(), stderr.Bytes())
	}
	return strings.TrimSpace(stdout.String())
}
