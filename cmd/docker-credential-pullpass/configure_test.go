package main

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

func configured(t *testing.T, code int, env environment) string {
	t.Helper()
	return printed(t, code, []string{"configure"}, env, time.Now(), strings.NewReader(""))
}

func compact(t *testing.T, path string) string {
	t.Helper()
	content := testkit.Value(os.ReadFile(path))(t)
	var b bytes.Buffer
	testkit.Must(t, json.Compact(&b, content))
	return b.String()
}

func TestConfigure(t *testing.T) {
	t.Parallel()
	const two = registry + ",localhost:5443"
	for _, test := range []struct{ name, registries, before, want string }{
		{"no file", registry, "", `{"credHelpers":{"registry.example.com":"pullpass"}}`},
		{"an empty object", registry, "{}", `{"credHelpers":{"registry.example.com":"pullpass"}}`},
		{"null", registry, `{"credHelpers":null}`, `{"credHelpers":{"registry.example.com":"pullpass"}}`},
		{"two registries", two, "", `{"credHelpers":{"localhost:5443":"pullpass","registry.example.com":"pullpass"}}`},
		{"what is there stays", registry,
			`{"auths":{"ghcr.io":{"auth":"eDp5"}},"credHelpers":{"gcr.io":"gcloud"},"credsStore":"desktop","x":[1.50,{"<":12345678901234567890}]}`,
			`{"auths":{"ghcr.io":{"auth":"eDp5"}},"credHelpers":{"gcr.io":"gcloud","registry.example.com":"pullpass"},"credsStore":"desktop","x":[1.50,{"\u003c":12345678901234567890}]}`},
		{"Docker Hub", "docker.io", "", `{"credHelpers":{"docker.io":"pullpass","https://index.docker.io/v1/":"pullpass"}}`},
		{"a second time", registry, `{"credHelpers":{"registry.example.com":"pullpass"}}`, `{"credHelpers":{"registry.example.com":"pullpass"}}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "docker")
			path := filepath.Join(dir, "config.json")
			if test.before != "" {
				testkit.Must(t, os.Mkdir(dir, 0o700))
				testkit.Must(t, os.WriteFile(path, []byte(test.before), 0o600))
			}
			output := configured(t, 0, environment{"PULLPASS_REGISTRIES": test.registries, "DOCKER_CONFIG": dir})
			if want := path + ": pullpass answers for " + strings.ReplaceAll(test.registries, ",", ", ") + "\n"; output != want {
				t.Errorf("standard output %q, want %q", output, want)
			}
			if got := compact(t, path); got != test.want {
				t.Errorf("config.json is %s, want %s", got, test.want)
			}
			if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
				t.Errorf("files beside it: %v, %v", files, err)
			}
		})
	}
}

func TestConfigureKeepsModeAndLink(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	target, path := filepath.Join(home, "dotfiles.json"), filepath.Join(home, ".docker", "config.json")
	testkit.Must(t, os.WriteFile(target, []byte("{}"), 0o600))
	testkit.Must(t, os.Chmod(target, 0o640))
	testkit.Must(t, os.Mkdir(filepath.Dir(path), 0o700))
	testkit.Must(t, os.Symlink(target, path))
	configured(t, 0, environment{"PULLPASS_REGISTRIES": registry, "HOME": home})
	if got := compact(t, target); got != `{"credHelpers":{"registry.example.com":"pullpass"}}` {
		t.Errorf("the link's target is %s", got)
	}
	info, err := os.Stat(target)
	if err != nil || info.Mode() != 0o640 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if info, err := os.Lstat(path); err != nil || info.Mode().Type() != fs.ModeSymlink {
		t.Errorf("no link any more: %v", err)
	}
}

func TestConfigureRefusals(t *testing.T) {
	t.Parallel()
	const password = "eDpodW50ZXIy"
	for _, test := range []struct{ name, registries, content, want string }{
		{"no registries", "", "{}", errNoRegistries.Error()},
		{"a URL", "https://" + registry, "{}", "PULLPASS_REGISTRIES: entry 1 is not HOST or HOST:PORT"},
		{"no JSON", registry, `{"auths":{"a":{"auth":"` + password, "FILE: not one JSON object"},
		{"an array", registry, `["` + password + `"]`, "FILE: not one JSON object"},
		{"null", registry, `null`, "FILE: not one JSON object"},
		{"too long", registry, `{"auths":"` + strings.Repeat("x", maxConfigSize) + `"}`, "FILE: longer than 1024 KiB"},
		{"helpers are a list", registry, `{"credHelpers":["` + password + `"]}`, "FILE: credHelpers: not a JSON object of strings"},
		{"another helper", registry, `{"credHelpers":{"registry.example.com":"desktop"}}`,
			`FILE: credHelpers: "registry.example.com" is another helper's already, "desktop"; take it out if that one is to go`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path := filepath.Join(dir, "config.json")
			testkit.Must(t, os.WriteFile(path, []byte(test.content), 0o600))
			output := configured(t, 1, environment{"PULLPASS_REGISTRIES": test.registries, "DOCKER_CONFIG": dir})
			if want := "docker-credential-pullpass: " + strings.Replace(test.want, "FILE", path, 1) + "\n"; output != want {
				t.Errorf("standard output %q, want %q", output, want)
			}
			if got, err := os.ReadFile(path); err != nil || string(got) != test.content {
				t.Errorf("the file was changed: %v", err)
			}
		})
	}

	// A directory, as a pipe, which would be read for ever.
	dir := t.TempDir()
	path := filepath.Join(dir, "config.json")
	testkit.Mkdir(t, path)
	output := configured(t, 1, environment{"PULLPASS_REGISTRIES": registry, "DOCKER_CONFIG": dir})
	if want := "docker-credential-pullpass: " + path + ": not a regular file\n"; output != want {
		t.Errorf("standard output %q, want %q", output, want)
	}

	output = configured(t, 1, environment{"PULLPASS_REGISTRIES": registry})
	if want := "docker-credential-pullpass: HOME and DOCKER_CONFIG: empty; set DOCKER_CONFIG to the directory of the client's config.json\n"; output != want {
		t.Errorf("standard output %q, want %q", output, want)
	}
}

// A client that reads meanwhile, or a write that fails, must not meet half a file.
func TestConfigureReplacesAtOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "config.json")
	testkit.Must(t, os.WriteFile(path, []byte("{}"), 0o600))
	before, err := os.Open(path)
	testkit.Must(t, err)
	defer before.Close()
	configured(t, 0, environment{"PULLPASS_REGISTRIES": registry, "DOCKER_CONFIG": dir})
	old, err := before.Stat()
	if err != nil || old.Size() != 2 {
		t.Errorf("the open file has %d bytes, %v; want the old file", old.Size(), err)
	}

	// A directory in its place cannot be replaced, and what was begun is taken away.
	dir = t.TempDir()
	testkit.Must(t, os.Mkdir(filepath.Join(dir, "config.json"), 0o700))
	if err := replace(filepath.Join(dir, "config.json"), []byte("{}"), 0o600); err == nil {
		t.Error("replaced a directory")
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("files that are left: %v, %v", files, err)
	}
}
