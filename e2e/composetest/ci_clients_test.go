package composetest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/content/memory"
	orasremote "oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"

	"github.com/pullpass/pullpass/e2e/issuer"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// ciClient pushes an image, an artifact or a chart to team-a/web. It has its credential from docker's configuration, by its own reading
// of it.
type ciClient struct {
	name string
	push func(t *testing.T, archive, tag string) error
}

// ciClients finds the programs before a job has a home of its own, where they are not.
func ciClients(t *testing.T) []ciClient {
	t.Helper()
	skopeo, podman, crane, helm := programs.Skopeo(t), programs.Podman(t), programs.Crane(t), programs.Helm(t)
	ref := func(tag string) string { return ciRegistry + "/team-a/web:" + tag }
	return []ciClient{
		{"docker", func(t *testing.T, _, tag string) error {
			run(t, "docker", "tag", ciRegistry+"/team-a/base:v1", ref(tag))
			return try(t, "docker", "push", ref(tag))
		}},
		{"skopeo", func(t *testing.T, archive, tag string) error {
			return try(t, skopeo, "copy", "--insecure-policy", "docker-archive:"+archive, "docker://"+ref(tag))
		}},
		{"podman", func(t *testing.T, archive, tag string) error {
			store := filepath.Join(os.Getenv("HOME"), "podman")
			options := []string{
				"--root", filepath.Join(store, "root"), "--runroot", filepath.Join(store, "run"), "--storage-driver=vfs",
				"--cgroup-manager=cgroupfs", "--events-backend=none",
			}
			testenv.Must(t, try(t, podman, append(options, "load", "--input", archive)...))
			return try(t, podman, append(options, "push", ciRegistry+"/team-a/base:v1", ref(tag))...)
		}},
		{"crane", func(t *testing.T, archive, tag string) error { return try(t, crane, "push", archive, ref(tag)) }},
		{"helm", func(t *testing.T, _, tag string) error { // whose tags are versions
			dir := t.TempDir()
			chart := filepath.Join(dir, "web")
			testenv.Must(t, os.Mkdir(chart, 0o700))
			testenv.WriteFile(t, filepath.Join(chart, "Chart.yaml"), fmt.Appendf(nil, "apiVersion: v2\nname: web\nversion: %s\n", tag))
			testenv.Must(t, try(t, helm, "package", chart, "--destination", dir))
			return try(t, helm, "push", filepath.Join(dir, "web-"+tag+".tgz"), "oci://"+ciRegistry+"/team-a")
		}},
		{"oras-go", func(t *testing.T, _, tag string) error { return orasPush(t.Context(), tag) }},
	}
}

func orasPush(ctx context.Context, tag string) error {
	docker, err := credentials.NewStoreFromDocker(credentials.StoreOptions{})
	if err != nil {
		return err
	}
	repository, err := orasremote.NewRepository(ciRegistry + "/team-a/web")
	if err != nil {
		return err
	}
	repository.Client = &auth.Client{Credential: credentials.Credential(docker), Cache: auth.NewCache()}
	store, text := memory.New(), []byte(tag)
	file := content.NewDescriptorFromBytes("text/plain", text)
	if err := store.Push(ctx, file, bytes.NewReader(text)); err != nil {
		return err
	}
	manifest, err := oras.PackManifest(ctx, store, oras.PackManifestVersion1_1, "application/vnd.example", oras.PackManifestOptions{Layers: []ocispec.Descriptor{file}})
	if err != nil {
		return err
	}
	if err := store.Tag(ctx, manifest, tag); err != nil {
		return err
	}
	_, err = oras.Copy(ctx, store, tag, repository, tag, oras.DefaultCopyOptions)
	return err
}

// testClients pushes with what the job began with, and with what the helper says now.
func (s *ci) testClients(t *testing.T) {
	archive := filepath.Join(t.TempDir(), "image.tar")
	run(t, "docker", "save", "--output", archive, ciRegistry+"/team-a/base:v1")
	s.job(t, webJob, "")
	s.gitHub.Live(t, shortLife)
	token, ended := s.password(t), time.Now().Add(shortLife)
	t.Setenv("PULLPASS_PUSH", "team-a/web")
	credential := s.password(t)
	time.Sleep(time.Until(ended) + time.Second)
	s.gitHub.Live(t, issuer.GitHubLifetime)

	for i, client := range s.clients {
		t.Run(client.name, func(t *testing.T) {
			tag := fmt.Sprintf("%d.0.", i)
			s.login(t, token)
			before := len(s.proxy.Audit(t))
			if err := client.push(t, archive, tag+"0"); err == nil || s.registry.Digest(t, "team-a/web", tag+"0") != "" {
				t.Errorf("with the token of the beginning: %v", err)
			} else {
				t.Logf("%s: %v", client.name, err)
			}
			s.proxy.AwaitAudit(t, before, "the token has expired", expired)

			s.login(t, credential)
			before = len(s.proxy.Audit(t))
			if err := client.push(t, archive, tag+"1"); err != nil || s.registry.Digest(t, "team-a/web", tag+"1") == "" {
				t.Errorf("with a push credential of the beginning: %v", err)
			}
			s.proxy.AwaitAudit(t, before, "a push credential pushed", pushedByCredential)

			s.job(t, webJob, "")
			if err := client.push(t, archive, tag+"2"); err != nil || s.registry.Digest(t, "team-a/web", tag+"2") == "" {
				t.Errorf("with the helper: %v", err)
			}
		})
	}
}
