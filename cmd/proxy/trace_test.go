package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/state/statetest"
	"github.com/pullpass/pullpass/internal/test/proxytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// All callers that pushed or pulled an image are revoked in one step. A target that cannot be revoked does
// not keep the others.
func TestTraceRevokes(t *testing.T) {
	t.Parallel()
	p := proxytest.New(t, proxytest.WithRedis(statetest.Redis(t).Address(), "off")+proxytest.Identities, nil)
	event := func(who, method string) string {
		return `{"time":"2026-03-01T09:00:01Z","id":"` + method + who[2:8] + `","result":"granted","status":200,` + who +
			`,"service":"g","gateway":{"method":"` + method + `","repository":"a","kind":"manifest","reference":"sha256:` + strings.Repeat("1", 64) + `"},"latency":0.001}` + "\n"
	}
	log := testkit.TempFile(t, "audit.log", event(`"identity":{"name":"unknown","run":"1"}`, "PUT")+event(`"identity":{"name":"github","run":"1001"}`, "PUT")+
		event(`"cluster":"prod","namespace":"team-a","serviceAccount":{"name":"web"},"pod":{"name":"web-0","uid":"uid-web-0"}`, "GET"))
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), []string{"trace", "a", "--audit-file", log, "--config", filepath.Join(p.Dir, "pullpass.yaml"), "--revoke", "--reason", "taken over", "--for", "2h", "--by", "alice"}, nil, &stdout, &stderr)
	if said := stderr.String(); code != 1 || !strings.Contains(said, `identity "unknown" is not configured`) ||
		!strings.Contains(said, "revoked --run github/1001 until ") || !strings.Contains(said, "revoked --pod-uid uid-web-0 until ") {
		t.Errorf("exit code %d: %s", code, said)
	}
	_, list, _ := revoke(t, p, "list")
	for _, want := range []string{"--run github/1001", "--pod-uid uid-web-0", `"alice"`, `"taken over"`} {
		if !strings.Contains(list, want) {
			t.Errorf("without %s: %s", want, list)
		}
	}
}

// The push of a job that hung up is listed, marked, and revoked.
func TestTraceOfUnknownOutcomes(t *testing.T) {
	t.Parallel()
	digest := "sha256:" + strings.Repeat("1", 64)
	log := testkit.TempFile(t, "audit.log", `{"time":"2026-03-01T09:00:01Z","id":"A","result":"granted","status":499,"reason":"request_canceled","message":"the client did not take the whole answer",`+
		`"identity":{"name":"github","run":"801"},"service":"g","gateway":{"method":"PUT","repository":"a","kind":"manifest","reference":"v1","digest":"`+digest+`","received":2},"latency":0.001}`+"\n")
	for output, want := range map[string][]string{
		"table": {"github  801  g        a           " + digest + " ?  v1", "--run github/801"},
		"json":  {`"outcomeUnknown":true`, `--run github/801`},
	} {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), []string{"trace", "--run", "github/801", "--audit-file", log, "-o", output, "--revoke", "--dry-run"}, nil, &stdout, &stderr)
		said := stderr.String()
		if code != 0 || !strings.Contains(said, "1 of the pushes, marked with ?, have an unknown outcome") {
			t.Errorf("exit code %d: %s", code, said)
		}
		for _, text := range want {
			if !strings.Contains(stdout.String(), text) {
				t.Errorf("without %s: %s", text, stdout.String())
			}
		}
	}
}

// A trace that revokes nothing fails, and names the command that revokes its start.
func TestTraceFindsNothingToRevoke(t *testing.T) {
	t.Parallel()
	log := testkit.TempFile(t, "audit.log", "")
	for _, test := range []struct{ flag, value, remedy string }{
		{"--run", "github/801", "pullpass revoke --config p.yaml --run github/801 --reason taken"},
		{"--pod", "uid-web-0", "pullpass revoke --config p.yaml --pod-uid uid-web-0 --reason taken"},
		{"--pod", "prod/team-a/web-0", "pullpass revoke --pod-uid UID"},
	} {
		for _, dryRun := range []string{"--dry-run=false", "--dry-run"} {
			var stdout, stderr bytes.Buffer
			code := run(t.Context(), []string{"trace", test.flag, test.value, "--audit-file", log, "--config", "p.yaml", "--revoke", "--reason", "taken", dryRun}, nil, &stdout, &stderr)
			if said := stderr.String(); code != 1 || !strings.Contains(said, "found no caller to revoke") || !strings.Contains(said, test.remedy) {
				t.Errorf("%s %s: exit code %d: %s", test.value, dryRun, code, said)
			}
		}
	}
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"trace", "--run", "github/801", "--audit-file", log}, nil, &stdout, &stderr); code != 0 || !strings.Contains(stderr.String(), "have nothing of run github/801: see that the name is right") {
		t.Errorf("without --revoke: exit code %d: %s", code, stderr.String())
	}
	stderr.Reset()
	if code := run(t.Context(), []string{"trace", "a", "--service", "g", "--audit-file", log}, nil, &stdout, &stderr); code != 0 || !strings.Contains(stderr.String(), "have nothing of a at service g: see that the name is right") {
		t.Errorf("with --service: exit code %d: %s", code, stderr.String())
	}
}
