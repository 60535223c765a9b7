package server

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/test/kubetest"
)

// ciIdentity is an issuer with the keys of the clusters'.
const ciIdentity = `identities:
- name: ci
  issuer: https://ci.example.com
  profile: github
  audiences: [registry.example.com]
  require: {repository_owner_id: ["1234"]}
  discovery: {jwksFile: issuer.json}
`

// ciToken is of a tenant that ciIdentity does not let in.
func ciToken(t *testing.T) string {
	t.Helper()
	now := time.Now()
	return kubetest.SignToken(t, map[string]any{
		"iss": "https://ci.example.com", "aud": "registry.example.com", "sub": "repo:evil-org/app:ref:refs/heads/main", "jti": "ci-1",
		"iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(5 * time.Minute).Unix(), "repository_id": "43", "repository_owner_id": "6666",
	})
}

// Identities come and go as clusters do, and their issuers are seen where those of
// clusters are.
func TestIdentitiesComeAndGo(t *testing.T) {
	t.Parallel()
	p := startService(t, "")
	pod, job := kubetest.Token(t, "https://issuer.example.com"), ciToken(t)
	p.Expect(t, job, http.StatusUnauthorized, "token_unknown_issuer")

	p.reconfigure(t, "registries:", ciIdentity+"registries:")
	p.Expect(t, job, http.StatusUnauthorized, "token_require")
	p.Expect(t, pod, http.StatusOK, "")
	p.Metric(t, `pullpass_issuer_keys{cluster="ci"} 1`)
	if _, body := p.Fetch(t, "http://"+p.Admin+"/readyz"); !strings.Contains(body, `{"name":"ci","healthy":true}`) {
		t.Errorf("/readyz: %s", body)
	}

	p.reconfigure(t, `["1234"]`, `["6666"], ref: [refs/heads/main]`)
	p.Expect(t, job, http.StatusUnauthorized, "token_require")
	p.reconfigure(t, "profile: github", "profile: gitlab")
	p.Expect(t, job, http.StatusUnauthorized, "token_claims")

	p.reconfigure(t, strings.NewReplacer(`["1234"]`, `["6666"], ref: [refs/heads/main]`, "profile: github", "profile: gitlab").Replace(ciIdentity), "")
	p.Expect(t, job, http.StatusUnauthorized, "token_unknown_issuer")
	p.Expect(t, pod, http.StatusOK, "")
	if _, metrics := p.Fetch(t, "http://"+p.Admin+"/metrics"); strings.Contains(metrics, `"ci"`) {
		t.Errorf("/metrics still tells of the identity:\n%s", metrics)
	}
}

// An identity's issuer that is down is the trouble of its own tokens: also when it
// is there from the start, and when it is new.
func TestAnIdentityThatIsDown(t *testing.T) {
	t.Parallel()
	p := startService(t, strings.Replace(ciIdentity, "issuer.json", "missing.json", 1))
	p.Expect(t, kubetest.Token(t, "https://issuer.example.com"), http.StatusOK, "")
	if _, body := p.Fetch(t, "http://"+p.Admin+"/readyz"); !strings.Contains(body, `{"name":"ci","healthy":false,"message":"discovery.jwksFile: `) {
		t.Errorf("/readyz: %s", body)
	}
	p.Metric(t, `pullpass_issuer_keys{cluster="ci"} 0`)
	p.reconfigure(t, "missing.json", "issuer.json")
	p.Metric(t, `pullpass_issuer_keys{cluster="ci"} 1`)
	p.Configure(t, "{jwksFile: issuer.json}\n\nregistries", "{jwksFile: missing.json}\n\nregistries")
	p.Refuses(t, "config", "issuers: ci works as it is, and would not with what is new: ")
}

// A registry that CI alone uses needs no cluster.
func TestWithoutClusters(t *testing.T) {
	t.Parallel()
	p := startService(t, ciIdentity)
	p.reconfigure(t, `clusters:
- name: prod
  issuer: https://issuer.example.com
  audiences: [registry.example.com]
  discovery: {jwksFile: issuer.json}
  kubernetes: {manifestFiles: [serviceaccounts.yaml]}
`, "")
	p.Expect(t, kubetest.Token(t, "https://issuer.example.com"), http.StatusUnauthorized, "token_unknown_issuer")
	p.Expect(t, ciToken(t), http.StatusUnauthorized, "token_require")
	if !p.Ready(t) {
		t.Error("it is not ready without a cluster")
	}
}
