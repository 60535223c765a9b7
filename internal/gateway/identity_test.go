package gateway_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/gateway"
	"github.com/pullpass/pullpass/internal/gateway/upstream"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/test/registrytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// job is a token of a CI job, which was issued for a push credential.
func (r *rig) job(subject string, scopes ...string) string {
	r.t.Helper()
	parsed, err := registryauth.ParseScopes(scopes)
	testkit.Must(r.t, err)
	issued, err := r.issuer.Issue(registryauth.Grant{
		Subject: "github/" + subject, Access: parsed,
		Holder: &registryauth.Holder{Identity: "github", Project: "42", Run: "1001", TokenID: "jti-job", PushCredential: "push-1"},
	})
	testkit.Must(r.t, err)
	return issued.Value.Reveal()
}

// A revocation of a job, its token or its push credential applies to the next request.
func TestJobsRevoked(t *testing.T) {
	t.Parallel()
	registry := registrytest.NewRegistry(t, "")
	registry.Put(t, "acme/app", "v1", []byte("layer"))
	r := newRig(t, upstreamSettings{name: "ghcr.io", to: registry})
	token := r.job("repo:octo-org/web", "repository:ghcr.io/acme/app:pull")
	for target, want := range map[string]int{
		"": 200, "jti-job": 403, "push-1": 403, "github/project/42": 403, "github/run/1001": 403, "github/run/42": 200, "gitlab/project/42": 200,
	} {
		r.revocations.target = target
		if got := r.do(http.MethodGet, "/v2/ghcr.io/acme/app/manifests/v1", token, nil, "Accept", registrytest.ManifestType); got.status != want {
			t.Errorf("%q is revoked: %d %s", target, got.status, got.body)
		}
	}
	for _, e := range r.events.take() {
		if i := e.Identity; i == nil || i.Name != "github" || i.Subject != "github/repo:octo-org/web" || i.Project != "42" || i.Run != "1001" || e.PushCredential != "push-1" || e.Cluster != "" {
			t.Errorf("event: %s", shown(e))
		}
	}
}

// An upload belongs to its subject alone.
func TestUploadsOfJobs(t *testing.T) {
	t.Parallel()
	registry := registrytest.NewRegistry(t, "")
	r := newRig(t, upstreamSettings{name: "ghcr.io", to: registry, change: func(_ *upstream.Config, u *gateway.Upstream) { u.Actions = []string{"pull", "push"} }})
	const scope = "repository:ghcr.io/acme/app:pull,push"
	upload := r.do(http.MethodPost, "/v2/ghcr.io/acme/app/blobs/uploads/", r.job("one", scope), nil)
	if upload.status != 202 {
		t.Fatalf("%d %s", upload.status, upload.body)
	}
	for subject, want := range map[string]int{"other": 404, "one": 202} {
		got := r.do(http.MethodPatch, upload.header.Get("Location"), r.job(subject, scope), strings.NewReader("content"), "Content-Type", "application/octet-stream")
		if got.status != want {
			t.Errorf("%s: %d %s", subject, got.status, got.body)
		}
	}
	r.Close() // when all is recorded
	for _, e := range r.events.take() {
		if e.Gateway.Digest != "" { // which is that of a manifest
			t.Errorf("%s", shown(e))
		}
	}
}

// callers records the callers for which logins are requested.
type callers chan string

func (c callers) Login(_ context.Context, caller string) (upstream.Login, error) {
	c <- caller
	return upstream.Login{}, upstream.ErrNoCaller
}

func (callers) Reject(upstream.Login) {}

// Clouds that trust assertions of Pullpass know ServiceAccounts. The subject of a job must not look
// like one.
func TestUpstreamsAreNotAskedAsJobs(t *testing.T) {
	t.Parallel()
	asked := make(callers, 2)
	r := newRig(t, upstreamSettings{name: "ghcr.io", to: registrytest.NewRegistry(t, ""), change: func(c *upstream.Config, _ *gateway.Upstream) { c.Logins = asked }})
	const scope = "repository:ghcr.io/acme/app:pull"
	for token, want := range map[string]string{r.job("payments/api", scope): "", r.token("web", scope): "prod/team-a/web"} {
		if got := r.do(http.MethodGet, "/v2/ghcr.io/acme/app/manifests/v1", token, nil); got.status != 502 {
			t.Errorf("%d %s", got.status, got.body)
		}
		if caller := <-asked; caller != want {
			t.Errorf("asked as %q, want %q", caller, want)
		}
	}
}
