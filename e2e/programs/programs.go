// Package programs finds or builds the programs that the end-to-end tests run.
//
//   - Debian's (an old etcd, skopeo, podman, docker-registry, dockerd, haproxy) are looked up in PATH; .ci/install installs them.
//   - Most others are built from modules of their own, directories of e2e, once per version: kube-apiserver and the rest of Kubernetes,
//     containerd, CRI-O, etcd, helm, crane and other clients, docker compose and buildx, buildkitd, the distribution registry. They
//     are kept in a cache directory, $PULLPASS_E2E_CACHE or pullpass-e2e in the user's cache directory.
//   - The project's own are built on every run; Go's build cache makes that quick.
//
// A program that is not there fails the test. No test is ever skipped for it.
package programs

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/isolate"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// tool is a program that is built from a module of its own, a directory of e2e.
type tool struct {
	module, pkg, ldflags, tags string
	name                       string // of the program; empty: the last element of pkg
	experiment                 string // GOEXPERIMENT
}

const kubernetesVersion = "-X k8s.io/component-base/version.gitVersion=v1.36.3 -X k8s.io/component-base/version.gitMajor=1" +
	" -X k8s.io/component-base/version.gitMinor=36 -X k8s.io/component-base/version.gitTreeState=clean"

const oldKubeletVersion = "-X k8s.io/component-base/version.gitVersion=v1.33.13 -X k8s.io/component-base/version.gitMajor=1" +
	" -X k8s.io/component-base/version.gitMinor=33 -X k8s.io/component-base/version.gitTreeState=clean"

func kubernetes(t testing.TB, name string) string {
	t.Helper()
	return tool{module: "kubernetes", pkg: "k8s.io/kubernetes/cmd/" + name, ldflags: kubernetesVersion}.build(t)
}

func KubeAPIServer(t testing.TB) string { t.Helper(); return kubernetes(t, "kube-apiserver") }
func KubeControllerManager(t testing.TB) string {
	t.Helper()
	return kubernetes(t, "kube-controller-manager")
}
func KubeScheduler(t testing.TB) string { t.Helper(); return kubernetes(t, "kube-scheduler") }
func Kubelet(t testing.TB) string       { t.Helper(); return kubernetes(t, "kubelet") }

// OldKubelet is the oldest that has tokenAttributes, version 1.33. They need a feature gate there.
func OldKubelet(t testing.TB) string {
	t.Helper()
	return tool{module: "oldkubelet", pkg: "k8s.io/kubernetes/cmd/kubelet", ldflags: oldKubeletVersion}.build(t)
}

func Kubectl(t testing.TB) string { t.Helper(); return kubernetes(t, "kubectl") }

// Containerd is version 2; its shim and ctr are in the same directory.
func Containerd(t testing.TB) string {
	t.Helper()
	const commands = "github.com/containerd/containerd/v2/cmd/"
	tool{module: "containerd", pkg: commands + "containerd-shim-runc-v2"}.build(t)
	tool{module: "containerd", pkg: commands + "ctr"}.build(t)
	return tool{module: "containerd", pkg: commands + "containerd"}.build(t)
}

// OldContainerd is Debian's, version 1.6; its shim and ctr are beside it.
func OldContainerd(t testing.TB) string { t.Helper(); return debian(t, "containerd") }

// Systemd is Debian's, with systemctl and systemd-run.
func Systemd(t testing.TB) string {
	t.Helper()
	debian(t, "systemd-run")
	return debian(t, "systemctl")
}

// CRIO is without what needs C. It runs containers by Conmon and Runc, and namespaces of pods by Pinns.
func CRIO(t testing.TB) string {
	t.Helper()
	return crio.build(t)
}

var crio = tool{module: "crio", pkg: "github.com/cri-o/cri-o/cmd/crio", tags: "containers_image_openpgp exclude_graphdriver_btrfs containers_image_ostree_stub"}

func Conmon(t testing.TB) string { t.Helper(); return debian(t, "conmon") }

// Pinns is CRI-O's program in C.
func Pinns(t testing.TB) string {
	t.Helper()
	out := filepath.Join(filepath.Dir(crio.build(t)), "pinns")
	if _, err := os.Stat(out); err == nil {
		return out
	}
	files := testenv.Value(filepath.Glob(filepath.Join(sources(t, crio.module, "github.com/cri-o/cri-o"), "pinns/src/*.c")))(t)
	if output, err := exec.CommandContext(t.Context(), "cc", append([]string{"-std=c99", "-static", "-o", out}, files...)...).CombinedOutput(); err != nil {
		t.Fatalf("cc pinns: %v: %s", err, output)
	}
	return out
}

func Runc(t testing.TB) string { t.Helper(); return debian(t, "runc") }

// Etcd is of the version that the API server's own client has.
func Etcd(t testing.TB) string {
	t.Helper()
	return tool{module: "etcd", pkg: "go.etcd.io/etcd/server/v3", name: "etcd"}.build(t)
}

// OldEtcd is older than 3.4.31: API servers cannot stream lists from it (KEP-3157).
func OldEtcd(t testing.TB) string { t.Helper(); return debian(t, "etcd") }

func Helm(t testing.TB) string {
	t.Helper()
	return tool{module: "helm", pkg: "helm.sh/helm/v4/cmd/helm"}.build(t)
}

// Cosign is that of the project's releases.
func Cosign(t testing.TB) string {
	t.Helper()
	return project(t, Checkout(t), "cosign", "github.com/sigstore/cosign/v3/cmd/cosign", "-modfile=.ci/cosign.mod")
}

func Crane(t testing.TB) string {
	t.Helper()
	return tool{module: "clients", pkg: "github.com/google/go-containerregistry/cmd/crane"}.build(t)
}

// Regctl is the command of regclient.
func Regctl(t testing.TB) string {
	t.Helper()
	return tool{module: "clients", pkg: "github.com/regclient/regclient/cmd/regctl"}.build(t)
}

// Oras pulls and pushes artifacts.
func Oras(t testing.TB) string {
	t.Helper()
	return tool{module: "clients", pkg: "oras.land/oras/cmd/oras"}.build(t)
}

// Distribution is the registry of the distribution project, version 3.
func Distribution(t testing.TB) string {
	t.Helper()
	return tool{module: "distribution", pkg: "github.com/distribution/distribution/v3/cmd/registry"}.build(t)
}

// Pullpass is the project's service, built from cmd/proxy.
func Pullpass(t testing.TB) string {
	t.Helper()
	return project(t, Checkout(t), "pullpass", "./cmd/proxy")
}

// KubectlPlugin is the project's plugin of kubectl.
func KubectlPlugin(t testing.TB) string {
	t.Helper()
	return project(t, Checkout(t), "kubectl-pullpass", "./cmd/kubectl-pullpass")
}

// CredentialProvider is the project's kubelet plugin.
func CredentialProvider(t testing.TB) string {
	t.Helper()
	return project(t, Checkout(t), "pullpass-credential-provider", "./cmd/credential-provider")
}

// Pause is all that is in the images of the tests: it waits for SIGTERM, as the program of a pod's sandbox does.
func Pause(t testing.TB) string { t.Helper(); return project(t, e2eDir(t), "pause", "./node/pause") }

// SimulatedSystemd stands in for systemctl and systemd-run on a simulated host.
func SimulatedSystemd(t testing.TB) string {
	t.Helper()
	return project(t, e2eDir(t), "simulated-systemd", "./rollouttest/systemd")
}

func Skopeo(t testing.TB) string { t.Helper(); return debian(t, "skopeo") }
func Podman(t testing.TB) string { t.Helper(); return debian(t, "podman") }
func DockerRegistry(t testing.TB) string {
	t.Helper()
	return debian(t, "docker-registry")
}

// RedisServer is also the Sentinel.
func RedisServer(t testing.TB) string { t.Helper(); return debian(t, "redis-server") }
func RedisCLI(t testing.TB) string    { t.Helper(); return debian(t, "redis-cli") }

func Prometheus(t testing.TB) string { t.Helper(); return debian(t, "prometheus") }
func Promtool(t testing.TB) string   { t.Helper(); return debian(t, "promtool") }

func debian(t testing.TB, program string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Fatalf("%s is not installed: as root on Debian, .ci/install e2e does that", program)
	}
	return path
}

// building serializes builds: two at a time would take as long and twice the memory.
var building sync.Mutex

// lock keeps other processes from building the same programs at once: afterwards, they find most of them built.
func lock(t testing.TB, file string) (unlock func()) {
	t.Helper()
	testenv.Must(t, os.MkdirAll(filepath.Dir(file), 0o755))
	locked := testenv.Value(os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o600))(t)
	if err := syscall.Flock(int(locked.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatalf("lock %s: %v", file, err)
	}
	return func() { locked.Close() }
}

func (b tool) build(t testing.TB) string {
	t.Helper()
	building.Lock()
	defer building.Unlock()
	dir := filepath.Join(cacheDir(t), b.module+"-"+b.version(t))
	out := filepath.Join(dir, cmp.Or(b.name, filepath.Base(b.pkg)))
	if _, err := os.Stat(out); err == nil {
		return out
	}
	if isolate.Inside() {
		t.Fatalf("%s is not built, and there is no network here: name it in TestMain (programs.Build)", filepath.Base(out))
	}
	defer lock(t, filepath.Join(dir, "building"))()
	if _, err := os.Stat(out); err == nil {
		return out
	}
	t.Logf("building %s: minutes the first time, then it is kept in %s", b.pkg, dir)
	goBuild(t, filepath.Join(e2eDir(t), b.module), out, b.pkg, b.ldflags, []string{"GOEXPERIMENT=" + b.experiment}, "-tags="+b.tags)
	return out
}

// sources is the directory of a Go module that a module of e2e requires.
func sources(t testing.TB, module, required string) string {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", required)
	list.Dir = filepath.Join(e2eDir(t), module)
	return strings.TrimSpace(string(testenv.Value(list.Output())(t)))
}

// version identifies what the program is built from: the module's go.mod and go.sum, the compiler and the flags.
func (b tool) version(t testing.TB) string {
	t.Helper()
	h := sha256.New()
	for _, name := range []string{"go.mod", "go.sum"} {
		h.Write([]byte(testenv.ReadFile(t, filepath.Join(e2eDir(t), b.module, name))))
	}
	h.Write([]byte(runtime.Version() + runtime.GOARCH + b.ldflags + b.tags + b.experiment))
	return hex.EncodeToString(h.Sum(nil))[:16]
}

// built are the project's programs that this run of the tests has built already.
var built = map[string]string{}

// project builds a package of the module in dir.
func project(t testing.TB, dir, name, pkg string, flags ...string) string {
	t.Helper()
	building.Lock()
	defer building.Unlock()
	if path, ok := built[name]; ok {
		return path
	}
	checkout := sha256.Sum256([]byte(Checkout(t))) // two checkouts must not share their programs
	out := filepath.Join(cacheDir(t), "project-"+hex.EncodeToString(checkout[:8]), name)
	defer lock(t, out+".building")()
	goBuild(t, dir, out, pkg, "", nil, flags...)
	built[name] = out
	return out
}

// goBuild builds pkg of the module in dir. The result appears under its name only when it is complete.
func goBuild(t testing.TB, dir, out, pkg, ldflags string, environment []string, flags ...string) {
	t.Helper()
	testenv.Must(t, os.MkdirAll(filepath.Dir(out), 0o755))
	tmp := testenv.Value(os.MkdirTemp(filepath.Dir(out), "build-"))(t)
	defer os.RemoveAll(tmp)
	partial := filepath.Join(tmp, filepath.Base(out))
	args := append([]string{"build", "-p", "2", "-trimpath", "-ldflags", strings.TrimSpace("-s -w " + ldflags), "-o", partial}, flags...)
	for tries := 3; ; tries-- {
		cmd := exec.CommandContext(t.Context(), "go", append(args, pkg)...)
		cmd.Dir = dir
		cmd.Env = append(append(os.Environ(), "CGO_ENABLED=0", "GOGC=400"), environment...) // as in the Makefile
		output, err := cmd.CombinedOutput()
		if err == nil {
			break
		}
		// Of hundreds of modules that a new machine downloads, one fails now and then: go build does not try again.
		download := strings.Contains(string(output), `: Get "http`) || strings.Contains(string(output), ": reading http")
		if tries == 1 || !download {
			t.Fatalf("go build %s: %v\n%s", pkg, err, output)
		}
		t.Logf("go build %s could not download a module, tried again: %s", pkg, output)
		time.Sleep(10 * time.Second)
	}
	testenv.Must(t, os.Rename(partial, out))
}

func cacheDir(t testing.TB) string {
	t.Helper()
	dir := os.Getenv("PULLPASS_E2E_CACHE")
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			t.Fatalf("no cache directory, set PULLPASS_E2E_CACHE: %v", err)
		}
		dir = filepath.Join(user, "pullpass-e2e")
	}
	dir, err := filepath.Abs(dir) // programs are built in other directories
	testenv.Must(t, err)
	return dir
}

// Checkout is the directory of the repository that is tested.
func Checkout(t testing.TB) string { t.Helper(); return filepath.Dir(e2eDir(t)) }

// e2eDir is the directory of this module. Tests run in the directory of their package.
func e2eDir(t testing.TB) string {
	t.Helper()
	dir := testenv.Value(os.Getwd())(t)
	for {
		_, err := os.Stat(filepath.Join(dir, "go.mod"))
		if err == nil {
			return dir
		}
		if !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir) {
			t.Fatalf("the module that the tests belong to: %v", err)
		}
		dir = filepath.Dir(dir)
	}
}

// HelmEnvironment is that of a Helm without the machine's own settings and plugins.
func HelmEnvironment(t testing.TB) []string {
	t.Helper()
	home := t.TempDir()
	return append(os.Environ(), "HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_CACHE_HOME="+home, "HELM_DATA_HOME="+home)
}

// Build finds or builds programs, before the tests that need them.
func Build(t testing.TB, needed ...func(testing.TB) string) {
	t.Helper()
	for _, program := range needed {
		program(t)
	}
}
