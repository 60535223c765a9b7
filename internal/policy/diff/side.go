package diff

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/oidc/identity"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/action"
	"github.com/pullpass/pullpass/internal/policy/pattern"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// Side is a policy, and what it is used with.
type Side struct {
	Policy *policy.Policy
	// Clusters, Services and Identities are the configured ones. IsOpen means that there is no
	// configuration: others may exist.
	Clusters   []Cluster
	Services   []Service
	Identities []Identity
	IsOpen     bool
	// Callers are fields of the configuration that decide whose tokens are valid, in every cluster.
	Callers Fields
	Objects *Objects // that count in any cluster, if IsOpen
}

// Cluster is a cluster with the objects that count there.
type Cluster struct {
	Name, Issuer string
	// KnowsLabels and KnowsAnnotations are false without a connection: then no request has any.
	KnowsLabels, KnowsAnnotations bool
	Objects                       *Objects // nil: none count
	Tokens                        Fields
}

// Fields are those that decide which tokens are valid and from whom, by their paths in the configuration, or in the part of it
// that they belong to.
type Fields map[string]string

// Objects are the policy objects of a cluster.
type Objects struct {
	// Policies are the AccessPolicy objects, and Requests the RepositoryAccess objects. If they are
	// not known, any can be there.
	Policies                         *policy.Policies
	Requests                         []*policy.Request
	AreKnown                         bool
	PoliciesAreRead, RequestsAreRead bool
}

// Service is the service of a registry.
type Service struct {
	Name   string
	Scopes func(host string, requested []registryauth.Scope) []registryauth.Scope // of the gateway: what is judged instead; nil: what is requested
	// Upstreams are those of the gateway, with what it lets clients do there.
	Upstreams map[string]action.Set
}

// Identity is one of identities[]. Identify checks the claims of its tokens.
type Identity struct {
	Name     string
	Issuer   string
	Profile  identity.Profile
	Require  map[string][]string
	Tokens   Fields
	Identify func(payload []byte) (oidc.Identity, error)
}

// checksAs reports whether both accept the same claims.
func (i *Identity) checksAs(other *Identity) bool {
	return i.Profile == other.Profile && maps.EqualFunc(i.Require, other.Require, func(a, b []string) bool {
		return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
	})
}

func (s *Side) cluster(name string) (Cluster, bool) {
	if i := slices.IndexFunc(s.Clusters, func(c Cluster) bool { return c.Name == name }); i >= 0 {
		return s.Clusters[i], true
	}
	return Cluster{Name: name, KnowsLabels: true, KnowsAnnotations: true, Objects: s.Objects}, s.IsOpen
}

func (s *Side) service(name string) (Service, bool) {
	if i := slices.IndexFunc(s.Services, func(c Service) bool { return c.Name == name }); i >= 0 {
		return s.Services[i], true
	}
	return Service{Name: name}, s.IsOpen
}

func (s *Side) identity(name string) (Identity, bool) {
	if i := slices.IndexFunc(s.Identities, func(i Identity) bool { return i.Name == name }); i >= 0 {
		return s.Identities[i], true
	}
	open := Identity{Name: name, Profile: identity.Generic}
	if slices.Contains(identity.Generic.Values(), identity.Profile(name)) { // without a configuration, the name is all that tells
		open.Profile = identity.Profile(name)
	}
	return open, s.IsOpen
}

// point is one request.
type point struct {
	isAnonymous bool

	cluster, namespace, account, node, tokenID string
	labels                                     map[string]string // nil: not known

	identity string // instead of a ServiceAccount
	claims   identity.Claims

	service    string
	repository string // "": the catalog
	annotation string // key of the annotation that asks for the repository
	isAsked    bool   // a RepositoryAccess asks for the repository
}

// catalog is written in place of a pattern.
const catalog = "registry:catalog"

// subject returns the caller as the side sees it; false: it accepts no such caller.
func (s *Side) subject(p *point) (policy.Subject, bool) {
	if p.isAnonymous {
		return policy.Subject{}, true
	}
	if p.identity != "" {
		configured, ok := s.identity(p.identity)
		if !ok {
			return policy.Subject{}, false
		}
		id, err := configured.identify(p.claims)
		return policy.Subject{Identity: &id}, err == nil
	}
	cluster, ok := s.cluster(p.cluster)
	if !ok {
		return policy.Subject{}, false
	}
	id := &oidc.Identity{
		Cluster: p.cluster, Issuer: cluster.Issuer, TokenID: p.tokenID, Subject: oidc.ServiceAccountSubject(p.namespace, p.account),
		Kubernetes: oidc.KubernetesIdentity{Namespace: p.namespace, ServiceAccount: oidc.ObjectRef{Name: p.account}},
	}
	if p.node != "" {
		id.Kubernetes.Node = oidc.ObjectRef{Name: p.node, UID: "known"}
	}
	subject := policy.Subject{Identity: id}
	if cluster.KnowsLabels {
		subject.NamespaceLabels = p.labels
	}
	if cluster.KnowsAnnotations && p.annotation != "" {
		subject.Annotations = map[string]string{p.annotation: p.repository + ":*"}
	}
	if o := cluster.Objects; o != nil {
		subject.Objects = policy.Objects{Policies: o.Policies, Requests: o.requestsOf(p)}
	}
	return subject, true
}

func (i *Identity) identify(claims identity.Claims) (oidc.Identity, error) {
	if i.Identify == nil {
		external, err := i.Profile.External(i.Name, claims)
		id := oidc.Identity{Subject: i.Name + "/" + claims["sub"].(string), External: external}
		id.TokenID, _ = claims["jti"].(string)
		return id, err
	}
	payload, err := json.Marshal(claims)
	if err != nil {
		return oidc.Identity{}, err
	}
	return i.Identify(payload)
}

// requestsOf returns what RepositoryAccess objects ask for.
func (o *Objects) requestsOf(p *point) *policy.Requests {
	if !o.RequestsAreRead {
		return nil
	}
	if o.AreKnown {
		own := slices.Collect(func(yield func(*policy.Request) bool) {
			for _, r := range o.Requests {
				if r.Namespace() == p.namespace && !yield(r) {
					return
				}
			}
		})
		return policy.NewRequests(p.account, own)
	}
	if !p.isAsked {
		return nil
	}
	return policy.NewRequests(p.account, []*policy.Request{policy.ParseRequest(p.namespace, "example", map[string]any{
		"serviceAccounts": []any{p.account}, "repositories": []any{p.repository}, "actions": []any{"*"},
	})})
}

func (p *point) scope(actions action.Set) registryauth.Scope {
	if p.repository == "" {
		return registryauth.Scope{Type: "registry", Name: "catalog", Actions: actions.Names()}
	}
	return registryauth.Scope{Type: "repository", Name: p.repository, Actions: actions.Names()}
}

// granted returns which of the actions the side grants, decided by its policy.
func (s *Side) granted(p *point, actions action.Set) action.Set {
	subject, ok := s.subject(p)
	service, known := s.service(p.service)
	if !ok || !known {
		return 0
	}
	scopes := []registryauth.Scope{p.scope(actions)}
	if service.Scopes != nil {
		scopes = service.Scopes("", scopes)
	}
	var granted action.Set
	for _, scope := range s.Policy.Decide(subject, p.service, scopes).Scopes {
		granted |= action.Of(scope.Granted)
	}
	return granted
}

// within returns the limit on the objects of a cluster.
func (s *Side) within(cluster string) []pattern.Pattern {
	c, _ := s.cluster(cluster)
	if c.Objects == nil || c.Objects.Policies == nil {
		return nil
	}
	return c.Objects.Policies.Within()
}
