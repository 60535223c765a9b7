package exchange_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/exchange"
)

const (
	jobIssuer = "https://token.actions.githubusercontent.com"
	jobPolicy = `
apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- name: build
  subjects: [{identities: [github], claims: {repository_id: ["42"], ref: ["refs/heads/main"]}, condition: 'claims.event_name == "push"'}]
  allow: [{repositories: ["team-a/web"], actions: [pull, push]}]
- name: pods
  subjects: [{namespaces: ["*"]}]
  allow: [{repositories: ["pods/**"], actions: [pull]}]
`
)

// job signs the claims of a CI job after change, which may be nil.
func (r *rig) job(t testing.TB, change func(claims map[string]any)) string {
	t.Helper()
	now := r.Now()
	claims := map[string]any{
		"iss": jobIssuer, "aud": testAudience, "sub": "repo:octo-org/web:ref:refs/heads/main", "jti": "job-1",
		"iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(5 * time.Minute).Unix(),
		"repository_id": "42", "repository_owner_id": "7", "repository": "octo-org/web", "ref": "refs/heads/main", "event_name": "push", "run_id": "1001",
	}
	if change != nil {
		change(claims)
	}
	return sign(t, r.signer, claims)
}

// jobs sets the policy above, and turns off all checks of pods.
func jobs(c *rigConfig) {
	c.policy = jobPolicy
	c.objects = objects{err: errors.New("no API server knows a job")}
}

func TestJobPushes(t *testing.T) {
	t.Parallel()
	r := newRig(t, jobs)
	a := r.do(t, get(r.job(t, nil), "repository:team-a/web:pull,push"))
	if a.status != http.StatusOK || len(a.access) != 1 || a.access[0].String() != "repository:team-a/web:pull,push" {
		t.Fatalf("status %d, %v, %+v", a.status, a.access, a.body)
	}
	if a.claims["sub"] != "github/repo:octo-org/web:ref:refs/heads/main" {
		t.Errorf("sub is %v", a.claims["sub"])
	}
	e := r.lastEvent(t, 1)
	if e.Cluster != "" || e.Namespace != "" || e.ServiceAccount != nil || e.CredentialID != "JTI=job-1" || e.Rule != "build" {
		t.Errorf("the event is %+v", e)
	}
	want := exchange.Identity{Name: "github", Subject: "github/repo:octo-org/web:ref:refs/heads/main", Project: "42", Run: "1001"}
	got := *e.Identity
	if claims := got.Claims; claims["repository"] != "octo-org/web" || claims["event_name"] != "push" {
		t.Errorf("claims %v", claims)
	}
	if got.Claims = nil; got.Name != want.Name || got.Subject != want.Subject || got.Project != want.Project || got.Run != want.Run {
		t.Errorf("the identity is %+v", got)
	}
}

// A job with different claims, or a token that is not of a job, is denied.
func TestOtherJobs(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(map[string]any)
		status int
		reason string
	}{
		"another repository of the name": {func(c map[string]any) { c["repository_id"] = "43" }, 200, "scope_not_granted"},
		"another branch":                 {func(c map[string]any) { c["ref"] = "refs/heads/main2" }, 200, "scope_not_granted"},
		"another event":                  {func(c map[string]any) { c["event_name"] = "pull_request_target" }, 200, "scope_not_granted"},
		"no event":                       {func(c map[string]any) { delete(c, "event_name") }, 200, "scope_not_granted"},
		"another tenant":                 {func(c map[string]any) { c["repository_owner_id"] = "8" }, 401, "token_require"},
		"another audience":               {func(c map[string]any) { c["aud"] = "https://github.com/octo-org" }, 401, "token_audience"},
		"a pod's claims":                 {func(c map[string]any) { c["kubernetes.io"] = map[string]any{"namespace": "team-a"} }, 401, "token_claims"},
		"another type":                   {func(c map[string]any) { c["repository_id"] = 42 }, 401, "token_claims"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, jobs)
			a := r.do(t, get(r.job(t, test.change), "repository:team-a/web:push"))
			e := r.lastEvent(t, 1)
			if a.status != test.status || len(a.access) > 0 || e.Reason != test.reason || e.Identity == nil || e.Identity.Name != "github" {
				t.Errorf("status %d, %v, event %+v", a.status, a.access, e)
			}
		})
	}
}

// A condition that cannot be judged grants nothing, and the audit line says so.
func TestConditionInDoubt(t *testing.T) {
	t.Parallel()
	r := newRig(t, jobs)
	r.do(t, get(r.job(t, func(c map[string]any) { delete(c, "event_name") }), "repository:team-a/web:push"))
	if e := r.lastEvent(t, 1); len(e.Scopes) != 1 || !strings.Contains(e.Scopes[0].Reason, "the condition of rule build cannot be judged") {
		t.Errorf("the event says %+v", e.Scopes)
	}
}

// A pod does not match rules for jobs and a job does not match rules for pods, even with *.
func TestPodsAndJobsAreApart(t *testing.T) {
	t.Parallel()
	r := newRig(t, jobs)
	if a := r.do(t, get(r.job(t, nil), "repository:pods/x:pull")); a.status != http.StatusOK || len(a.access) > 0 {
		t.Errorf("a job has the rights of pods: %d, %v", a.status, a.access)
	}
	r = newRig(t, func(c *rigConfig) { c.policy = jobPolicy })
	if a := r.do(t, get(r.token(t, nil), "repository:team-a/web:push")); a.status != http.StatusOK || len(a.access) > 0 {
		t.Errorf("a pod has the rights of jobs: %d, %v", a.status, a.access)
	}
}

// Jobs of one repository share a limit, those of others do not.
func TestJobLimit(t *testing.T) {
	t.Parallel()
	r, b := limited(t, 2, time.Second, jobs)
	for i, change := range []func(map[string]any){
		nil,
		func(c map[string]any) { c["run_id"], c["jti"] = "1002", "job-2" },
		func(c map[string]any) { c["repository_id"] = "43" },
	} {
		if a := r.do(t, get(r.job(t, change), "repository:team-a/web:push")); a.status != http.StatusOK {
			t.Errorf("request %d: %d", i, a.status)
		}
	}
	if a := r.do(t, get(r.job(t, func(c map[string]any) { c["jti"] = "job-3" }), "repository:team-a/web:push")); a.status != http.StatusTooManyRequests ||
		!strings.Contains(a.body.Errors[0].Message, "of this identity's project (limits.perServiceAccount)") {
		t.Errorf("the third of a project: %d, %+v", a.status, a.body.Errors)
	}
	if keys := b.keys("8:identity"); len(keys) != 2 || !strings.Contains(keys[0], "6:github") {
		t.Errorf("the keys are %q", keys)
	}
}

func TestJobTokenReplayed(t *testing.T) {
	t.Parallel()
	owners := newOwners()
	r := newRig(t, func(c *rigConfig) { jobs(c); c.replay, c.owners = exchange.ReplayEnforce, owners })
	token := r.job(t, nil)
	if a := r.do(t, from(at("192.0.2.1"), get(token, "repository:team-a/web:push"))); a.status != http.StatusOK {
		t.Errorf("the first caller: %d", a.status)
	}
	if a := r.do(t, from(at("192.0.2.2"), get(token, "repository:team-a/web:push"))); a.status != http.StatusForbidden {
		t.Errorf("a second caller: %d", a.status)
	}
	if _, own := owners.owner[exchange.Joined("github", "job-1")]; !own { // ids are unique only within an issuer
		t.Errorf("the owners are %v", owners.owner)
	}
	if e := r.lastEvent(t, 2); e.Reason != "token_replayed" {
		t.Errorf("the event is %+v", e)
	}
}
