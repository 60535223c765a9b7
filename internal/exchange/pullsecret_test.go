package exchange_test

import (
	"context"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
	"github.com/pullpass/pullpass/internal/oidc"
)

const pullAudience = "pull-secrets"

// inSecret makes the claims those of a token in a Secret.
func inSecret(c map[string]any) {
	c["aud"] = []string{pullAudience}
	k := c["kubernetes.io"].(map[string]any)
	delete(k, "pod")
	delete(k, "node")
	k["secret"] = map[string]any{"name": "pull", "uid": "uid-pull"}
}

// reviewing records the tokens that it was asked about.
type reviewing struct {
	facts exchange.Facts
	err   error
	token string
}

func (r *reviewing) Lookup(_ context.Context, _ oidc.Identity, credential oidc.Credential) (exchange.Facts, error) {
	r.token = credential.Reveal()
	return r.facts, r.err
}

// Such a token cannot meet requirements for nodes and callers. It gets no more than a pull,
// whatever the rules allow.
func TestTokenOfAPullSecret(t *testing.T) {
	t.Parallel()
	asked := &reviewing{facts: exchange.Facts{Confirmed: true, Annotations: map[string]string{"pullpass.dev/repositories": "team-a/web:pull,push"}}}
	taken := ownersFunc(someoneElse)
	r := newRig(t, func(c *rigConfig) {
		c.objects, c.replay, c.owners = asked, exchange.ReplayEnforce, taken
		c.nodes = map[string]exchange.NodeChecks{"prod": {Required: true, Proof: nodeproof.Config{Mode: nodeproof.Enforce, Methods: []nodeproof.Method{nodeproof.Address}}}}
	})
	token := r.token(t, inSecret)
	a := r.do(t, post(token, "repository:team-a/web:pull,push"))
	if a.status != http.StatusOK || len(a.access) != 1 || !reflect.DeepEqual(a.access[0].Actions, []string{"pull"}) {
		t.Errorf("status %d, access %v; want a pull", a.status, a.access)
	}
	if asked.token != token {
		t.Error("another token was looked into")
	}
	e := r.lastEvent(t, 1)
	if want := (&exchange.Object{Name: "pull", UID: "uid-pull"}); !reflect.DeepEqual(e.PullSecret, want) {
		t.Errorf("the event has the Secret %+v", e.PullSecret)
	}
	if e.Proof != nil || e.Replay != nil || e.Pod != nil || e.Node != nil {
		t.Errorf("event %+v", e)
	}
	if e.Result != exchange.ResultPartial || len(e.Scopes) != 1 || e.Scopes[0].Reason != "the token is that of a pull secret, which only pulls" {
		t.Errorf("result %s, scopes %+v", e.Result, e.Scopes)
	}
	// The same token of a pod requires its node.
	if a := r.do(t, post(r.token(t, nil), pullWeb)); a.status != http.StatusForbidden || r.lastEvent(t, 2).Reason != "caller_not_node" {
		t.Errorf("a pod: status %d, reason %s", a.status, r.lastEvent(t, 2).Reason)
	}
}

// No caller is admitted because an API server was not, or could not be, asked.
func TestTokenOfAPullSecretThatNobodyConfirms(t *testing.T) {
	t.Parallel()
	gone := &exchange.GoneError{Kind: exchange.KindSecret, Name: "team-a/pull", UID: "uid-pull"}
	for name, test := range map[string]struct {
		objects exchange.Objects
		status  int
		reason  string
		message string
	}{
		"no objects":    {nil, http.StatusServiceUnavailable, "kubernetes_unavailable", "no API server says"},
		"not confirmed": {&reviewing{}, http.StatusServiceUnavailable, "kubernetes_unavailable", "no API server says"},
		"down":          {&reviewing{err: context.DeadlineExceeded}, http.StatusServiceUnavailable, "kubernetes_unavailable", "deadline"},
		"gone":          {&reviewing{err: gone}, http.StatusForbidden, "secret_gone", "the Secret team-a/pull (UID uid-pull)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, func(c *rigConfig) { c.objects = test.objects })
			a := r.do(t, post(r.token(t, inSecret), pullWeb))
			e := r.lastEvent(t, 1)
			if a.status != test.status || e.Reason != test.reason || !strings.Contains(e.Message, test.message) || e.PullSecret == nil {
				t.Errorf("status %d, reason %s (%s)", a.status, e.Reason, e.Message)
			}
		})
	}
}

func TestTokenOfAPullSecretIsRevoked(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *rigConfig) {
		c.objects = &reviewing{facts: exchange.Facts{Confirmed: true}}
		c.revocations = revocations{revocation: &exchange.Revocation{Target: "serviceAccount prod/team-a/web", Reason: "leaked"}}
	})
	if a := r.do(t, post(r.token(t, inSecret), pullWeb)); a.status != http.StatusForbidden || r.lastEvent(t, 1).Reason != "revoked" {
		t.Errorf("status %d, reason %s", a.status, r.lastEvent(t, 1).Reason)
	}
}

// It can only pull, with any policy, service and form of the request.
func TestTokenOfAPullSecretOnlyPulls(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *rigConfig) {
		c.objects = &reviewing{facts: exchange.Facts{Confirmed: true}}
		c.policy = `
apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- name: everything
  subjects: [{namespaces: ["team-*"]}]
  allow: [{repositories: ["**"], actions: ["*"]}, {registry: [catalog], actions: ["*"]}]
`
	})
	token := r.token(t, inSecret)
	pod := r.token(t, nil)
	for _, service := range []string{testService, otherService} {
		for scope, want := range map[string]string{
			"repository:team-a/web:pull,push,delete": "pull", "repository:team-b/x:push": "", "repository:team-b/x:delete": "", "repository:team-b/x:*": "pull", "registry:catalog:*": "",
		} {
			got := func(token string) (actions []string) {
				for _, access := range r.do(t, with(get(token, scope), "service", service)).access {
					actions = append(actions, access.Actions...)
				}
				return actions
			}
			if actions := strings.Join(got(token), ","); actions != want {
				t.Errorf("%s at %s: granted %q, want %q", scope, service, actions, want)
			}
			if len(got(pod)) == 0 {
				t.Errorf("%s at %s: a pod is granted nothing, so this shows nothing", scope, service)
			}
		}
	}
	if a := r.do(t, exchanged(token, "repository:team-a/web:push")); a.status != http.StatusForbidden {
		t.Errorf("a push credential for it: status %d", a.status)
	}
}
