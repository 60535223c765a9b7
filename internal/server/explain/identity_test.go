package explain_test

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/state"
	"github.com/pullpass/pullpass/internal/state/statetest"
	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/proxytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// jobFiles returns a directory with a configuration that has no cluster.
func jobFiles(t *testing.T, more string) string {
	t.Helper()
	dir := t.TempDir()
	testkit.Write(t, dir, "issuer.json", kubetest.IssuerJWKS(t))
	testkit.Write(t, dir, "policy.yaml", proxytest.PolicyFor("{namespace}/**")+proxytest.AnnotationRule+`- name: build
  subjects: [{identities: [github], claims: {repository_id: ["42"], ref: [refs/heads/main]}, condition: claims.event_name == "push"}]
  allow: [{repositories: ["team-a/web"], actions: [pull, push]}]
`+more)
	testkit.Write(t, dir, "pullpass.yaml", "apiVersion: pullpass.dev/v1beta1\nkind: ProxyConfiguration"+proxytest.Identities+
		"registries: [{service: registry.example.com, issuer: pullpass.example.com}]\npolicyFiles: [policy.yaml]\n")
	return dir
}

// without returns claims with some of them changed; what is changed to nil is left out.
func without(claims, changes kubetest.Object) kubetest.Object {
	maps.Copy(claims, changes)
	maps.DeleteFunc(claims, func(_ string, value any) bool { return value == nil })
	return claims
}

func marshal(t *testing.T, value any) string {
	t.Helper()
	text := testkit.Value(json.Marshal(value))(t)
	return string(text)
}

func expectExplained(t *testing.T, out string, err error, want []string, not string) {
	t.Helper()
	testkit.Must(t, err)
	for _, want := range want {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if not != "" && strings.Contains(out, not) {
		t.Errorf("%q is in\n%s", not, out)
	}
}

const offForJobs = "objects      off         it is not a pod, and no API server knows it\n" +
	"node         off         it is not a pod, and on no node\n" +
	"caller       off         it is not a pod, and has no node to prove\n"

func TestExplainTokensOfJobs(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		changes kubetest.Object
		want    []string
		not     string
	}{
		"a good one": {nil, []string{
			"subject      github/repo:octo-org/web:ref:refs/heads/main\nidentity     github, project 42, run 1001\n", "claim        ref: \"refs/heads/main\"\n", "token id     JTI=job-of-1001\n",
			"token        passed      good until ", offForJobs, "not for it   rules own-namespace (by identities), asked-for (by identities)\n", "GRANTED: push\n", "now          granted 200\n",
		}, "annotation   "},
		"another branch": {kubetest.Object{"ref": "refs/heads/x"}, []string{"build (by claims.ref)", "NOT GRANTED\n  why: no rule for github/repo:octo-org/web:ref:refs/heads/main allows push on team-a/web", "now          none 200"}, "To grant what is missing"},
		"no event":       {kubetest.Object{"event_name": nil}, []string{"build (by condition, which cannot be judged: ", "the condition of rule build cannot be judged", "now          none 200"}, "GRANTED: "},
		"another tenant": {kubetest.Object{"repository_owner_id": "8"}, []string{
			"subject      claimed repo:octo-org/web:ref:refs/heads/main\n             NOT PROVEN: the token is refused, so nothing that it claims is proven\nidentity     github\n",
			`token        REFUSED     the token's claim "repository_owner_id" is not what identity "github" requires`, "now          refused 401: token_require",
		}, "objects "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := jobFiles(t, "")
			testkit.Write(t, dir, "token.jwt", kubetest.SignToken(t, without(proxytest.JobClaims("1001"), test.changes)))
			out, err := explainBoth(t, "--config", filepath.Join(dir, "pullpass.yaml"), "--scope", "repository:team-a/web:push", "--token-file", filepath.Join(dir, "token.jwt"))
			expectExplained(t, out, err, test.want, test.not)
		})
	}
}

func TestExplainClaims(t *testing.T) {
	t.Parallel()
	const deny = "deny:\n- {name: shells, subjects: [{identities: [github], claims: {shell: [yes-please]}}]}\n"
	good := func(changes kubetest.Object) kubetest.Object {
		return without(without(proxytest.JobClaims("1001"), kubetest.Object{"iss": nil, "aud": nil, "sub": nil, "jti": nil, "iat": nil, "nbf": nil, "exp": nil}), changes)
	}
	for name, test := range map[string]struct {
		identity, policy string
		claims           kubetest.Object
		want             []string
		not              string
	}{
		"good ones": {"github", "", good(nil), []string{
			"subject      github/\n             NOT PROVEN: no token says so: --claims does\nidentity     github, project 42, run 1001\n",
			"token        not judged  there is no token: its signature, audience and times are not verified, its claims are; the rest assumes a valid token\n",
			offForJobs, "GRANTED: push\n", "now          granted 200\n             unless this refuses, which was not judged: token\n",
		}, "passed      good"},
		"with the audience": {"github", "", good(kubetest.Object{"aud": "registry.example.com", "sub": "repo:octo-org/web:x"}), []string{
			"subject      github/repo:octo-org/web:x\n", "its signature and times are not verified", "now          granted 200\n",
		}, "REFUSED"},
		"another audience":         {"github", "", good(kubetest.Object{"aud": "other"}), []string{"token        REFUSED     the token's audience", "now          refused 401: token_audience"}, "granted"},
		"another type":             {"github", "", good(kubetest.Object{"repository_id": 42}), []string{`REFUSED     the token's claim "repository_id" is not a string`, "refused 401: token_claims"}, "granted"},
		"another tenant":           {"github", "", good(kubetest.Object{"repository_owner_id": "8"}), []string{"identity     github\n", "refused 401: token_require"}, "granted"},
		"of another identity":      {"mesh", "", good(nil), []string{`claim "sub" is missing`, "refused 401: token_claims"}, "granted"},
		"another issuer's":         {"github", "", good(kubetest.Object{"iss": "https://issuer.example.com"}), []string{`REFUSED     the token's issuer is not that of identity "github"`, "refused 401: token_unknown_issuer"}, "granted"},
		"a pod's":                  {"github", "", good(kubetest.Object{"kubernetes.io": kubetest.Object{"namespace": "team-a"}}), []string{"REFUSED     the token has claims of a ServiceAccount", "refused 401: token_claims"}, "granted"},
		"a denial of what is none": {"github", deny, good(nil), []string{"deny         REFUSED     shells matches by subjects[0]", "refused 403: subject_denied"}, "granted"},
		"a denial of others":       {"github", deny, good(kubetest.Object{"shell": "no"}), []string{"deny         passed      no deny rule matches", "now          granted 200"}, "REFUSED"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := jobFiles(t, test.policy)
			testkit.Write(t, dir, "claims.json", marshal(t, test.claims)+"\n")
			out, err := explainBoth(t, "--config", filepath.Join(dir, "pullpass.yaml"), "--scope", "repository:team-a/web:push", "--identity", test.identity, "--claims", filepath.Join(dir, "claims.json"))
			expectExplained(t, out, err, test.want, test.not)
		})
	}
	for name, test := range map[string]struct{ identity, text, fault string }{
		"a token":       {"github", kubetest.SignToken(t, proxytest.JobClaims("1001")), "--claims: that looks like a token, and not like its claims: write --token-file, which judges its signature, too"},
		"no JSON":       {"github", "{repository_id: 42}", "claims.json\": it is not a JSON object"},
		"no object":     {"github", "[]", "it is not a JSON object"},
		"too much":      {"github", `{"a": "` + strings.Repeat("a", 1<<20) + `"}`, "it is not a JSON object"},
		"nobody":        {"gitlab", "{}", `--identity: identity "gitlab" is not configured (identities[].name)`},
		"an empty name": {"", "{}", "--identity is empty"},
	} {
		dir := jobFiles(t, "")
		testkit.Write(t, dir, "claims.json", test.text)
		out, err := explainBoth(t, "--config", filepath.Join(dir, "pullpass.yaml"), "--identity", test.identity, "--claims", filepath.Join(dir, "claims.json"))
		if err == nil || !strings.Contains(err.Error(), test.fault) || strings.Contains(err.Error(), "eyJ") || out != "" {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

// jobLine is the line that a serving proxy would have written of a job's request.
func jobLine(t *testing.T, change func(line, identity kubetest.Object)) string {
	t.Helper()
	identity := kubetest.Object{
		"name": "github", "subject": "github/repo:octo-org/web:ref:refs/heads/main", "project": "42", "run": "1001",
		"claims": kubetest.Object{"repository_id": "42", "repository_owner_id": "7", "ref": "refs/heads/main", "event_name": "push", "run_id": "1001"},
	}
	line := kubetest.Object{
		"time": "2026-03-01T09:00:00Z", "id": "ID", "result": "granted", "status": 200, "identity": identity, "credentialID": "JTI=job-1",
		"service": "registry.example.com", "grantType": "password", "requested": []string{"repository:team-a/web:push"},
		"granted": []string{"repository:team-a/web:push"}, "rule": "build", "issuedID": "I", "caller": "192.0.2.9", "latency": 0.001,
	}
	change(line, identity)
	text := marshal(t, line)
	proxytest.CheckAuditLines(t, []byte(text))
	return text + "\n"
}

func TestExplainFromAuditOfJobs(t *testing.T) {
	t.Parallel()
	as := func(line, identity kubetest.Object) {}
	for name, test := range map[string]struct {
		policy string
		change func(line, identity kubetest.Object)
		want   []string
		not    string
	}{
		"as it was": {"", as, []string{
			"subject      github/repo:octo-org/web:ref:refs/heads/main\nidentity     github, project 42, run 1001\n", offForJobs,
			"token        not judged  it was good at 2026-03-01T09:00:00Z, and the log does not contain the token; the rest assumes a valid token with the same claims\n",
			"now          granted 200\n             unless this refuses, which was not judged: token\n", "changed      nothing",
		}, "NOT PROVEN"},
		"another branch": {"", func(_, identity kubetest.Object) { identity["claims"].(kubetest.Object)["ref"] = "refs/heads/x" }, []string{
			"NOT GRANTED", "changed      result: granted -> none\n",
		}, "REFUSED"},
		"a claim that the line cannot have": {"deny:\n- {name: shells, subjects: [{identities: [github], condition: 'claims.shell == true'}]}\n", as, []string{
			"; rules and denials are judged as if the token had none of the claims that the line cannot have: shell\n", "deny         REFUSED     shells",
		}, "granted 200\n"},
		"a tenant that the line cannot have": {"", func(line, identity kubetest.Object) {
			identity["name"], identity["subject"], identity["project"] = "ci", "ci/job", "job"
			delete(identity, "claims")
			delete(identity, "run")
		}, []string{"subject      ci/job\nidentity     ci, project job\n", "; not judged is what identities[].require says of claims that the line cannot have: tenant\n", "now          none 200"}, "REFUSED"},
		"without an id": {"", func(line, _ kubetest.Object) { line["credentialID"] = "JTI=sha256:0a1b" }, []string{"token id     JTI=sha256:0a1b\n", "now          granted 200\n"}, "REFUSED"},
		"another tenant now": {"", func(_, identity kubetest.Object) { identity["claims"].(kubetest.Object)["repository_owner_id"] = "8" }, []string{
			"subject      github/repo:octo-org/web:ref:refs/heads/main\n", "token        REFUSED     the token's claim \"repository_owner_id\" is not what", "changed      result: granted -> refused\n",
		}, "now          granted"},
		"not configured any more": {"", func(_, identity kubetest.Object) { identity["name"] = "gitlab" }, []string{
			`token        REFUSED     identity "gitlab" is not in identities[] any more`, "refused 401: token_unknown_issuer",
		}, "now          granted"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := jobFiles(t, test.policy)
			testkit.Write(t, dir, "audit.log", jobLine(t, test.change))
			out, err := explainBoth(t, "--config", filepath.Join(dir, "pullpass.yaml"), "--from-audit", "ID", "--audit-file", filepath.Join(dir, "audit.log"))
			expectExplained(t, out, err, test.want, test.not)
		})
	}
	for name, test := range map[string]struct {
		change func(line, identity kubetest.Object)
		fault  string
	}{
		"a refused token": {func(line, identity kubetest.Object) {
			maps.DeleteFunc(identity, func(field string, _ any) bool { return field != "name" })
			maps.Copy(line, without(line, kubetest.Object{"granted": nil, "rule": nil, "issuedID": nil, "credentialID": nil}))
			line["result"], line["status"], line["reason"], line["message"] = "refused", 401, "token_require", "wrong"
			line["claimed"] = kubetest.Object{"issuer": "https://token.actions.githubusercontent.com", "subject": "repo:x"}
		}, "audit line ID: the refused token claimed an identity of identities[], but the line has none of its claims, so the request cannot be explained (token_require: wrong)"},
		"at the gateway": {func(line, identity kubetest.Object) {
			delete(identity, "claims")
			maps.Copy(line, without(line, kubetest.Object{"grantType": nil, "granted": nil, "rule": nil, "issuedID": nil}))
			line["gateway"] = kubetest.Object{"method": "GET", "tokenID": "T", "kind": "version"}
		}, "audit line ID: the line has no claims; explain the line of the token request"},
	} {
		dir := jobFiles(t, "")
		testkit.Write(t, dir, "audit.log", jobLine(t, test.change))
		_, err := explainBoth(t, "--config", filepath.Join(dir, "pullpass.yaml"), "--from-audit", "ID", "--audit-file", filepath.Join(dir, "audit.log"))
		if err == nil || !strings.Contains(err.Error(), test.fault) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A push credential is revoked by its own id, too: that of the job's token is another.
func TestExplainRevokedPushCredentials(t *testing.T) {
	t.Parallel()
	redis := statetest.Redis(t)
	dir := jobFiles(t, "")
	file := filepath.Join(dir, "pullpass.yaml")
	settings := testkit.Value(os.ReadFile(file))(t)
	testkit.Write(t, dir, "pullpass.yaml", string(settings)+proxytest.WithRedis(redis.Address(), "off"))
	explained := func(id string) string {
		testkit.Write(t, dir, "audit.log", jobLine(t, func(line, _ kubetest.Object) { line["pushCredential"] = id }))
		out := testkit.Value(explainBoth(t, "--config", file, "--from-audit", "ID", "--audit-file", filepath.Join(dir, "audit.log")))(t)
		return out
	}
	revoke(t, revocationsOf(t, file), state.Target{Kind: state.TargetToken, Name: "PUSHED"}, "stolen")
	expectExplained(t, explained("PUSHED"), nil, []string{`revocations  REFUSED     revoked by an operator: "stolen" (--token-id PUSHED until `, "changed      result: granted -> refused\n"}, "now          granted")
	expectExplained(t, explained("ANOTHER"), nil, []string{"revocations  passed      not revoked: project, run, token\n", "changed      nothing"}, "REFUSED")
}
