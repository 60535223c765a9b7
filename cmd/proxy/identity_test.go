package main

import (
	"bytes"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/state/statetest"
	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/proxytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// Revocations of a run and of a project refuse its jobs, and no others.
func TestServeRevokesJobs(t *testing.T) {
	t.Parallel()
	redis := statetest.Redis(t)
	p := serveReady(t, strings.Replace(proxytest.WithRedis(redis.Address(), "off"), "rate: 0.01, burst: 3", "rate: 1000, burst: 1000", 1)+proxytest.Identities)
	job, other := kubetest.SignToken(t, proxytest.JobClaims("1001")), kubetest.SignToken(t, proxytest.JobClaims("1002"))
	elsewhere := proxytest.JobClaims("1003")
	elsewhere["repository_id"] = "43"
	apart := kubetest.SignToken(t, elsewhere)
	do := func(want string, args ...string) {
		t.Helper()
		if code, stdout, stderr := revoke(t, p, args...); code != 0 || !strings.Contains(stdout, want) {
			t.Fatalf("%q: %d %s%s", args, code, stdout, stderr)
		}
	}
	p.Expect(t, job, http.StatusOK, "")
	testkit.Write(t, p.Dir, "token.jwt", job)
	explained := func(want string) {
		t.Helper()
		var stdout, stderr bytes.Buffer
		args := []string{"explain", "--config", filepath.Join(p.Dir, "pullpass.yaml"), "--token-file", filepath.Join(p.Dir, "token.jwt")}
		if code := run(t.Context(), args, nil, &stdout, &stderr); code != 0 || !strings.Contains(stdout.String(), want) {
			t.Errorf("exit code %d, no %q in\n%s%s", code, want, &stdout, &stderr)
		}
	}
	explained("revocations  passed      not revoked: project, run, token\n")

	do("revoked --run github/1001 until ", "--run", "github/1001", "--reason", "examined", "--by", "alice")
	testkit.Eventually(t, "the run is revoked", func() bool { return p.Status(t, job) == http.StatusForbidden })
	if e := p.LastEvent(t); e.Reason != "revoked" || e.Revocation.Target != "--run github/1001" || e.Identity.Run != "1001" || e.Identity.Project != "42" {
		t.Errorf("event %+v, identity %+v, revocation %+v", e, e.Identity, e.Revocation)
	}
	explained(`revocations  REFUSED     revoked by an operator: "examined" (--run github/1001 until `)
	p.Expect(t, other, http.StatusOK, "")
	// Without --for, until all tokens have ended, those of identities and their push credentials too.
	const all = 36*time.Hour + 17*time.Minute
	_, stdout, _ := revoke(t, p, "list")
	line := regexp.MustCompile(`--run github/1001 +(\S+) +(\S+) +"alice" +"examined"\n`).FindStringSubmatch(stdout)
	if line == nil {
		t.Fatalf("the list is\n%s", stdout)
	}
	since := testkit.Value(time.Parse(time.RFC3339, line[1]))(t)
	until := testkit.Value(time.Parse(time.RFC3339, line[2]))(t)
	if lasts := until.Sub(since); lasts < all-time.Minute || lasts > all+time.Minute {
		t.Errorf("it lasts %s", lasts)
	}
	do("no longer revoked: --run github/1001", "undo", "--run", "github/1001")
	testkit.Eventually(t, "the run is not revoked", func() bool { return p.Status(t, job) == http.StatusOK })

	do("revoked --project github/42 until ", "--project", "github/42", "--reason", "taken over", "--for", "1h")
	testkit.Eventually(t, "the project is revoked", func() bool {
		return p.Status(t, job) == http.StatusForbidden && p.Status(t, other) == http.StatusForbidden
	})
	p.Expect(t, apart, http.StatusOK, "")
}
