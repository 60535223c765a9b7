package main

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/docker/cli/cli/config"
	"github.com/docker/cli/cli/config/types"
	"github.com/docker/docker-credential-helpers/client"
	"github.com/docker/docker-credential-helpers/credentials"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	ggcr "github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// helper runs the program as clients do: by its name, found in PATH.
func helper(env map[string]string) client.ProgramFunc {
	return client.NewShellProgramFuncWithEnv("docker-credential-pullpass", &env)
}

func TestProtocol(t *testing.T) {
	t.Parallel()
	token := newToken(t, registry, time.Now())
	program := helper(map[string]string{"PULLPASS_REGISTRIES": registry, "PULLPASS_TOKEN_FILE": testkit.TempFile(t, "token", token)})

	got, err := client.Get(program, "https://"+registry+"/v1/")
	testkit.Must(t, err)
	if want := (credentials.Credentials{ServerURL: "https://" + registry + "/v1/", Username: "serviceaccount", Secret: token}); *got != want {
		t.Errorf("get: %+v, want %+v", *got, want)
	}
	if _, err := client.Get(program, "https://index.docker.io/v1/"); !credentials.IsErrCredentialsNotFound(err) {
		t.Errorf("get of another server: %v, want the error after which clients go on", err)
	}
	if _, err := client.Get(program, ""); err == nil || !credentials.IsCredentialsMissingServerURLMessage(strings.Split(err.Error(), "`")[1]) {
		t.Errorf("get of nothing: %v", err)
	}
	list, err := client.List(program)
	if err != nil || len(list) != 1 || list[registry] != "serviceaccount" {
		t.Errorf("list: %v, %v", list, err)
	}

	const refused = " - err: exit status 1, out: `docker-credential-pullpass: %v`"
	err = client.Store(program, &credentials.Credentials{ServerURL: registry, Username: "u", Secret: token})
	if want := "error storing credentials" + fmt.Sprintf(refused, errStore); err == nil || err.Error() != want {
		t.Errorf("store: %v, want %s", err, want)
	}
	err = client.Erase(program, registry)
	if want := "error erasing credentials" + fmt.Sprintf(refused, errErase); err == nil || err.Error() != want {
		t.Errorf("erase: %v, want %s", err, want)
	}
	if _, err = client.Get(helper(nil), registry); err == nil || err.Error() != "error getting credentials"+fmt.Sprintf(refused, errNoRegistries) {
		t.Errorf("get without settings: %v, want %v", err, errNoRegistries)
	}
}

// The kubelet replaces a directory while clients run.
func TestRotation(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "token")
	testkit.Must(t, os.Symlink(filepath.Join("..data", "token"), path))
	program := helper(map[string]string{"PULLPASS_REGISTRIES": registry, "PULLPASS_TOKEN_FILE": path})
	for generation := range 2 {
		token := newToken(t, registry, time.Now())
		data := fmt.Sprintf("..2026_11_21_%d", generation)
		if err := errors.Join(
			os.Mkdir(filepath.Join(dir, data), 0o700),
			os.WriteFile(filepath.Join(dir, data, "token"), []byte(token), 0o600),
			os.Symlink(data, filepath.Join(dir, "..data_tmp")),
			os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")),
		); err != nil {
			t.Fatal(err)
		}
		got := testkit.Value(client.Get(program, registry))(t)
		if got.Secret != token {
			t.Errorf("generation %d: not the token that is there now", generation)
		}
	}
}

// TestScripts runs clients against a registry, as processes of their own,
// because all that they go by is in their environment.
func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			// The token's audience is the default one: the registry's own name.
			server := newRegistry()
			env.Defer(server.Close)
			host := strings.TrimPrefix(server.URL, "https://")
			token := newToken(t, host, time.Now())
			server.accept(token)
			service := &tokenService{audience: host, token: token}
			service.Server = httptest.NewTLSServer(service)
			env.Defer(service.Close)
			env.Values["service"] = service
			env.Setenv("TOKEN_SERVICE", service.URL+"/idtoken?api-version=2.0")
			env.Setenv("AGENT_TOKEN", filepath.Join(env.WorkDir, "token"))
			env.Setenv("REGISTRY", host)
			env.Setenv("GORACE", "atexit_sleep_ms=0") // or the race detector lets each program sleep for a second at its end
			env.Setenv("HOME", env.WorkDir)
			env.Setenv("DOCKER_CONFIG", env.WorkDir)
			env.Setenv("SSL_CERT_FILE", filepath.Join(env.WorkDir, "ca.pem"))
			env.Setenv("PULLPASS_TOKEN_FILE", filepath.Join(env.WorkDir, "token"))
			return errors.Join(
				os.WriteFile(filepath.Join(env.WorkDir, "token"), []byte(token), 0o600),
				os.WriteFile(filepath.Join(env.WorkDir, "ca.pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.certificate().Raw}), 0o600),
			)
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			// expand FILE: puts the values of variables in.
			"expand": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(os.Expand(ts.ReadFile(args[0]), ts.Getenv)), 0o600))
			},
			// asked TIMES: the token service was, so often since the last time.
			"asked": func(ts *testscript.TestScript, _ bool, args []string) {
				if got := fmt.Sprint(ts.Value("service").(*tokenService).asked.Swap(0)); got != args[0] {
					ts.Fatalf("asked %s times, want %s", got, args[0])
				}
			},
			// hidden FILE...: the token is in none of them.
			"hidden": func(ts *testscript.TestScript, _ bool, args []string) {
				for _, file := range args {
					if strings.Contains(ts.ReadFile(file), ts.ReadFile("token")) {
						ts.Fatalf("the token is in %s", file)
					}
				}
			},
		},
	})
}

// tokenService is GitHub's, for one job.
type tokenService struct {
	*httptest.Server
	audience, token string
	asked           atomic.Int64
}

func (s *tokenService) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.asked.Add(1)
	if r.Header.Get("Authorization") != "bearer "+asking || r.FormValue("audience") != s.audience {
		http.Error(w, "", http.StatusForbidden)
		return
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"count": 1, "value": s.token})
}

// protectedRegistry is a registry with a token endpoint that takes one password.
type protectedRegistry struct {
	*httptest.Server
	password string
}

func newRegistry() *protectedRegistry {
	r := &protectedRegistry{}
	images := ggcr.New(ggcr.Logger(log.New(io.Discard, "", 0)))
	mux := http.NewServeMux()
	mux.HandleFunc("/token", func(w http.ResponseWriter, request *http.Request) {
		if request.PostFormValue("subject_token") == r.password { // for the pushes of a job
			writePushCredential(w, sealed, tokenTypePushCredential, "repository:team/app:pull,push")
			return
		}
		if username, password, ok := request.BasicAuth(); !ok || username != "serviceaccount" || password != r.password && password != sealed {
			http.Error(w, "", http.StatusUnauthorized)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]string{"token": "granted"})
	})
	mux.HandleFunc("/v2/", func(w http.ResponseWriter, request *http.Request) {
		if request.Header.Get("Authorization") != "Bearer granted" {
			w.Header().Set("WWW-Authenticate", `Bearer realm="https://`+request.Host+`/token",service="registry"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		images.ServeHTTP(w, request)
	})
	r.Server = httptest.NewTLSServer(mux)
	return r
}

func (r *protectedRegistry) accept(password string)         { r.password = password }
func (r *protectedRegistry) certificate() *x509.Certificate { return r.Certificate() }

// clientMain is a registry client: go-containerregistry, whose keychain is
// crane's and ko's, and docker's own configuration, which buildkit uses, too.
func clientMain() {
	if err := runClient(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func runClient(action string, args []string) error {
	switch action {
	case "push", "pull":
		ref, err := name.ParseReference(args[0])
		if err != nil {
			return err
		}
		keychain := remote.WithAuthFromKeychain(authn.DefaultKeychain)
		if action == "pull" {
			_, err := remote.Image(ref, keychain)
			return err
		}
		image, err := random.Image(1, 1)
		if err != nil {
			return err
		}
		return remote.Write(ref, image, keychain)
	}

	file, err := config.Load(os.Getenv("DOCKER_CONFIG"))
	if err != nil {
		return err
	}
	switch action {
	case "docker-get":
		auth, err := file.GetAuthConfig(args[0])
		fmt.Printf("username=%s password=%t identity=%t\n", auth.Username, auth.Password != "", auth.IdentityToken != "")
		return err
	case "docker-get-all": // docker build does this
		auths, err := file.GetAllCredentials()
		for server, auth := range auths {
			fmt.Println(server, auth.Username)
		}
		return err
	case "docker-logout":
		return file.GetCredentialsStore(args[0]).Erase(args[0])
	case "docker-login":
		return file.GetCredentialsStore(args[0]).Store(types.AuthConfig{ServerAddress: args[0], Username: "u", Password: "p"})
	}
	return fmt.Errorf("unknown action %s", action)
}
