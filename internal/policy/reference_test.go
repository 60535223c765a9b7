package policy

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/oidc/identity"
	"github.com/pullpass/pullpass/internal/policy/pattern"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// The reference judges rules as they are written, one after the other, as docs/reference/policy.md
// says it. It has no index, no bound and no cache, and compares names by regular expressions. It
// shares no code with Decide.

type writtenPolicy struct {
	APIVersion string          `json:"apiVersion,omitempty"`
	Kind       string          `json:"kind,omitempty"`
	Rules      []writtenRule   `json:"rules,omitempty"`
	Deny       []writtenDenial `json:"deny,omitempty"`
}

type writtenRule struct {
	Name       string           `json:"name"`
	Subjects   []writtenSubject `json:"subjects,omitempty"`
	Anonymous  bool             `json:"anonymous,omitempty"`
	Services   []string         `json:"services,omitempty"`
	Annotation string           `json:"annotation,omitempty"`
	Requests   bool             `json:"requests,omitempty"`
	Allow      []writtenAllow   `json:"allow"`
}

type writtenAllow struct {
	Repositories []string `json:"repositories,omitempty"`
	Registry     []string `json:"registry,omitempty"`
	Actions      []string `json:"actions"`
}

type writtenDenial struct {
	Name     string           `json:"name"`
	Subjects []writtenSubject `json:"subjects"`
}

type writtenSubject struct {
	Clusters          []string            `json:"clusters,omitempty"`
	Namespaces        []string            `json:"namespaces,omitempty"`
	ServiceAccounts   []string            `json:"serviceAccounts,omitempty"`
	Nodes             []string            `json:"nodes,omitempty"`
	NamespaceSelector string              `json:"namespaceSelector,omitempty"`
	TokenIDs          []string            `json:"tokenIDs,omitempty"`
	Identities        []string            `json:"identities,omitempty"`
	Claims            map[string][]string `json:"claims,omitempty"`
	Condition         string              `json:"condition,omitempty"`
}

// writtenRequest is a RepositoryAccess.
type writtenRequest struct {
	ServiceAccounts []string `json:"serviceAccounts"`
	Repositories    []string `json:"repositories"`
	Actions         []string `json:"actions"`
}

// annotations maps an annotation's text to the requests in it. Nil: the text has a fault.
var annotations = map[string][]writtenAllow{
	"":                        {},
	"a":                       {{Repositories: []string{"a"}, Actions: []string{"pull"}}},
	"a/**:push b:pull,push":   {{Repositories: []string{"a/**"}, Actions: []string{"push"}}, {Repositories: []string{"b"}, Actions: []string{"pull", "push"}}},
	"**:*":                    {{Repositories: []string{"**"}, Actions: []string{"*"}}},
	"*/x:delete\n a-*/**":     {{Repositories: []string{"*/x"}, Actions: []string{"delete"}}, {Repositories: []string{"a-*/**"}, Actions: []string{"pull"}}},
	"h.io:5000/a h.io/**:*":   {{Repositories: []string{"h.io:5000/a"}, Actions: []string{"pull"}}, {Repositories: []string{"h.io/**"}, Actions: []string{"*"}}},
	"**:* a:PULL":             nil,
	"**:* ../a":               nil,
	"**:* {namespace}":        nil,
	"**:* a\u00a0b":           nil,
	"**:* **/a/**":            nil,
	"**:* A/b":                nil,
	strings.Repeat("a ", 257): nil,
}

// conditions maps a text to its meaning. An error is a doubt.
var referenceConditions = map[string]func(Subject, string) (holds, isKnown bool){
	`service == "s1"`: func(_ Subject, service string) (bool, bool) { return service == "s1", true },
	`kubernetes.namespace != "a"`: func(s Subject, _ string) (bool, bool) {
		namespace := s.Identity.Kubernetes.Namespace
		return namespace != "a", namespace != ""
	},
	`kubernetes.labels["l"] == "x"`: func(s Subject, _ string) (bool, bool) {
		value, ok := s.NamespaceLabels["l"]
		return value == "x", ok
	},
	`claims.ref == "main"`: func(s Subject, _ string) (bool, bool) {
		if s.Identity.External == nil {
			return false, false
		}
		value, ok := s.Identity.External.Claims["ref"]
		return value == "main", ok
	},
}

var compiled sync.Map // by its text: expressions repeat

func expression(text string) *regexp.Regexp {
	found, ok := compiled.Load(text)
	if !ok {
		found, _ = compiled.LoadOrStore(text, regexp.MustCompile(text))
	}
	return found.(*regexp.Regexp)
}

// referenceGlob matches a whole text: * is any run of characters.
func referenceGlob(globs []string, value string) bool {
	if globs == nil {
		return true
	}
	return value != "" && slices.ContainsFunc(globs, func(glob string) bool {
		return expression(`^(?s:` + strings.ReplaceAll(regexp.QuoteMeta(glob), `\*`, `.*`) + `)$`).MatchString(value)
	})
}

var pathGrammar = regexp.MustCompile(`^(?:[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*(?::[0-9]+)?/)?[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*$`)

// referencePath matches a repository. Each component of the pattern is one of the name, ** is any
// number of them, and a placeholder is a literal text.
func referencePath(patterns []string, name string, id *oidc.Identity) bool {
	if !pathGrammar.MatchString(name) {
		return false
	}
	return slices.ContainsFunc(patterns, func(p string) bool {
		text := "^"
		for component := range strings.SplitSeq(p, "/") {
			if component == "**" {
				text += `(?:[^/]+/)*`
				continue
			}
			component = strings.ReplaceAll(regexp.QuoteMeta(component), `\*`, `[^/]*`)
			for placeholder, value := range valuesOf(id) {
				placeholder = regexp.QuoteMeta(placeholder)
				if value == "" && strings.Contains(component, placeholder) {
					return false
				}
				component = strings.ReplaceAll(component, placeholder, regexp.QuoteMeta(value))
			}
			text += component + "/"
		}
		return expression(text + "$").MatchString(name + "/")
	})
}

func valuesOf(id *oidc.Identity) map[string]string {
	if id == nil {
		id = &oidc.Identity{}
	}
	return map[string]string{"{namespace}": id.Kubernetes.Namespace, "{serviceAccount}": id.Kubernetes.ServiceAccount.Name, "{cluster}": id.Cluster}
}

// referenceSelector knows the forms that the test writes.
func referenceSelector(selector string, labels map[string]string) bool {
	for one := range strings.SplitSeq(selector, ", ") {
		key, values, isSet := strings.Cut(one, " ")
		value, has := labels[strings.Trim(key, "!")]
		operator, values, _ := strings.Cut(values, " ")
		listed := slices.Contains(strings.Split(strings.Trim(values, "()"), ","), value)
		switch {
		case !isSet && has == strings.HasPrefix(key, "!"),
			operator == "in" && !(has && listed),
			operator == "notin" && has && listed:
			return false
		}
	}
	return true
}

func (w writtenSubject) matches(s Subject, service string, denies bool) bool {
	id := s.Identity
	if id == nil {
		return false
	}
	isJob := id.External != nil
	onlyTokens := w.TokenIDs != nil && w.Clusters == nil && w.Namespaces == nil && w.ServiceAccounts == nil && w.Nodes == nil && w.NamespaceSelector == ""
	if w.Identities != nil && (!isJob || !slices.Contains(w.Identities, id.External.Provider)) || w.Identities == nil && isJob && !onlyTokens {
		return false
	}
	k := id.Kubernetes
	if !referenceGlob(w.Clusters, id.Cluster) || !referenceGlob(w.Namespaces, k.Namespace) || !referenceGlob(w.ServiceAccounts, k.ServiceAccount.Name) || !referenceGlob(w.Nodes, k.Node.Name) {
		return false
	}
	if w.Nodes != nil && k.Node.UID == "" && !denies || w.TokenIDs != nil && !slices.Contains(w.TokenIDs, id.TokenID) {
		return false
	}
	if w.NamespaceSelector != "" {
		if s.NamespaceLabels == nil && !denies || s.NamespaceLabels != nil && !referenceSelector(w.NamespaceSelector, s.NamespaceLabels) {
			return false
		}
	}
	for name, values := range w.Claims {
		texts, isKnown := id.External.Claims[name].([]string)
		if text, isText := id.External.Claims[name].(string); isText {
			texts, isKnown = []string{text}, true
		}
		if !isKnown && !denies || isKnown && !slices.ContainsFunc(texts, func(text string) bool { return slices.Contains(values, text) }) {
			return false
		}
	}
	if w.Condition != "" {
		holds, isKnown := referenceConditions[w.Condition](s, service)
		return isKnown && holds || !isKnown && denies
	}
	return true
}

// referenceCase is a policy with the objects of a cluster.
type referenceCase struct {
	policy   writtenPolicy
	objects  []writtenPolicy
	within   []string
	requests []writtenRequest // of the namespace a
}

// allowed returns the actions that the rules together allow on the resource.
func (c referenceCase) allowed(s Subject, service string, scope registryauth.Scope) map[string]bool {
	all := map[string]bool{}
	isRepository, isCatalog := scope.Type == "repository", scope.Type == "registry" && scope.Name == "catalog"
	allows := func(list []writtenAllow) map[string]bool {
		set := map[string]bool{}
		for _, a := range list {
			if a.Registry != nil && isCatalog || isRepository && referencePath(a.Repositories, scope.Name, s.Identity) {
				for _, action := range a.Actions {
					set[action] = true
				}
			}
		}
		return set
	}
	add := func(r writtenRule, isObject bool) {
		if r.Services != nil && !slices.Contains(r.Services, service) {
			return
		}
		if !r.Anonymous && !slices.ContainsFunc(r.Subjects, func(w writtenSubject) bool { return w.matches(s, service, false) }) {
			return
		}
		set := allows(r.Allow)
		if (isObject || r.Requests) && !(isRepository && referencePath(c.within, scope.Name, s.Identity)) {
			return
		}
		var asked map[string]bool
		switch {
		case r.Annotation != "":
			asked = allows(annotations[s.Annotations[r.Annotation]])
		case r.Requests:
			asked = map[string]bool{}
			for _, q := range c.requests {
				if c.hasObjects(s) && s.Identity.Kubernetes.Namespace == "a" && slices.Contains(q.ServiceAccounts, s.Identity.Kubernetes.ServiceAccount.Name) {
					maps.Copy(asked, allows([]writtenAllow{{Repositories: q.Repositories, Actions: q.Actions}}))
				}
			}
		default:
			maps.Copy(all, set)
			return
		}
		for _, action := range []string{"pull", "push", "delete", "*"} {
			if set[action] && asked[action] || set["*"] && asked[action] || asked["*"] && set[action] {
				all[action] = true
			}
		}
	}
	for _, r := range c.policy.Rules {
		add(r, false)
	}
	if c.hasObjects(s) {
		for _, o := range c.objects {
			for _, r := range o.Rules {
				add(r, true)
			}
		}
	}
	return all
}

func (c referenceCase) hasObjects(s Subject) bool {
	return s.Identity != nil && s.Identity.External == nil && s.Identity.Cluster == "c1"
}

// decide returns the granted actions, sorted, and whether the subject is denied.
func (c referenceCase) decide(s Subject, service string, scope registryauth.Scope) (granted []string, denied bool) {
	denials := c.policy.Deny
	if c.hasObjects(s) {
		for _, o := range c.objects {
			denials = slices.Concat(denials, o.Deny)
		}
	}
	for _, d := range denials {
		if slices.ContainsFunc(d.Subjects, func(w writtenSubject) bool { return w.matches(s, service, true) }) {
			return nil, true
		}
	}
	allowed := c.allowed(s, service, scope)
	for _, action := range scope.Actions {
		if allowed[action] || allowed["*"] {
			granted = append(granted, action)
		}
	}
	if slices.Contains(scope.Actions, "*") && !allowed["*"] { // all that there is
		granted = slices.Sorted(maps.Keys(allowed))
	}
	if s.Identity != nil && s.Identity.Kubernetes.Secret.Name != "" { // it only pulls
		canPull := scope.Type == "repository" && (slices.Contains(granted, "pull") || slices.Contains(granted, "*"))
		if granted = nil; canPull {
			granted = []string{"pull"}
		}
	}
	return granted, false
}

// parse gives the same texts to the product.
func (c referenceCase) parse(t *testing.T) (*Policy, *Policies) {
	t.Helper()
	c.policy.APIVersion, c.policy.Kind = APIVersion, Kind
	text, err := json.Marshal(c.policy)
	testkit.Must(t, err)
	policy, err := Parse(File{Name: "policy.yaml", Data: text})
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	var within []pattern.Pattern
	for _, text := range c.within {
		p := testkit.Value(pattern.Parse(text))(t)
		within = append(within, p)
	}
	var objects []*ObjectPolicy
	for i, o := range c.objects {
		parsed := ParseObject(fmt.Sprint("o", i), asAny(t, o))
		if parsed.Err() != nil {
			t.Fatal(parsed.Err())
		}
		objects = append(objects, parsed)
	}
	return policy, NewPolicies(within, objects...)
}

func asAny(t *testing.T, v any) (decoded any) {
	t.Helper()
	text := testkit.Value(json.Marshal(v))(t)
	testkit.Must(t, json.Unmarshal(text, &decoded))
	return decoded
}

// objectsOf returns the objects that concern the subject.
func (c referenceCase) objectsOf(t *testing.T, policies *Policies, s Subject) Objects {
	t.Helper()
	if !c.hasObjects(s) {
		return Objects{}
	}
	var requests []*Request
	if s.Identity.Kubernetes.Namespace == "a" {
		for i, q := range c.requests {
			requests = append(requests, ParseRequest("a", fmt.Sprint("q", i), asAny(t, q)))
		}
	}
	return Objects{Policies: policies, Requests: NewRequests(s.Identity.Kubernetes.ServiceAccount.Name, requests)}
}

// author writes random policies of few names, so that much matches.
type author struct{ *rand.Rand }

func (a author) one(from ...string) string { return from[a.IntN(len(from))] }

func (a author) some(from ...string) []string {
	list := []string{a.one(from...)}
	for a.IntN(3) == 0 {
		list = append(list, a.one(from...))
	}
	slices.Sort(list)
	return slices.Compact(list)
}

func (a author) subject(denies, isObject bool) (s writtenSubject) {
	if !isObject && a.IntN(4) == 0 {
		s.Identities = a.some("ci", "other")
		if a.IntN(3) > 0 {
			s.Claims = map[string][]string{a.one("ref", "groups", "n", "ok"): a.some("main", "dev", "g1", "7", "true")}
		}
		if a.IntN(4) == 0 {
			s.Condition = a.one(`claims.ref == "main"`, `service == "s1"`)
		}
		return s
	}
	for s.Namespaces == nil && s.Clusters == nil && s.ServiceAccounts == nil && s.Nodes == nil && s.TokenIDs == nil && s.NamespaceSelector == "" && s.Condition == "" {
		if a.IntN(2) == 0 {
			s.Namespaces = a.some("a", "a", "ab", "a*", "*", "*", "*b", "*-*")
		}
		if a.IntN(4) == 0 && !isObject {
			s.Clusters = a.some("c1", "c2", "c*")
		}
		if a.IntN(3) == 0 {
			s.ServiceAccounts = a.some("a", "x", "x.y", "*", "x*")
		}
		if a.IntN(6) == 0 {
			s.Nodes = a.some("n1", "n*", "m")
		}
		if a.IntN(6) == 0 {
			s.NamespaceSelector = a.one("l", "!l", "l in (x)", "l in (x,y)", "l notin (x)", "l, !m", "m in (y), l notin (z)")
		}
		if denies && !isObject && a.IntN(6) == 0 {
			s.TokenIDs = a.some("t1", "t2")
		}
		if a.IntN(10) == 0 {
			s.Condition = a.one(slices.Sorted(maps.Keys(referenceConditions))...)
		}
	}
	return s
}

func (a author) patterns(placeholders bool) (list []string) {
	parts := []string{"a", "b", "ab", "a-b", "x.y", "*", "*", "**", "**", "**", "a*", "*b", "a*b"}
	if placeholders {
		parts = append(parts, "{namespace}", "{namespace}", "{serviceAccount}", "{cluster}", "{namespace}_{serviceAccount}", "{namespace}-*")
	}
	for range 1 + a.IntN(2) {
		text := strings.Join([]string{a.one(parts...), a.one(parts...), a.one(parts...)}[a.IntN(3):], "/")
		if a.IntN(12) == 0 {
			text = a.one("h.io", "h.io:5000", "localhost") + "/" + text
		}
		list = append(list, text)
	}
	return list
}

func (a author) rule(name string, isObject bool) writtenRule {
	r := writtenRule{Name: name}
	isJob := false
	if !isObject && a.IntN(6) == 0 {
		r.Anonymous = true
	} else {
		r.Subjects = []writtenSubject{a.subject(false, isObject)}
		isJob = r.Subjects[0].Identities != nil
		if !isJob && a.IntN(4) == 0 {
			if more := a.subject(false, isObject); more.Identities == nil {
				r.Subjects = append(r.Subjects, more)
			}
		}
	}
	isOfPods := !r.Anonymous && !isJob
	if isOfPods && a.IntN(2) == 0 {
		if r.Requests = a.IntN(2) == 0; !r.Requests && !isObject {
			r.Annotation = a.one("k/1", "k/2")
		}
	}
	if !isObject && a.IntN(4) == 0 {
		r.Services = a.some("s1", "s2")
	}
	for range 1 + a.IntN(2) {
		if !isObject && r.Annotation == "" && !r.Requests && a.IntN(8) == 0 {
			r.Allow = append(r.Allow, writtenAllow{Registry: []string{"catalog"}, Actions: []string{"*"}})
			continue
		}
		r.Allow = append(r.Allow, writtenAllow{Repositories: a.patterns(isOfPods), Actions: a.some("pull", "push", "delete", "pull", "*")})
	}
	return r
}

func (a author) reference() (c referenceCase) {
	for i := range 1 + a.IntN(5) {
		c.policy.Rules = append(c.policy.Rules, a.rule(fmt.Sprint("r", i), false))
	}
	for i := range a.IntN(8) / 5 * a.IntN(3) {
		c.policy.Deny = append(c.policy.Deny, writtenDenial{fmt.Sprint("d", i), []writtenSubject{a.subject(true, false)}})
	}
	for range a.IntN(3) {
		o := writtenPolicy{Rules: []writtenRule{a.rule("r", true)}}
		if a.IntN(10) == 0 {
			o.Deny = []writtenDenial{{"d", []writtenSubject{a.subject(true, true)}}}
		}
		c.objects = append(c.objects, o)
	}
	c.within = a.patterns(true)
	for range 1 + a.IntN(2) {
		var repositories []string
		for _, p := range a.patterns(false) {
			if strings.Count(p, "**") < 2 {
				repositories = append(repositories, p)
			}
		}
		if repositories != nil {
			c.requests = append(c.requests, writtenRequest{a.some("a", "x", "x.y"), repositories, a.some("pull", "push", "*")})
		}
	}
	return c
}

func (a author) asker() Subject {
	switch a.IntN(8) {
	case 0:
		return Subject{}
	case 1, 2:
		claims := identity.Claims{}
		for _, name := range []string{"ref", "groups", "n", "ok"} {
			if a.IntN(3) > 0 {
				claims[name] = map[string]any{"ref": a.one("main", "dev"), "groups": []string{"g1", "g2"}[a.IntN(2):], "n": int64(7), "ok": true}[name]
			}
		}
		return Subject{Identity: &oidc.Identity{Subject: "ci/x", TokenID: a.one("t1", "t3"),
			External: &identity.External{Provider: a.one("ci", "ci", "third"), Profile: identity.Generic, Claims: claims}}}
	}
	id := &oidc.Identity{Cluster: a.one("c1", "c1", "c2"), TokenID: a.one("t1", "t3"), Kubernetes: oidc.KubernetesIdentity{
		Namespace: a.one("a", "a", "a", "ab", "b", "a-b"), ServiceAccount: oidc.ObjectRef{Name: a.one("a", "x", "x.y"), UID: "u"},
	}}
	id.Subject = oidc.ServiceAccountSubject(id.Kubernetes.Namespace, id.Kubernetes.ServiceAccount.Name)
	if a.IntN(2) == 0 {
		id.Kubernetes.Node = oidc.ObjectRef{Name: a.one("n1", "m"), UID: a.one("u", "u", "")}
	}
	if a.IntN(8) == 0 {
		id.Kubernetes.Secret = oidc.ObjectRef{Name: "s", UID: "u"}
	}
	s := Subject{Identity: id, Annotations: map[string]string{}}
	texts := slices.Sorted(maps.Keys(annotations))
	for _, key := range []string{"k/1", "k/2"} {
		if a.IntN(4) > 0 {
			s.Annotations[key] = a.one(texts...)
		}
	}
	if a.IntN(4) > 0 {
		s.NamespaceLabels = map[string]string{}
		for _, key := range []string{"l", "m"} {
			if a.IntN(2) == 0 {
				s.NamespaceLabels[key] = a.one("x", "y", "")
			}
		}
	}
	return s
}

func (a author) scopes() (list []registryauth.Scope) {
	for range 1 + a.IntN(4) {
		parts := []string{"a", "a", "b", "ab", "a-b", "x", "x.y", "c1", "a_x"}
		s := scopeNamed(strings.Join([]string{a.one(parts...), a.one(parts...), a.one(parts...)}[a.IntN(3):], "/"))
		switch a.IntN(12) {
		case 0:
			s.Name = a.one("h.io", "h.io:5000", "localhost", "localhost:5000") + "/" + s.Name
		case 1:
			s = registryauth.Scope{Type: a.one("registry", "registry", "plugin"), Name: a.one("catalog", "catalog", "other")}
		case 2:
			s.Class = "plugin"
		}
		s.Actions = a.some("pull", "push", "pull", "delete", "*", "sign")
		list = append(list, s)
	}
	return list
}

// Decide agrees with the reference for every policy and subject, and with itself: the order of
// rules and scopes never matters, a rule that is removed never adds, an annotation selects from the
// ceiling, and no scope's decision depends on another scope.
func TestDecideAgainstReference(t *testing.T) {
	t.Parallel()
	a := author{rand.New(rand.NewPCG(8, 15))}
	grants, denials, decisions := map[string]int{}, 0, 0
	rounds := min(*randomPolicies, 200+*randomPolicies/10) // a policy is parsed four times
	for round := range rounds {
		c := a.reference()
		policy, policies := c.parse(t)

		shuffled := c
		shuffled.policy.Rules, shuffled.policy.Deny = slices.Clone(c.policy.Rules), slices.Clone(c.policy.Deny)
		a.Shuffle(len(shuffled.policy.Rules), func(i, j int) {
			shuffled.policy.Rules[i], shuffled.policy.Rules[j] = shuffled.policy.Rules[j], shuffled.policy.Rules[i]
		})
		slices.Reverse(shuffled.policy.Deny)
		ofShuffled, _ := shuffled.parse(t)

		fewer := c
		without := a.IntN(len(c.policy.Rules))
		fewer.policy.Rules = slices.Delete(slices.Clone(c.policy.Rules), without, without+1)
		fewer.policy.Rules = append(fewer.policy.Rules, writtenRule{Name: "one", Subjects: []writtenSubject{{Namespaces: []string{"none"}}}, Allow: []writtenAllow{{Repositories: []string{"none"}, Actions: []string{"pull"}}}})
		ofFewer, _ := fewer.parse(t)

		ceiling := c
		ceiling.policy.Rules = slices.Clone(c.policy.Rules)
		for i := range ceiling.policy.Rules {
			ceiling.policy.Rules[i].Annotation, ceiling.policy.Rules[i].Requests = "", false
		}
		ofCeiling, _ := ceiling.parse(t)

		for range 24 {
			subject, service, requested := a.asker(), a.one("s1", "s2"), a.scopes()
			subject.Objects = c.objectsOf(t, policies, subject)
			d := policy.Decide(subject, service, requested)
			backwards := slices.Clone(requested)
			slices.Reverse(backwards)
			reversed := policy.Decide(subject, service, backwards)
			inOther, inFewer, inCeiling := ofShuffled.Decide(subject, service, requested), ofFewer.Decide(subject, service, requested), ofCeiling.Decide(subject, service, requested)
			for i, scope := range requested {
				decisions++
				got := d.Scopes[i].Granted
				fail := func(format string, args ...any) {
					t.Helper()
					text, _ := json.Marshal(c.policy)
					t.Fatalf("round %d: %s\n%s\nobjects %+v within %q, requests %+v\n%+v %+v of %s asks for %s", round, fmt.Sprintf(format, args...), text, c.objects, c.within, c.requests, subject.Identity, subject, service, scope)
				}
				want, denied := c.decide(subject, service, scope)
				if !slices.Equal(got, want) || (d.DeniedBy != "") != denied {
					fail("granted %q, denied by %q; the reference grants %q, denied %t", got, d.DeniedBy, want, denied)
				}
				if !includes(scope.Actions, got) {
					fail("granted %q, more than was asked", got)
				}
				if alone := policy.Decide(subject, service, []registryauth.Scope{scope}); !slices.Equal(alone.Scopes[0].Granted, got) || alone.DeniedBy != d.DeniedBy {
					fail("granted %q, alone %q", got, alone.Scopes[0].Granted)
				}
				if other := reversed.Scopes[len(requested)-1-i]; !slices.Equal(other.Granted, got) || !slices.Equal(other.Rules, d.Scopes[i].Rules) {
					fail("granted %q, in another order %q", got, other.Granted)
				}
				if !slices.Equal(inOther.Scopes[i].Granted, got) {
					fail("granted %q, with the rules in another order %q", got, inOther.Scopes[i].Granted)
				}
				if !includes(got, inFewer.Scopes[i].Granted) {
					fail("granted %q, without rule %d %q", got, without, inFewer.Scopes[i].Granted)
				}
				if !includes(inCeiling.Scopes[i].Granted, got) {
					fail("granted %q, beyond the ceiling %q", got, inCeiling.Scopes[i].Granted)
				}
				for _, action := range got {
					grants[action]++
				}
				if denied {
					denials++
				}
			}
		}
	}
	for _, action := range []string{"pull", "push", "delete", "*", "sign"} {
		if grants[action] < rounds/4 {
			t.Errorf("%s was granted %d times: hardly tested", action, grants[action])
		}
	}
	if denials < rounds {
		t.Errorf("%d denials: hardly tested", denials)
	}
	t.Logf("%d decisions, %d denied, granted %v", decisions, denials, grants)
}
