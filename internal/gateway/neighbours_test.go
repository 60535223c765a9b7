package gateway_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/gateway"
	"github.com/pullpass/pullpass/internal/gateway/upstream"
	"github.com/pullpass/pullpass/internal/gateway/upstream/logins"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/test/registrytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

var neighbourRequests = flag.Int("neighbour-requests", 4, "requests of another caller beside each answer of a hostile repository")

// hostile is a registry whose owner controls the responses of one repository. All other
// repositories accept only the right credential.
type hostile struct {
	*registrytest.Server
	scheme string // Basic, Bearer; empty: no credential is required
	cloud  *cloud // its logins are accepted; nil: those of registrytest.User
	open   bool   // its token endpoint also gives tokens to anonymous requests

	answer  atomic.Pointer[hostileAnswer]
	reached atomic.Int64 // requests that got the hostile response
}

// hostileAnswer replaces a good response of the registry, or of its token endpoint.
type hostileAnswer struct {
	name  string
	token bool // by the token endpoint
	give  func(s *hostile, w http.ResponseWriter, r *http.Request)
}

func newHostile(t *testing.T, scheme string) *hostile {
	s := &hostile{scheme: scheme}
	s.Server = registrytest.NewServer(t, http.HandlerFunc(s.serve))
	return s
}

const tokenOf = "a-token-for:"

func (s *hostile) serve(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/token" {
		s.serveToken(w, r)
		return
	}
	repository := strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, "/v2/"), "/manifests/v1")
	if a := s.answer.Load(); strings.HasPrefix(repository, "hostile/") && a != nil && !a.token {
		s.reached.Add(1)
		a.give(s, w, r)
		return
	}
	good := true
	switch s.scheme {
	case "Basic":
		user, password, _ := r.BasicAuth()
		good = s.takes(user, password)
	case "Bearer":
		scope := ""
		if repository != "" {
			scope = "repository:" + repository + ":pull"
		}
		good = r.Header.Get("Authorization") == "Bearer "+tokenOf+scope
	}
	if !good {
		s.challenge(w)
		return
	}
	w.Header().Set("Content-Type", registrytest.ManifestType)
	_, _ = io.WriteString(w, "the manifest of "+repository)
}

func (s *hostile) challenge(w http.ResponseWriter) {
	value := s.scheme + ` realm="x"`
	if s.scheme == "Bearer" {
		value = fmt.Sprintf(`Bearer realm="%s/token",service="upstream"`, s.URL)
	}
	w.Header().Set("WWW-Authenticate", value)
	w.WriteHeader(http.StatusUnauthorized)
}

func (s *hostile) takes(user, password string) bool {
	if s.cloud != nil {
		return s.cloud.gave(password)
	}
	return user == registrytest.User && password == registrytest.Password
}

func (s *hostile) serveToken(w http.ResponseWriter, r *http.Request) {
	scope := r.URL.Query().Get("scope")
	if a := s.answer.Load(); strings.HasPrefix(scope, "repository:hostile/") && a != nil && a.token {
		s.reached.Add(1)
		a.give(s, w, r)
		return
	}
	user, password, named := r.BasicAuth()
	if named && !s.takes(user, password) || !named && !s.open {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"token": tokenOf + scope, "expires_in": 300})
}

// cloud issues logins, and counts the requests.
type cloud struct {
	asked atomic.Int64
	given sync.Map
}

func (c *cloud) ask(_ context.Context, caller string) (upstream.Login, error) {
	password := fmt.Sprintf("login-%d-of-%s", c.asked.Add(1), caller)
	c.given.Store(password, true)
	return upstream.Login{Username: "cloud", Password: registryauth.NewSecret(password), Expiry: time.Now().Add(time.Hour)}, nil
}

func (c *cloud) gave(password string) bool {
	_, ok := c.given.Load(password)
	return ok
}

// hostileAnswers returns all hostile responses of one repository.
func hostileAnswers() []hostileAnswer {
	var all []hostileAnswer
	status := func(code int, header ...string) func(*hostile, http.ResponseWriter, *http.Request) {
		return func(_ *hostile, w http.ResponseWriter, _ *http.Request) {
			for i := 0; i < len(header); i += 2 {
				w.Header().Add(header[i], header[i+1])
			}
			w.WriteHeader(code)
			if code >= 200 && code != 204 && code != 304 {
				_, _ = io.WriteString(w, `{"errors": []}`)
			}
		}
	}
	raw := func(text string) func(*hostile, http.ResponseWriter, *http.Request) {
		return func(_ *hostile, w http.ResponseWriter, _ *http.Request) { hangUp(w, text) }
	}
	// until the other side has gone
	slow := func(_ *hostile, _ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	slowly := func(_ *hostile, w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, `{"token"`)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
	endless := func(_ *hostile, w http.ResponseWriter, _ *http.Request) {
		for piece := strings.Repeat(" ", 32<<10); ; {
			if _, err := io.WriteString(w, piece); err != nil {
				return
			}
		}
	}
	endlessHead := func(_ *hostile, w http.ResponseWriter, _ *http.Request) {
		connection, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		defer connection.Close()
		_, err = io.WriteString(connection, "HTTP/1.1 200 OK\r\n")
		for err == nil {
			_, err = io.WriteString(connection, "X: "+strings.Repeat("x", 8<<10)+"\r\n")
		}
	}
	for _, token := range []bool{false, true} {
		for _, code := range []int{200, 201, 202, 204, 206, 300, 301, 302, 304, 307, 308, 399, 400, 402, 403, 404, 405, 406, 407, 408, 409, 410, 411, 413, 416, 418, 421, 425, 426, 428, 429, 431, 451, 499, 500, 501, 502, 503, 504, 507, 511, 520, 599} {
			all = append(all, hostileAnswer{fmt.Sprint(code), token, status(code)})
		}
		for _, code := range []int{429, 503} {
			all = append(all, hostileAnswer{fmt.Sprint(code, ", again in an hour"), token, status(code, "Retry-After", "3600")})
		}
		for name, challenges := range map[string][]string{
			"without a challenge":          nil,
			"empty":                        {""},
			"Negotiate":                    {"Negotiate"},
			"Basic":                        {`Basic realm="x"`},
			"Basic and Negotiate":          {"Negotiate", `Basic realm="x"`},
			"Bearer of nowhere":            {`Bearer realm="https://127.0.0.1:1/token",service="x"`},
			"Bearer without TLS":           {`Bearer realm="http://127.0.0.1:1/token",service="x"`},
			"Bearer without realm":         {`Bearer service="x"`},
			"Bearer that cannot be read":   {`Bearer realm="`},
			"Bearer of a page":             {`Bearer realm="https://registry.invalid/",service="x",error="invalid_token"`},
			"Bearer of another repository": {`Bearer realm="https://localhost:1/token",service="x",scope="repository:neighbour/app:pull",error="insufficient_scope"`},
			"long":                         {"Bearer " + strings.Repeat("x", 9000)},
		} {
			var header []string
			for _, challenge := range challenges {
				header = append(header, "WWW-Authenticate", challenge)
			}
			all = append(all, hostileAnswer{"401 " + name, token, status(401, header...)})
		}
		all = append(all,
			hostileAnswer{"401 of the registry", token, func(s *hostile, w http.ResponseWriter, _ *http.Request) { s.challenge(w) }},
			hostileAnswer{"401 of a token endpoint that refuses all", token, func(s *hostile, w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/v2/hostile/token",service="x"`, s.URL))
				w.WriteHeader(http.StatusUnauthorized)
			}},
			hostileAnswer{"a page", token, status(200, "Content-Type", "text/html")},
			hostileAnswer{"a redirect to nowhere", token, status(307, "Location", "https://127.0.0.1:1/")},
			hostileAnswer{"a token that opens nothing", token, func(_ *hostile, w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, `{"token": "x", "expires_in": 300}`)
			}},
			hostileAnswer{"nothing", token, raw("")},
			hostileAnswer{"rubbish", token, raw("rubbish\r\n\r\n")},
			hostileAnswer{"cut in the head", token, raw("HTTP/1.1 200 OK\r\nContent-")},
			hostileAnswer{"cut in the body", token, raw("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")},
			hostileAnswer{"cut in a chunk", token, raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")},
			hostileAnswer{"an upgrade", token, raw("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n")},
			hostileAnswer{"two answers", token, raw("HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\nHTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")},
			hostileAnswer{"slow", token, slow},
			hostileAnswer{"slow in the body", token, slowly},
			hostileAnswer{"endless", token, endless},
			hostileAnswer{"endless in the head", token, endlessHead},
		)
	}
	return all
}

// For any response of one repository, a different caller's requests for a different repository all
// succeed, during the response and after it. This holds for every kind of upstream.
//
// The kinds of clouds differ in how they issue a login, which their own tests cover. This test only
// covers how an upstream accepts the login, and whether it is the caller's own.
func TestNeighbours(t *testing.T) {
	t.Parallel()
	for _, kind := range []struct {
		name      string
		scheme    string
		anonymous bool
		cloud     bool
		perCaller bool
	}{
		{name: "anonymous", anonymous: true},
		{name: "anonymous, with tokens", scheme: "Bearer", anonymous: true},
		{name: "a user, without a question"},
		{name: "a user, Basic", scheme: "Basic"},
		{name: "a user, with tokens", scheme: "Bearer"},
		{name: "ECR, as the gateway", scheme: "Basic", cloud: true},
		{name: "ECR, as the caller", scheme: "Basic", cloud: true, perCaller: true},
		{name: "Artifact Registry and ACR, as the gateway", scheme: "Bearer", cloud: true},
		{name: "Artifact Registry, ACR, Quay and Artifactory, as the caller", scheme: "Bearer", cloud: true, perCaller: true},
	} {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			registry := newHostile(t, kind.scheme)
			registry.open = kind.anonymous
			if kind.cloud {
				registry.cloud = &cloud{}
			}
			r := newRig(t, upstreamSettings{name: "ghcr.io", to: registry.Server, change: func(c *upstream.Config, _ *gateway.Upstream) {
				switch {
				case kind.anonymous:
					c.Logins = nil
				case kind.cloud:
					c.Logins = logins.New(logins.Config{Upstream: "ghcr.io", Ask: registry.cloud.ask, PerCaller: kind.perCaller})
				}
			}})
			n := newNeighbours(t, r, registry)
			for i, answer := range hostileAnswers() {
				if answer.token && kind.scheme != "Bearer" {
					continue
				}
				n.try(i, answer)
			}
			if status := r.clients["ghcr.io"].Status(); status.Failure != "" || status.Held {
				t.Errorf("what one repository did is said of all: %+v", status)
			}
			if kind.cloud {
				most := int64(1)
				if kind.perCaller {
					most = 2 // callers
				}
				if asked := registry.cloud.asked.Load(); asked > most {
					t.Errorf("a good login was thrown away: the cloud was asked %d times", asked)
				}
			}
		})
	}
}

// neighbours holds two callers of one gateway.
type neighbours struct {
	t        *testing.T
	rig      *rig
	registry *hostile
	client   *http.Client
	token    string // of the good one
}

func newNeighbours(t *testing.T, r *rig, registry *hostile) *neighbours {
	h := testkit.Value(gateway.New(r.config))(t)
	r.Config.Handler = h
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { r.clients["ghcr.io"].Run(ctx) })
	transport := &http.Transport{MaxIdleConnsPerHost: 16}
	t.Cleanup(func() {
		stop()
		running.Wait()
		transport.CloseIdleConnections()
	})
	return &neighbours{t, r, registry, &http.Client{Transport: transport, Timeout: 20 * time.Second}, r.token("neighbour", "repository:ghcr.io/neighbour/app:pull")}
}

func (n *neighbours) get(ctx context.Context, repository, token string) (int, string) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, n.rig.URL+"/v2/ghcr.io/"+repository+"/manifests/v1", nil)
	testkit.Must(n.t, err)
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := n.client.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(response.Body, 64<<10))
	return response.StatusCode, string(body)
}

// try gives one response to some requests of the hostile repository, and then requests the good
// one.
func (n *neighbours) try(i int, answer hostileAnswer) {
	n.t.Helper()
	name := answer.name
	if answer.token {
		name += ", of the token endpoint"
	}
	n.registry.answer.Store(&answer)
	n.registry.reached.Store(0)
	repository := fmt.Sprintf("hostile/%d", i)
	token := n.rig.token("attacker", "repository:ghcr.io/"+repository+":pull")
	ctx, leave := context.WithCancel(n.t.Context())
	var attackers sync.WaitGroup
	var ended atomic.Int64
	for range 2 {
		attackers.Go(func() {
			for range 2 {
				n.get(ctx, repository, token)
			}
			ended.Add(1)
		})
	}
	// The response has no effect before it was given.
	testkit.Eventually(n.t, name+" is given", func() bool { return n.registry.reached.Load() > 0 || ended.Load() == 2 })
	if n.registry.reached.Load() == 0 {
		n.t.Errorf("%s: no client got this response", name)
	}
	var good sync.WaitGroup
	left := atomic.Int64{}
	left.Store(int64(*neighbourRequests))
	for range 4 {
		good.Go(func() {
			for left.Add(-1) >= 0 {
				if status, body := n.get(n.t.Context(), "neighbour/app", n.token); status != http.StatusOK || body != "the manifest of neighbour/app" {
					n.t.Errorf("%s: the neighbour gets %d %s", name, status, body)
					return
				}
			}
		})
	}
	good.Wait()
	leave()
	attackers.Wait()
}
