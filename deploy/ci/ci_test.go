// Package ci_test runs what the templates for CI systems run, with the real
// helper, as the systems would.
package ci_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

const registry = "registry.example.com"

// machine is where a job runs: a home, the server that has the helper and is
// GitHub's token service, and the CA of both.
type machine struct {
	home, helper, url, sha256, ca string
	token                         string
}

func newMachine(t *testing.T) machine {
	t.Helper()
	m := machine{home: t.TempDir(), helper: filepath.Join(t.TempDir(), "docker-credential-pullpass"), token: newToken(t)}
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", m.helper, "../../cmd/docker-credential-pullpass")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	program := testkit.Value(os.ReadFile(m.helper))(t)
	m.sha256 = fmt.Sprintf("%x", sha256.Sum256(program))

	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1.2.3/docker-credential-pullpass", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(program) })
	mux.HandleFunc("GET /idtoken", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "bearer asking" || r.FormValue("audience") != registry {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"value": m.token})
	})
	server := httptest.NewTLSServer(mux)
	t.Cleanup(server.Close)
	m.url = server.URL
	m.ca = filepath.Join(t.TempDir(), "ca.pem")
	write(t, m.ca, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	return m
}

// newToken makes a token as the helper looks at it, which verifies nothing.
func newToken(t *testing.T) string {
	t.Helper()
	claims := testkit.Value(json.Marshal(map[string]any{"iss": "https://ci.example.com", "aud": registry, "exp": time.Now().Add(5 * time.Minute).Unix()}))(t)
	part := base64.RawURLEncoding.EncodeToString
	return part([]byte(`{"alg":"none"}`)) + "." + part(claims) + "." + part([]byte("signature"))
}

func write(t *testing.T, path, content string) {
	t.Helper()
	testkit.Must(t, os.MkdirAll(filepath.Dir(path), 0o700))
	testkit.Must(t, os.WriteFile(path, []byte(content), 0o600))
}

// run runs a shell with exactly this environment and returns what it printed.
func run(t *testing.T, env map[string]string, args ...string) (output string, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	printed, err := cmd.CombinedOutput()
	return string(printed), err
}

// checkConfigured looks at config.json and asks the helper, found in PATH.
func (m machine) checkConfigured(t *testing.T, env map[string]string) {
	t.Helper()
	var config struct {
		Auths       map[string]struct{ Auth string }
		CredHelpers map[string]string
	}
	testkit.Must(t, json.Unmarshal([]byte(testkit.Read(t, filepath.Join(m.home, ".docker", "config.json"))), &config))
	if config.CredHelpers[registry] != "pullpass" || config.CredHelpers["gcr.io"] != "gcloud" || config.Auths["ghcr.io"].Auth != "eDp5" {
		t.Errorf("config.json: %+v", config)
	}
	output, err := run(t, env, "sh", "-c", "echo "+registry+" | docker-credential-pullpass get")
	var answer struct{ Username, Secret string }
	if err != nil || json.Unmarshal([]byte(output), &answer) != nil || answer.Secret != m.token {
		t.Errorf("get: %v: %s", err, output)
	}
}

func (m machine) writeConfig(t *testing.T) {
	t.Helper()
	write(t, filepath.Join(m.home, ".docker", "config.json"), `{"auths":{"ghcr.io":{"auth":"eDp5"}},"credHelpers":{"gcr.io":"gcloud"}}`)
}

// action is the whole of action.yml: a step that used another's action would be
// an unknown field.
type action struct {
	Name, Description string
	Inputs            map[string]struct {
		Description, Default string
		Required             bool
	}
	Runs struct {
		Using string
		Steps []struct {
			Name, Shell, Run string
			Env              map[string]string
		}
	}
}

func readAction(t *testing.T) action {
	t.Helper()
	var a action
	testkit.Must(t, yaml.UnmarshalStrict([]byte(testkit.Read(t, "github/action.yml")), &a))
	if len(a.Runs.Steps) != 1 || a.Runs.Using != "composite" || a.Runs.Steps[0].Shell != "bash" {
		t.Fatalf("action.yml: %+v", a.Runs)
	}
	return a
}

// runAction runs the step as the runner does, and returns the environment of the
// steps after it.
func (m machine) runAction(t *testing.T, inputs map[string]string) (env map[string]string, output string, err error) {
	t.Helper()
	a, step := readAction(t), readAction(t).Runs.Steps[0]
	temp := t.TempDir()
	env = map[string]string{
		"HOME": m.home, "PATH": os.Getenv("PATH"), "RUNNER_TEMP": temp, "CURL_CA_BUNDLE": m.ca, "SSL_CERT_FILE": m.ca,
		"GITHUB_ENV": filepath.Join(temp, "env"), "GITHUB_PATH": filepath.Join(temp, "path"), "GITHUB_ACTIONS": "true",
		"ACTIONS_ID_TOKEN_REQUEST_URL": m.url + "/idtoken?api-version=2.0", "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "asking",
		"PULLPASS_TOKEN_FILE": "/var/run/secrets/runner/token", // of the runner's pod
	}
	during := map[string]string{}
	maps.Copy(during, env)
	for name, value := range step.Env {
		input := strings.TrimSuffix(strings.TrimPrefix(value, "${{ inputs."), " }}")
		declared, found := a.Inputs[input]
		if !found {
			t.Fatalf("%s: %s is not an input", name, value)
		}
		during[name] = declared.Default
		if given, found := inputs[input]; found {
			during[name] = given
		}
	}
	script := filepath.Join(temp, "step.sh")
	write(t, script, step.Run)
	if output, err = run(t, during, "bash", "--noprofile", "--norc", "-e", "-o", "pipefail", script); err != nil {
		return nil, output, err
	}
	for line := range strings.Lines(testkit.Read(t, env["GITHUB_ENV"])) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		env[name] = value
	}
	env["PATH"] = strings.TrimSpace(testkit.Read(t, env["GITHUB_PATH"])) + ":" + env["PATH"]
	return env, output, nil
}

func TestGitHubAction(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	for name, inputs := range map[string]map[string]string{
		"downloaded":    {"url": m.url + "/v1.2.3/docker-credential-pullpass", "sha256": m.sha256},
		"on the runner": {"path": m.helper},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := m
			m.home = t.TempDir()
			m.writeConfig(t)
			inputs["registries"], inputs["push"] = registry, "team-a/web team-a/base:pull"
			env, output, err := m.runAction(t, inputs)
			if err != nil {
				t.Fatalf("%v: %s", err, output)
			}
			if env["PULLPASS_PUSH"] != inputs["push"] {
				t.Errorf("the steps after it push %q", env["PULLPASS_PUSH"])
			}
			delete(env, "PULLPASS_PUSH") // there is no registry to ask
			m.checkConfigured(t, env)
		})
	}
}

// A program with a wrong digest does not run, and later steps do not find it.
func TestGitHubActionRefusals(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	program := m.url + "/v1.2.3/docker-credential-pullpass"
	for name, inputs := range map[string]map[string]string{
		"another digest":    {"registries": registry, "url": program, "sha256": strings.Repeat("0", 64)},
		"no digest":         {"registries": registry, "url": program},
		"not there":         {"registries": registry, "url": m.url + "/v9", "sha256": m.sha256},
		"not https":         {"registries": registry, "url": "file://" + m.helper, "sha256": m.sha256},
		"no program":        {"registries": registry},
		"no registries":     {"registries": "", "path": m.helper},
		"a URL":             {"registries": "https://" + registry, "path": m.helper},
		"a second variable": {"registries": registry + "\nPATH=/evil", "path": m.helper},
		"another variable":  {"registries": registry, "push": "team-a/web\nPATH=/evil", "path": m.helper},
		"a tag":             {"registries": registry, "push": "team-a/web:v1", "path": m.helper},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := m
			m.home = t.TempDir()
			if _, output, err := m.runAction(t, inputs); err == nil {
				t.Errorf("passed: %s", output)
			}
			if files, err := os.ReadDir(m.home); err != nil || len(files) != 0 {
				t.Errorf("written: %v, %v", files, err)
			}
		})
	}
}

// gitLab is both documents of the template.
type gitLab struct {
	spec struct {
		Spec struct {
			Inputs map[string]struct {
				Description string
				Default     *string
			}
		}
	}
	jobs map[string]struct {
		IDTokens     map[string]struct{ Aud string } `json:"id_tokens"`
		Variables    map[string]string
		BeforeScript []string `json:"before_script"`
	}
}

func readGitLab(t *testing.T) gitLab {
	t.Helper()
	spec, jobs, found := strings.Cut(testkit.Read(t, "gitlab/pullpass.gitlab-ci.yml"), "\n---\n")
	if !found {
		t.Fatal("not two documents")
	}
	var g gitLab
	testkit.Must(t, yaml.UnmarshalStrict([]byte(spec), &g.spec))
	testkit.Must(t, yaml.UnmarshalStrict([]byte(jobs), &g.jobs))
	return g
}

// runGitLab runs the job with a script.
func (m machine) runGitLab(t *testing.T, path string, inputs map[string]string, script string) (output string, err error) {
	t.Helper()
	g := readGitLab(t)
	fill := func(text string) string {
		for name, input := range g.spec.Spec.Inputs {
			value, given := inputs[name]
			if !given && input.Default == nil {
				t.Fatalf("input %s is required", name)
			}
			if !given {
				value = *input.Default
			}
			text = strings.ReplaceAll(text, "$[[ inputs."+name+" ]]", value)
		}
		return text
	}
	job := g.jobs[".pullpass"]
	if aud := fill(job.IDTokens["PULLPASS_ID_TOKEN"].Aud); aud != registry {
		t.Errorf("audience %q, want %q", aud, registry)
	}
	env := map[string]string{"HOME": m.home, "PATH": path, "CURL_CA_BUNDLE": m.ca, "GITLAB_CI": "true", "PULLPASS_ID_TOKEN": m.token}
	for name, value := range job.Variables {
		env[name] = fill(value)
	}
	// Without -e, which GitLab's shells have, the template must stop all the same.
	return run(t, env, "sh", "-c", strings.Join(append(job.BeforeScript, script), "\n"))
}

func TestGitLabTemplate(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	// An image of docker has no curl. This wget copies, and says so.
	bare := t.TempDir()
	for _, name := range []string{"sh", "mkdir", "chmod", "cp", "sha256sum"} {
		path := testkit.Value(exec.LookPath(name))(t)
		testkit.Must(t, os.Symlink(path, filepath.Join(bare, name)))
	}
	write(t, filepath.Join(bare, "wget"), "#!/bin/sh\necho wget \"$6\"\ncp \""+m.helper+"\" \"$5\"\n")
	testkit.Must(t, os.Chmod(filepath.Join(bare, "wget"), 0o700))
	program := m.url + "/v1.2.3/docker-credential-pullpass"
	const push = "team-a/api team-a/base:pull"
	downloaded := map[string]string{"registry": registry, "push": push, "url": program, "sha256": m.sha256}
	for _, test := range []struct {
		name, path string
		inputs     map[string]string
		printed    string
	}{
		{"downloaded", os.Getenv("PATH"), downloaded, ": OK\n"},
		{"downloaded with wget", bare, downloaded, "wget " + program + "\n"},
		{"in the image", filepath.Dir(m.helper) + ":" + os.Getenv("PATH"), map[string]string{"registry": registry}, "pullpass answers for " + registry},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			m := m
			m.home = t.TempDir()
			m.writeConfig(t)
			output, err := m.runGitLab(t, test.path, test.inputs, `echo "PUSH=$PULLPASS_PUSH"; echo "PATH=$PATH"`)
			if err != nil || !strings.Contains(output, test.printed) {
				t.Fatalf("%v: %s", err, output)
			}
			if !strings.Contains(output, "\nPUSH="+test.inputs["push"]+"\n") {
				t.Errorf("the job pushes something else: %s", output)
			}
			_, path, _ := strings.Cut(output, "\nPATH=")
			m.checkConfigured(t, map[string]string{
				"PATH": strings.TrimSpace(path), "HOME": m.home, "GITLAB_CI": "true", "PULLPASS_ID_TOKEN": m.token, "PULLPASS_REGISTRIES": registry,
			})
		})
	}
}

func TestGitLabTemplateRefusals(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	program := m.url + "/v1.2.3/docker-credential-pullpass"
	for name, inputs := range map[string]map[string]string{
		"another digest": {"registry": registry, "url": program, "sha256": strings.Repeat("0", 64)},
		"no digest":      {"registry": registry, "url": program},
		"not there":      {"registry": registry, "url": m.url + "/v9", "sha256": m.sha256},
		"no program":     {"registry": registry},
		"a tag":          {"registry": registry, "push": "team-a/api:v1", "url": program, "sha256": m.sha256},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := m
			m.home = t.TempDir()
			if output, err := m.runGitLab(t, "/usr/bin:/bin", inputs, "echo the job goes on"); err == nil || strings.Contains(output, "the job goes on") {
				t.Errorf("passed: %s", output)
			}
			if _, err := os.Stat(filepath.Join(m.home, ".docker")); err == nil {
				t.Error("config.json was written")
			}
		})
	}
}
