// Package releasetest makes a release and uses it: it is pushed to a real registry, and verified with cosign and installed with Helm from
// there, by the commands of docs/start/release.md.
package releasetest

import (
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/registry"
	"github.com/pullpass/pullpass/e2e/testenv"
	"github.com/pullpass/pullpass/e2e/upstream"
)

const version = "0.1.0"

// maker has a key, and logins for a registry.
type maker struct {
	host        string // and path, of the registry
	environment []string
	key         string
}

func (m maker) try(t testing.TB, dir, script string, environment ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-euc", script)
	cmd.Dir, cmd.Env = dir, append(m.environment, environment...)
	output, err := cmd.CombinedOutput()
	return string(output), err
}

func (m maker) run(t testing.TB, dir, script string, environment ...string) string {
	t.Helper()
	output, err := m.try(t, dir, script, environment...)
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, output)
	}
	return output
}

func newMaker(t testing.TB) maker {
	t.Helper()
	ca := certs.NewCA(t, "release")
	running := registry.Start(t, ca, registry.Config{Program: programs.Distribution(t), Realm: "releases", Htpasswd: []byte(upstream.Htpasswd)})
	dir := t.TempDir()
	login := base64.StdEncoding.EncodeToString([]byte(upstream.Username + ":" + upstream.Password))
	testenv.WriteFile(t, filepath.Join(dir, "config.json"), fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, running.Host, login))
	path := os.Getenv("PATH")
	for _, program := range []string{programs.Cosign(t), programs.Helm(t), programs.Crane(t)} {
		path = filepath.Dir(program) + ":" + path
	}
	m := maker{host: running.Host + "/tools", key: filepath.Join(dir, "cosign.key")}
	m.environment = append(programs.HelmEnvironment(t), "PATH="+path, "DOCKER_CONFIG="+dir, "COSIGN_PASSWORD=not-a-secret",
		"GOCACHE="+goDirectory(t, "GOCACHE"), "GOMODCACHE="+goDirectory(t, "GOMODCACHE"), "SSL_CERT_FILE="+ca.File)
	m.run(t, dir, "cosign generate-key-pair")
	return m
}

// goDirectory is that of this test, whose HOME the others have not.
func goDirectory(t testing.TB, name string) string {
	t.Helper()
	output := testenv.Value(exec.CommandContext(t.Context(), "go", "env", name).Output())(t)
	return strings.TrimSpace(string(output))
}

// clone is a checkout with the files of this one, committed, dated and tagged as docs/internals/releasing.md says.
func (m maker) clone(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "pullpass")
	m.run(t, programs.Checkout(t), `git clone --quiet --no-tags . "`+dir+`"
git ls-files -z --cached --others --exclude-standard | tar --create --null --ignore-failed-read --files-from=- | tar --extract --directory="`+dir+`"`)
	changelog := filepath.Join(dir, "CHANGELOG.md")
	dated := testenv.Replace(t, testenv.ReadFile(t, changelog), "## ["+version+"] - Unreleased", "## ["+version+"] - 2026-01-02")
	testenv.WriteFile(t, changelog, dated)
	m.run(t, dir, "git add --all && git commit --quiet --message=release && git tag v"+version,
		"GIT_AUTHOR_NAME=t", "GIT_AUTHOR_EMAIL=t@example.com", "GIT_AUTHOR_DATE=2026-01-02T00:00:00Z",
		"GIT_COMMITTER_NAME=t", "GIT_COMMITTER_EMAIL=t@example.com", "GIT_COMMITTER_DATE=2026-01-02T00:00:00Z")
	return dir
}

func TestRelease(t *testing.T) {
	m := newMaker(t)
	first := m.clone(t)
	release := "make release VERSION=" + version + " REGISTRY=" + m.host
	t.Log(m.run(t, first, release+` RELEASE="-sign `+m.key+` -push"`))
	files := filepath.Join(first, "bin", "release")

	t.Run("the same again", func(t *testing.T) {
		again := filepath.Join(t.TempDir(), "another", "directory")
		m.run(t, first, "git clone --quiet . "+again)
		m.run(t, again, release)
		m.run(t, filepath.Join(again, "bin", "release"), "sha256sum --check --quiet SHA256SUMS; cmp SHA256SUMS "+files+"/SHA256SUMS; cmp release-notes.md "+files+"/release-notes.md")
		// Without any result of another build.
		m.run(t, again, "go build -trimpath -buildvcs=false -ldflags '-s -w -X main.version=v"+version+"' -o cold ./cmd/docker-credential-pullpass; cmp cold "+
			files+"/docker-credential-pullpass-linux-arm64", "GOCACHE="+t.TempDir(), "GOARCH=arm64", "CGO_ENABLED=0", "GOFLAGS=")
	})
	t.Run("the document", func(t *testing.T) { m.testDocument(t, files) })
	t.Run("without the internet", func(t *testing.T) { m.testAirGap(t, files) })
	t.Run("refusals", func(t *testing.T) { m.testRefusals(t, files) })
}

// block is the only one of docs/start/release.md with a text.
func block(t testing.TB, text string) string {
	t.Helper()
	return blockOf(t, "docs/start/release.md", text)
}

func blockOf(t testing.TB, document, text string) string {
	t.Helper()
	var found []string
	for _, part := range strings.Split(testenv.ReadFile(t, filepath.Join(programs.Checkout(t), document)), "```sh\n")[1:] {
		if commands, _, _ := strings.Cut(part, "```"); strings.Contains(commands, text) {
			found = append(found, commands)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%s has %d blocks with %q, want one", document, len(found), text)
	}
	return found[0]
}

// variables stand for the first block of the document: a release that was signed with a key.
func (m maker) variables(key string) string {
	return "version=" + version + " registry=" + m.host + "\nsigner=\"--key=" + key + " --insecure-ignore-tlog\"\n"
}

func (m maker) public() string { return strings.TrimSuffix(m.key, "key") + "pub" }

func (m maker) testDocument(t *testing.T, files string) {
	given := m.variables(m.public())
	verified := m.run(t, files, given+block(t, "cosign verify-attestation"))
	if n := strings.Count(verified, `"predicateType":"https://slsa.dev/provenance/v1"`) + strings.Count(verified, "The cosign claims were validated"); n < 6 {
		t.Errorf("verified %d times:\n%s", n, verified)
	}
	m.run(t, files, given+block(t, "cosign verify-blob "))

	// Nothing is sent to a cluster.
	testenv.WriteFile(t, filepath.Join(files, "values.yaml"), testenv.Replace(t, installValues(t), "image: {repository: images.example.com/pullpass}\n", ""))
	installed := m.run(t, files, given+strings.TrimSpace(block(t, "helm install"))+" --dry-run=client")
	image := m.host + "/pullpass@" + strings.TrimSpace(m.run(t, files, "crane digest "+m.host+"/pullpass:v"+version))
	if !strings.Contains(installed, image) {
		t.Errorf("the chart does not run %s:\n%s", image, installed)
	}
	testenv.Must(t, os.Remove(filepath.Join(files, "values.yaml")))
	m.run(t, t.TempDir(), "helm pull oci://"+m.host+"/charts/pullpass --version "+version+" && cmp pullpass-"+version+".tgz "+files+"/pullpass-"+version+".tgz")

	// The image for clients, as it is copied from.
	dir := t.TempDir()
	m.run(t, dir, "crane export --platform linux/amd64 "+m.host+"/pullpass-client:v"+version+" client.tar && tar --extract --file=client.tar")
	if output := m.run(t, dir, "./docker-credential-pullpass version; ls"); output != "docker-credential-pullpass v"+version+"\nclient.tar\ndocker-credential-pullpass\npullpass-credential-provider\n" {
		t.Errorf("the image for clients: %s", output)
	}
	manifest := m.run(t, dir, "crane manifest "+m.host+"/pullpass-client:v"+version)
	for _, architecture := range []string{"amd64", "arm64", "ppc64le", "riscv64", "s390x"} {
		if !strings.Contains(manifest, `"architecture":"`+architecture+`"`) {
			t.Errorf("the image for clients is not for %s: %s", architecture, manifest)
		}
	}
	m.run(t, files, given+strings.Replace(block(t, "crane copy"), "images.example.com", m.host+"/mirror", 1))
	if mirrored := m.run(t, files, "crane digest "+m.host+"/mirror/pullpass:v"+version); !strings.HasSuffix(image, "@"+strings.TrimSpace(mirrored)) {
		t.Errorf("the copy is %s, and the image %s", mirrored, image)
	}
}

// testAirGap runs the commands of docs/how-to/air-gap.md: one registry is the public one, and two others are inside.
func (m maker) testAirGap(t *testing.T, files string) {
	const document = "docs/how-to/air-gap.md"
	copied, loaded := m.host+"/copied", m.host+"/loaded"
	output := m.run(t, files, strings.NewReplacer("ghcr.io/pullpass", m.host, "images.example.com/pullpass", copied).Replace(blockOf(t, document, "crane copy")))
	if n := strings.Count(output, " is the same\n"); n != 3 {
		t.Errorf("%d are the same:\n%s", n, output)
	}
	m.run(t, files, "version="+version+"\n"+strings.ReplaceAll(blockOf(t, document, "skopeo copy"), "images.example.com/pullpass", loaded))
	m.run(t, files, "crane validate --remote "+loaded+"/pullpass:v"+version)

	values := testenv.WriteFile(t, filepath.Join(t.TempDir(), "values.yaml"), testenv.Replace(t, installValues(t), "images.example.com/pullpass", copied+"/pullpass"))
	install := strings.NewReplacer("images.example.com/pullpass", copied, "values.yaml", values).Replace(strings.TrimSpace(blockOf(t, document, "helm install")))
	if installed := m.run(t, files, "version="+version+"\n"+install+" --dry-run=client"); !strings.Contains(installed, copied+"/pullpass@sha256:") {
		t.Errorf("the chart does not run the copy:\n%s", installed)
	}
}

// installValues are those of the document for installing.
func installValues(t testing.TB) string {
	t.Helper()
	_, after, _ := strings.Cut(testenv.ReadFile(t, filepath.Join(programs.Checkout(t), "docs/start/install.md")), "```yaml\n# values.yaml\n")
	values, _, _ := strings.Cut(after, "```")
	return values
}

func (m maker) testRefusals(t *testing.T, files string) {
	other := t.TempDir()
	m.run(t, other, "cosign generate-key-pair")
	for _, text := range []string{"cosign verify-attestation", "cosign verify-blob "} {
		if output, err := m.try(t, files, m.variables(filepath.Join(other, "cosign.pub"))+block(t, text)); err == nil {
			t.Errorf("accepted with another key: %s", output)
		}
	}
	changed := t.TempDir()
	m.run(t, files, "cp SHA256SUMS* pullpass.provenance* docker-credential-pullpass-linux-amd64 "+changed+"; echo >>"+changed+"/docker-credential-pullpass-linux-amd64")
	commands := strings.Split(strings.TrimSpace(block(t, "cosign verify-blob ")), "\n")
	for i, want := range []bool{true, false, false} {
		if output, err := m.try(t, changed, m.variables(m.public())+commands[i]); (err == nil) != want {
			t.Errorf("%s: a changed program is accepted: %t\n%s", commands[i], err == nil, output)
		}
	}
}
