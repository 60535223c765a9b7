package composetest

import (
	"archive/tar"
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/issuer"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/relay"
	"github.com/pullpass/pullpass/e2e/testenv"
	"github.com/pullpass/pullpass/e2e/upstream"
)

const (
	gatewayName   = "gateway.example.com"
	usersUpstream = "users.example"
	tokenUpstream = "token.example"
	hubUpstream   = "docker.io"
	// gatewayAddress is where the names of the registries lead.
	gatewayAddress = "127.0.0.5"
	// readOnlyUpstream is the registry of the first, for those who may only pull.
	readOnlyUpstream = "readonly.example"
)

const gatewayPolicy = `apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- name: own-namespace
  subjects: [{namespaces: ["*"]}]
  allow: [{repositories: ["*/{namespace}/**"], actions: ["*"]}]
`

// TestGatewayDocker lets docker, its BuildKit and podman push and pull through the gateway, at its name and at the names of the
// registries, with a ServiceAccount token that the project's helper hands out, and by a login.
func TestGatewayDocker(t *testing.T) {
	ca := certs.NewCA(t, "registry-ca")
	cluster := issuer.Start(t, ca)
	upstreams := map[string]*upstream.Upstream{
		usersUpstream: upstream.StartBasic(t, ca, programs.DockerRegistry(t)),
		tokenUpstream: upstream.StartToken(t, ca, programs.Distribution(t)),
		hubUpstream:   upstream.StartBasic(t, ca, programs.DockerRegistry(t)),
	}
	// Clients ask the last two for images of Docker Hub.
	names := []string{gatewayName, usersUpstream, tokenUpstream, hubUpstream, "registry-1.docker.io", "index.docker.io"}
	proxy := pullpass.Start(t, ca, pullpass.Config{
		Clusters: []pullpass.Cluster{{
			Name: "e2e", Issuer: cluster.URL, Audiences: []string{"registry.example.com"}, Discovery: pullpass.Discovery{CAFile: ca.File},
		}},
		Policy: gatewayPolicy, Service: gatewayName, Names: names,
		Upstreams: []pullpass.Upstream{
			upstreams[usersUpstream].Setting(usersUpstream, "pull", "push"),
			upstreams[tokenUpstream].Setting(tokenUpstream, "pull", "push"),
			upstreams[hubUpstream].Setting(hubUpstream, "pull", "push"),
			upstreams[usersUpstream].Setting(readOnlyUpstream),
		},
	})
	// Not localhost, where docker looks at no certificate.
	host := gatewayName + proxy.GatewayURL[strings.LastIndex(proxy.GatewayURL, ":"):]
	hosts := testenv.Value(os.OpenFile("/etc/hosts", os.O_APPEND|os.O_WRONLY, 0))(t)
	testenv.Value(fmt.Fprintf(hosts, "\n127.0.0.1 %s\n%s %s\n", gatewayName, gatewayAddress, strings.Join(names[1:], " ")))(t)
	testenv.Must(t, hosts.Close())
	relay.Start(t, gatewayAddress+":443", proxy.GatewayAddress)
	t.Setenv("SSL_CERT_FILE", ca.File) // of the engine, of BuildKit, which lets its client ask for tokens, and of podman
	startEngine(t)

	token := cluster.Token(t, "registry.example.com", "team-a", "builder")
	proxy.NeverLog(token)
	useHelper(t, token, host, usersUpstream, tokenUpstream, hubUpstream)
	for at, u := range upstreams {
		for prefix, path := range map[string]string{host + "/": at + "/team-a/", at + "/": "team-a/by-host/"} {
			docker(t, u, prefix, path, strings.TrimPrefix(path, at+"/"))
		}
		podman(t, u, at+"/team-a/by-podman:v1", "team-a/by-podman")
	}

	refused := host + "/" + readOnlyUpstream + "/team-a/app:v2"
	run(t, "docker", "tag", host+"/"+usersUpstream+"/team-a/app:v1", refused)
	notDone(t, "the gateway does not let anybody push at "+readOnlyUpstream, "push", refused)
	run(t, "docker", "pull", host+"/"+readOnlyUpstream+"/team-a/app:v1")
	notDone(t, "pull access denied", "pull", host+"/"+usersUpstream+"/team-b/app:v1")
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	if said := run(t, "docker", "login", "--username", "serviceaccount", "--password", token, host); !strings.Contains(said, "Login Succeeded") {
		t.Errorf("login prints %s", said)
	}
	run(t, "docker", "pull", host+"/"+tokenUpstream+"/team-a/app:v1")
	checkAudit(t, proxy)
}

// docker pushes, builds, pulls and mounts images: prefix+path+NAME, which the registry has as repository+NAME.
func docker(t *testing.T, u *upstream.Upstream, prefix, path, repository string) {
	t.Helper()
	own := prefix + path
	pipe(t, layer(t, "one", own), "docker", "import", "-", own+"base:v1")
	dir := t.TempDir()
	testenv.WriteFile(t, filepath.Join(dir, "two"), own)
	testenv.WriteFile(t, filepath.Join(dir, "Dockerfile"), "FROM "+own+"base:v1\nCOPY two /two\n")

	pushed(t, u, repository+"base", run(t, "docker", "push", own+"base:v1"))
	run(t, "docker", "image", "rm", own+"base:v1")
	run(t, "docker", "buildx", "build", "--pull", "--push", "--tag", own+"app:v1", dir) // pulls what was removed
	run(t, "docker", "image", "rm", own+"app:v1")
	pushed(t, u, repository+"app", run(t, "docker", "pull", own+"app:v1"))
	run(t, "docker", "tag", own+"app:v1", own+"copy:v1")
	if said := run(t, "docker", "push", own+"copy:v1"); !strings.Contains(said, "Mounted from "+path+"app") || !u.Registry.Mounted(repository+"app", repository+"copy") {
		t.Errorf("push of what is in another repository prints %s", said)
	}
}

// podman pushes an image by the registry's own name, and pulls it.
func podman(t *testing.T, u *upstream.Upstream, name, repository string) {
	t.Helper()
	store := testenv.Value(os.MkdirTemp("/run", "podman-"))(t) // it takes no long name
	podman := func(args ...string) string {
		return run(t, programs.Podman(t), append([]string{
			"--root", filepath.Join(store, "root"), "--runroot", filepath.Join(store, "run"), "--storage-driver=vfs", "--cgroup-manager=cgroupfs", "--events-backend=none",
		}, args...)...)
	}
	archive := filepath.Join(store, "layer.tar")
	testenv.WriteFile(t, archive, layer(t, "one", name).String())
	podman("import", archive, name)
	podman("push", name)
	podman("image", "rm", name)
	podman("pull", name)
	if got, want := podman("image", "inspect", "--format", "{{.Digest}}", name), u.Registry.Digest(t, repository, "v1"); got != want || want == "" {
		t.Errorf("podman pulled %s, and the registry has %q", got, want)
	}
}

// useHelper has docker get the token as docs/how-to/in-pod.md says.
func useHelper(t *testing.T, token string, registries ...string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	testenv.WriteFile(t, file, token)
	t.Setenv("PATH", filepath.Dir(programs.CredentialHelper(t))+":"+os.Getenv("PATH"))
	t.Setenv("PULLPASS_REGISTRIES", strings.Join(registries, ","))
	t.Setenv("PULLPASS_AUDIENCE", "registry.example.com")
	t.Setenv("PULLPASS_TOKEN_FILE", file)
	run(t, programs.CredentialHelper(t), "configure")
}

// layer has one file.
func layer(t *testing.T, file, content string) *bytes.Buffer {
	t.Helper()
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	testenv.Must(t, w.WriteHeader(&tar.Header{Name: file, Mode: 0o644, Size: int64(len(content))}))
	testenv.Value(w.Write([]byte(content)))(t)
	testenv.Must(t, w.Close())
	return &layer
}

// pushed compares what docker said with what the registry has.
func pushed(t *testing.T, u *upstream.Upstream, repository, said string) {
	t.Helper()
	if digest := u.Registry.Digest(t, repository, "v1"); digest == "" || !strings.Contains(said, digest) {
		t.Errorf("docker says %s, and the registry has %q", said, digest)
	}
}

// notDone runs docker, which must fail and say why.
func notDone(t *testing.T, want string, args ...string) {
	t.Helper()
	output, err := exec.CommandContext(t.Context(), "docker", args...).CombinedOutput()
	if err == nil || !strings.Contains(string(output), want) {
		t.Errorf("docker %q: %v, without %q: %s", args, err, want, output)
	}
	t.Logf("docker %s: %s", args[0], bytes.TrimSpace(output))
}

// checkAudit looks for the requests of docker and of BuildKit, which calls itself containerd.
func checkAudit(t *testing.T, proxy *pullpass.Proxy) {
	t.Helper()
	steps := map[string]bool{}
	for _, e := range proxy.Audit(t) {
		if g := e.Gateway; g != nil {
			agent, _, _ := strings.Cut(e.Client, "/")
			steps[fmt.Sprintf("%s %s %s %s %d", agent, g.Method, g.Upstream, g.Kind, e.Status)] = true
			if e.ServiceAccount.Name != "builder" || e.Namespace != "team-a" {
				t.Errorf("another is named: %+v", e)
			}
		}
	}
	for _, at := range []string{usersUpstream, tokenUpstream, hubUpstream} {
		for _, step := range []string{"docker POST %s uploads 202", "docker POST %s uploads 201", "docker PUT %s manifest 201", "docker GET %s blob 200", "containerd GET %s manifest 200"} {
			if step = fmt.Sprintf(step, at); !steps[step] {
				t.Errorf("no client did %q: %q", step, slices.Sorted(maps.Keys(steps)))
			}
		}
	}
}
