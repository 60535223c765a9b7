package policytest

import (
	"encoding/json"

	"k8s.io/apimachinery/pkg/api/validate/content"

	"github.com/pullpass/pullpass/internal/base/names"
	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/subjects"
)

// identity reads the claims of a valid token. A value that no token can have would test nothing.
func (p *caseParser) identity(n strictyaml.Node) policy.Subject {
	fields := n.Fields(strictyaml.FieldNames[Identity]()...)
	_, hasProvider := fields["provider"]
	_, hasClaims := fields["claims"]
	switch {
	case fields == nil:
		return policy.Subject{}
	case hasProvider || hasClaims:
		return p.external(n, fields)
	}
	return parseServiceAccount(n, fields)
}

// external verifies the claims like those of a token.
func (p *caseParser) external(n strictyaml.Node, fields map[string]strictyaml.Node) policy.Subject {
	for _, name := range strictyaml.FieldNames[Identity]() {
		if field, ok := fields[name]; ok && name != "provider" && name != "claims" {
			field.Fault("who has claims of a provider is no ServiceAccount: remove it, or provider and claims; the id of a token is the claim jti")
		}
	}
	provider, hasProvider := fields["provider"]
	claims, hasClaims := fields["claims"]
	switch {
	case !hasProvider:
		n.FaultAt("provider", "is missing: write which of identities[].name has such tokens")
		return policy.Subject{}
	case !hasClaims:
		n.FaultAt("claims", "is missing: write what its token says")
		return policy.Subject{}
	}
	name, ok := provider.Text()
	issuer := p.issuers[name]
	if ok && issuer == nil {
		provider.Fault("%s is not configured (identities[].name)", term.QuoteName(name))
	}
	if _, isMapping := claims.Value.(map[string]any); !isMapping {
		claims.Fault("%s: write claims and their values", strictyaml.NotA("a mapping", claims.Value))
		return policy.Subject{}
	}
	payload, err := json.Marshal(claims.Value)
	if issuer == nil || err != nil { // a value without a JSON form is already a YAML fault
		return policy.Subject{}
	}
	id, err := issuer.IdentifyClaims(payload)
	if err != nil {
		claims.Fault("%v: write claims as such tokens have them, and what is text in quotes", err)
		return policy.Subject{}
	}
	return policy.Subject{Identity: &id}
}

// parseServiceAccount checks names with the rules of Kubernetes.
func parseServiceAccount(n strictyaml.Node, fields map[string]strictyaml.Node) policy.Subject {
	required := func(name, what string, isName func(string) bool) string {
		field, ok := fields[name]
		if !ok {
			n.FaultAt(name, "is missing: write the name of %s", what)
			return ""
		}
		return parseName(field, what, isName)
	}
	id := &oidc.Identity{
		Cluster: required("cluster", "a cluster", names.IsLabel),
		Kubernetes: oidc.KubernetesIdentity{Namespace: required("namespace", "a namespace", names.IsLabel),
			ServiceAccount: oidc.ObjectRef{Name: required("serviceAccount", "a ServiceAccount", names.IsSubdomain)}},
	}
	id.Subject = oidc.ServiceAccountSubject(id.Kubernetes.Namespace, id.Kubernetes.ServiceAccount.Name)
	if field, ok := fields["node"]; ok {
		// With a UID, as API servers write for a node that exists.
		id.Kubernetes.Node = oidc.ObjectRef{Name: parseName(field, "a node", names.IsSubdomain), UID: "known"}
	}
	if field, ok := fields["pullSecret"]; ok {
		if _, hasNode := fields["node"]; hasNode {
			field.Fault("the token of a pull secret names no node: remove one of them")
		}
		id.Kubernetes.Secret = oidc.ObjectRef{Name: parseName(field, "a Secret", names.IsSubdomain), UID: "known"}
	}
	if field, ok := fields["tokenID"]; ok {
		id.TokenID = subjects.ParseTokenID(field)
	}
	s := policy.Subject{Identity: id}
	if field, ok := fields["annotations"]; ok {
		s.Annotations = parseTexts(field, "the key of an annotation, like pullpass.dev/repositories", names.IsAnnotationKey, nil)
	}
	if field, ok := fields["namespaceLabels"]; ok {
		isKey := func(key string) bool { return len(content.IsLabelKey(key)) == 0 }
		s.NamespaceLabels = parseTexts(field, "the key of a label, like team or example.com/team", isKey, subjects.IsLabelValue)
	}
	return s
}

func parseName(n strictyaml.Node, what string, isName func(string) bool) string {
	name, ok := n.Text()
	if ok && !isName(name) {
		n.Fault("%s is not the name of %s: write it as the token has it, without *", term.QuoteName(name), what)
	}
	return name
}

// parseTexts reads a mapping of keys to texts. It may be empty, which means that there are none,
// and the texts may be empty.
func parseTexts(n strictyaml.Node, what string, isKey func(string) bool, isValue func(strictyaml.Node, string) bool) map[string]string {
	object, ok := n.Value.(map[string]any)
	if !ok {
		n.Fault("%s: write keys and their values, or {} if there are none", strictyaml.NotA("a mapping", n.Value))
		return nil
	}
	texts := make(map[string]string, len(object))
	for _, entry := range n.Entries() {
		value, ok := entry.Value.(string)
		switch {
		case !isKey(entry.Key):
			entry.Fault("is not %s", what)
		case !ok:
			entry.Fault("%s: write it in quotes", strictyaml.NotA("text", entry.Value))
		case isValue != nil && !isValue(entry.Node, value):
		default:
			texts[entry.Key] = value
		}
	}
	return texts
}
