package main

import (
	"os"
	"path"
	"strings"
	"testing"

	"github.com/docker/cli/cli/config"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/pullpass/pullpass/credential"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// The examples of docs/how-to/in-pod.md agree with each other and with the defaults.
func TestDocumentShowsAPodThatWorks(t *testing.T) {
	t.Parallel()
	document := testkit.Value(os.ReadFile("../../docs/how-to/in-pod.md"))(t)
	_, block, _ := strings.Cut(string(document), "```yaml\n")
	block, _, _ = strings.Cut(block, "```")
	first, second, _ := strings.Cut(block, "---\n")
	var files corev1.ConfigMap
	testkit.Must(t, yaml.UnmarshalStrict([]byte(first), &files))
	var pod corev1.Pod
	testkit.Must(t, yaml.UnmarshalStrict([]byte(second), &pod))

	container, sources := pod.Spec.Containers[0], pod.Spec.Volumes[0].Projected.Sources
	mount, projected := container.VolumeMounts[0], sources[0].ServiceAccountToken
	if mount.Name != pod.Spec.Volumes[0].Name || mount.SubPath != "" || sources[1].ConfigMap.Name != files.Name || pod.Namespace != files.Namespace {
		t.Error("the volume is not what is mounted")
	}
	if file := path.Join(mount.MountPath, projected.Path); file != credential.DefaultTokenFile {
		t.Errorf("the token is at %s, want %s", file, credential.DefaultTokenFile)
	}
	env := environment{}
	for _, variable := range container.Env {
		env[variable.Name] = variable.Value
	}
	if env["DOCKER_CONFIG"] != mount.MountPath {
		t.Errorf("DOCKER_CONFIG is %s, but config.json is in %s", env["DOCKER_CONFIG"], mount.MountPath)
	}
	s := testkit.Value(parseSettings(env.get))(t)
	client := testkit.Value(config.LoadFromReader(strings.NewReader(files.Data["config.json"])))(t)
	if len(s.registries) != 1 || s.registries[0] != projected.Audience || client.CredentialHelpers[projected.Audience] != "pullpass" {
		t.Errorf("registries %v, audience %q, credHelpers %v", s.registries, projected.Audience, client.CredentialHelpers)
	}

	// The document and --help name the same settings.
	for _, text := range []string{"PULLPASS_REGISTRIES", "PULLPASS_AUDIENCE", "PULLPASS_TOKEN_FILE", credential.DefaultTokenFile} {
		if !strings.Contains(string(document), text) || !strings.Contains(help, text) {
			t.Errorf("%s is not in the document, or not in the help", text)
		}
	}
}

// docs/how-to/ci.md and --help name the same ways to a job's token, and what it says of
// messages is what the program has.
func TestDocumentOfJobs(t *testing.T) {
	t.Parallel()
	document := testkit.Read(t, "../../docs/how-to/ci.md")
	texts := []string{"PULLPASS_REGISTRIES", "PULLPASS_AUDIENCE", "PULLPASS_PUSH", "PULLPASS_ID_TOKEN", "PULLPASS_TOKEN_FILE", credential.DefaultTokenFile, "configure"}
	for _, s := range systems {
		texts = append(texts, s.asks, s.holds)
	}
	for _, text := range texts {
		if !strings.Contains(document, text) || !strings.Contains(help, text) {
			t.Errorf("%s is not in the document, or not in the help", text)
		}
	}
	// Each variable by which a job is known finds one, in the document's order.
	_, order, _ := strings.Cut(document, "## Providers")
	for _, s := range systems {
		for _, mark := range s.marks {
			if _, found := jobOf(environment{mark: "1"}.get); !found {
				t.Errorf("%s: no job", mark)
			}
		}
		mark := s.marks[len(s.marks)-1]
		var ok bool
		if _, order, ok = strings.Cut(order, "`"+mark+"`"); !ok {
			t.Fatalf("%s is not in its place in the document's order", mark)
		}
	}
}
