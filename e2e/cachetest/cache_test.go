package cachetest

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"go.yaml.in/yaml/v3"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/issuer"
	"github.com/pullpass/pullpass/e2e/node"
	"github.com/pullpass/pullpass/e2e/process"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/registry"
	"github.com/pullpass/pullpass/e2e/secrets"
	"github.com/pullpass/pullpass/e2e/testenv"
	"github.com/pullpass/pullpass/e2e/upstream"
)

const (
	service = "gateway.example.com"
	hub     = "hub.example" // the upstream's name in the names of images
	tag     = "v1"

	limit = time.Minute
)

const policy = `apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- name: own-namespace
  subjects: [{namespaces: ["*"]}]
  allow: [{repositories: ["*/{namespace}/**", "*/shared/**"], actions: [pull]}]
`

// The credential of the upstream, which the cache alone has.
const originUser, originPassword = "cache-of-acme", "password-of-the-origin-alone"

// The faults of an origin.
type fault int

const (
	none fault = iota
	down       // it closes connections
	busy       // 429, as Docker Hub's
	cut        // it breaks off in the middle of each blob
	held       // it stops in the middle of each blob until the fault ends
)

// origin is a registry that asks for a password, counts its requests and has faults.
type origin struct {
	host     string
	registry *registry.Registry

	retryAfter string // of its 429; empty: none

	mu      sync.Mutex
	fault   fault
	ended   chan struct{} // closed when the fault ends
	stopped chan struct{} // has a message for each blob that is held
	asked   []string      // methods and paths
}

func startOrigin(t *testing.T, ca *certs.CA) *origin {
	o := &origin{registry: registry.Start(t, ca, registry.Config{Program: programs.Distribution(t)}), ended: make(chan struct{}), stopped: make(chan struct{}, 100)}
	target := testenv.Value(url.Parse("https://" + o.registry.Host))(t)
	proxy := &httputil.ReverseProxy{
		Transport: ca.Transport(t), FlushInterval: -1,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(target)
			p.Out.Header.Del("Authorization")
		},
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { o.serve(w, r, proxy) }))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{ca.Server(t, "origin").TLS(t)}}
	server.StartTLS()
	t.Cleanup(func() {
		o.set(none)
		server.CloseClientConnections()
		server.Close()
	})
	o.host = "localhost" + server.URL[strings.LastIndex(server.URL, ":"):]
	secrets.Note("password of the cache's upstream", originPassword)
	return o
}

func (o *origin) set(f fault) {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.ended)
	o.fault, o.ended = f, make(chan struct{})
}

// count returns how many requests for a repository there were, and how many of them fetched a blob.
func (o *origin) count(repository string) (all, blobs int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, line := range o.asked {
		if strings.Contains(line, " /v2/"+repository+"/") {
			all++
		}
		if strings.HasPrefix(line, "GET /v2/"+repository+"/blobs/") {
			blobs++
		}
	}
	return all, blobs
}

func (o *origin) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	o.mu.Lock()
	o.asked = append(o.asked, r.Method+" "+r.URL.Path)
	fault, ended := o.fault, o.ended
	o.mu.Unlock()
	switch user, password, _ := r.BasicAuth(); {
	case fault == down:
		panic(http.ErrAbortHandler)
	case fault == busy:
		if o.retryAfter != "" {
			w.Header().Set("Retry-After", o.retryAfter)
		}
		http.Error(w, `{"errors":[{"code":"TOOMANYREQUESTS","message":"You have reached your pull rate limit."}]}`, http.StatusTooManyRequests)
		return
	case user != originUser || password != originPassword:
		w.Header().Set("WWW-Authenticate", `Basic realm="origin"`)
		http.Error(w, `{"errors":[{"code":"UNAUTHORIZED"}]}`, http.StatusUnauthorized)
		return
	case fault != none && strings.Contains(r.URL.Path, "/blobs/") && r.Method == http.MethodGet:
		w = &breaking{ResponseWriter: w, at: layerBytes / 2, stop: func() bool {
			if fault == held {
				o.stopped <- struct{}{}
				<-ended
			}
			return fault == cut
		}}
	}
	next.ServeHTTP(w, r)
}

// breaking calls stop once, when it has passed on this many bytes.
type breaking struct {
	http.ResponseWriter
	at   int
	stop func() (isCut bool)
}

func (b *breaking) Unwrap() http.ResponseWriter { return b.ResponseWriter }

func (b *breaking) Write(p []byte) (int, error) {
	if b.at -= len(p); b.at < 0 && b.stop != nil {
		isCut := b.stop()
		b.stop = nil
		if isCut {
			return 0, errors.New("the connection is cut")
		}
	}
	return b.ResponseWriter.Write(p)
}

// site is a gateway before a cache before an origin.
type site struct {
	ca      *certs.CA
	origin  *origin
	host    string           // of the cache
	command func() *exec.Cmd // runs the cache
	cache   *process.Process
	issuer  *issuer.Issuer
	proxy   *pullpass.Proxy
}

func (s *site) startCache(t *testing.T) {
	t.Helper()
	s.cache = process.Start(t, s.command())
	s.cache.Await(t, limit, func(context.Context) error {
		status, err := s.askCache(t, "")
		if err == nil && status != http.StatusUnauthorized {
			err = fmt.Errorf("GET /v2/: %d", status)
		}
		return err
	})
}

// settings are what every kind of cache is told.
type settings struct {
	ca       *certs.CA
	address  string
	serving  certs.Pair
	htpasswd string // a file
	origin   string // host and port
	data     string // a directory that outlives the process
}

// distribution is configured as in deploy/cache/cache.yaml, with other files and addresses.
func distribution(t *testing.T, s settings) *exec.Cmd {
	first, _, _ := strings.Cut(testenv.ReadFile(t, filepath.Join(programs.Checkout(t), "deploy/cache/cache.yaml")), "\n---\n")
	var manifest struct{ Data map[string]string }
	testenv.Must(t, yaml.Unmarshal([]byte(first), &manifest))
	cmd := exec.Command(programs.Distribution(t), "serve", testenv.WriteFile(t, filepath.Join(t.TempDir(), "config.yml"), manifest.Data["config.yml"]))
	cmd.Env = append(os.Environ(), "OTEL_TRACES_EXPORTER=none", "SSL_CERT_FILE="+s.ca.File, "REGISTRY_HTTP_ADDR="+s.address,
		"REGISTRY_HTTP_TLS_CERTIFICATE="+s.serving.CertFile, "REGISTRY_HTTP_TLS_KEY="+s.serving.KeyFile,
		"REGISTRY_AUTH_HTPASSWD_PATH="+s.htpasswd, "REGISTRY_STORAGE_FILESYSTEM_ROOTDIRECTORY="+s.data,
		"REGISTRY_PROXY_REMOTEURL=https://"+s.origin, "REGISTRY_PROXY_USERNAME="+originUser, "REGISTRY_PROXY_PASSWORD="+originPassword)
	return cmd
}

// zot is configured as in deploy/cache/zot.json, with other files and addresses.
func zot(t *testing.T, s settings) *exec.Cmd {
	directory := t.TempDir()
	host, port, _ := net.SplitHostPort(s.address)
	config := strings.NewReplacer(
		"/var/lib/zot", s.data, "0.0.0.0", host, `"5000"`, `"`+port+`"`,
		"/etc/tls/tls.crt", s.serving.CertFile, "/etc/tls/tls.key", s.serving.KeyFile, "/etc/zot/htpasswd", s.htpasswd,
		"/etc/zot/login.json", testenv.WriteFile(t, filepath.Join(directory, "login.json"),
			fmt.Sprintf(`{%q: {"username": %q, "password": %q}}`, s.origin, originUser, originPassword)),
		"https://registry-1.docker.io", "https://"+s.origin,
	).Replace(testenv.ReadFile(t, filepath.Join(programs.Checkout(t), "deploy/cache/zot.json")))
	cmd := exec.Command(*zotProgram, "serve", testenv.WriteFile(t, filepath.Join(directory, "config.json"), config))
	cmd.Env = append(os.Environ(), "SSL_CERT_FILE="+s.ca.File)
	return cmd
}

// askCache sends a request without a password.
func (s *site) askCache(t *testing.T, path string) (status int, err error) {
	t.Helper()
	response, err := (&http.Client{Transport: s.ca.Transport(t), Timeout: limit}).Get("https://" + s.host + "/v2/" + path)
	if err != nil {
		return 0, err
	}
	return response.StatusCode, response.Body.Close()
}

func start(t *testing.T, cache func(*testing.T, settings) *exec.Cmd) *site {
	ca := certs.NewCA(t, "registry-ca")
	s := &site{ca: ca, origin: startOrigin(t, ca), issuer: issuer.Start(t, ca)}
	address := process.FreeAddress(t)
	s.host = "localhost" + address[strings.LastIndex(address, ":"):]
	of := settings{
		ca: ca, address: address, serving: ca.Server(t, "cache"), origin: s.origin.host, data: t.TempDir(),
		htpasswd: testenv.WriteFile(t, filepath.Join(t.TempDir(), "htpasswd"), upstream.Htpasswd),
	}
	s.command = func() *exec.Cmd { return cache(t, of) }
	s.startCache(t)
	secrets.Note("password of the cache", upstream.Password)
	s.proxy = pullpass.Start(t, ca, pullpass.Config{
		Clusters: []pullpass.Cluster{{Name: "e2e", Issuer: s.issuer.URL, Audiences: []string{service}, Discovery: pullpass.Discovery{CAFile: ca.File}}},
		Policy:   policy, Service: service,
		Upstreams: []pullpass.Upstream{{
			Name: hub, URL: "https://" + s.host, CAFile: ca.File,
			Credential: pullpass.Credential{Basic: pullpass.Basic{
				Username: upstream.Username, PasswordFile: testenv.WriteFile(t, filepath.Join(t.TempDir(), "password"), upstream.Password),
			}},
		}},
	})
	return s
}

const layerBytes = 4 << 20 // of random layers, which end in the middle of a fault

// publish puts an image into the origin's registry, and returns its digest.
func (s *site) publish(t *testing.T, repository string) v1.Hash {
	t.Helper()
	image := testenv.Value(random.Image(layerBytes, 2))(t)
	testenv.Must(t, node.Push(t.Context(), s.ca.Transport(t), "", "", s.origin.registry.Host+"/"+repository+":"+tag, image))
	return testenv.Value(image.Digest())(t)
}

// pull fetches all of an image as a ServiceAccount, and checks every digest. It does not try again.
func (s *site) pull(t *testing.T, namespace, repository string) (v1.Hash, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	reference := testenv.Value(name.ParseReference(strings.TrimPrefix(s.proxy.GatewayURL, "https://") + "/" + hub + "/" + repository + ":" + tag))(t)
	token := s.issuer.Token(t, service, namespace, "puller")
	transport := s.ca.Transport(t)
	defer transport.CloseIdleConnections()
	image, err := remote.Image(reference, remote.WithContext(ctx), remote.WithTransport(transport), remote.WithRetryBackoff(remote.Backoff{Steps: 1}),
		remote.WithAuth(&authn.Basic{Username: "serviceaccount", Password: token}))
	if err != nil {
		return v1.Hash{}, err
	}
	layers, err := image.Layers()
	if err != nil {
		return v1.Hash{}, err
	}
	for _, layer := range layers {
		content, err := layer.Compressed()
		if err == nil {
			_, err = io.Copy(io.Discard, content)
			err = errors.Join(err, content.Close())
		}
		if err != nil {
			return v1.Hash{}, err
		}
	}
	return image.Digest()
}

// granted pulls, also while the gateway still holds back from a cache that failed.
func (s *site) granted(t *testing.T, namespace, repository string, want v1.Hash) {
	t.Helper()
	var got v1.Hash
	var err error
	if !testenv.Poll(limit, func() bool { got, err = s.pull(t, namespace, repository); return err == nil }) || got != want {
		t.Fatalf("%s pulls %s: %v, %v, want %v", namespace, repository, got, err, want)
	}
}

// refused looks that the gateway itself says no.
func (s *site) refused(t *testing.T, namespace, repository string) {
	t.Helper()
	before, _ := s.origin.count(repository)
	if got, err := s.pull(t, namespace, repository); err == nil {
		t.Errorf("%s pulls %s: %v", namespace, repository, got)
	}
	if after, _ := s.origin.count(repository); after != before {
		t.Errorf("a refused pull led to %d requests to the upstream", after-before)
	}
	events := s.proxy.Audit(t)
	if e := events[len(events)-1]; e.Namespace != namespace || e.Result == "granted" {
		t.Errorf("the last line is not the refusal: %+v", e)
	}
}

var zotProgram = flag.String("zot", "", "a zot with the extension sync, which is tried as a cache, too")

func TestCache(t *testing.T) {
	t.Run("distribution", func(t *testing.T) { testCache(t, distribution, "3600") })
	if *zotProgram != "" { // it waits as long as a Retry-After says, with its clients
		t.Run("zot", func(t *testing.T) { testCache(t, zot, "") })
	}
}

// testCache pulls through the gateway and a registry that caches: every hit is judged, and hits need no upstream.
func testCache(t *testing.T, cache func(*testing.T, settings) *exec.Cmd, retryAfter string) {
	s := start(t, cache)
	s.origin.retryAfter = retryAfter

	t.Run("hits", func(t *testing.T) {
		digest := s.publish(t, "team-a/web")
		s.granted(t, "team-a", "team-a/web", digest)
		_, first := s.origin.count("team-a/web")
		for range 3 {
			s.granted(t, "team-a", "team-a/web", digest)
		}
		if _, blobs := s.origin.count("team-a/web"); first == 0 || blobs != first {
			t.Errorf("the first pull fetched %d blobs of the upstream, the next three %d", first, blobs-first)
		}
		s.refused(t, "team-b", "team-a/web")
	})

	t.Run("the cache itself asks for a password", func(t *testing.T) {
		if status := testenv.Value(s.askCache(t, "team-a/web/manifests/"+tag))(t); status != http.StatusUnauthorized {
			t.Errorf("without one: %d", status)
		}
	})

	for what, fault := range map[string]fault{"the upstream is down": down, "the upstream has a rate limit": busy} {
		t.Run(what, func(t *testing.T) {
			digest := s.publish(t, "shared/"+fmt.Sprint(fault))
			s.granted(t, "team-a", "shared/"+fmt.Sprint(fault), digest)
			unseen := "shared/unseen-" + fmt.Sprint(fault) // zot fetches it later, by itself
			s.publish(t, unseen)
			s.origin.set(fault)
			defer s.origin.set(none)
			for range 3 {
				s.granted(t, "team-b", "shared/"+fmt.Sprint(fault), digest)
			}
			s.refused(t, "team-b", "team-a/web")
			if got, err := s.pull(t, "team-a", unseen); err == nil {
				t.Errorf("pulled what the cache did not have: %v", got)
			}
		})
	}

	// The cache has the digests of one repository. A caller who knows them gets nothing through another repository.
	t.Run("digests of another repository", func(t *testing.T) {
		secret := s.publish(t, "team-a/secret")
		s.granted(t, "team-a", "team-a/secret", secret)
		s.granted(t, "team-b", "shared/open", s.publish(t, "shared/open"))
		origin := testenv.Value(remote.Image(testenv.Value(name.NewTag(s.origin.registry.Host+"/team-a/secret:"+tag))(t), remote.WithTransport(s.ca.Transport(t))))(t)
		digests := []v1.Hash{testenv.Value(origin.ConfigName())(t)}
		for _, layer := range testenv.Value(origin.Layers())(t) {
			digests = append(digests, testenv.Value(layer.Digest())(t))
		}
		auth := remote.WithAuth(&authn.Basic{Username: "serviceaccount", Password: s.issuer.Token(t, service, "team-b", "puller")})
		transport := remote.WithTransport(s.ca.Transport(t))
		gateway := strings.TrimPrefix(s.proxy.GatewayURL, "https://") + "/" + hub + "/shared/open@"
		for _, digest := range digests {
			layer := testenv.Value(remote.Layer(testenv.Value(name.NewDigest(gateway+digest.String()))(t), auth, transport))(t)
			if content, err := layer.Compressed(); err == nil {
				n, _ := io.Copy(io.Discard, content)
				t.Errorf("%s of team-a/secret through shared/open: %d bytes", digest, n)
			}
		}
		if _, err := remote.Get(testenv.Value(name.NewDigest(gateway+secret.String()))(t), auth, transport); err == nil {
			t.Error("the manifest of team-a/secret through shared/open")
		}
	})

	// Content that the cache did not get whole is never served: its digest would not be that of the manifest.
	t.Run("a fill is cut", func(t *testing.T) {
		digest := s.publish(t, "team-a/cut")
		s.origin.set(cut)
		for range 3 {
			if _, err := s.pull(t, "team-a", "team-a/cut"); err == nil {
				t.Error("the upstream sent half of a layer, and the pull succeeded")
			}
		}
		s.origin.set(none)
		s.granted(t, "team-a", "team-a/cut", digest)
	})

	t.Run("fills race", func(t *testing.T) {
		digest := s.publish(t, "shared/raced")
		s.origin.set(held)
		var pulls sync.WaitGroup
		for i := range 8 {
			pulls.Go(func() {
				if got, err := s.pull(t, []string{"team-a", "team-b"}[i%2], "shared/raced"); err != nil || got != digest {
					t.Errorf("%v, %v, want %v", got, err, digest)
				}
			})
		}
		<-s.origin.stopped
		time.Sleep(time.Second) // for the others to come as far
		s.origin.set(none)
		pulls.Wait()
		_, blobs := s.origin.count("shared/raced")
		t.Logf("8 pulls at once fetched %d blobs of the upstream", blobs)
		s.origin.set(down)
		defer s.origin.set(none)
		s.granted(t, "team-a", "shared/raced", digest)
	})

	t.Run("the cache is killed while it fills", func(t *testing.T) {
		digest := s.publish(t, "team-a/killed")
		s.origin.set(held)
		var pulls sync.WaitGroup
		pulls.Go(func() {
			if _, err := s.pull(t, "team-a", "team-a/killed"); err == nil {
				t.Error("the pull succeeded, and nothing had the whole layer")
			}
		})
		<-s.origin.stopped
		s.cache.Kill(t)
		pulls.Wait()
		s.origin.set(none)
		s.startCache(t)
		s.granted(t, "team-a", "team-a/killed", digest)
		s.origin.set(down)
		defer s.origin.set(none)
		s.granted(t, "team-a", "team-a/killed", digest)
		s.refused(t, "team-b", "team-a/killed")
	})
}
