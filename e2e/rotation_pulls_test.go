package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/issuer"
	"github.com/pullpass/pullpass/e2e/process"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/registry"
	"github.com/pullpass/pullpass/e2e/relay"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// rollout is Pullpass and registries in a cluster that is rolled out anew while pods pull: each has an address that stays,
// and behind it one process after another.
type rollout struct {
	world
	tokens     *relay.Relay // the address of Pullpass
	registries []*rolledRegistry
	stop       chan struct{}
	running    sync.WaitGroup

	clients  []*rolloutClient
	observer struct {
		client   *http.Client
		password string
	}
	rounds atomic.Int64 // of tokens that are held: forget begins another

	mu       sync.Mutex
	failures []string
}

// rolloutClient is one client of a rollout.
type rolloutClient struct {
	*rollout
	what  string
	turns atomic.Int64
	keys  sync.Map // that signed its tokens
}

// rolledRegistry is one registry of a rollout.
type rolledRegistry struct {
	config  registry.Config // without what it trusts
	address *relay.Relay
	running *registry.Registry
}

func (r *rolledRegistry) host() string { return "localhost" + r.address.Address[len("127.0.0.1"):] }

// trust is what registries are given.
type trust struct{ rootCertBundle, jwks []byte }

// startRollout starts Pullpass, registries that trust what it publishes, and clients that pull from each until end.
func startRollout(t *testing.T, signing pullpass.Signing, registryPrograms ...func(testing.TB) string) *rollout {
	t.Helper()
	r := &rollout{world: world{ca: certs.NewCA(t, "registry-ca")}, stop: make(chan struct{})}
	r.issuer = issuer.Start(t, r.ca)
	r.proxy = startProxy(t, &r.world, signing)
	r.tokens = relay.Start(t, process.FreeAddress(t), r.proxy.Address())
	first := trust{rootCertBundle: r.proxy.Certificates(t)}
	if signing.Trust == "jwks" {
		first = trust{jwks: r.proxy.JWKS(t)}
	}
	for _, program := range registryPrograms {
		each := &rolledRegistry{config: registry.Config{
			Program: program(t), Realm: r.realm(), Service: service, Issuer: pullpass.Issuer,
		}}
		config := each.config
		config.RootCertBundle, config.JWKS = first.rootCertBundle, first.jwks
		each.running = registry.Start(t, r.ca, config)
		each.config.ReadOnlyStorage = each.running.Storage
		each.address = relay.Start(t, process.FreeAddress(t), each.running.Address())
		r.registry = each.running
		s := r.session(t, r.token(t, namespace))
		testenv.Must(t, ggcrPush(t, s, basicAuth(s), image, newImage(t)))
		r.registries = append(r.registries, each)
	}
	r.observer.client = &http.Client{Transport: r.session(t, "").roundTripper(t), Timeout: 30 * time.Second}
	r.observer.password = r.token(t, namespace)
	for _, each := range r.registries {
		r.startClient("pulls from "+filepath.Base(each.config.Program), func(c *rolloutClient) { c.pullAgainAndAgain(t, each) })
		r.startClient("tokens used at "+filepath.Base(each.config.Program), func(c *rolloutClient) { c.holdTokens(t, each) })
	}
	return r
}

func (r *rollout) startClient(what string, run func(*rolloutClient)) {
	c := &rolloutClient{rollout: r, what: what}
	r.clients = append(r.clients, c)
	r.running.Go(func() { run(c) })
}

const image = namespace + "/app"

func (r *rollout) realm() string {
	return "https://localhost" + r.tokens.Address[len("127.0.0.1"):] + "/token"
}

// rollRegistries gives the registries something else to trust: they read it at start only.
func (r *rollout) rollRegistries(t *testing.T, trusted trust) {
	t.Helper()
	for _, each := range r.registries {
		config := each.config
		config.RootCertBundle, config.JWKS = trusted.rootCertBundle, trusted.jwks
		next := registry.Start(t, r.ca, config)
		each.address.To(next.Address())
		each.running.Stop(t)
		each.running = next
	}
}

// rollPullpass starts Pullpass with another configuration.
func (r *rollout) rollPullpass(t *testing.T, signing pullpass.Signing) {
	t.Helper()
	r.switchTo(t, startProxy(t, &r.world, signing))
}

func (r *rollout) switchTo(t *testing.T, next *pullpass.Proxy) {
	t.Helper()
	r.tokens.To(next.Address())
	r.proxy.Stop(t)
	r.proxy = next
}

// end stops the clients and reports what they met. It comes before the cleanups of the test, which stop what they use.
func (r *rollout) end(t *testing.T) {
	close(r.stop)
	r.running.Wait()
	for _, c := range r.clients {
		t.Logf("%s: %d, signed by %d keys", c.what, c.turns.Load(), count(&c.keys))
	}
	for _, failure := range r.failures[:min(len(r.failures), 10)] {
		t.Errorf("one of %d failures: %s", len(r.failures), failure)
	}
}

func count(m *sync.Map) (n int) {
	m.Range(func(any, any) bool { n++; return true })
	return n
}

// tokenKey is the key that a token names; empty: none.
func tokenKey(token string) string {
	header, _ := decode(token, 0)
	key, _ := header["kid"].(string)
	return key
}

// lap waits until every client has begun and ended a turn.
func (r *rollout) lap(t *testing.T) {
	t.Helper()
	for _, c := range r.clients { // one after the other: an extra turn does no harm
		start := c.turns.Load()
		testenv.Await(t, rotationLimit, "clients go on", func() bool { return c.turns.Load() >= start+2 })
	}
}

// forget ends the use of tokens that were issued before, as waiting for the end of their life would.
func (r *rollout) forget(t *testing.T) {
	t.Helper()
	r.rounds.Add(1)
	r.lap(t)
}

// signing is the key that signs now, as a client sees it.
func (r *rollout) signing(t *testing.T) string {
	t.Helper()
	token := testenv.Value(askRealm(r.observer.client, r.realm(), r.observer.password))(t)
	return tokenKey(token)
}

// signs waits until a key signs, and until clients have used it.
func (r *rollout) signs(t *testing.T, key string) {
	t.Helper()
	testenv.Await(t, rotationLimit, "key "+key+" signs", func() bool { return r.signing(t) == key })
	r.lap(t)
}

func (r *rollout) failed(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

// stopped says that clients are to end. They leave the machine some air between their turns.
func (r *rollout) stopped() bool {
	select {
	case <-r.stop:
		return true
	case <-time.After(25 * time.Millisecond):
		return false
	}
}

// strict counts what a client would make good by itself, as by asking for another token.
type strict struct {
	*rolloutClient
	base http.RoundTripper
}

func (s strict) RoundTrip(req *http.Request) (*http.Response, error) {
	if token, ok := strings.CutPrefix(req.Header.Get("Authorization"), "Bearer "); ok {
		s.keys.Store(tokenKey(token), true)
	}
	resp, err := s.base.RoundTrip(req)
	if req.URL.Scheme == "http" || req.Context().Err() != nil {
		return resp, err // when localhost is slow, crane asks it without TLS as well, and drops the slower one of both
	}
	challenge := req.Header.Get("Authorization") == "" && resp != nil && resp.StatusCode == http.StatusUnauthorized
	switch {
	case err != nil:
		s.failed("%s %s: %v", req.Method, req.URL.Redacted(), err)
	case resp.StatusCode != http.StatusOK && !challenge:
		s.failed("%s %s: %s, %s", req.Method, req.URL.Path, resp.Status, resp.Header.Get("WWW-Authenticate"))
	}
	return resp, err
}

// pullAgainAndAgain pulls an image with all its layers, each time with a token of its own, as crane does.
func (r *rolloutClient) pullAgainAndAgain(t *testing.T, from *rolledRegistry) {
	s := r.session(t, r.token(t, namespace))
	ref, err := name.NewTag(from.host() + "/" + image + ":" + tag)
	if err != nil {
		r.failed("%v", err)
		return
	}
	transport := strict{r, s.roundTripper(t)}
	for ; !r.stopped(); r.turns.Add(1) {
		image, err := remote.Image(ref, remote.WithAuth(basicAuth(s)), remote.WithTransport(transport))
		if err == nil {
			err = validate.Image(image)
		}
		if err != nil {
			r.failed("pull: %v", err)
		}
	}
}

// holdTokens keeps a token of each key and uses them in turn, all the while: a token is good until it ends, whatever key
// signs by now. It asks with one ServiceAccount token, for which Pullpass gives the same answer for a while.
func (r *rolloutClient) holdTokens(t *testing.T, from *rolledRegistry) {
	client := &http.Client{Transport: strict{r, r.session(t, "").roundTripper(t)}, Timeout: 30 * time.Second}
	password := r.token(t, namespace)
	tokens, round := map[string]string{}, r.rounds.Load() // by key
	for ; !r.stopped(); r.turns.Add(1) {
		if now := r.rounds.Load(); now != round {
			clear(tokens)
			round = now
		}
		token, err := askRealm(client, r.realm(), password)
		if err != nil {
			r.failed("token: %v", err)
			continue
		}
		key := tokenKey(token)
		tokens[key] = token
		keys := slices.Sorted(maps.Keys(tokens))
		for _, key := range []string{key, keys[int(r.turns.Load())%len(keys)]} {
			req, err := http.NewRequest(http.MethodHead, "https://"+from.host()+"/v2/"+image+"/manifests/"+tag, nil)
			if err != nil {
				r.failed("%v", err)
				return
			}
			req.Header.Set("Authorization", "Bearer "+tokens[key])
			if resp, err := client.Do(req); err == nil { // strict reports what is not good
				_ = resp.Body.Close()
			}
		}
	}
}

// askRealm asks for a token for the image.
func askRealm(client *http.Client, realm, password string) (string, error) {
	query := url.Values{"service": {service}, "scope": {"repository:" + image + ":pull"}}
	req, err := http.NewRequest(http.MethodGet, realm+"?"+query.Encode(), nil)
	if err != nil {
		return "", err
	}
	req.SetBasicAuth("serviceaccount", password)
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", err
	}
	var body pullpass.Body
	if err := json.Unmarshal(content, &body); err != nil || body.Token == "" {
		return "", fmt.Errorf("%s: %s", resp.Status, content)
	}
	return body.Token, nil
}
