package reach

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/base/names"
	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/action"
	"github.com/pullpass/pullpass/internal/policy/pattern"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// Who lists the identities that can act on a repository. docs/who-can.schema.json
// describes each field.
type Who struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Service    string    `json:"service"`
	Repository string    `json:"repository"`
	Action     string    `json:"action"`
	Rules      []Grant   `json:"rules"`    // those that allow it to any subject
	Deny       []Denial  `json:"deny"`     // all denials: a subject that matches one gets nothing
	Clusters   []Cluster `json:"clusters"` // the known ServiceAccounts that get it now
	Closed     []Closed  `json:"closed,omitempty"`
}

// Closed lists actions that the gateway forbids at an upstream for all tokens.
type Closed struct {
	Upstream string   `json:"upstream"` // upstreams[].name
	Actions  []string `json:"actions"`  // granted actions that are not in the upstream's actions
}

// Knows reports whether the objects of a cluster are known.
func (w *Who) Knows(cluster string) bool {
	return !slices.ContainsFunc(w.Clusters, func(c Cluster) bool { return c.Name == cluster && c.Unknown != "" })
}

// Grant is a rule that allows it.
type Grant struct {
	Name       string    `json:"name"`
	Origin     string    `json:"origin"`            // FILE: rules[0]; AccessPolicy NAME: rules[0]
	Cluster    string    `json:"cluster,omitempty"` // set if the grant is only for ServiceAccounts of this cluster, because it depends on objects there
	Anonymous  bool      `json:"anonymous,omitempty"`
	Subjects   []Subject `json:"subjects,omitempty"`
	Patterns   []string  `json:"patterns"`             // of allow, that can match
	Within     []string  `json:"within,omitempty"`     // patterns of the limit on objects in the cluster, that can match, too
	Annotation string    `json:"annotation,omitempty"` // of the ServiceAccount, which must ask for it, too
	Requests   bool      `json:"requests,omitempty"`   // a RepositoryAccess must ask for it, too
	Asked      []Asked   `json:"asked,omitempty"`      // those that ask for it now
}

// Asked is a RepositoryAccess that asks for it.
type Asked struct {
	Object          string   `json:"object"`          // NAMESPACE/NAME
	ServiceAccounts []string `json:"serviceAccounts"` // those of its namespace that the rule can match
}

// Subject is a subject of a rule to which it can be allowed.
type Subject struct {
	Whom
	// Names are the possible values of placeholders. With Unlisted, there are too many to list, and
	// Patterns hold the constraint.
	Names    []pattern.Values `json:"names,omitempty"`
	Unlisted bool             `json:"unlisted,omitempty"`
}

// Denial is a denial of the policy.
type Denial struct {
	Name     string `json:"name"`
	Origin   string `json:"origin"`            // FILE: deny[0]; AccessPolicy NAME: deny[0]
	Cluster  string `json:"cluster,omitempty"` // set if it refuses only ServiceAccounts of this cluster, because it is in an object there
	Subjects []Whom `json:"subjects"`
}

// Cluster lists the ServiceAccounts of a cluster that get it now: with a valid token of a pod on a
// node that no rule and no denial names.
type Cluster struct {
	Name            string           `json:"name"`
	Unknown         string           `json:"unknown,omitempty"` // why its ServiceAccounts are not known
	ServiceAccounts int              `json:"serviceAccounts"`   // the number of known ones
	Granted         []GrantedAccount `json:"granted"`           // by namespace and name
	// Unjudged are denials and rules that Granted ignores, because only a token decides whether they match.
	Unjudged []string `json:"unjudged,omitempty"`
}

// GrantedAccount is a ServiceAccount that gets it.
type GrantedAccount struct {
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	Rules     []string `json:"rules"`
}

// Account is a ServiceAccount and its known data.
type Account struct {
	Namespace, Name string
	Annotations     map[string]string
	NamespaceLabels map[string]string // nil: not known
	Objects         policy.Objects    // the objects of the cluster that concern it
}

// Accounts is all ServiceAccounts of a cluster and the content of its objects, or the reason why
// they are not known.
type Accounts struct {
	Cluster, Issuer string
	All             []Account
	Objects         Objects
	Unknown         error // of Objects, only the limit is known
}

// Objects is the content of the objects of a cluster that count.
type Objects struct {
	Policies *policy.Policies // nil: no objects count
	// Requests are sorted by namespace and name. If HasRequests is not set, none counts.
	Requests    []*policy.Request
	HasRequests bool
}

// Actions are the actions of queries.
var Actions = []string{"pull", "push", "delete"}

// FindWho lists the identities that can act on a repository. If ctx ends, it returns early with
// ctx's error.
func FindWho(ctx context.Context, p *policy.Policy, service string, scope registryauth.Scope, clusters []Accounts) (*Who, error) {
	who := &Who{
		APIVersion: strictyaml.AnswerVersion, Kind: "WhoCan", Service: service, Repository: scope.Name, Action: scope.Actions[0],
		Rules: []Grant{}, Deny: denialsOf("", p.WrittenDenials()), Clusters: []Cluster{},
	}
	places := make([]place, len(clusters))
	for i, known := range clusters {
		places[i] = placeOf(known, scope)
	}
	for _, rule := range p.WrittenRules() {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if !rule.Requests {
			who.note(&rule, scope, nil)
			continue
		}
		for i := range places {
			who.note(&rule, scope, &places[i])
		}
	}
	for i, known := range clusters {
		if objects := known.Objects.Policies; objects != nil {
			for _, rule := range objects.WrittenRules() {
				who.note(&rule, scope, &places[i])
			}
			who.Deny = append(who.Deny, denialsOf(known.Cluster, objects.WrittenDenials())...)
		}
		cluster, err := evaluate(ctx, p, service, scope, known)
		if err != nil {
			return nil, err
		}
		who.Clusters = append(who.Clusters, cluster)
	}
	return who, nil
}

func denialsOf(cluster string, written []policy.WrittenDenial) []Denial {
	all := make([]Denial, len(written))
	for i, d := range written {
		all[i] = Denial{d.Name, d.Origin, cluster, whomOf(d.Subjects)}
	}
	return all
}

// note adds the rule's grants on the repository, with their subjects. If objects are involved, the
// grants are for one cluster.
func (w *Who) note(rule *policy.WrittenRule, scope registryauth.Scope, in *place) {
	grant := Grant{Name: rule.Name, Origin: rule.Origin, Anonymous: rule.Anonymous, Annotation: rule.Annotation, Requests: rule.Requests}
	if rule.Services != nil && !slices.Contains(rule.Services, w.Service) || rule.Requests && !in.hasRequests {
		return
	}
	matching := solution{isWhole: true}
	for _, allowed := range rule.Allow {
		if allowed.Actions.Intersect(action.Of(scope.Actions)) != 0 {
			matching.add(allowed.Repositories, scope.Name)
		}
	}
	grant.Patterns = matching.patterns
	if in != nil {
		grant.Cluster, grant.Within = in.cluster, in.limit.patterns
		matching = matching.and(in.limit).in(in.cluster)
	}
	if matching.patterns == nil {
		return
	}
	if !rule.Anonymous {
		for _, s := range whomOf(rule.Subjects) {
			if in != nil && !anyMatches(s.Clusters, in.cluster) {
				continue
			}
			if subject, ok := narrow(s, matching.choices, matching.isWhole); ok {
				grant.Subjects = append(grant.Subjects, subject)
			}
		}
		if grant.Subjects == nil {
			return
		}
	}
	if rule.Requests {
		grant.Asked = in.askedOf(grant.Subjects)
	}
	w.Rules = append(w.Rules, grant)
}

// narrow returns the part of the subject whose names are among the choices.
func narrow(s Whom, choices []pattern.Values, whole bool) (Subject, bool) {
	subject := Subject{Whom: s}
	for _, values := range choices {
		if !possible(s, values) {
			continue
		}
		if len(values) == 0 { // any name
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

// possible reports whether an identity of the subject can have such names.
func possible(s Whom, values pattern.Values) bool {
	for name, value := range values {
		ok := s.Identities != nil // a claim, whose values only the profile restricts
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

// evaluate evaluates the policy for each ServiceAccount.
func evaluate(ctx context.Context, p *policy.Policy, service string, scope registryauth.Scope, known Accounts) (Cluster, error) {
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
		unjudged := d.Scopes[0].Unjudged
		if s := &d.Scopes[0]; len(s.Granted) > 0 {
			cluster.Granted = append(cluster.Granted, GrantedAccount{a.Namespace, a.Name, s.Rules})
			unjudged = slices.Concat(d.UnjudgedDenials, d.DenialsOfNodes)
		}
		for _, name := range unjudged {
			if !slices.Contains(cluster.Unjudged, name) {
				cluster.Unjudged = append(cluster.Unjudged, name)
			}
		}
	}
	slices.Sort(cluster.Unjudged)
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
		Annotations: a.Annotations, NamespaceLabels: a.NamespaceLabels, Objects: a.Objects, NoToken: true,
	}
}
