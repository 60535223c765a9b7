package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// The workloads; their UIDs are those of examples/serviceaccounts.yaml.
var (
	web = pod{"team-a", "web", "6d2b46cf-ca6d-4816-a59d-1d08107f9180"}
	ci  = pod{"team-a", "ci", "1f0c9a55-6a0e-4d44-8f0b-5d6f0a1c2b3d"}
)

func (d *demo) tell(ctx context.Context) error {
	for _, chapter := range []func(context.Context) error{
		d.pushAndPull, d.otherTeam, d.beyondTheAnnotation, d.badTokens, d.rotation, d.audit,
	} {
		if err := chapter(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) pushAndPull(ctx context.Context) error {
	d.title("A build pushes, a pod pulls, and no password is stored anywhere")
	d.say("ServiceAccount team-a/ci has the annotation pullpass.dev/repositories: team-a/web:pull,push shared/**")
	image, err := random.Image(64<<10, 2)
	if err != nil {
		return err
	}
	token, err := d.tokenFor(ci)
	if err != nil {
		return err
	}
	d.check("team-a/ci pushes team-a/web", "allowed", d.push(ctx, token, "team-a/web:v1", image), "")
	d.say("ServiceAccount team-a/web has no annotation; the rule own-namespace lets it pull team-a/**")
	if token, err = d.tokenFor(web); err != nil {
		return err
	}
	d.check("a pod of team-a/web pulls team-a/web", "allowed", d.pull(ctx, token, "team-a/web:v1"), "")
	return nil
}

func (d *demo) otherTeam(ctx context.Context) error {
	d.title("Another team's repository")
	token, err := d.tokenFor(web)
	if err != nil {
		return err
	}
	d.check("the same pod pulls team-b/app", "refused", d.pull(ctx, token, "team-b/app:v1"), "UNAUTHORIZED")
	d.say("Why?")
	return d.show(ctx, "explain", "--config", d.config, "--as", "demo/team-a/web", "--scope", "repository:team-b/app:pull")
}

func (d *demo) beyondTheAnnotation(ctx context.Context) error {
	d.title("More than the annotation asks for")
	token, err := d.tokenFor(ci)
	if err != nil {
		return err
	}
	image, err := random.Image(1<<10, 1)
	if err != nil {
		return err
	}
	d.check("team-a/ci pushes team-a/worker", "refused", d.push(ctx, token, "team-a/worker:v1", image), "UNAUTHORIZED")
	d.check("team-a/ci pushes shared/base (asked for, beyond the ceiling)", "refused", d.push(ctx, token, "shared/base:v1", image), "UNAUTHORIZED")
	return d.show(ctx, "explain", "--config", d.config, "--as", "demo/team-a/ci", "--scope", "repository:team-a/worker:pull,push")
}

func (d *demo) badTokens(ctx context.Context) error {
	d.title("Tokens that are not good enough")
	for _, bad := range []struct {
		what, refusal string
		make          func() (string, error)
	}{
		{"a legacy token from a Secret", "never expires", func() (string, error) { return d.cluster.legacyToken(web) }},
		{"a token for another audience", "audience", func() (string, error) {
			return d.cluster.token(web, func(c map[string]any) { c["aud"] = []string{"https://kubernetes.default.svc"} })
		}},
		{"an expired token", "expired", func() (string, error) {
			return d.cluster.token(web, func(c map[string]any) {
				past := time.Now().Add(-2 * time.Hour)
				c["iat"], c["nbf"], c["exp"] = past.Unix(), past.Unix(), past.Add(time.Hour).Unix()
			})
		}},
	} {
		token, err := bad.make()
		if err != nil {
			return err
		}
		d.secrets = append(d.secrets, token)
		d.check("a pull with "+bad.what, "refused", d.pull(ctx, token, "team-a/web:v1"), bad.refusal)
	}
	return nil
}

// rotation changes the signing key while pulls go on, without a word to the
// registry.
func (d *demo) rotation(ctx context.Context) error {
	d.title("Signing keys change during pulls; the registry is not touched")
	const rotations = 3
	var pulls, failures atomic.Int64
	var firstFailure atomic.Pointer[string]
	pulling, stop := context.WithCancel(ctx)
	defer stop()
	var pullers sync.WaitGroup
	for range 2 {
		token, err := d.tokenFor(web)
		if err != nil {
			return err
		}
		pullers.Go(func() {
			for pulling.Err() == nil {
				if err := d.pull(ctx, token, "team-a/web:v1"); err != nil {
					failures.Add(1)
					message := err.Error()
					firstFailure.CompareAndSwap(nil, &message)
				}
				pulls.Add(1)
			}
		})
	}
	token, err := d.tokenFor(web)
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for i := range rotations + 1 {
		if i > 0 {
			if err := d.show(ctx, "keys", "rotate", "--config", d.config); err != nil {
				return err
			}
		}
		err := eventually(10*time.Second, func() error {
			kid, err := d.signingKey(ctx, token)
			if err == nil && seen[kid] {
				err = errors.New("still signed with the key from before")
			}
			seen[kid] = true
			return err
		})
		if err != nil {
			return fmt.Errorf("rotation %d: %w", i, err)
		}
		before := pulls.Load() // and some pulls under each key
		if err := eventually(10*time.Second, func() error {
			if pulls.Load() < before+5 {
				return errors.New("pulls do not go on")
			}
			return nil
		}); err != nil {
			return err
		}
	}
	stop()
	pullers.Wait()
	d.say("%d pulls while %d keys signed", pulls.Load(), len(seen))
	if n := failures.Load(); n > 0 {
		err = fmt.Errorf("%d of %d pulls failed, the first with: %s", n, pulls.Load(), *firstFailure.Load())
	}
	d.check(fmt.Sprintf("pulls during %d key rotations", rotations), "none fails", err, "")
	return d.show(ctx, "keys", "list", "--config", d.config)
}

func (d *demo) audit(context.Context) error {
	d.title("What the audit log says of it")
	for _, wanted := range []struct {
		what  string
		match func(event map[string]any) bool
	}{
		{"a pull granted", func(e map[string]any) bool { return e["result"] == "granted" && e["namespace"] == "team-a" }},
		{"another team's repository", func(e map[string]any) bool {
			return e["result"] == "none" && strings.Contains(fmt.Sprint(e["requested"]), "team-b/app")
		}},
		{"the legacy token", func(e map[string]any) bool { return e["reason"] == "token_legacy" }},
	} {
		line, err := d.proxy.last(wanted.match)
		if err == nil {
			d.say("%s:\n%s", wanted.what, indent(line))
		}
		d.check("audit line: "+wanted.what, "written", err, "")
	}
	return nil
}

func (d *demo) tokenFor(p pod) (string, error) {
	token, err := d.cluster.token(p, nil)
	d.secrets = append(d.secrets, token)
	return token, err
}

// pull does what a node does: the plugin turns the pod's token into a
// credential, and the image comes with it, every layer.
func (d *demo) pull(ctx context.Context, token, repository string) error {
	ref, options, err := d.reference(ctx, token, repository)
	if err != nil {
		return err
	}
	image, err := remote.Image(ref, options...)
	if err != nil {
		return err
	}
	layers, err := image.Layers()
	if err != nil {
		return err
	}
	for _, layer := range layers {
		content, err := layer.Compressed()
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, content)
		if err := errors.Join(err, content.Close()); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) push(ctx context.Context, token, repository string, image v1.Image) error {
	ref, options, err := d.reference(ctx, token, repository)
	if err != nil {
		return err
	}
	return remote.Write(ref, image, options...)
}

func (d *demo) reference(ctx context.Context, token, repository string) (name.Reference, []remote.Option, error) {
	ref, err := name.ParseReference(d.registry + "/" + repository)
	if err != nil {
		return nil, nil, err
	}
	username, password, err := credential(ctx, d.plugin, ref.Context().Name(), token)
	if err != nil {
		return nil, nil, err
	}
	return ref, []remote.Option{
		remote.WithContext(ctx),
		remote.WithTransport(d.servers.transport),
		remote.WithAuth(&authn.Basic{Username: username, Password: password}),
		remote.WithJobs(2),
	}, nil
}

// signingKey asks Pullpass for a token and returns the id of the key that
// signed it.
func (d *demo) signingKey(ctx context.Context, token string) (string, error) {
	query := url.Values{"service": {service}, "scope": {"repository:team-a/web:pull"}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+d.token+"/token?"+query.Encode(), nil)
	if err != nil {
		return "", err
	}
	request.SetBasicAuth("demo", token)
	response, err := (&http.Client{Timeout: 10 * time.Second, Transport: d.servers.transport}).Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	var answer struct {
		Token string `json:"token"`
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return "", err
	}
	signed, err := jose.ParseSignedCompact(answer.Token, []jose.SignatureAlgorithm{jose.ES256})
	if err != nil {
		return "", fmt.Errorf("%s: %w", response.Status, err)
	}
	return signed.Signatures[0].Header.KeyID, nil
}
