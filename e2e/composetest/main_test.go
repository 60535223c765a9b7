// Package composetest builds the container image in both ways, and runs docker-compose.yaml, with a real engine: what is done is what
// docs/start/docker.md says. No image can be pulled here. Those that the Dockerfile and docker-compose.yaml name are made of the programs
// of this machine, in the places where the real ones have them. The engine is also a client of the gateway, and of CI jobs.
package composetest

import (
	"os/exec"
	"testing"

	"github.com/pullpass/pullpass/e2e/isolate"
	"github.com/pullpass/pullpass/e2e/programs"
)

func TestMain(m *testing.M) {
	isolate.Main(m, func(t testing.TB) {
		programs.Build(t,
			programs.Dockerd, programs.Docker, programs.Compose, programs.Buildx, programs.Skopeo, programs.Podman,
			programs.Distribution, programs.RedisServer, programs.HAProxy, programs.Busybox,
			programs.DockerRegistry, programs.Pullpass, programs.CredentialHelper,
			programs.Buildkitd, programs.Runc, programs.RedisCLI, programs.Crane, programs.Helm,
		)
		download := exec.CommandContext(t.Context(), "go", "mod", "download") // there is no network inside
		download.Dir = programs.Checkout(t)
		if output, err := download.CombinedOutput(); err != nil {
			t.Fatalf("go mod download: %v\n%s", err, output)
		}
	})
}
