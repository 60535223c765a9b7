package nodetest

import (
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/node"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/secrets"
	"github.com/pullpass/pullpass/e2e/testenv"
	"github.com/pullpass/pullpass/e2e/upstream"
)

// client is one who reaches the gateway by its name.
func (s *gatewaySite) client(from pullpass.From) *http.Client {
	config := &tls.Config{RootCAs: s.ca.Pool()}
	if from.Certificate != nil {
		config.Certificates = []tls.Certificate{*from.Certificate}
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}, Timeout: 30 * time.Second}
}

// exchange asks for a token for the gateway, at the gateway's own token endpoint.
func (s *gatewaySite) exchange(t *testing.T, from pullpass.From, token, scope string) (status int, body pullpass.Body) {
	t.Helper()
	query := url.Values{"service": {gatewayName}, "scope": {scope}}
	req := testenv.Value(http.NewRequestWithContext(t.Context(), http.MethodGet, s.proxy.GatewayURL+"/token?"+query.Encode(), nil))(t)
	req.SetBasicAuth("serviceaccount", token)
	resp := testenv.Value(s.client(from).Do(req))(t)
	defer resp.Body.Close()
	testenv.Must(t, json.NewDecoder(resp.Body).Decode(&body))
	s.proxy.NeverLog(body.Token)
	return resp.StatusCode, body
}

// get asks the gateway with a token of it, which is enough: the node proved itself when it was issued.
func (s *gatewaySite) get(t *testing.T, path, token string) (status int, body string) {
	t.Helper()
	req := testenv.Value(http.NewRequestWithContext(t.Context(), http.MethodGet, s.proxy.GatewayURL+path, nil))(t)
	req.Header.Set("Authorization", "Bearer "+token)
	resp := testenv.Value(s.client(pullpass.From{}).Do(req))(t)
	defer resp.Body.Close()
	content := testenv.Value(io.ReadAll(resp.Body))(t)
	return resp.StatusCode, string(content)
}

// sentUpstream are the headers that the gateway sends of a pull, and nothing else.
var sentUpstream = []string{"Accept", "Authorization", "Range", "User-Agent"}

var pulledTarget = regexp.MustCompile(`^/v2/(|(acme|library)/[a-z]+/(manifests|blobs)/(v1|sha256:[0-9a-f]{64}))$`)

// checkLeft looks for the credentials of pods at each server that could have received one: the names of images, the registries,
// and the host with the blobs.
func (s *gatewaySite) checkLeft(t *testing.T, nodes []*node.Node) {
	var tokens []string // what no two have in common: the signature, and the pod
	for _, n := range nodes {
		for pod, token := range given(t, n) {
			s.proxy.NeverLog(token)
			tokens = append(tokens, token[strings.LastIndexByte(token, '.')+1:], pod)
		}
	}
	if len(tokens) < 2*2*8 {
		t.Fatalf("the kubelets gave only %d tokens", len(tokens)/2)
	}
	s.checkTrap(t, nodes)
	requests := s.checkRecorded(t, tokens)
	blobs := s.checkStorage(t, tokens)
	s.table.add(9, "all", "pieces of pods' tokens that left the nodes", fmt.Sprintf("none of %d tokens, in %d requests of the gateway and %d for blobs elsewhere", len(tokens)/2, requests, blobs), 0)
	s.checkEvents(t)
}

// checkTrap has containerd ask an original name in the end, so that it is sure that the trap would have caught others.
func (s *gatewaySite) checkTrap(t *testing.T, nodes []*node.Node) {
	t.Helper()
	if caught := s.trap.caught(); len(caught) > 0 {
		t.Errorf("original names were asked: %v", caught)
	}
	for i, n := range nodes {
		w := &work{site: s.site, node: n, order: 8, namespace: "acme-elsewhere-" + n.Name(), since: time.Now()}
		w.account(t, "puller", nil)
		w.start(t, pod{name: "web", image: unmirrored + "/acme/app:v1"})
		before := s.trap.caught()[unmirrored]
		testenv.Await(t, podLimit, "an image whose name leads to the trap", func() bool { return s.trap.caught()[unmirrored] > before })
		w.saw("an image that is not configured: its name is asked", "%d", i+1)
	}
}

// checkRecorded reads all that the gateway asked the registries, and counts it.
func (s *gatewaySite) checkRecorded(t *testing.T, tokens []string) (requests int) {
	t.Helper()
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte(upstream.Username+":"+upstream.Password))
	for _, at := range []string{usersRegistry, tokenRegistry, redirectRegistry, hubRegistry} { // those that were down are the first one
		u := s.upstreams[at]
		exchanges := u.Recorder.Exchanges()
		if len(exchanges) < 2*3 {
			t.Errorf("%s was asked only %d times", at, len(exchanges))
		}
		requests += len(exchanges)
		for _, e := range exchanges {
			if piece := secrets.Found(e.Requested(), tokens...); piece != "" {
				t.Errorf("%s got a piece of a pod's token, %q: %s", at, piece, e.Requested())
			}
			for header := range e.Header {
				if !slices.Contains(sentUpstream, header) {
					t.Errorf("%s got the header %s", at, header)
				}
			}
			if !pulledTarget.MatchString(e.Target) || len(e.Body) > 0 || !strings.HasPrefix(e.Header.Get("User-Agent"), "pullpass/") {
				t.Errorf("%s got what is the gateway's business: %s", at, e.Requested())
			}
			// No token for the gateway, either.
			authorization := e.Header.Get("Authorization")
			token, isToken := strings.CutPrefix(authorization, "Bearer ")
			switch {
			case e.Target == "/v2/" && authorization == "": // how it wants to be asked
			case u.Tokens == nil && authorization == basic:
			case u.Tokens != nil && isToken && slices.Contains(u.Tokens.Issued(), token):
			default:
				t.Errorf("%s got another credential than its own: %s %s", at, e.Method, e.Target)
			}
		}
	}
	asked := s.upstreams[tokenRegistry].Tokens
	for _, scopes := range asked.Asked() {
		if scopes != "" && scopes != "repository:acme/app:pull" && scopes != "repository:acme/app:push,pull" { // the last is its owner's
			t.Errorf("the token endpoint was asked for %q", scopes)
		}
	}
	if n := asked.Refused(); n > 0 {
		t.Errorf("the token endpoint refused %d requests", n)
	}
	return requests
}

// checkStorage reads what the nodes asked the other host: they fetch from it themselves, and send it no credential.
func (s *gatewaySite) checkStorage(t *testing.T, tokens []string) (requests int) {
	t.Helper()
	asked, dumps := s.storage.asked()
	if len(asked) < 2*2 {
		t.Errorf("the storage was asked only %d times", len(asked))
	}
	for i, r := range asked {
		if !strings.HasPrefix(r.UserAgent(), "containerd/") || r.Method != http.MethodGet || r.URL.RawQuery != "" {
			t.Errorf("who asked the storage is not a node: %s", dumps[i])
		}
		if r.Header.Get("Authorization") != "" || secrets.Found(dumps[i], tokens...) != "" {
			t.Errorf("the storage got a credential: %s", dumps[i])
		}
	}
	return len(asked)
}

// checkEvents holds that Pullpass wrote nothing on pods that pulled, and nowhere of the name without the registry, which containerd
// asks for, too. It comes last: events are not sent at once.
func (s *gatewaySite) checkEvents(t *testing.T) {
	t.Helper()
	bare := regexp.MustCompile(`repository:(acme|library)/`)
	items, _ := s.Get(t, "/api/v1/events")["items"].([]any)
	denied := 0
	for _, item := range items {
		e := cluster.Object(item.(map[string]any))
		if e.Text("source", "component") != "pullpass" {
			continue
		}
		denied++
		namespace := e.Text("involvedObject", "namespace")
		if strings.HasPrefix(namespace, "acme-web-") || strings.HasPrefix(namespace, "acme-left-") && e.Text("involvedObject", "name") == "other" {
			t.Errorf("Pullpass wrote on a pod that pulled: %s", e.Text("message"))
		}
		if bare.MatchString(e.Text("message")) {
			t.Errorf("Pullpass wrote about a scope without a request: %s", e.Text("message"))
		}
	}
	if denied == 0 {
		t.Error("Pullpass wrote no event at all")
	}
	for _, e := range s.proxy.Audit(t) {
		if e.Result == "partial" {
			t.Errorf("partial: %+v", e)
		}
	}
}
