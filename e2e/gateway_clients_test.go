package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	orasremote "oras.land/oras-go/v2/registry/remote"

	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// gatewayClient is a client with those other operations that a gateway could break. An operation that it does not have is nil.
type gatewayClient struct {
	client
	digest func(t *testing.T, s session, repository string) (string, error) // that it says the tag has
	tags   func(t *testing.T, s session, repository string) ([]string, error)
	attach func(t *testing.T, s session, repository string) error // pushes what refers to the tag, and finds it again
	tag    string                                                 // of what it pushes; empty: tag
	// The user's error for a push where the gateway allows no push.
	refusedPush string
}

// Nearly every client prints these words of the gateway's refusal.
const (
	refusedGatewayAccess = "the token does not allow to "
	refusedGatewayPush   = "the gateway does not let anybody push at " + readOnlyUpstream
)

func gatewayClients(t *testing.T) []gatewayClient {
	return []gatewayClient{
		skopeoGatewayClient(programs.Skopeo(t)),
		podmanGatewayClient(programs.Podman(t)),
		craneClient(programs.Crane(t)),
		regctlClient(programs.Regctl(t)),
		helmGatewayClient(programs.Helm(t)),
		orasGatewayClient(),
		ggcrGatewayClient(),
	}
}

func skopeoGatewayClient(program string) gatewayClient {
	ask := func(t *testing.T, s session, command, repository string, args ...string) (string, error) {
		t.Helper()
		return s.ask(t, program, append([]string{command, "--creds", s.credentials(), "--cert-dir", s.certDir(t), "docker://" + s.host + "/" + repository}, args...)...)
	}
	c := gatewayClient{client: skopeoClient(program), refusedPush: refusedGatewayPush}
	c.refusedAccess = refusedGatewayAccess
	c.digest = func(t *testing.T, s session, repository string) (string, error) {
		return ask(t, s, "inspect", repository+":"+tag, "--no-tags", "--format", "{{.Digest}}")
	}
	c.tags = func(t *testing.T, s session, repository string) ([]string, error) {
		output, err := ask(t, s, "list-tags", repository)
		if err != nil {
			return nil, err
		}
		var list struct{ Tags []string }
		return list.Tags, json.Unmarshal([]byte(output), &list)
	}
	return c
}

func podmanGatewayClient(program string) gatewayClient {
	c := gatewayClient{client: podmanClient(program), refusedPush: refusedGatewayPush}
	c.refusedAccess = refusedGatewayAccess
	c.digest = func(t *testing.T, s session, repository string) (string, error) {
		return s.ask(t, program, append(s.podmanStore("pull"), "image", "inspect", "--format", "{{.Digest}}", s.host+"/"+repository+":"+tag)...)
	}
	return c
}

// withHelper has programs find the credential as docs/how-to/in-pod.md says.
func (s session) withHelper(t *testing.T) session {
	t.Helper()
	helper, token, config := programs.CredentialHelper(t), filepath.Join(s.dir, "token"), filepath.Join(s.dir, "config.json")
	testenv.Must(t, errors.Join(os.WriteFile(token, []byte(s.password), 0o600), os.WriteFile(config, fmt.Appendf(nil, `{"credHelpers": {%q: "pullpass"}}`, s.host), 0o600)))
	s.env = append(slices.Clone(s.env),
		"PATH="+filepath.Dir(helper)+":"+os.Getenv("PATH"), "DOCKER_CONFIG="+s.dir, "SSL_CERT_FILE="+s.ca.File,
		"PULLPASS_REGISTRIES="+s.host, "PULLPASS_AUDIENCE="+audience, "PULLPASS_TOKEN_FILE="+token)
	return s
}

// craneClient has no login: that writes a file and sends no request.
func craneClient(program string) gatewayClient {
	ask := func(t *testing.T, s session, args ...string) (string, error) {
		t.Helper()
		return s.withHelper(t).ask(t, program, args...)
	}
	ref := func(s session, repository string) string { return s.host + "/" + repository + ":" + tag }
	c := gatewayClient{refusedPush: refusedGatewayPush}
	c.client = client{
		name: "crane", refusedAccess: refusedGatewayAccess,
		push: func(t *testing.T, s session, repository string) error {
			_, err := ask(t, s, "push", s.archive(t, repository), ref(s, repository))
			return err
		},
		pull: func(t *testing.T, s session, repository string) error {
			_, err := ask(t, s, "validate", "--remote", ref(s, repository)) // reads every layer
			return err
		},
		mount: func(t *testing.T, s session, from, to string) error {
			_, err := ask(t, s, "copy", ref(s, from), ref(s, to))
			return err
		},
		remove: func(t *testing.T, s session, repository string) error {
			digest, err := c.digest(t, s, repository)
			if err != nil {
				return err
			}
			_, err = ask(t, s, "delete", s.host+"/"+repository+"@"+digest)
			return err
		},
	}
	c.digest = func(t *testing.T, s session, repository string) (string, error) {
		return ask(t, s, "digest", ref(s, repository))
	}
	c.tags = func(t *testing.T, s session, repository string) ([]string, error) {
		output, err := ask(t, s, "ls", s.host+"/"+repository)
		return strings.Fields(output), err
	}
	return c
}

// regctlChunk is so small that a layer of a test is uploaded in several pieces.
const regctlChunk = "512"

func regctlClient(program string) gatewayClient {
	ask := func(t *testing.T, s session, args ...string) (string, error) {
		t.Helper()
		s = s.withHelper(t)
		if err := s.run(t, program, "registry", "set", s.host, "--skip-check", "--blob-max", regctlChunk, "--blob-chunk", regctlChunk); err != nil {
			return "", err
		}
		return s.ask(t, program, args...)
	}
	run := func(t *testing.T, s session, args ...string) error {
		t.Helper()
		_, err := ask(t, s, args...)
		return err
	}
	ref := func(s session, repository string) string { return s.host + "/" + repository + ":" + tag }
	c := gatewayClient{refusedPush: refusedGatewayPush}
	c.client = client{
		name: "regctl", refusedAccess: ": unauthorized", // and nothing of why
		push: func(t *testing.T, s session, repository string) error {
			return run(t, s, "image", "import", ref(s, repository), s.archive(t, repository))
		},
		pull: func(t *testing.T, s session, repository string) error {
			return run(t, s, "image", "export", ref(s, repository), filepath.Join(t.TempDir(), "image.tar"))
		},
		mount: func(t *testing.T, s session, from, to string) error {
			return run(t, s, "image", "copy", ref(s, from), ref(s, to))
		},
		remove: func(t *testing.T, s session, repository string) error {
			return run(t, s, "tag", "delete", ref(s, repository))
		},
	}
	c.digest = func(t *testing.T, s session, repository string) (string, error) {
		return ask(t, s, "image", "digest", ref(s, repository))
	}
	c.tags = func(t *testing.T, s session, repository string) ([]string, error) {
		output, err := ask(t, s, "tag", "ls", s.host+"/"+repository)
		return strings.Fields(output), err
	}
	c.attach = func(t *testing.T, s session, repository string) error {
		file := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(file, []byte("a signature"), 0o600); err != nil {
			return err
		}
		if err := run(t, s, "artifact", "put", "--artifact-type", attachedType, "--file", file, "--subject", ref(s, repository)); err != nil {
			return err
		}
		output, err := ask(t, s, "artifact", "list", ref(s, repository))
		if err == nil && !strings.Contains(output, attachedType) {
			err = fmt.Errorf("what was attached is not listed: %s", output)
		}
		return err
	}
	return c
}

const attachedType = "application/vnd.example.signature"

var helmDigest = regexp.MustCompile(`(?m)^Digest: (sha256:[0-9a-f]{64})$`)

func helmGatewayClient(program string) gatewayClient {
	c := gatewayClient{client: helmClient(program), tag: helmVersion, refusedPush: refusedGatewayPush}
	c.refusedAccess = refusedGatewayAccess
	c.digest = func(t *testing.T, s session, repository string) (string, error) {
		output, err := s.ask(t, program, "pull", "oci://"+s.host+"/"+repository, "--version", helmVersion, "--ca-file", s.ca.File, "--destination", t.TempDir())
		if found := helmDigest.FindStringSubmatch(output); found != nil {
			return found[1], err
		}
		return "no digest in " + output, err
	}
	return c
}

func orasGatewayClient() gatewayClient {
	open := func(t *testing.T, s session, repository string) (*orasremote.Repository, error) {
		repo, err := orasremote.NewRepository(s.host + "/" + repository)
		if err == nil {
			repo.Client = orasHTTP(t, s, orasPassword)
		}
		return repo, err
	}
	c := gatewayClient{client: orasClient("oras-go", orasPassword), refusedPush: refusedGatewayPush}
	c.refusedAccess = refusedGatewayAccess
	c.digest = func(t *testing.T, s session, repository string) (string, error) {
		repo, err := open(t, s, repository)
		if err != nil {
			return "", err
		}
		descriptor, err := repo.Resolve(t.Context(), tag)
		return descriptor.Digest.String(), err
	}
	c.tags = func(t *testing.T, s session, repository string) (tags []string, err error) {
		repo, err := open(t, s, repository)
		if err != nil {
			return nil, err
		}
		repo.TagListPageSize = 1 // several pages
		return tags, repo.Tags(t.Context(), "", func(page []string) error {
			tags = append(tags, page...)
			return nil
		})
	}
	c.attach = func(t *testing.T, s session, repository string) error {
		repo, err := open(t, s, repository)
		if err != nil {
			return err
		}
		subject, err := repo.Resolve(t.Context(), tag)
		if err != nil {
			return err
		}
		attached, err := oras.PackManifest(t.Context(), repo, oras.PackManifestVersion1_1, attachedType, oras.PackManifestOptions{Subject: &subject})
		if err != nil {
			return err
		}
		var found []string
		err = repo.Referrers(t.Context(), subject, attachedType, func(page []ocispec.Descriptor) error {
			for _, referrer := range page {
				found = append(found, referrer.Digest.String())
			}
			return nil
		})
		if err == nil && !slices.Equal(found, []string{attached.Digest.String()}) {
			err = fmt.Errorf("referrers %v, want %s", found, attached.Digest)
		}
		return err
	}
	return c
}

func ggcrGatewayClient() gatewayClient {
	c := gatewayClient{client: ggcrClient("go-containerregistry", basicAuth), refusedPush: refusedGatewayPush}
	c.refusedAccess = refusedGatewayAccess
	c.digest = func(t *testing.T, s session, repository string) (string, error) {
		image, err := ggcrImage(t, s, basicAuth(s), repository)
		if err != nil {
			return "", err
		}
		digest, err := image.Digest()
		return digest.String(), err
	}
	c.tags = func(t *testing.T, s session, repository string) ([]string, error) {
		repo, err := name.NewRepository(s.host + "/" + repository)
		if err != nil {
			return nil, err
		}
		return remote.List(repo, remote.WithContext(t.Context()), remote.WithAuth(basicAuth(s)), remote.WithTransport(s.roundTripper(t)))
	}
	return c
}
