package issuer

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// GitHubLifetime is that of GitHub's tokens.
const GitHubLifetime = 5 * time.Minute

// GitHub is GitHub Actions as far as tokens go: the issuer, and the service that jobs ask
// (https://docs.github.com/en/actions/reference/security/oidc).
type GitHub struct {
	*Issuer

	mu       sync.Mutex
	lifetime time.Duration
	jobs     map[string]Job // by request token
}

// Job is one job of the organization acme, 1234.
type Job struct {
	Repository   string
	RepositoryID int
	Branch       string
	Protected    bool
	Run          int
}

// StartGitHub runs it until the test ends. Its TLS certificate is of ca.
func StartGitHub(t testing.TB, ca *certs.CA) *GitHub {
	t.Helper()
	i, mux := serve(t, ca, "/.well-known/jwks")
	g := &GitHub{Issuer: i, lifetime: GitHubLifetime, jobs: map[string]Job{}}
	mux.HandleFunc("GET /idtoken", func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		defer g.mu.Unlock()
		job, known := g.jobs[r.Header.Get("Authorization")]
		switch {
		case !known:
			w.WriteHeader(http.StatusUnauthorized)
		case r.FormValue("api-version") != "2.0" || r.FormValue("audience") == "":
			w.WriteHeader(http.StatusBadRequest)
		default:
			token, err := g.token(job, r.FormValue("audience"))
			if err != nil {
				w.WriteHeader(http.StatusInternalServerError)
				return
			}
			writeJSON(w, map[string]any{"count": len(token), "value": token})
		}
	})
	return g
}

// Live says how long the tokens live that are asked for until the test ends: long builds cannot be waited for.
func (g *GitHub) Live(t testing.TB, lifetime time.Duration) {
	set := func(lifetime time.Duration) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.lifetime = lifetime
	}
	set(lifetime)
	t.Cleanup(func() { set(GitHubLifetime) })
}

// Environment is what the runner gives to a job that has the permission id-token: write.
func (g *GitHub) Environment(job Job) map[string]string {
	asking := rand.Text()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.jobs["bearer "+asking] = job
	return map[string]string{
		"GITHUB_ACTIONS":                 "true",
		"ACTIONS_ID_TOKEN_REQUEST_URL":   g.URL + "/idtoken?api-version=2.0",
		"ACTIONS_ID_TOKEN_REQUEST_TOKEN": asking,
	}
}

// JobToken is the token of a job without a runner.
func (g *GitHub) JobToken(t testing.TB, audience string, job Job) string {
	t.Helper()
	token := testenv.Value(g.token(job, audience))(t)
	return token
}

func (g *GitHub) token(job Job, audience string) (string, error) {
	now := time.Now()
	ref, repository := "refs/heads/"+job.Branch, "acme/"+job.Repository
	workflow := repository + "/.github/workflows/push.yaml@" + ref
	// That GitHub names a certificate, too, is part of the form.
	return g.sign((&jose.SignerOptions{}).WithType("JWT").WithHeader("x5t", "eBuxIZ3TS6DVUAFdf1vMV5BTSFk"), map[string]any{
		"iss": g.URL, "aud": audience, "jti": rand.Text(),
		"sub": fmt.Sprintf("repo:acme@1234/%s@%d:ref:%s", job.Repository, job.RepositoryID, ref),
		"iat": now.Unix(), "nbf": now.Add(-GitHubLifetime).Unix(), "exp": now.Add(g.lifetime).Unix(),
		"repository": repository, "repository_id": fmt.Sprint(job.RepositoryID), "repository_visibility": "private",
		"repository_owner": "acme", "repository_owner_id": "1234", "actor": "octocat", "actor_id": "583231",
		"ref": ref, "ref_type": "branch", "ref_protected": fmt.Sprint(job.Protected), "base_ref": "", "head_ref": "",
		"event_name": "push", "sha": "0123456789abcdef0123456789abcdef01234567",
		"workflow": "push", "workflow_ref": workflow, "workflow_sha": "0123456789abcdef0123456789abcdef01234567",
		"job_workflow_ref": workflow, "job_workflow_sha": "0123456789abcdef0123456789abcdef01234567",
		"run_id": fmt.Sprint(job.Run), "run_number": "7", "run_attempt": "1", "runner_environment": "github-hosted",
	})
}
