package e2e

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/issuer"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/relay"
	"github.com/pullpass/pullpass/e2e/secrets"
	"github.com/pullpass/pullpass/e2e/upstream"
)

const gatewayService = "gateway.example.com"

// gatewayPolicy: everything in the own namespace at every upstream, pull in shared.
const gatewayPolicy = `apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- name: own-namespace
  services: [gateway.example.com]
  subjects: [{namespaces: ["*"]}]
  allow: [{repositories: ["*/{namespace}/**"], actions: ["*"]}]
- name: shared
  services: [gateway.example.com]
  subjects: [{namespaces: ["*"]}]
  allow: [{repositories: ["*/shared/**"], actions: [pull]}]
`

// The names of the upstreams. The last one is the registry of the second, for clients that may only pull.
const (
	usersUpstream    = "users.example"
	tokenUpstream    = "token.example"
	readOnlyUpstream = "readonly.example"
)

// gatewayWorld is a Pullpass with a gateway before two registries that know nothing of it.
type gatewayWorld struct {
	world
	upstreams map[string]*upstream.Upstream
	// front passes requests on to the gateway, as a load balancer does, and keeps what clients see.
	front *relay.Recorder

	passwords []string     // of clients
	heard     bytes.Buffer // what programs printed
}

func startGateway(t *testing.T) *gatewayWorld {
	t.Helper()
	w := &gatewayWorld{world: world{ca: certs.NewCA(t, "registry-ca")}}
	w.issuer = issuer.Start(t, w.ca)
	w.upstreams = map[string]*upstream.Upstream{
		usersUpstream: upstream.StartBasic(t, w.ca, programs.DockerRegistry(t)),
		tokenUpstream: upstream.StartToken(t, w.ca, programs.Distribution(t)),
	}
	w.upstreams[readOnlyUpstream] = w.upstreams[tokenUpstream]
	every := []string{"pull", "push", "delete"}
	w.proxy = pullpass.Start(t, w.ca, pullpass.Config{
		Clusters: []pullpass.Cluster{{
			Name: "e2e", Issuer: w.issuer.URL, Audiences: []string{audience}, Discovery: pullpass.Discovery{CAFile: w.ca.File},
		}},
		Policy:  gatewayPolicy,
		Service: gatewayService,
		Upstreams: []pullpass.Upstream{
			w.upstreams[usersUpstream].Setting(usersUpstream, every...),
			w.upstreams[tokenUpstream].Setting(tokenUpstream, every...),
			w.upstreams[tokenUpstream].Setting(readOnlyUpstream),
		},
		State: pullpass.State{Replay: "enforce"},
	})
	w.front = relay.Record(t, w.ca, w.proxy.GatewayURL)
	return w
}

// TestGatewayClients lets real clients use registries that know nothing of Pullpass, through the gateway, with ServiceAccount tokens as
// passwords.
func TestGatewayClients(t *testing.T) {
	w := startGateway(t)
	seen := results{operations: []string{"login", "push", "pull", "digest", "mount", "tags", "attach", "delete"}}
	clients := gatewayClients(t)
	for i, at := range []string{usersUpstream, tokenUpstream} {
		w.publish(t, at)
		t.Run(at, func(t *testing.T) {
			for j, c := range clients {
				t.Run(c.name, func(t *testing.T) {
					// Each client comes directly once, by TLS and HTTP of Pullpass's, and once where it can be seen what it is told.
					host := strings.TrimPrefix(w.proxy.GatewayURL, "https://")
					if (i+j)%2 == 1 {
						host = w.front.Host
					}
					w.use(t, c, host, at, seen.row(at, c.name))
				})
			}
		})
	}
	t.Run("what upstreams see", w.checkUpstreams)
	t.Run("what clients see", w.checkClients)
	t.Log("\n" + seen.table())
}

// publish pushes a public image, and one of another team.
func (w *gatewayWorld) publish(t *testing.T, at string) {
	t.Helper()
	for _, repository := range []string{"shared/base", "team-b/app"} {
		owner, _, _ := strings.Cut(repository, "/")
		s := newSession(t, w.front.Host, w.ca, w.token(t, owner))
		if err := ggcrPush(t, s, basicAuth(s), at+"/"+repository, newImage(t)); err != nil {
			t.Fatalf("push %s: %v", repository, err)
		}
	}
}

// use does with one client all that it can do, first what is allowed, then what is not.
func (w *gatewayWorld) use(t *testing.T, c gatewayClient, host, at string, row *row) {
	token := w.token(t, namespace)
	w.passwords = append(w.passwords, token)
	s := newSession(t, host, w.ca, token)
	s.heard = &w.heard
	registry := w.upstreams[at].Registry
	own := namespace + "/" + c.name // as the upstream has it
	named := at + "/" + own
	before := len(w.proxy.Audit(t))

	row.allowed(t, "login", c.login != nil, func() error { return c.login(t, s) })
	row.allowed(t, "push", true, func() error { return c.push(t, s, named) })
	row.allowed(t, "pull", true, func() error { return c.pull(t, s, named) })
	row.allowed(t, "digest", true, func() error {
		digest, err := c.digest(t, s, named)
		if want := registry.Digest(t, own, cmp.Or(c.tag, tag)); err == nil && digest != want {
			err = fmt.Errorf("the client says %s, and the registry has %s", digest, want)
		}
		return err
	})
	row.allowed(t, "mount", c.mount != nil, func() error {
		if err := c.mount(t, s, at+"/shared/base", named+"/copy"); err != nil {
			return err
		}
		if !registry.Mounted("shared/base", own+"/copy") {
			return fmt.Errorf("the registry mounted no blob of shared/base")
		}
		return nil
	})
	row.allowed(t, "tags", c.tags != nil, func() error {
		if err := c.push(t, s, named+"/tags"); err != nil { // a name in which the API's own words stand
			return err
		}
		tags, err := c.tags(t, s, named+"/tags")
		if err == nil && !slices.Equal(tags, []string{tag}) {
			err = fmt.Errorf("tags %q", tags)
		}
		return err
	})
	row.allowed(t, "attach", c.attach != nil, func() error { return c.attach(t, s, named) })
	row.allowed(t, "delete", c.remove != nil, func() error {
		if err := c.remove(t, s, named); err != nil {
			return err
		}
		if digest := registry.Digest(t, own, tag); digest != "" {
			return fmt.Errorf("%s is still there", digest)
		}
		return nil
	})
	w.checkAudit(t, at, named, before)

	foreign := w.issuer.Token(t, "another.audience", namespace, puller)
	w.proxy.NeverLog(foreign)
	row.refused(t, w.proxy, "pull of another team's", c.refusedAccess, func() error { return c.pull(t, s, at+"/team-b/app") })
	row.refused(t, w.proxy, "push to shared", c.refusedAccess, func() error { return c.push(t, s, at+"/shared/base") })
	row.refused(t, w.proxy, "push where only pull is", c.refusedPush, func() error { return c.push(t, s, readOnlyUpstream+"/"+own) })
	for _, e := range w.proxy.Audit(t)[before:] {
		if e.Reason == "request_canceled" {
			continue // who pushes in parallel gives up the other requests when one is refused
		}
		if g := e.Gateway; g != nil && e.Result != "granted" && (e.Result != "refused" || g.UpstreamStatus != 0 || g.TokenID == "") {
			t.Errorf("a refusal ended as %s, or the upstream was asked: %+v %+v", e.Result, e, *g)
		}
	}
	if c.login != nil {
		other := newSession(t, host, w.ca, foreign)
		row.refused(t, w.proxy, "login with a token for others", c.refusedLogin, func() error { return c.login(t, other) })
	}
}

// checkAudit holds what was written about one client's use of a repository, all of which was allowed.
func (w *gatewayWorld) checkAudit(t *testing.T, at, repository string, from int) {
	t.Helper()
	events := w.proxy.Audit(t)
	issued, earlier, done := map[string]bool{}, map[string]bool{}, map[string]int{}
	for i, e := range events {
		if e.Gateway == nil && i >= from {
			issued[e.IssuedID] = true
		} else if e.Gateway == nil && e.IssuedID != "" {
			earlier[e.IssuedID] = true
		}
	}
	for _, e := range events[from:] {
		g := e.Gateway
		if g == nil || earlier[g.TokenID] { // a client that pushes in parallel leaves requests behind when one is refused
			continue
		}
		if e.Service != gatewayService || e.Cluster != "e2e" || e.Namespace != namespace || e.ServiceAccount.Name != puller || e.Pod.Name != "app-1" || !issued[g.TokenID] {
			t.Errorf("the event names no ServiceAccount, or a wrong one: %+v %+v", e, *g)
		}
		if g.Upstream != at || !strings.HasPrefix(g.Repository, at+"/") || g.UpstreamStatus != e.Status {
			t.Errorf("another upstream, or another answer than its own: %+v %+v", e, *g)
		}
		// Clients also ask whether objects exist, and which features a registry has.
		if e.Result != "granted" {
			t.Errorf("what is allowed ended as %s: %+v %+v", e.Result, e, *g)
		}
		if g.Repository == repository {
			done[fmt.Sprintf("%s %s %d", g.Method, g.Kind, e.Status)]++
			if g.Method == http.MethodGet && e.Status == http.StatusOK && g.Sent == 0 || g.Method == http.MethodPut && g.Kind == "manifest" && g.Received == 0 {
				t.Errorf("no bytes are counted: %+v", *g)
			}
		}
	}
	for _, step := range []string{"POST uploads 202", "PUT upload 201", "PUT manifest 201", "GET manifest 200", "GET blob 200"} {
		if done[step] == 0 {
			t.Errorf("no %s of %s in the audit log: %v", step, repository, done)
		}
	}
}

// The gateway sends these headers alone. Its own user agent is among them.
var sentUpstream = []string{"Accept", "Authorization", "Content-Length", "Content-Range", "Content-Type", "Expect", "If-None-Match", "Range", "User-Agent"}

var exactScope = regexp.MustCompile(`^repository:[a-z0-9/-]+:(pull|pull,push|delete)$`)

// checkUpstreams reads all that the registries and the token endpoint were asked.
func (w *gatewayWorld) checkUpstreams(t *testing.T) {
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte(upstream.Username+":"+upstream.Password))
	own := w.clientSecrets()
	for _, at := range []string{usersUpstream, tokenUpstream} {
		u := w.upstreams[at]
		chunks := 0
		for _, e := range u.Recorder.Exchanges() {
			if piece := secrets.Found(e.Requested(), own...); piece != "" {
				t.Errorf("%s got a piece of a client's credential, %q: %s", at, piece, e.Requested())
			}
			for header := range e.Header {
				if !slices.Contains(sentUpstream, header) {
					t.Errorf("%s got the header %s", at, header)
				}
			}
			authorization := e.Header.Get("Authorization")
			token, isToken := strings.CutPrefix(authorization, "Bearer ")
			switch {
			case e.Target == "/v2/" && authorization == "": // how it wants to be asked
			case u.Tokens == nil && authorization == basic:
			case u.Tokens != nil && isToken && slices.Contains(u.Tokens.Issued(), token):
			default:
				t.Errorf("%s got another credential than its own: %s %s", at, e.Method, e.Target)
			}
			if !strings.HasPrefix(e.Header.Get("User-Agent"), "pullpass/") || strings.Contains(e.Target, at) {
				t.Errorf("%s got what is the gateway's business: %s", at, e.Requested())
			}
			if e.Method == http.MethodPatch && strings.HasPrefix(e.Target, "/v2/"+namespace+"/regctl/") && e.Header.Get("Content-Range") == "512-1023" {
				chunks++
			}
		}
		if chunks < 2 {
			t.Errorf("%s got no layers in pieces: %d", at, chunks)
		}
	}
	tokens := w.upstreams[tokenUpstream].Tokens
	for _, asked := range tokens.Asked() {
		scopes := strings.Fields(asked)
		// With no scope at all, the gateway finds out whether the password is good.
		if len(scopes) > 2 || len(scopes) == 2 && scopes[1] != "repository:shared/base:pull" ||
			slices.ContainsFunc(scopes, func(scope string) bool { return !exactScope.MatchString(scope) }) {
			t.Errorf("the token endpoint was asked for %q", asked)
		}
	}
	if n := tokens.Refused(); n > 0 {
		t.Errorf("the token endpoint refused %d requests", n)
	}
}

// checkClients reads all responses to clients, and all their output.
func (w *gatewayWorld) checkClients(t *testing.T) {
	own := []string{upstream.Username + ":" + upstream.Password, upstream.Password}
	var addresses []string
	for _, u := range w.upstreams {
		addresses = append(addresses, u.Registry.Host, u.Recorder.Host)
		if u.Tokens != nil {
			addresses = append(addresses, u.Tokens.URL)
			for _, token := range u.Tokens.Issued() {
				w.proxy.NeverLog(token)
				own = append(own, signature(token))
			}
		}
	}
	w.proxy.NeverLog(upstream.Password)
	said := [][]byte{w.heard.Bytes()}
	for _, e := range w.front.Exchanges() {
		said = append(said, e.Answered())
		if challenge := e.AnswerHeader.Get("WWW-Authenticate"); challenge != "" && !strings.HasPrefix(challenge, fmt.Sprintf(`Bearer realm="%s/token",service="%s"`, w.proxy.GatewayURL, gatewayService)) {
			t.Errorf("a client got another's challenge: %s", challenge)
		}
		if len(e.AnswerHeader.Values("Set-Cookie")) > 0 {
			t.Errorf("a client got a cookie: %s", e.Answered())
		}
		if location := e.AnswerHeader.Get("Location"); location != "" && !strings.HasPrefix(location, "/v2/") {
			t.Errorf("a client was sent to %s", location)
		}
	}
	if len(said) < 100 || w.heard.Len() == 0 {
		t.Fatalf("only %d responses were seen, and %d bytes of programs' output", len(said), w.heard.Len())
	}
	for _, text := range said {
		if piece := secrets.Found(text, own...); piece != "" {
			t.Errorf("a client got a piece of an upstream's credential, %q: %s", piece, text)
		}
		for _, address := range addresses {
			if bytes.Contains(text, []byte(address)) {
				t.Errorf("a client got an upstream's address: %s", text)
			}
		}
	}
}

// clientSecrets are the secrets that only a client and Pullpass may have: of each token, its unique part.
func (w *gatewayWorld) clientSecrets() []string {
	var all []string
	for _, password := range w.passwords {
		all = append(all, signature(password))
	}
	for _, e := range w.front.Exchanges() {
		if token, ok := strings.CutPrefix(e.Header.Get("Authorization"), "Bearer "); ok && !slices.Contains(all, signature(token)) {
			all = append(all, signature(token))
		}
	}
	return all
}

func signature(token string) string { return token[strings.LastIndex(token, ".")+1:] }
