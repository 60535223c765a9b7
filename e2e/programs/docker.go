package programs

import "testing"

// Dockerd is Debian's container engine.
func Dockerd(t testing.TB) string { t.Helper(); return debian(t, "dockerd") }

// Docker is the client of the same package. A different one may come earlier in PATH.
func Docker(t testing.TB) string { t.Helper(); return debian(t, "/usr/bin/docker") }

// Compose is a plugin of the client, as Buildx, which it needs for builds.
func Compose(t testing.TB) string {
	t.Helper()
	return tool{module: "compose", pkg: "github.com/docker/compose/v5/cmd", name: "docker-compose",
		ldflags: "-X github.com/docker/compose/v5/internal.Version=v5.5.1"}.build(t)
}

// Buildx says its version, because Compose asks for it.
func Buildx(t testing.TB) string {
	t.Helper()
	return tool{module: "compose", pkg: "github.com/docker/buildx/cmd/buildx", name: "docker-buildx",
		ldflags: "-X github.com/docker/buildx/version.Version=v0.37.2"}.build(t)
}

// Buildctl is the client of Buildkitd.
func Buildctl(t testing.TB) string {
	t.Helper()
	return tool{module: "buildkit", pkg: "github.com/moby/buildkit/cmd/buildctl"}.build(t)
}

// Buildkitd is BuildKit of its own: that in Debian's engine leaves pushes to the engine, which asks for a credential anew.
func Buildkitd(t testing.TB) string {
	t.Helper()
	return tool{module: "buildkit", pkg: "github.com/moby/buildkit/cmd/buildkitd"}.build(t)
}

func HAProxy(t testing.TB) string { t.Helper(); return debian(t, "haproxy") }

// Busybox is static: all that an image needs to run the commands of a Dockerfile.
func Busybox(t testing.TB) string { t.Helper(); return debian(t, "busybox") }
