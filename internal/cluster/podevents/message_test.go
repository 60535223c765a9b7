package podevents

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const messagePolicy = `
apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- name: own-namespace
  subjects: [{namespaces: ["team-*"]}]
  allow: [{repositories: ["{namespace}/**"], actions: [pull]}]
- name: asked-for
  subjects: [{namespaces: ["team-*"]}]
  annotation: pullpass.dev/repositories
  allow: [{repositories: ["{namespace}/**", "base/**"], actions: [pull, push]}]
`

// decided has a policy decide about the requested scopes.
func decided(t *testing.T, annotation string, asked ...string) func(*exchange.Event) {
	t.Helper()
	p := testkit.Value(policy.Parse(policy.File{Name: "policy.yaml", Data: []byte(messagePolicy)}))(t)
	scopes := testkit.Value(registryauth.ParseScopes(asked))(t)
	id := &oidc.Identity{Cluster: "prod", Kubernetes: oidc.KubernetesIdentity{Namespace: "team-b", ServiceAccount: oidc.ObjectRef{Name: "web"}}}
	subject := policy.Subject{Identity: id, Annotations: map[string]string{"pullpass.dev/repositories": annotation}}
	return func(e *exchange.Event) {
		e.Requested, e.Scopes = asked, nil
		for _, s := range p.Decide(subject, e.Service, scopes).Scopes {
			if s.Reason != "" {
				e.Scopes = append(e.Scopes, exchange.ScopeEvent{Scope: s.Requested.String(), Granted: s.Granted, Rules: s.Rules, Reason: s.Reason, Remedy: s.Remedy})
			}
			if len(s.Granted) > 0 {
				e.Result = exchange.ResultPartial
			}
		}
	}
}

func TestMessages(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		event *exchange.Event
		want  []string
	}{
		"no rule": {refusedEvent(decided(t, "base/go", "repository:shared/x:pull")), []string{
			"Pullpass refused repository:shared/x:pull at registry.example.com: no rule for prod/team-b/web allows pull on shared/x; " +
				"rule own-namespace allows pull on team-b/**; rule asked-for lets the annotation pullpass.dev/repositories ask for pull, push on team-b/**, base/**. " +
				"Remedy: an administrator of Pullpass has to allow pull on shared/x to prod/team-b/web; no rule does"}},
		"not asked for": {refusedEvent(decided(t, "base/go", "repository:base/node:pull")), []string{
			"Pullpass refused repository:base/node:pull at registry.example.com: no rule for prod/team-b/web allows pull on base/node; " +
				"rule asked-for would allow it if the annotation pullpass.dev/repositories asked for it; rule own-namespace allows pull on team-b/**. " +
				"Remedy: run in cluster prod: kubectl annotate serviceaccount web -n team-b --overwrite pullpass.dev/repositories='base/go base/node:pull'"}},
		"in part, of several": {refusedEvent(decided(t, "base/go", "repository:base/go:pull", "repository:team-b/x:pull,push", "repository:c:pull")), []string{
			"Pullpass allowed only pull of repository:team-b/x:pull,push at registry.example.com: no rule for prod/team-b/web allows push on team-b/x; " +
				"rule asked-for would allow it if the annotation pullpass.dev/repositories asked for it; rule own-namespace allows only pull there. " +
				"Remedy: run in cluster prod: kubectl annotate serviceaccount web -n team-b --overwrite pullpass.dev/repositories='base/go team-b/x:push'",
			"Pullpass refused repository:c:pull at registry.example.com: no rule for prod/team-b/web allows pull on c; " +
				"rule own-namespace allows pull on team-b/**; rule asked-for lets the annotation pullpass.dev/repositories ask for pull, push on team-b/**, base/**. " +
				"Remedy: an administrator of Pullpass has to allow pull on c to prod/team-b/web; no rule does"}},
		"denied": {refusedEvent(refuse("subject_denied", (&exchange.DeniedError{Rule: "quarantine"}).Error()), func(e *exchange.Event) { e.Rule = "quarantine" }), []string{
			`Pullpass refused repository:shared/x:pull at registry.example.com: refused by the deny rule "quarantine". ` +
				"Remedy: an administrator of Pullpass knows why the deny rule quarantine is there, and can change it"}},
		"a ServiceAccount that is gone": {refusedEvent(gone(exchange.GoneError{Kind: exchange.KindServiceAccount, Name: "team-b/web", UID: "uid-1", Now: "uid-2"})), []string{
			"Pullpass refused repository:shared/x:pull at registry.example.com: the ServiceAccount team-b/web that the token names was deleted (UID uid-1), " +
				"and recreated under the same name (UID uid-2); tokens that are requested now are for the new one. " +
				"Remedy: recreate the ServiceAccount if it is missing; the kubelet gets a new token at its next try, other clients need a new pod"}},
		"another caller": {refusedEvent(refuse("caller_not_node", `the caller is not proven to be the node "worker-1", which the token names: it presented no client certificate`)), []string{
			`Pullpass refused repository:shared/x:pull at registry.example.com: the caller is not proven to be the node "worker-1", which the token names: ` +
				"it presented no client certificate. Remedy: the token was sent from 192.0.2.1; if neither the pod's node nor a NAT of yours has this address, " +
				"another client has the token: delete the pod to end it"}},
		"a node that may not pull": {refusedEvent(refuse("node_not_selected", "only nodes that match this may pull")), []string{
			"Pullpass refused repository:shared/x:pull at registry.example.com: only nodes that match this may pull. Remedy: schedule the pod on a node that matches, or label the node"}},
		"a login": {refusedEvent(refuse("node_not_selected", "no"), func(e *exchange.Event) { e.Requested = nil }), []string{
			"Pullpass refused a login at registry.example.com: no. Remedy: schedule the pod on a node that matches, or label the node"}},
		"several, refused as a whole": {refusedEvent(refuse("node_not_selected", "no"), func(e *exchange.Event) {
			e.Requested = []string{"repository:a:pull", "repository:b:pull"}
			e.Scopes = []exchange.ScopeEvent{{Scope: "repository:a:pull", Reason: "decided before"}}
		}), []string{"Pullpass refused repository:a:pull repository:b:pull at registry.example.com: no. Remedy: schedule the pod on a node that matches, or label the node"}},
		"very many": {refusedEvent(func(e *exchange.Event) {
			e.Scopes = slices.Repeat([]exchange.ScopeEvent{{Scope: "a", Reason: "b"}}, 100)
		}), slices.Repeat([]string{"Pullpass refused a at registry.example.com: b"}, 3)},
	} {
		if got := messages(test.event); !slices.Equal(got, test.want) {
			t.Errorf("%s: got\n%s\nwant\n%s", name, strings.Join(got, "\n"), strings.Join(test.want, "\n"))
		}
	}
}

func gone(err exchange.GoneError) func(*exchange.Event) {
	return refuse(string(err.Reason()), err.Error())
}

// A message is one line within the limit, whatever its content, and its remedy is complete.
func TestMessagesAreBoundedAndPlain(t *testing.T) {
	t.Parallel()
	const remedy = "run in cluster prod: kubectl annotate serviceaccount web"
	whole := remedy + strings.Repeat("x", maxRemedyBytes-len(remedy))
	for _, hostile := range []string{
		strings.Repeat("a", 5000), strings.Repeat("é", 5000), strings.Repeat("\xffa", 5000), "a\nWarning  Forged\r\x1b[2J\u202e\u2028", "\x00",
	} {
		got := message(hostile, hostile, "", hostile, whole)
		switch {
		case len(got) > maxMessageBytes || !utf8.ValidString(got):
			t.Errorf("%d bytes: %q", len(got), got)
		case strings.ContainsAny(got, "\n\r\x1b\x00\u202e\u2028"):
			t.Errorf("not plain: %q", got)
		case !strings.HasSuffix(got, ". Remedy: "+whole):
			t.Errorf("a part of the remedy: %q", got)
		}
		if len(hostile) > 1000 && strings.Count(got, "...") != 3 {
			t.Errorf("cut without a mark: %q", got)
		}
	}
	if got := message("a", "b", "", "c", whole+"x"); got != "Pullpass a at b: c" {
		t.Errorf("a remedy that is too long: %q", got)
	}
	if got := message("a", "b", "", "c", "d\ne"); got != "Pullpass a at b: c. Remedy: d?e" {
		t.Errorf("got %q", got)
	}
}
