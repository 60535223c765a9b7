package diff

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/oidc/identity"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/pattern"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

var (
	randomPolicies = flag.Int("random-policies", 300, "number of pairs of policies to compare")
	randomSeed     = flag.Uint64("random-seed", 1, "seed of these pairs: several runs of a million take less time beside each other")
)

// author writes random policies of few names, so that much overlaps.
type author struct {
	*rand.Rand
	isPlain bool // names and patterns alone
}

func (a author) one(from ...string) string { return from[a.IntN(len(from))] }

func (a author) some(from ...string) []string {
	list := []string{a.one(from...)}
	for a.IntN(3) == 0 {
		list = append(list, a.one(from...))
	}
	slices.Sort(list)
	return slices.Compact(list)
}

type object = map[string]any

func (a author) subject(denies, isObject bool) object {
	s := object{}
	if !isObject && !a.isPlain && a.IntN(4) == 0 {
		s["identities"] = a.some("ci", "other")
		if a.IntN(3) > 0 {
			s["claims"] = object{a.one("ref", "groups"): a.some("main", "dev", "g1")}
		}
		if a.IntN(5) == 0 {
			s["condition"] = a.one(`claims.ref == "main"`, `service == "s1"`)
		}
		return s
	}
	for len(s) == 0 {
		if a.IntN(2) == 0 {
			s["namespaces"] = a.some("a", "a", "ab", "a*", "*", "*", "*b", "*-*")
		}
		if a.IntN(4) == 0 && !isObject {
			s["clusters"] = a.some("c1", "c2", "c*")
		}
		if a.IntN(3) == 0 {
			s["serviceAccounts"] = a.some("a", "x", "x.y", "*", "x*")
		}
		if a.isPlain {
			continue
		}
		if a.IntN(8) == 0 {
			s["nodes"] = a.some("n1", "n*", "m")
		}
		if a.IntN(6) == 0 {
			s["namespaceSelector"] = a.one("l", "!l", "l in (x)", "l in (x,y)", "l notin (x)", "l, !m", "m in (y), l notin (z)")
		}
		if denies && !isObject && a.IntN(6) == 0 {
			s["tokenIDs"] = a.some("t1", "t2")
		}
		if a.IntN(10) == 0 {
			s["condition"] = a.one(`service == "s1"`, `kubernetes.namespace != "a"`, `kubernetes.labels["l"] == "x"`, `kubernetes.serviceAccount.startsWith("x")`)
		}
	}
	return s
}

func (a author) patterns(placeholders bool) (list []string) {
	parts := []string{"a", "b", "ab", "a-b", "x.y", "*", "*", "**", "**", "**", "a*", "*b", "a*b"}
	switch {
	case placeholders && a.isPlain:
		parts = append(parts, "{namespace}", "{namespace}")
	case placeholders:
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

func (a author) rule(name string, isObject bool) object {
	r := object{"name": name}
	isJob, isAnonymous := false, !isObject && a.IntN(8) == 0
	if isAnonymous {
		r["anonymous"] = true
	} else {
		one := a.subject(false, isObject)
		isJob = one["identities"] != nil
		r["subjects"] = []object{one}
	}
	isOfPods := !isAnonymous && !isJob
	hasCeiling := false
	if isOfPods && !a.isPlain && a.IntN(3) == 0 {
		if a.IntN(2) == 0 {
			r["requests"], hasCeiling = true, true
		} else if !isObject {
			r["annotation"], hasCeiling = a.one("k/1", "k/2"), true
		}
	}
	if !isObject && a.IntN(4) == 0 {
		r["services"] = a.some("s1", "s2")
	}
	var allow []object
	for range 1 + a.IntN(2) {
		if !isObject && !hasCeiling && a.IntN(10) == 0 {
			allow = append(allow, object{"registry": []string{"catalog"}, "actions": []string{"*"}})
			continue
		}
		allow = append(allow, object{"repositories": a.patterns(isOfPods), "actions": a.some("pull", "push", "delete", "pull", "*")})
	}
	r["allow"] = allow
	return r
}

func (a author) deny(name string, isObject bool) object {
	return object{"name": name, "subjects": []object{a.subject(true, isObject)}}
}

// policy is a policy as it is written, with the objects of the cluster c1.
type written struct {
	Rules, Deny, Objects []object
	Within               []string
	Requests             []object
}

func (a author) policy() (w written) {
	for i := range 1 + a.IntN(4) {
		w.Rules = append(w.Rules, a.rule(fmt.Sprint("r", i), false))
	}
	for i := range a.IntN(3) {
		w.Deny = append(w.Deny, a.deny(fmt.Sprint("d", i), false))
	}
	if a.isPlain {
		w.Within = []string{"**"}
		return w
	}
	for range a.IntN(2) {
		o := object{"rules": []object{a.rule("r", true)}}
		if a.IntN(4) == 0 {
			o["deny"] = []object{a.deny("d", true)}
		}
		w.Objects = append(w.Objects, o)
	}
	w.Within = a.patterns(true)
	for range a.IntN(3) {
		var repositories []string
		for _, p := range a.patterns(false) {
			if strings.Count(p, "**") < 2 {
				repositories = append(repositories, p)
			}
		}
		if repositories != nil {
			w.Requests = append(w.Requests, object{"serviceAccounts": a.some("a", "x", "x.y"), "repositories": repositories, "actions": a.some("pull", "push", "*")})
		}
	}
	return w
}

// edited changes a little.
func (a author) edited(w written) written {
	w.Rules, w.Deny, w.Objects = slices.Clone(w.Rules), slices.Clone(w.Deny), slices.Clone(w.Objects)
	for range 1 + a.IntN(2) {
		switch a.IntN(8) {
		case 0:
			w.Rules = append(w.Rules, a.rule(fmt.Sprint("new", len(w.Rules)), false))
		case 1, 2:
			if len(w.Rules) > 1 {
				i := a.IntN(len(w.Rules))
				w.Rules = slices.Delete(w.Rules, i, i+1)
			}
		case 3:
			i := a.IntN(len(w.Rules))
			other := a.rule(w.Rules[i]["name"].(string), false)
			changed := object{}
			for key, value := range w.Rules[i] {
				changed[key] = value
			}
			if changed["anonymous"] == nil && other["anonymous"] == nil && changed["requests"] == nil && changed["annotation"] == nil {
				changed["subjects"] = other["subjects"]
				if strings.Contains(fmt.Sprint(changed["allow"]), "{") {
					changed["allow"] = other["allow"]
				}
				changed["services"] = other["services"]
				if other["services"] == nil {
					delete(changed, "services")
				}
				if strings.Contains(fmt.Sprint(changed["allow"]), "{") && strings.Contains(fmt.Sprint(changed["subjects"]), "identities") {
					changed = other
				}
			}
			w.Rules[i] = changed
		case 4, 5:
			w.Deny = append(w.Deny, a.deny(fmt.Sprint("newd", len(w.Deny)), false))
		case 6:
			w.Within = a.patterns(true)
		case 7:
			if a.isPlain {
				continue
			}
			w.Objects = append(w.Objects, object{"rules": []object{a.rule("r", true)}})
		}
	}
	return w
}

func (w written) side(t testing.TB) *Side {
	t.Helper()
	text := testkit.Value(json.Marshal(object{"apiVersion": policy.APIVersion, "kind": policy.Kind, "rules": w.Rules, "deny": w.Deny}))(t)
	if w.Deny == nil {
		text = testkit.Value(json.Marshal(object{"apiVersion": policy.APIVersion, "kind": policy.Kind, "rules": w.Rules}))(t)
	}
	p, err := policy.Parse(policy.File{Name: "policy.yaml", Data: text})
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	var within []pattern.Pattern
	for _, text := range w.Within {
		within = append(within, testkit.Value(pattern.Parse(text))(t))
	}
	var objects []*policy.ObjectPolicy
	for i, o := range w.Objects {
		parsed := policy.ParseObject(fmt.Sprint("o", i), asAny(t, o))
		testkit.Must(t, parsed.Err())
		objects = append(objects, parsed)
	}
	var requests []*policy.Request
	for i, r := range w.Requests {
		parsed := policy.ParseRequest("a", fmt.Sprint("q", i), asAny(t, r))
		testkit.Must(t, parsed.Err())
		requests = append(requests, parsed)
	}
	return &Side{
		Policy: p,
		Clusters: []Cluster{
			{Name: "c1", KnowsLabels: true, KnowsAnnotations: true, Objects: &Objects{Policies: policy.NewPolicies(within, objects...), Requests: requests, AreKnown: true, PoliciesAreRead: true, RequestsAreRead: true}},
			{Name: "c2"},
		},
		Services:   []Service{{Name: "s1"}, {Name: "s2"}},
		Identities: []Identity{{Name: "ci", Profile: identity.Generic}, {Name: "other", Profile: identity.Generic}},
	}
}

func asText(t testing.TB, v any) []byte {
	t.Helper()
	return testkit.Value(json.Marshal(v))(t)
}

func asAny(t testing.TB, v any) (decoded any) {
	t.Helper()
	text := testkit.Value(json.Marshal(v))(t)
	testkit.Must(t, json.Unmarshal(text, &decoded))
	return decoded
}

// caller is one, as the API servers and the token show it.
func (a author) caller() (s policy.Subject) {
	switch a.IntN(8) {
	case 0:
		return s
	case 1, 2:
		claims := identity.Claims{"sub": "x"}
		if a.IntN(3) > 0 {
			claims["ref"] = a.one("main", "dev", "third")
		}
		if a.IntN(3) > 0 {
			claims["groups"] = [][]string{{"g1", "g2"}, {"g2"}, {"main", "dev"}, {"main", "g1", "dev"}}[a.IntN(4)]
		}
		return policy.Subject{Identity: &oidc.Identity{Subject: "ci/x", TokenID: a.one("t1", "t2", "t3"),
			External: &identity.External{Provider: a.one("ci", "ci", "other"), Profile: identity.Generic, Claims: claims}}}
	}
	id := &oidc.Identity{Cluster: a.one("c1", "c1", "c2"), TokenID: a.one("t1", "t2", "t3"), Kubernetes: oidc.KubernetesIdentity{
		Namespace: a.one("a", "a", "a", "ab", "b", "a-b", "q"), ServiceAccount: oidc.ObjectRef{Name: a.one("a", "x", "x.y", "q"), UID: "u"},
	}}
	id.Subject = oidc.ServiceAccountSubject(id.Kubernetes.Namespace, id.Kubernetes.ServiceAccount.Name)
	if a.IntN(2) == 0 {
		id.Kubernetes.Node = oidc.ObjectRef{Name: a.one("n1", "m", "other"), UID: "u"}
	}
	s = policy.Subject{Identity: id}
	if id.Cluster != "c1" {
		return s
	}
	s.Annotations = map[string]string{}
	for _, key := range []string{"k/1", "k/2"} {
		if a.IntN(4) > 0 {
			s.Annotations[key] = a.one("", "a", "a/**:push b:pull,push", "**:*", "*/x:delete\n a-*/**", "**:* a:PULL")
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

func (a author) scope() registryauth.Scope {
	if a.IntN(10) == 0 {
		return registryauth.Scope{Type: "registry", Name: "catalog", Actions: []string{"*"}}
	}
	parts := []string{"a", "a", "b", "ab", "a-b", "x", "x.y", "c1", "a_x", "q"}
	name := strings.Join([]string{a.one(parts...), a.one(parts...), a.one(parts...)}[a.IntN(3):], "/")
	if a.IntN(12) == 0 {
		name = a.one("h.io", "h.io:5000", "localhost") + "/" + name
	}
	return registryauth.Scope{Type: "repository", Name: name, Actions: []string{a.one("pull", "push", "delete", "*")}}
}

// decide returns whether the action is granted, with the objects of the side.
func decide(side *Side, s policy.Subject, service string, scope registryauth.Scope) bool {
	if s.Identity != nil && s.Identity.Cluster == "c1" {
		o := side.Clusters[0].Objects
		s.Objects = policy.Objects{Policies: o.Policies, Requests: o.requestsOf(&point{namespace: s.Identity.Kubernetes.Namespace, account: s.Identity.Kubernetes.ServiceAccount.Name})}
	}
	return slices.Contains(side.Policy.Decide(s, service, []registryauth.Scope{scope}).Scopes[0].Granted, scope.Actions[0])
}

// has reports whether the entry names the request. It reads what is printed, and compares by regular
// expressions.
func (e *Entry) has(s policy.Subject, service string, scope registryauth.Scope) bool {
	return hasCaller(e.Who, e.Anonymous, e.Claims, s) && e.Service == service && slices.Contains(e.Actions, scope.Actions[0]) && hasRepository(e.Repositories, s, scope)
}

func hasCaller(who string, anonymous bool, claims map[string][]string, s policy.Subject) bool {
	switch {
	case s.Identity == nil:
		return anonymous || who == "anonymous"
	case s.Identity.External != nil:
		if who != "identity/"+s.Identity.External.Provider {
			return false
		}
		for name, values := range claims {
			if !slices.ContainsFunc(s.Identity.External.Claims.Texts(name), func(text string) bool { return slices.Contains(values, text) }) {
				return false
			}
		}
		return true
	}
	parts := strings.Split(who, "/")
	return len(parts) == 3 && globMatches(parts[0], s.Identity.Cluster) && globMatches(parts[1], s.Identity.Kubernetes.Namespace) && globMatches(parts[2], s.Identity.Kubernetes.ServiceAccount.Name)
}

func globMatches(glob, name string) bool {
	return glob == name || strings.Contains(glob, "*") && expression("^"+strings.ReplaceAll(regexp.QuoteMeta(glob), `\*`, ".*")+"$").MatchString(name)
}

var compiledExpressions sync.Map // by their text: they repeat

func expression(text string) *regexp.Regexp {
	found, ok := compiledExpressions.Load(text)
	if !ok {
		found, _ = compiledExpressions.LoadOrStore(text, regexp.MustCompile(text))
	}
	return found.(*regexp.Regexp)
}

func hasRepository(text string, s policy.Subject, scope registryauth.Scope) bool {
	if text == catalog || scope.Type == "registry" {
		return text == catalog && scope.Type == "registry"
	}
	if s.Identity != nil && s.Identity.External == nil {
		text = strings.NewReplacer("{namespace}", s.Identity.Kubernetes.Namespace, "{serviceAccount}", s.Identity.Kubernetes.ServiceAccount.Name, "{cluster}", s.Identity.Cluster).Replace(text)
	}
	written := "^"
	for component := range strings.SplitSeq(text, "/") {
		if component == "**" {
			written += "(?:[^/]+/)*"
			continue
		}
		written += strings.ReplaceAll(regexp.QuoteMeta(component), `\*`, "[^/]*") + "/"
	}
	return expression(written + "$").MatchString(scope.Name + "/")
}

// isExact reports whether nothing but names counts for the entry and its exceptions.
func (e *Entry) isExact() bool {
	return e.Where == nil && len(e.Except) < maxExcept && !slices.ContainsFunc(e.Except, func(x Exception) bool { return x.Where != nil })
}

func (e *Entry) excepts(s policy.Subject, scope registryauth.Scope) bool {
	return slices.ContainsFunc(e.Except, func(x Exception) bool {
		return hasCaller(x.Who, x.Anonymous, x.Claims, s) && (x.Repositories == "" || hasRepository(x.Repositories, s, scope)) && (x.Actions == nil || slices.Contains(x.Actions, scope.Actions[0]))
	})
}

// One of richEvery pairs has labels, claims, conditions, objects and so on. It takes as long as fifty others.
const richEvery = 20

// Every request that changes is in an entry, and every example changes; "make random" compares a million pairs. Without labels and
// the like, an entry without its exceptions has nothing else.
func TestDiffAgainstBruteForce(t *testing.T) {
	t.Parallel()
	a := author{Rand: rand.New(rand.NewPCG(21, *randomSeed))}
	entries, open, changes, exact := 0, 0, 0, 0
	for round := range *randomPolicies {
		a.isPlain = round%richEvery != 0
		before := a.policy()
		after := a.edited(before)
		if a.IntN(4) == 0 {
			after = a.policy()
		}
		from, to := before.side(t), after.side(t)
		d, err := Find(t.Context(), from, to)
		fail := func(format string, args ...any) {
			t.Helper()
			old, _ := json.Marshal(before)
			next, _ := json.Marshal(after)
			t.Fatalf("round %d: %s\nbefore %s\nafter  %s", round, fmt.Sprintf(format, args...), old, next)
		}
		if err != nil {
			fail("%v", err)
		}
		for _, part := range []struct {
			all      []Entry
			from, to *Side
		}{{d.Gained, from, to}, {d.Lost, to, from}} {
			for i := range part.all {
				entries++
				x := &part.all[i].Example
				if x.As == "" { // a condition may change it
					open++
					continue
				}
				for _, action := range part.all[i].Actions {
					subject, scope := subjectOf(t, part.to, x), testkit.Value(registryauth.ParseScope(x.Scope))(t)
					scope.Actions = []string{action}
					if !decide(part.to, subject, x.Service, scope) || decide(part.from, subject, x.Service, scope) {
						fail("%+v: the example does not change", part.all[i])
					}
				}
			}
		}
		for range 60 {
			s, service, scope := a.caller(), a.one("s1", "s2"), a.scope()
			was, is := decide(from, s, service, scope), decide(to, s, service, scope)
			for _, part := range []struct {
				all   []Entry
				isNow bool
			}{{d.Gained, is && !was}, {d.Lost, was && !is}} {
				if part.isNow {
					changes++
					if !slices.ContainsFunc(part.all, func(e Entry) bool { return e.has(s, service, scope) }) {
						fail("%+v %+v of %s, %s changes, and is in no entry of %+v", s.Identity, s, service, scope, part.all)
					}
				}
				for i := range part.all {
					if e := &part.all[i]; e.isExact() && e.has(s, service, scope) && !e.excepts(s, scope) {
						exact++
						if !part.isNow {
							fail("%+v %+v of %s, %s does not change, and is in %+v", s.Identity, s, service, scope, *e)
						}
					}
				}
			}
		}
	}
	t.Logf("%d pairs, %d entries (%d without an example), %d of the requests changed, %d were within exact entries", *randomPolicies, entries, open, changes, exact)
	if entries < *randomPolicies || open > entries/100 || changes < *randomPolicies || exact < *randomPolicies {
		t.Error("hardly tested")
	}
}

// subjectOf reads the example as it is printed.
func subjectOf(t testing.TB, side *Side, x *Example) policy.Subject {
	t.Helper()
	if x.As == "anonymous" {
		return policy.Subject{}
	}
	if name, ok := strings.CutPrefix(x.As, "identity/"); ok {
		external := testkit.Value(identity.Generic.External(name, identity.Claims(x.Claims)))(t)
		jti, _ := x.Claims["jti"].(string)
		return policy.Subject{Identity: &oidc.Identity{Subject: name + "/x", TokenID: jti, External: external}}
	}
	parts := strings.Split(x.As, "/")
	id := &oidc.Identity{Cluster: parts[0], TokenID: x.TokenID, Subject: oidc.ServiceAccountSubject(parts[1], parts[2]), Kubernetes: oidc.KubernetesIdentity{Namespace: parts[1], ServiceAccount: oidc.ObjectRef{Name: parts[2], UID: "u"}}}
	if x.Node != "" {
		id.Kubernetes.Node = oidc.ObjectRef{Name: x.Node, UID: "u"}
	}
	return policy.Subject{Identity: id, Annotations: x.Annotations, NamespaceLabels: x.NamespaceLabels}
}
