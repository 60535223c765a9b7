package reach

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/oidc/identity"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/action"
	"github.com/pullpass/pullpass/internal/policy/condition"
	"github.com/pullpass/pullpass/internal/policy/pattern"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

var randomPolicies = flag.Int("random-policies", 200, "how many random policies are judged by each test that makes some")

// world makes policies, subjects and repositories of few names, so that many match.
type world struct{ *rand.Rand }

func (w world) one(list ...string) string { return list[w.IntN(len(list))] }

func (w world) some(list ...string) []string {
	chosen := []string{w.one(list...)}
	for w.IntN(3) == 0 {
		chosen = append(chosen, w.one(list...))
	}
	return chosen
}

func (w world) maybe(into map[string]any, field string, list ...string) {
	if w.IntN(2) == 0 {
		into[field] = w.some(list...)
	}
}

var conditions = []string{`kubernetes.namespace == "a"`, `service == "s1"`, `claims.sub.startsWith("system:")`, `claims.ref == "main"`}

// subject returns a subject of a rule; with denies, of a denial. external: only for identities.
func (w world) subject(denies, external bool) map[string]any {
	for {
		s := map[string]any{}
		if denies {
			w.maybe(s, "tokenIDs", "t1", "t2")
		}
		if external {
			s["identities"] = w.some("github", "gitlab")
			if w.IntN(2) == 0 {
				s["claims"] = map[string]any{w.one("ref", "event_name"): w.some("main", "dev", "push")}
			}
		} else {
			w.maybe(s, "clusters", "prod", "dev", "*", "p*")
			w.maybe(s, "namespaces", "a", "b", "a*", "*")
			w.maybe(s, "serviceAccounts", "a", "b", "*b")
			if w.IntN(4) == 0 {
				s["nodes"] = w.some("n1", "n2", "*")
			}
			if w.IntN(4) == 0 {
				s["namespaceSelector"] = w.one("tier=gold", "tier", "!tier")
			}
		}
		if w.IntN(6) == 0 {
			s["condition"] = w.one(conditions...)
		}
		if len(s) > 0 {
			return s
		}
	}
}

func (w world) repositories(names ...string) []string {
	var all []string
	for range 1 + w.IntN(2) {
		components := w.some(append([]string{"a", "b", "*", "**", "a*", "ab"}, names...)...)
		all = append(all, strings.Join(components, "/"))
	}
	return all
}

func (w world) policy(t *testing.T) *policy.Policy {
	t.Helper()
	return parse(t, w.document())
}

func (w world) document() map[string]any {
	document := map[string]any{"apiVersion": policy.APIVersion, "kind": policy.Kind}
	var rules, deny []any
	for i := range 1 + w.IntN(5) {
		r := map[string]any{"name": fmt.Sprintf("r%d", i)}
		placeholders := []string{"{namespace}", "{serviceAccount}", "{namespace}-{serviceAccount}", "{cluster}"}
		switch w.IntN(6) {
		case 0:
			r["anonymous"], placeholders = true, nil
		case 1:
			r["subjects"], placeholders = []any{w.subject(false, true)}, nil
		default:
			r["subjects"] = []any{w.subject(false, false)}
			if w.IntN(3) == 0 {
				r["subjects"] = append(r["subjects"].([]any), w.subject(false, false))
			}
			switch w.IntN(6) {
			case 0, 1:
				r["annotation"] = w.one("x.dev/one", "x.dev/two")
			case 2, 3:
				r["requests"] = true
			}
		}
		w.maybe(r, "services", "s1", "s2")
		var allow []any
		for range 1 + w.IntN(2) {
			if r["annotation"] == nil && r["requests"] == nil && w.IntN(8) == 0 {
				allow = append(allow, map[string]any{"registry": []string{"catalog"}, "actions": []string{"*"}})
				continue
			}
			allow = append(allow, w.allowance(placeholders...))
		}
		r["allow"] = allow
		rules = append(rules, r)
	}
	for i := range w.IntN(3) {
		deny = append(deny, map[string]any{"name": fmt.Sprintf("d%d", i), "subjects": []any{w.subject(true, w.IntN(4) == 0)}})
	}
	document["rules"], document["deny"] = rules, append([]any{}, deny...)
	return document
}

func (w world) allowance(placeholders ...string) map[string]any {
	return map[string]any{"repositories": w.repositories(placeholders...), "actions": w.some("pull", "push", "delete", "*")}
}

func parse(t testing.TB, document map[string]any) *policy.Policy {
	t.Helper()
	text, err := json.Marshal(document)
	testkit.Must(t, err)
	p, err := policy.Parse(policy.File{Name: "p", Data: text})
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return p
}

// asker returns a subject, with the objects that concern it.
func (w world) asker(clusters []Accounts) policy.Subject {
	s := w.stranger()
	i := slices.IndexFunc(clusters, func(c Accounts) bool {
		return s.Identity != nil && s.Identity.External == nil && c.Cluster == s.Identity.Cluster
	})
	if i < 0 {
		return s
	}
	s.Objects = said(clusters[i].Objects, s.Identity.Kubernetes)
	return s
}

// said returns the objects that concern a ServiceAccount.
func said(all Objects, id oidc.KubernetesIdentity) policy.Objects {
	of := policy.Objects{Policies: all.Policies}
	if all.HasRequests {
		own := slices.DeleteFunc(slices.Clone(all.Requests), func(r *policy.Request) bool { return r.Namespace() != id.Namespace })
		of.Requests = policy.NewRequests(id.ServiceAccount.Name, own)
	}
	return of
}

func (w world) stranger() policy.Subject {
	switch w.IntN(8) {
	case 0:
		return policy.Subject{}
	case 1:
		claims := identity.Claims{}
		for _, name := range []string{"ref", "event_name"} {
			if w.IntN(4) > 0 {
				claims[name] = w.one("main", "dev", "push")
			}
		}
		return policy.Subject{Identity: &oidc.Identity{Subject: "github/x", TokenID: w.one("t1", "t2", "t3"),
			External: &identity.External{Provider: w.one("github", "gitlab"), Profile: identity.Generic, Claims: claims}}}
	}
	s := policy.Subject{Identity: &oidc.Identity{Cluster: w.one("prod", "dev"), Subject: "system:serviceaccount:x", TokenID: w.one("t1", "t2", "t3"), Kubernetes: oidc.KubernetesIdentity{
		Namespace: w.one("a", "b", "ab"), ServiceAccount: oidc.ObjectRef{Name: w.one("a", "b", "ab"), UID: "u"},
	}}}
	if w.IntN(2) == 0 {
		s.Identity.Kubernetes.Node = oidc.ObjectRef{Name: w.one("n1", "n2"), UID: w.one("u", "")}
	}
	if w.IntN(4) > 0 {
		s.NamespaceLabels = map[string]string{}
		if w.IntN(2) == 0 {
			s.NamespaceLabels["tier"] = w.one("gold", "iron")
		}
	}
	for _, key := range []string{"x.dev/one", "x.dev/two"} {
		if w.IntN(3) > 0 {
			if s.Annotations == nil {
				s.Annotations = map[string]string{}
			}
			s.Annotations[key] = w.one("a", "a/**", "**:pull,push", "*/a:*", "b:push ab", "a*/b a", "**/**")
		}
	}
	return s
}

func (w world) repository() string {
	return strings.Join(append(w.some("a", "b", "ab", "prod", "a-b"), w.some("a", "b", "ab")...)[w.IntN(2):], "/")
}

func scope(repository, action string) registryauth.Scope {
	return registryauth.Scope{Type: "repository", Name: repository, Actions: []string{action}}
}

// The answer of who-can, in its documented meaning, agrees with the decision for every subject.
func TestWhoAgreesWithDecide(t *testing.T) {
	t.Parallel()
	w := world{rand.New(rand.NewPCG(7, 8))}
	granted := 0
	for range 2 * *randomPolicies {
		p, clusters := w.policy(t), w.clusters(t)
		for range 4 {
			service, asked := w.one("s1", "s2"), scope(w.repository(), w.one(Actions...))
			who := testkit.Value(FindWho(t.Context(), p, service, asked, clusters))(t)
			for range 12 {
				subject := w.asker(clusters)
				d, want := decide(t, p, subject, service, asked)
				if got := reads(who, subject, asked); got != want {
					text, _ := json.MarshalIndent(who, "", " ")
					t.Fatalf("%+v %+v asks for %s at %s: decided %v, but %s", subject.Identity, subject, asked, service, d, text)
				}
				if want {
					granted++
				}
			}
		}
	}
	if granted < *randomPolicies {
		t.Errorf("only %d were granted", granted)
	}
}

// decide returns the decision, and compares the explanation with it.
func decide(t *testing.T, p *policy.Policy, subject policy.Subject, service string, asked registryauth.Scope) (policy.Decision, bool) {
	t.Helper()
	d := p.Decide(subject, service, []registryauth.Scope{asked})
	explained, trace := p.Explain(subject, service, []registryauth.Scope{asked})
	isGiven := slices.ContainsFunc(trace.Rules, func(r policy.RuleTrace) bool {
		return slices.ContainsFunc(r.Scopes, func(s policy.RuleScope) bool { return s.Granted != nil })
	})
	isGranted := len(d.Scopes[0].Granted) > 0
	if !reflect.DeepEqual(explained, d) || isGiven != isGranted {
		t.Fatalf("%+v asks for %s: decided %+v, explained %+v %+v", subject, asked, d, explained, trace)
	}
	return d, isGranted
}

// reads applies the documented meaning of the answer. It shares only the comparison of values with
// the code.
func reads(who *Who, subject policy.Subject, asked registryauth.Scope) bool {
	for _, d := range who.Deny {
		if isIn(d.Cluster, subject) && slices.ContainsFunc(d.Subjects, func(s Whom) bool { return fits(&s, subject, who.Service, true) }) {
			return false
		}
	}
	for _, r := range who.Rules {
		if r.Anonymous {
			return true
		}
		if !isIn(r.Cluster, subject) {
			continue
		}
		for _, s := range r.Subjects {
			if fits(&s.Whom, subject, who.Service, false) && isNamed(&s, &r, subject.Identity, who.Repository) && (r.Annotation == "" || asks(subject.Annotations[r.Annotation], asked)) &&
				(!r.Requests || isAskedFor(r.Asked, subject.Identity)) {
				return true
			}
		}
	}
	return false
}

// isIn reports whether the subject is a ServiceAccount of the cluster, or no cluster is named.
func isIn(cluster string, subject policy.Subject) bool {
	return cluster == "" || subject.Identity != nil && subject.Identity.External == nil && subject.Identity.Cluster == cluster
}

func isAskedFor(asked []Asked, id *oidc.Identity) bool {
	return slices.ContainsFunc(asked, func(a Asked) bool {
		return strings.HasPrefix(a.Object, id.Kubernetes.Namespace+"/") && slices.Contains(a.ServiceAccounts, id.Kubernetes.ServiceAccount.Name)
	})
}

func isNamed(s *Subject, grant *Grant, id *oidc.Identity, repository string) bool {
	matches := func(p string) bool { return pattern.Pattern(p).Match(repository, id, new(int)) }
	if s.Unlisted {
		return slices.ContainsFunc(grant.Patterns, matches) && (grant.Within == nil || slices.ContainsFunc(grant.Within, matches))
	}
	own := map[string]string{"namespace": id.Kubernetes.Namespace, "serviceAccount": id.Kubernetes.ServiceAccount.Name, "cluster": id.Cluster}
	return s.Names == nil || slices.ContainsFunc(s.Names, func(values pattern.Values) bool {
		for name, value := range values {
			if own[name] != value {
				return false
			}
		}
		return true
	})
}

func asks(annotation string, asked registryauth.Scope) bool {
	items, err := policy.AnnotationItems(annotation)
	return err == nil && slices.ContainsFunc(items, func(a policy.WrittenAllowance) bool {
		return a.Actions.Intersect(action.Of(asked.Actions)) != 0 && a.Repositories[0].Match(asked.Name, nil, new(int))
	})
}

func fits(s *Whom, subject policy.Subject, service string, denies bool) bool {
	id := subject.Identity
	if id == nil {
		return false
	}
	any := func(globs []string, value string) bool {
		return globs == nil || value != "" && slices.ContainsFunc(globs, func(g string) bool { return pattern.MatchName(g, value) })
	}
	if s.Identities != nil {
		if id.External == nil || !slices.Contains(s.Identities, id.External.Provider) {
			return false
		}
	} else if id.External != nil && !isOnlyTokens(s) {
		return false
	}
	if !any(s.Clusters, id.Cluster) || !any(s.Namespaces, id.Kubernetes.Namespace) || !any(s.ServiceAccounts, id.Kubernetes.ServiceAccount.Name) || !any(s.Nodes, id.Kubernetes.Node.Name) {
		return false
	}
	if s.Nodes != nil && !denies && id.Kubernetes.Node.UID == "" || s.TokenIDs != nil && !slices.Contains(s.TokenIDs, id.TokenID) {
		return false
	}
	if s.NamespaceSelector != "" {
		tier, has := subject.NamespaceLabels["tier"]
		holds := map[string]bool{"tier=gold": tier == "gold", "tier": has, "!tier": !has}[s.NamespaceSelector]
		if subject.NamespaceLabels == nil {
			holds = denies
		}
		if !holds {
			return false
		}
	}
	for name, values := range s.Claims {
		value, has := id.External.Claims[name].(string)
		if has && !slices.Contains(values, value) || !has && !denies {
			return false
		}
	}
	if s.Condition == "" {
		return true
	}
	compiled, err := condition.Compile(s.Condition)
	if err != nil {
		return false
	}
	claims := identity.Claims{"iss": id.Issuer, "sub": id.Subject, "jti": id.TokenID}
	if id.External != nil {
		claims = id.External.Claims
	}
	holds, err := compiled.Holds(condition.Variables{Claims: claims, Cluster: id.Cluster, Namespace: id.Kubernetes.Namespace,
		ServiceAccount: id.Kubernetes.ServiceAccount.Name, Node: id.Kubernetes.Node.Name, Labels: subject.NamespaceLabels, Service: service}, new(uint64))
	return err != nil && denies || err == nil && holds
}

// The answer lists exactly the granted repositories.
func TestWhatAgreesWithDecide(t *testing.T) {
	t.Parallel()
	w := world{rand.New(rand.NewPCG(9, 10))}
	granted := 0
	for range 2 * *randomPolicies {
		p, subject := w.policy(t), w.asker(w.clusters(t))
		what := FindWhat(p, "x", subject, []string{"s1", "s2"})
		for range 12 {
			service, asked := w.IntN(2), scope(w.repository(), w.one(Actions...))
			if w.IntN(8) == 0 {
				asked = registryauth.Scope{Type: "registry", Name: "catalog", Actions: []string{"*"}}
			}
			s := what.Services[service]
			d, want := decide(t, p, subject, s.Service, asked)
			got := false
			for _, r := range s.Rules {
				got = got || asked.Type == "registry" && r.Catalog
			}
			got = got || asked.Type == "repository" && s.reaches(asked.Name, asked.Actions[0])
			if got = got && s.DeniedBy == ""; got != want {
				t.Fatalf("%+v %+v asks for %s: decided %+v, but %+v", subject.Identity, subject, asked, d, s)
			}
			if want {
				granted++
			}
		}
	}
	if granted < *randomPolicies {
		t.Errorf("only %d were granted", granted)
	}
}

// reaches applies the documented meaning of the answer.
func (s *Service) reaches(repository, name string) bool {
	matches := func(p string) bool { return pattern.Pattern(p).Match(repository, nil, new(int)) }
	return slices.ContainsFunc(s.Rules, func(r ReachedRule) bool {
		return slices.ContainsFunc(r.Reached, func(r Reached) bool {
			return matches(r.Repositories) && !slices.ContainsFunc(r.Within, func(p string) bool { return !matches(p) }) &&
				action.Of(strings.Split(r.Actions, ", ")).Intersect(action.Of([]string{name})) != 0
		})
	})
}
