package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"sigs.k8s.io/yaml"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

const changelog = `# Changelog

## [Unreleased]

## [0.2.0] - 2026-12-01

Some words.

### Added

- One thing: with
  two lines.
- Another.

### Security

- A fix.

## [0.1.0] - Unreleased

### Added

- All.

[0.1.0]: https://example.com/
`

func TestNotes(t *testing.T) {
	t.Parallel()
	n := testkit.Value(readNotes(changelog, "0.2.0"))(t)
	want := []change{{"added", "One thing: with two lines."}, {"added", "Another."}, {"security", "A fix."}}
	if n.date != "2026-12-01" || len(n.changes) != 3 || n.changes[0] != want[0] || n.changes[1] != want[1] || n.changes[2] != want[2] || !n.security() {
		t.Errorf("%+v", n)
	}
	if !strings.HasPrefix(n.text, "Some words.\n\n### Added") || !strings.HasSuffix(n.text, "- A fix.") {
		t.Errorf("text %q", n.text)
	}
	if n = testkit.Value(readNotes(changelog, "0.1.0"))(t); n.date != unreleased || n.text != "### Added\n\n- All." || n.security() {
		t.Errorf("%+v", n)
	}
	for version, want := range map[string]string{"0.3.0": "no section", "Unreleased": "no date, or no changes"} {
		if _, err := readNotes(changelog, version); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", version, err, want)
		}
	}
}

// The changelog of the project has what a release needs.
func TestProjectChangelog(t *testing.T) {
	t.Parallel()
	n := testkit.Value(readNotes(testkit.Read(t, "../../CHANGELOG.md"), "0.1.0"))(t)
	for _, c := range n.changes {
		if c.Kind != "added" {
			t.Errorf("the first version has %+v", c)
		}
	}
}

func TestArguments(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ args, want string }{
		{"-registry r/p", "-version \"\""},
		{"-version v0.1.0 -registry r/p", "without v"},
		{"-version 0.1 -registry r/p", "semantic version"},
		{"-version 0.1.0+build -registry r/p", "semantic version"},
		{"-version 0.1.0", "-registry \"\""},
		{"-version 0.1.0 -registry r/p/", "want a registry"},
		{"-version 0.1.0 -registry r/p now", "unexpected argument"},
	} {
		if err := run(t.Context(), strings.Fields(test.args), io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want %q", test.args, err, test.want)
		}
	}
}

// Only a commit with a tag and a date is pushed.
func TestIdentify(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	git := func(args ...string) {
		cmd := exec.CommandContext(t.Context(), "git", append([]string{"-C", dir, "-c", "user.name=t", "-c", "user.email=t@example.com"}, args...)...)
		if output, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %q: %v: %s", args, err, output)
		}
	}
	identify := func(version string, push bool, want string) release {
		t.Helper()
		r := release{version: version, root: dir, stderr: io.Discard}
		err := r.identify(t.Context(), push)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s, push %t: error %v, want %q", version, push, err, want)
		}
		return r
	}
	git("init", "--quiet")
	file := filepath.Join(dir, "CHANGELOG.md")
	testkit.Must(t, os.WriteFile(file, []byte(changelog), 0o600))
	git("add", "CHANGELOG.md")
	git("commit", "--quiet", "--message=a", "--date=2026-12-01T00:00:00Z")
	if r := identify("0.1.0", false, ""); len(r.commit) != 40 || r.created.IsZero() || r.root == "" {
		t.Errorf("%+v", r)
	}
	identify("0.1.0", true, "0.1.0 is Unreleased")
	identify("0.2.0", true, "no tag v0.2.0")
	git("tag", "v0.2.0")
	identify("0.2.0", true, "")
	testkit.Must(t, os.WriteFile(filepath.Join(dir, "other"), nil, 0o600))
	identify("0.2.0", false, "commit these changes first:\n?? other")
}

// example is a release of this checkout.
func example(t *testing.T, host string) (release, artifact) {
	t.Helper()
	r := release{
		version: "0.2.0", registry: host + "/tools", builder: "https://builder.example.com", root: testkit.Value(filepath.Abs("../.."))(t), out: t.TempDir(),
		commit: strings.Repeat("c0ffee", 6) + "abcd", created: time.Unix(1700000000, 0).UTC(), stdout: io.Discard, stderr: io.Discard,
	}
	r.notes = testkit.Value(readNotes(changelog, "0.2.0"))(t)
	image := artifact{repository: r.registry + "/pullpass", tag: "v0.2.0", digest: v1.Hash{Algorithm: "sha256", Hex: strings.Repeat("ab", 32)}}
	return r, image
}

func TestChart(t *testing.T) {
	t.Parallel()
	r, image := example(t, "registry.example.com")
	a := testkit.Value(r.writeChart([]artifact{image}))(t)
	if again := testkit.Value(r.writeChart([]artifact{image}))(t); again.digest != a.digest || a.repository != "registry.example.com/tools/charts/pullpass" || a.tag != "0.2.0" {
		t.Errorf("%+v, then %+v", a, again)
	}
	files := map[string]string{}
	compressed := testkit.Value(gzip.NewReader(bytes.NewReader(testkit.Value(os.ReadFile(r.file("pullpass-0.2.0.tgz")))(t))))(t)
	for reader := tar.NewReader(compressed); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		testkit.Must(t, err)
		if !header.ModTime.Equal(r.created) {
			t.Errorf("%s is of %v", header.Name, header.ModTime)
		}
		files[header.Name] = string(testkit.Value(io.ReadAll(reader))(t))
	}
	var metadata struct {
		Version, AppVersion, KubeVersion string
		Annotations                      map[string]string
	}
	testkit.Must(t, yaml.Unmarshal([]byte(files["pullpass/Chart.yaml"]), &metadata))
	if metadata.Version != "0.2.0" || metadata.AppVersion != "v0.2.0" || metadata.KubeVersion == "" {
		t.Errorf("%+v", metadata)
	}
	for name, want := range map[string]string{
		"license": "Apache-2.0", "prerelease": "false", "containsSecurityUpdates": "true",
		"changes": "- description: 'One thing: with two lines.'\n  kind: added\n- description: Another.\n  kind: added\n- description: A fix.\n  kind: security\n",
		"images":  "- image: registry.example.com/tools/pullpass:v0.2.0\n  name: pullpass\n",
	} {
		if got := metadata.Annotations["artifacthub.io/"+name]; got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	var values struct {
		Image struct{ Repository, Tag, Digest string }
	}
	testkit.Must(t, yaml.Unmarshal([]byte(files["pullpass/values.yaml"]), &values))
	if values.Image.Repository != image.repository || values.Image.Tag != "" || values.Image.Digest != image.digest.String() {
		t.Errorf("%+v", values)
	}
	if files["pullpass/templates/deployment.yaml"] == "" || files["pullpass/values.schema.json"] == "" {
		t.Error("files are missing")
	}
}

// The manifest names each archive with its digest, and the program in it.
func TestKrew(t *testing.T) {
	t.Parallel()
	r, _ := example(t, "registry.example.com")
	if err := r.writeKrew(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without programs: %v", err)
	}
	platforms := slices.Concat(servers, macs, windows)
	for _, platform := range platforms {
		name := kubectlPlugin + "-" + platform
		if strings.HasPrefix(platform, "windows-") {
			name += ".exe"
		}
		testkit.Must(t, r.write(name, []byte(platform)))
	}
	testkit.Must(t, r.writeKrew())
	var manifest krewPlugin
	testkit.Must(t, yaml.UnmarshalStrict([]byte(testkit.Read(t, r.file(krewFile))), &manifest))
	if manifest.Metadata.Name != "pullpass" || manifest.Spec.Version != "v0.2.0" || len(manifest.Spec.Platforms) != len(platforms) {
		t.Fatalf("%+v", manifest)
	}
	for i, p := range manifest.Spec.Platforms {
		name, ok := strings.CutPrefix(p.URI, "https://github.com/pullpass/pullpass/releases/download/v0.2.0/")
		packed := testkit.Read(t, r.file(name))
		if labels := p.Selector.MatchLabels; !ok || labels["os"]+"-"+labels["arch"] != platforms[i] || p.SHA256 != fmt.Sprintf("%x", sha256.Sum256([]byte(packed))) {
			t.Errorf("%+v", p)
		}
		files := tar.NewReader(testkit.Value(gzip.NewReader(strings.NewReader(packed)))(t))
		header := testkit.Value(files.Next())(t)
		if content := testkit.Value(io.ReadAll(files))(t); header.Name != p.Bin || header.Mode != 0o755 || string(content) != platforms[i] || !header.ModTime.Equal(r.created) {
			t.Errorf("%s: %+v", name, header)
		}
		if header = testkit.Value(files.Next())(t); header.Name != "LICENSE" {
			t.Errorf("%s: %+v", name, header)
		}
	}
}

func TestProvenanceAndSums(t *testing.T) {
	t.Parallel()
	r, image := example(t, "registry.example.com")
	testkit.Must(t, r.write("a", []byte("abc")))
	testkit.Must(t, r.writeProvenance([]artifact{image}))
	var s statement
	testkit.Must(t, json.Unmarshal([]byte(testkit.Read(t, r.file(provenanceFile))), &s))
	const sha = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
	if len(s.Subject) != 2 || s.Subject[0].Name != "a" || s.Subject[0].Digest["sha256"] != sha || s.Subject[1].Digest["sha256"] != image.digest.Hex {
		t.Errorf("%+v", s.Subject)
	}
	if p := s.Predicate; p.BuildDefinition.ResolvedDependencies[0].Digest["gitCommit"] != r.commit || p.RunDetails.Builder.ID != r.builder {
		t.Errorf("%+v", p)
	}
	testkit.Must(t, r.writeSums())
	if text := testkit.Read(t, r.file(sumsFile)); !strings.HasPrefix(text, sha+"  a\n") || !strings.HasSuffix(text, "  pullpass.provenance.json\n") {
		t.Errorf("%s", text)
	}
}

// A release that is pushed again is the same; a version with other content is refused.
func TestPush(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	r, image := example(t, strings.TrimPrefix(server.URL, "http://"))
	chart := testkit.Value(r.writeChart([]artifact{image}))(t)
	for range 2 {
		testkit.Must(t, r.push(t.Context(), []artifact{chart}))
	}
	r.notes.changes = r.notes.changes[:1]
	changed := testkit.Value(r.writeChart([]artifact{image}))(t)
	if err := r.push(t.Context(), []artifact{changed}); err == nil || !strings.Contains(err.Error(), "a version never changes") {
		t.Errorf("error %v", err)
	}
}

// Actions are pinned by their commits, and CI compiles with the Go of the Dockerfile.
func TestWorkflows(t *testing.T) {
	t.Parallel()
	_, after, _ := strings.Cut(testkit.Read(t, "../../Dockerfile"), "ARG GO_IMAGE=golang:")
	compiler, _, _ := strings.Cut(after, "\n")
	for _, name := range []string{"ci", "release"} {
		text := testkit.Read(t, "../../.github/workflows/"+name+".yml")
		if image := "image: golang:" + compiler + "-"; strings.Count(text, "image: ") != strings.Count(text, image) || !strings.Contains(text, image) {
			t.Errorf("%s.yml: not all images are %q", name, image)
		}
		for _, use := range strings.Split(text, "uses: ")[1:] {
			line, _, _ := strings.Cut(use, "\n")
			_, commit, _ := strings.Cut(line, "@")
			if hash, version, _ := strings.Cut(commit, " # v"); len(hash) != 40 || strings.Trim(hash, "0123456789abcdef") != "" || version == "" {
				t.Errorf("%s.yml: %s is not pinned by a commit, with its version beside it", name, line)
			}
		}
	}
}
