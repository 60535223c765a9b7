package ci_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"sigs.k8s.io/yaml"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// forge is a repository with a change of the policy, and the API that comments go to.
type forge struct {
	dir, base, program string
	url                string

	mu       sync.Mutex
	comments []string
}

const policyBefore = `apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- name: own-namespace
  subjects: [{namespaces: ["team-*"]}]
  allow: [{repositories: ["{namespace}/**"], actions: [pull]}]
`

// newForge makes a forge whose token is that of a user, or that of a workflow.
func newForge(t *testing.T, isUser bool) *forge {
	t.Helper()
	for _, program := range []string{"git", "jq", "curl"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("%v: run .ci/install test", err)
		}
	}
	f := &forge{dir: t.TempDir(), program: filepath.Join(t.TempDir(), "pullpass")}
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", f.program, "../../cmd/proxy")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	f.git(t, "init", "--quiet")
	f.git(t, "remote", "add", "origin", f.dir)
	write(t, filepath.Join(f.dir, "deploy", "policy.yaml"), policyBefore)
	write(t, filepath.Join(f.dir, "deploy", "pullpass.yaml"), configuration)
	write(t, filepath.Join(f.dir, "deploy", "objects.yaml"), objectsBefore)
	f.git(t, "init", "--quiet", "submodule")
	write(t, filepath.Join(f.dir, "submodule", "objects.yaml"), objectsBefore)
	f.git(t, "-C", "submodule", "add", ".")
	f.git(t, "-C", "submodule", "commit", "--quiet", "-m", "objects")
	f.git(t, "add", ".")
	f.git(t, "commit", "--quiet", "-m", "a policy")
	f.base = f.git(t, "rev-parse", "HEAD")
	write(t, filepath.Join(f.dir, "deploy", "policy.yaml"), strings.Replace(policyBefore, "pull]", "pull, push]", 1))

	author := map[string]any{"login": "writer", "type": map[bool]string{false: "Bot", true: "User"}[isUser]}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /repos/acme/policy/issues/7/comments", func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		const marker = "<!-- pullpass policy diff deploy/policy.yaml -->"
		all := []map[string]any{
			{"id": 100, "body": "looks good", "user": map[string]any{"login": "dev", "type": "User"}},
			{"id": 101, "body": marker, "user": map[string]any{"login": "dev", "type": "User"}},
		}
		for i, body := range f.comments {
			all = append(all, map[string]any{"id": i, "body": body, "user": author})
		}
		_ = json.NewEncoder(w).Encode(all)
	})
	mux.HandleFunc("GET /user", func(w http.ResponseWriter, _ *http.Request) {
		if !isUser {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		_ = json.NewEncoder(w).Encode(author)
	})
	read := func(w http.ResponseWriter, r *http.Request) (body string, ok bool) {
		var comment struct{ Body string }
		if r.Header.Get("Authorization") != "Bearer writes" || json.NewDecoder(r.Body).Decode(&comment) != nil {
			w.WriteHeader(http.StatusForbidden)
			return "", false
		}
		if utf8.RuneCountInString(comment.Body) > 65_536 { // GitHub's limit
			w.WriteHeader(http.StatusUnprocessableEntity)
			return "", false
		}
		return comment.Body, true
	}
	mux.HandleFunc("POST /repos/acme/policy/issues/7/comments", func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if body, ok := read(w, r); ok {
			f.comments = append(f.comments, body)
			w.WriteHeader(http.StatusCreated)
		}
	})
	mux.HandleFunc("PATCH /repos/acme/policy/issues/comments/{id}", func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if body, ok := read(w, r); ok {
			f.comments[testkit.Value(strconv.Atoi(r.PathValue("id")))(t)] = body + "again\n"
		}
	})
	mux.HandleFunc("POST /projects/3/merge_requests/7/notes", func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if r.Header.Get("PRIVATE-TOKEN") != "writes" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		f.comments = append(f.comments, r.FormValue("body"))
		w.WriteHeader(http.StatusCreated)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	f.url = server.URL
	return f
}

func (f *forge) git(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", append([]string{"-C", f.dir, "-c", "user.name=a", "-c", "user.email=a@example.com"}, args...)...)
	output, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %q: %v: %s", args, err, output)
	}
	return strings.TrimSpace(string(output))
}

func (f *forge) runScript(t *testing.T, env map[string]string, shell ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", shell...)
	cmd.Dir = f.dir
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	output, err := cmd.CombinedOutput()
	return string(output), err
}

// posted returns the comments of the pull request.
func (f *forge) posted() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.comments)
}

const (
	configuration = `apiVersion: pullpass.dev/v1beta1
kind: ProxyConfiguration
server: {tls: {certFile: tls.crt, keyFile: tls.key}}
clusters: [{name: prod, issuer: "https://issuer.example.com", audiences: [a], kubernetes: {inCluster: true, objects: {policies: true, within: ["team-*/**"]}}}]
registries: [{service: registry.example.com, issuer: pullpass.example.com}]
policyFiles: [policy.yaml]
`
	objectsBefore = "apiVersion: pullpass.dev/v1beta1\nkind: AccessPolicy\nmetadata: {name: web}\nspec: {rules: [{name: r, subjects: [{namespaces: [team-a]}], allow: [{repositories: [team-b/x], actions: [pull, push]}]}]}\n"
	objectsRow    = "\n| `prod/team-a/* (within clusters[].kubernetes.objects.within)` | %s | `team-b/x`"
)

var objectsAfter = strings.Replace(objectsBefore, "[pull, push]", "[pull]", 1)

const gains = "| `*/team-*/*` | push | `{namespace}/**` |"

func TestPolicyDiffAction(t *testing.T) {
	t.Parallel()
	for name, isUser := range map[string]bool{"the token of a workflow": false, "the token of a user": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testPolicyDiffAction(t, newForge(t, isUser))
		})
	}
}

func testPolicyDiffAction(t *testing.T, f *forge) {
	t.Helper()
	var a action
	testkit.Must(t, yaml.UnmarshalStrict([]byte(testkit.Read(t, "github/policy-diff/action.yml")), &a))
	if len(a.Runs.Steps) != 1 || a.Runs.Using != "composite" || a.Runs.Steps[0].Shell != "bash" {
		t.Fatalf("action.yml: %+v", a.Runs)
	}
	summary, token := filepath.Join(t.TempDir(), "summary"), "writes"
	act := func(inputs map[string]string) (string, error) {
		env := map[string]string{"HOME": t.TempDir(), "PATH": os.Getenv("PATH"), "RUNNER_TEMP": t.TempDir(), "GITHUB_API_URL": f.url, "GITHUB_REPOSITORY": "acme/policy", "GITHUB_STEP_SUMMARY": summary}
		for name, value := range a.Runs.Steps[0].Env {
			input := strings.TrimSuffix(strings.TrimPrefix(value, "${{ inputs."), " }}")
			declared, found := a.Inputs[input]
			if !found {
				t.Fatalf("%s: %s is not an input", name, value)
			}
			if env[name] = declared.Default; strings.HasPrefix(declared.Default, "${{") {
				env[name] = map[string]string{"token": token, "base": f.base, "pull-request": "7"}[input]
			}
			if given, ok := inputs[input]; ok {
				env[name] = given
			}
		}
		return f.runScript(t, env, "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", a.Runs.Steps[0].Run)
	}
	inputs := map[string]string{"config": "deploy/policy.yaml", "path": f.program}
	token = "reads"
	if output, err := act(inputs); err != nil || !strings.Contains(output, "::warning::") || len(f.posted()) != 0 {
		t.Errorf("without the right to comment: %v: %s", err, output)
	}
	token = "writes"
	if output, err := act(inputs); err != nil || len(f.posted()) != 1 || !strings.Contains(f.posted()[0], gains) {
		t.Fatalf("%v: %s\n%q", err, output, f.posted())
	}
	inputs["fail-on"] = "gained"
	if output, err := act(inputs); err == nil || err.Error() != "exit status 1" || len(f.posted()) != 1 || !strings.HasSuffix(f.posted()[0], "\nagain\n") {
		t.Errorf("%v: %s\n%q", err, output, f.posted())
	}
	inputs["fail-on"] = "lost"
	if output, err := act(inputs); err != nil {
		t.Errorf("%v: %s", err, output)
	}
	posted := f.posted()
	token = "reads"
	if output, err := act(inputs); err == nil || err.Error() != "exit status 1" || !strings.Contains(output, "::error::") || !slices.Equal(f.posted(), posted) {
		t.Errorf("without the right to replace a comment: %v: %s", err, output)
	}
	if text := testkit.Read(t, summary); strings.Count(text, gains) != 5 {
		t.Errorf("the summary is %s", text)
	}
	token = "writes"
	policy := filepath.Join(f.dir, "deploy", "policy.yaml")
	before, long := testkit.Read(t, policy), policyBefore
	for i := range 80 {
		long += fmt.Sprintf("- {name: r%d, subjects: [{identities: [github], claims: {repository: [\"1%0500d\"]}}], allow: [{repositories: [x], actions: [pull]}]}\n", i, i)
	}
	write(t, policy, long)
	if output, err := act(inputs); err != nil || len(f.posted()) != 1 || !strings.Contains(f.posted()[0], " 80 entries gained, ") || !strings.Contains(f.posted()[0], " more: ") {
		t.Errorf("long: %v: %.1000s\n%.1000q", err, output, f.posted())
	}
	write(t, policy, before)
	f.testObjects(t, func(objects string) (string, string, error) {
		before := len(testkit.Read(t, summary))
		output, err := act(map[string]string{"config": "deploy/pullpass.yaml", "path": f.program, "objects": objects, "fail-on": "lost"})
		return testkit.Read(t, summary)[before:], output, err
	})
	posted = f.posted()
	for name, changed := range map[string]string{"config": "deploy/missing.yaml", "path": "/missing", "base": "0123"} {
		refused := map[string]string{"config": "deploy/policy.yaml", "path": f.program, name: changed}
		if output, err := act(refused); err == nil || !slices.Equal(f.posted(), posted) {
			t.Errorf("%s: %v: %s %q", name, err, output, f.posted())
		}
	}
}

func TestPolicyDiffTemplate(t *testing.T) {
	t.Parallel()
	f := newForge(t, false)
	_, text, _ := strings.Cut(testkit.Read(t, "gitlab/policy-diff.gitlab-ci.yml"), "\n---\n")
	var jobs map[string]struct {
		Image     string
		Rules     []map[string]string
		Variables map[string]string
		Script    []string
	}
	testkit.Must(t, yaml.UnmarshalStrict([]byte(text), &jobs))
	job := jobs["pullpass-policy-diff"]
	act := func(config, failOn, token, objects string) (string, error) {
		env := map[string]string{
			"HOME": t.TempDir(), "PATH": filepath.Dir(f.program) + ":" + os.Getenv("PATH"), "PULLPASS_COMMENT_TOKEN": token,
			"CI_MERGE_REQUEST_DIFF_BASE_SHA": f.base, "CI_MERGE_REQUEST_IID": "7", "CI_PROJECT_ID": "3", "CI_API_V4_URL": f.url,
		}
		for name, value := range job.Variables {
			env[name] = strings.NewReplacer("$[[ inputs.config ]]", config, "$[[ inputs.fail-on ]]", failOn, "$[[ inputs.objects ]]", objects, "$[[ inputs.url ]]", "", "$[[ inputs.sha256 ]]", "").Replace(value)
		}
		return f.runScript(t, env, "-c", strings.Join(job.Script, "\n"))
	}
	for _, test := range []struct {
		config, failOn, token string
		code                  int
		comments              int
	}{
		{"deploy/policy.yaml", "", "writes", 0, 1},
		{"deploy/policy.yaml", "any", "writes", 1, 2},
		{"deploy/missing.yaml", "", "writes", 2, 2},
		{"deploy/policy.yaml", "", "other", 22, 2}, // curl's, for an HTTP error
	} {
		output, err := act(test.config, test.failOn, test.token, "")
		if code := fmt.Sprint(err); (err == nil) != (test.code == 0) || err != nil && code != fmt.Sprint("exit status ", test.code) || len(f.posted()) != test.comments {
			t.Errorf("%+v: %v: %s\n%q", test, err, output, f.posted())
		}
	}
	if !strings.Contains(f.posted()[0], gains) {
		t.Error(f.posted())
	}
	f.testObjects(t, func(objects string) (string, string, error) {
		output, err := act("deploy/pullpass.yaml", "lost", "writes", objects)
		return f.posted()[len(f.posted())-1], output, err
	})
}

// testObjects compares with the objects of the base, if they are in the repository. run returns the comment and the output.
func (f *forge) testObjects(t *testing.T, run func(objects string) (string, string, error)) {
	t.Helper()
	put := func(name, content string) func() {
		return func() { write(t, filepath.Join(f.dir, "deploy", name), content) }
	}
	nothing := func() {}
	elsewhere := t.TempDir()
	testkit.Must(t, os.Symlink(f.dir, filepath.Join(elsewhere, "checkout")))
	write(t, filepath.Join(elsewhere, "objects.yaml"), objectsAfter)
	const isRefused = "submodule/objects.yaml is in the submodule submodule"
	for _, test := range []struct {
		name, objects string
		change        func()
		lost, gained  string // actions of the objects, or isRefused
	}{
		{"the same", "prod=deploy/objects.yaml", nothing, "", ""},
		{"changed", "prod=deploy/objects.yaml", put("objects.yaml", objectsAfter), "push", ""},
		{"an absolute path", "prod=" + f.dir + "/deploy/objects.yaml", nothing, "push", ""},
		{"an absolute path with dots", "prod=" + f.dir + "/deploy/../deploy//objects.yaml", nothing, "push", ""},
		{"an absolute path by a symbolic link", "prod=" + elsewhere + "/checkout/deploy/objects.yaml", nothing, "push", ""},
		{"a link in the checkout", "prod=link/objects.yaml", func() { testkit.Must(t, os.Symlink("deploy", filepath.Join(f.dir, "link"))); f.git(t, "add", "link") }, "", "pull"},
		{"removed from the index alone", "prod=deploy/objects.yaml", func() { f.git(t, "rm", "--quiet", "--cached", "deploy/objects.yaml") }, "push", ""},
		{"not in the repository", "prod=deploy/new.yaml", put("new.yaml", objectsAfter), "", ""},
		{"an absolute path that is not in the repository", "prod=" + f.dir + "/deploy/new.yaml", nothing, "", ""},
		{"not in the checkout", "prod=" + elsewhere + "/objects.yaml", nothing, "", ""},
		{"new", "prod=deploy/new.yaml", func() { f.git(t, "add", "deploy/new.yaml") }, "", "pull"},
		{"new, an absolute path", "prod=" + f.dir + "/deploy/new.yaml", nothing, "", "pull"},
		{"in a submodule", "prod=submodule/objects.yaml", nothing, isRefused, ""},
		{"in a submodule, an absolute path", "prod=" + f.dir + "/submodule/objects.yaml", nothing, isRefused, ""},
		{"in a directory that was a submodule", "prod=submodule/objects.yaml", func() {
			testkit.Must(t, os.RemoveAll(filepath.Join(f.dir, "submodule", ".git")))
			f.git(t, "rm", "--quiet", "--cached", "submodule")
			f.git(t, "add", "submodule")
		}, isRefused, ""},
		{"two files, one changed", "prod=deploy/objects.yaml prod=deploy/other.yaml", put("other.yaml", strings.NewReplacer("web", "other", "team-b/x", "team-b/y").Replace(objectsBefore)), "push", ""},
	} {
		test.change()
		comment, output, err := run(test.objects)
		if test.lost == isRefused {
			if err == nil || err.Error() != "exit status 2" || !strings.Contains(output, isRefused) {
				t.Errorf("%s: %v: %s", test.name, err, output)
			}
			continue
		}
		if (err != nil) != (test.lost != "") || err != nil && err.Error() != "exit status 1" {
			t.Errorf("%s: %v: %s", test.name, err, output)
		}
		gained, lost, _ := strings.Cut(comment, "#### Lost")
		for _, part := range []struct{ text, want string }{{gained, test.gained}, {lost, test.lost}} {
			for _, action := range []string{"pull", "push", "pull, push"} {
				if strings.Contains(part.text, fmt.Sprintf(objectsRow, action)) != (action == part.want) {
					t.Errorf("%s: want actions %q of objects in %s", test.name, part.want, part.text)
				}
			}
		}
	}
}
