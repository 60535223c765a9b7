package reach

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/names"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/pattern"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// Who is who can do something with a repository. docs/policy.md and the schema say
// what each field means.
type Who struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Service    string    `json:"service"`
	Repository string    `json:"repository"`
	Action     string    `json:"action"`
	Rules      []Grant   `json:"rules"`    // those that allow it to somebody
	Deny       []Denial  `json:"deny"`     // all there are: whom one matches gets nothing
	Clusters   []Cluster `json:"clusters"` // who of those that are known now gets it
}

// Grant is a rule that allows it.
type Grant struct {
	Name       string    `json:"name"`
	Origin     string    `json:"origin"` // FILE: rules[0]
	Anonymous  bool      `json:"anonymous,omitempty"`
	Subjects   []Subject `json:"subjects,omitempty"`
	Patterns   []string  `json:"patterns"`             // of allow, that can match
	Annotation string    `json:"annotation,omitempty"` // of the ServiceAccount, which must ask for it, too
	Requests   bool      `json:"requests,omitempty"`   // a RepositoryAccess must ask for it, too
}

// Subject is one of a rule to whom it can be allowed.
type Subject struct {
	Whom
	// Names are what placeholders must stand for: any of these. With Unlisted, there
	// are too many to list, and Patterns say what they must be.
	Names    []pattern.Values `json:"names,omitempty"`
	Unlisted bool             `json:"unlisted,omitempty"`
}

// Denial is a denial of the policy.
type Denial struct {
	Name     string `json:"name"`
	Origin   string `json:"origin"` // FILE: deny[0]
	Subjects []Whom `json:"subjects"`
}

// Cluster says which ServiceAccounts of a cluster get it now: by a good token of a pod
// whose node no rule and no denial names.
type Cluster struct {
	Name            string           `json:"name"`
	Unknown         string           `json:"unknown,omitempty"` // why its ServiceAccounts are not known
	ServiceAccounts int              `json:"serviceAccounts"`   // that are known
	Granted         []GrantedAccount `json:"granted"`           // by namespace and name
}

// GrantedAccount is a ServiceAccount that gets it.
type GrantedAccount struct {
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	Rules     []string `json:"rules"`
}

// Account is a ServiceAccount, and what is known of it.
type Account struct {
	Namespace, Name string
	Annotations     map[string]string
	NamespaceLabels map[string]string // nil: not known
	Objects         policy.Objects    // what objects of the cluster say of it
}

// Accounts is all ServiceAccounts of a cluster, or why they are not known.
type Accounts struct {
	Cluster, Issuer string
	All             []Account
	Unknown         error
}

// Actions are those that can be asked about.
var Actions = []string{"pull", "push", "delete"}

// FindWho answers. It ends early if ctx does, with ctx's error.
func FindWho(ctx context.Context, p *policy.Policy, service string, scope registryauth.Scope, clusters []Accounts) (*Who, error) {
	who := &Who{
		APIVersion: policy.APIVersion, Kind: "WhoCan", Service: service, Repository: scope.Name, Action: scope.Actions[0],
		Rules: []Grant{}, Deny: denialsOf(p.WrittenDenials()), Clusters: []Cluster{},
	}
	action := policy.ActionsNamed(scope.Actions)
	for _, rule := range p.WrittenRules() {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if grant, ok := grantOf(&rule, service, scope.Name, action); ok {
			who.Rules = append(who.Rules, grant)
		}
	}
	for _, known := range clusters {
		cluster, err := judge(ctx, p, service, scope, known)
		if err != nil {
			return nil, err
		}
		who.Clusters = append(who.Clusters, cluster)
	}
	return who, nil
}

func denialsOf(written []policy.WrittenDenial) []Denial {
	all := make([]Denial, len(written))
	for i, d := range written {
		all[i] = Denial{d.Name, d.Origin, whomOf(d.Subjects)}
	}
	return all
}

// grantOf returns what the rule allows on the repository, and to whom.
func grantOf(rule *policy.WrittenRule, service, repository string, action policy.ActionSet) (Grant, bool) {
	grant := Grant{Name: rule.Name, Origin: rule.Origin, Anonymous: rule.Anonymous, Annotation: rule.Annotation, Requests: rule.Requests}
	if rule.Services != nil && !slices.Contains(rule.Services, service) {
		return grant, false
	}
	var choices []pattern.Values
	whole := true
	for _, allowed := range rule.Allow {
		if allowed.Actions.Intersect(action) == 0 {
			continue
		}
		for _, p := range allowed.Repositories {
			found, all := p.Solve(repository)
			if len(found) == 0 && all {
				continue
			}
			grant.Patterns = append(grant.Patterns, string(p))
			choices = append(choices, found...)
			whole = whole && all
		}
	}
	if grant.Patterns == nil {
		return grant, false
	}
	if rule.Anonymous {
		return grant, true
	}
	for _, s := range whomOf(rule.Subjects) {
		if subject, ok := narrow(s, choices, whole); ok {
			grant.Subjects = append(grant.Subjects, subject)
		}
	}
	return grant, grant.Subjects != nil
}

// narrow returns the part of the subject whose names are among the choices.
func narrow(s Whom, choices []pattern.Values, whole bool) (Subject, bool) {
	subject := Subject{Whom: s}
	for _, values := range choices {
		if !possible(s, values) {
			continue
		}
		if len(values) == 0 { // whoever it is
			return Subject{Whom: s}, true
		}
		if !slices.ContainsFunc(subject.Names, func(known pattern.Values) bool { return equalValues(known, values) }) {
			subject.Names = append(subject.Names, values)
		}
	}
	if !whole {
		subject.Names, subject.Unlisted = nil, true
	}
	return subject, subject.Names != nil || !whole
}

func equalValues(a, b pattern.Values) bool {
	for name, value := range a {
		if b[name] != value {
			return false
		}
	}
	return len(a) == len(b)
}

// possible reports whether somebody of the subject can have such names.
func possible(s Whom, values pattern.Values) bool {
	for name, value := range values {
		ok := s.Identities != nil // a claim: of its value, the profile alone knows more
		switch name {
		case "namespace":
			ok = s.Identities == nil && names.IsLabel(value) && anyMatches(s.Namespaces, value)
		case "serviceAccount":
			ok = s.Identities == nil && names.IsSubdomain(value) && anyMatches(s.ServiceAccounts, value)
		case "cluster":
			ok = s.Identities == nil && anyMatches(s.Clusters, value)
		}
		if !ok {
			return false
		}
	}
	return true
}

func anyMatches(globs []string, value string) bool {
	return globs == nil || slices.ContainsFunc(globs, func(glob string) bool { return pattern.MatchName(glob, value) })
}

// judge asks the policy about each ServiceAccount.
func judge(ctx context.Context, p *policy.Policy, service string, scope registryauth.Scope, known Accounts) (Cluster, error) {
	cluster := Cluster{Name: known.Cluster, ServiceAccounts: len(known.All), Granted: []GrantedAccount{}}
	if known.Unknown != nil {
		cluster.Unknown = known.Unknown.Error()
		return cluster, nil
	}
	for i := range known.All {
		if i%1024 == 0 && ctx.Err() != nil {
			return cluster, ctx.Err()
		}
		a := &known.All[i]
		d := p.Decide(a.subject(known), service, []registryauth.Scope{scope})
		if s := &d.Scopes[0]; len(s.Granted) > 0 {
			cluster.Granted = append(cluster.Granted, GrantedAccount{a.Namespace, a.Name, s.Rules})
		}
	}
	slices.SortFunc(cluster.Granted, func(a, b GrantedAccount) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return cluster, nil
}

func (a *Account) subject(of Accounts) policy.Subject {
	return policy.Subject{
		Identity: &oidc.Identity{
			Cluster: of.Cluster, Issuer: of.Issuer, Subject: oidc.ServiceAccountSubject(a.Namespace, a.Name),
			Kubernetes: oidc.KubernetesIdentity{Namespace: a.Namespace, ServiceAccount: oidc.ObjectRef{Name: a.Name}},
		},
		Annotations: a.Annotations, NamespaceLabels: a.NamespaceLabels, Objects: a.Objects,
	}
}
