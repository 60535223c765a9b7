package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/pullpass/pullpass/e2e/testenv"
)

// run runs a client's program with a home directory of its own. The error holds all that it printed.
func (s session) run(t *testing.T, program string, args ...string) error {
	t.Helper()
	_, err := s.ask(t, program, args...)
	return err
}

// ask is run where it matters what the program prints to standard output.
func (s session) ask(t *testing.T, program string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir, "XDG_RUNTIME_DIR=" + s.dir, "TMPDIR=" + s.dir}, s.env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if s.heard != nil {
		fmt.Fprintf(s.heard, "%s%s", &stdout, &stderr)
	}
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s%s", filepath.Base(program), args[0], err, &stdout, &stderr)
	}
	return strings.TrimSpace(stdout.String()), nil
}

// certDir is what containers/image wants: a directory with the CA.
func (s session) certDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(s.dir, "certs")
	content, err := os.ReadFile(s.ca.File)
	testenv.Must(t, errors.Join(err, os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "ca.crt"), content, 0o600)))
	return dir
}

func (s session) credentials() string { return "serviceaccount:" + s.password }

// archive writes a new image as "docker save" does.
func (s session) archive(t *testing.T, repository string) string {
	t.Helper()
	image := newImage(t)
	ref := testenv.Value(name.NewTag(s.host + "/" + repository + ":" + tag))(t)
	path := filepath.Join(t.TempDir(), "image.tar")
	testenv.Must(t, tarball.WriteToFile(path, ref, image))
	return path
}

func skopeoClient(program string) client {
	ref := func(s session, repository string) string {
		return "docker://" + s.host + "/" + repository + ":" + tag
	}
	return client{
		name: "skopeo", refusedLogin: "invalid username/password", refusedAccess: "denied: requested access to the resource is denied",
		login: func(t *testing.T, s session) error {
			return s.run(t, program, "login", "--authfile", filepath.Join(s.dir, "auth.json"), "--cert-dir", s.certDir(t),
				"-u", "serviceaccount", "-p", s.password, s.host)
		},
		push: func(t *testing.T, s session, repository string) error {
			return s.run(t, program, "copy", "--insecure-policy", "--dest-creds", s.credentials(), "--dest-cert-dir", s.certDir(t),
				"docker-archive:"+s.archive(t, repository), ref(s, repository))
		},
		pull: func(t *testing.T, s session, repository string) error {
			return s.run(t, program, "copy", "--insecure-policy", "--src-creds", s.credentials(), "--src-cert-dir", s.certDir(t),
				ref(s, repository), "dir:"+t.TempDir())
		},
		mount: func(t *testing.T, s session, from, to string) error {
			// skopeo mounts what it remembers to have seen in another repository: it must have pulled it.
			if err := s.run(t, program, "copy", "--insecure-policy", "--src-creds", s.credentials(), "--src-cert-dir", s.certDir(t),
				ref(s, from), "dir:"+t.TempDir()); err != nil {
				return err
			}
			return s.run(t, program, "copy", "--insecure-policy",
				"--src-creds", s.credentials(), "--src-cert-dir", s.certDir(t), "--dest-creds", s.credentials(), "--dest-cert-dir", s.certDir(t),
				ref(s, from), ref(s, to))
		},
		remove: func(t *testing.T, s session, repository string) error {
			return s.run(t, program, "delete", "--creds", s.credentials(), "--cert-dir", s.certDir(t), ref(s, repository))
		},
	}
}

// podmanClient keeps its images in directories of the session, one for each operation: what it pushed must not be there
// when it pulls. Nothing is run, so no container runtime is needed.
func podmanClient(program string) client {
	podman := func(t *testing.T, s session, operation string, args ...string) error {
		t.Helper()
		return s.run(t, program, append(s.podmanStore(operation), args...)...)
	}
	ref := func(s session, repository string) string { return s.host + "/" + repository + ":" + tag }
	return client{
		name: "podman", refusedLogin: "invalid username/password", refusedAccess: "denied: requested access to the resource is denied",
		login: func(t *testing.T, s session) error {
			return podman(t, s, "login", "login", "--authfile", filepath.Join(s.dir, "auth.json"), "--cert-dir", s.certDir(t),
				"-u", "serviceaccount", "-p", s.password, s.host)
		},
		push: func(t *testing.T, s session, repository string) error {
			if err := podman(t, s, "push", "load", "--input", s.archive(t, repository)); err != nil {
				return err
			}
			return podman(t, s, "push", "push", "--creds", s.credentials(), "--cert-dir", s.certDir(t), ref(s, repository))
		},
		pull: func(t *testing.T, s session, repository string) error {
			return podman(t, s, "pull", "pull", "--creds", s.credentials(), "--cert-dir", s.certDir(t), ref(s, repository))
		},
	}
}

// podmanStore are the arguments by which podman has its images in the directory of an operation.
func (s session) podmanStore(operation string) []string {
	store := filepath.Join(s.dir, operation)
	return []string{
		"--root", filepath.Join(store, "root"), "--runroot", filepath.Join(store, "run"), "--storage-driver=vfs",
		"--cgroup-manager=cgroupfs", "--events-backend=none",
	}
}

const helmVersion = "0.1.0" // of each chart

// helmClient pushes and pulls charts. A chart is named after its repository's last component.
func helmClient(program string) client {
	login := func(t *testing.T, s session) error {
		return s.run(t, program, "registry", "login", s.host, "--ca-file", s.ca.File, "-u", "serviceaccount", "-p", s.password)
	}
	return client{
		name: "helm", refusedLogin: "audience", refusedAccess: "unauthorized: authentication required",
		login: login,
		push: func(t *testing.T, s session, repository string) error {
			parent, chart := splitRepository(repository)
			dir := filepath.Join(t.TempDir(), chart)
			metadata := fmt.Appendf(nil, "apiVersion: v2\nname: %s\nversion: %s\n", chart, helmVersion)
			if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "Chart.yaml"), metadata, 0o600)); err != nil {
				return err
			}
			if err := s.run(t, program, "package", dir, "--destination", s.dir); err != nil {
				return err
			}
			archive := filepath.Join(s.dir, chart+"-"+helmVersion+".tgz")
			return s.run(t, program, "push", archive, "oci://"+s.host+"/"+parent, "--ca-file", s.ca.File)
		},
		pull: func(t *testing.T, s session, repository string) error {
			return s.run(t, program, "pull", "oci://"+s.host+"/"+repository, "--version", helmVersion, "--ca-file", s.ca.File, "--destination", t.TempDir())
		},
	}
}

// splitRepository splits off the last component.
func splitRepository(repository string) (parent, last string) {
	i := strings.LastIndex(repository, "/")
	return repository[:i], repository[i+1:]
}
