package policyobjects

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/pullpass/pullpass/internal/base/names"
	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/pattern"
)

// MaxBytes is the longest file with objects that is read.
const MaxBytes = 16 << 20

// Set is the objects of one cluster, from files.
type Set struct {
	policies []*policy.ObjectPolicy
	requests map[string][]*policy.Request // by namespace
	seen     map[string]string            // the position of an object, by kind and name
	rules    []written
	versions strictyaml.Faults
}

// written is an AccessPolicy as its file has it.
type written struct {
	name string
	spec *yaml.Node
}

// Add reads the objects of a file: YAML documents, or lists as printed by kubectl get -o yaml. Its
// error joins all faults.
func (s *Set) Add(file string, data []byte) error {
	documents, err := strictyaml.ParseAll(data, MaxBytes)
	if err != nil {
		return fmt.Errorf("%s: is not valid YAML: %w", file, err)
	}
	if len(documents) == 0 {
		return fmt.Errorf("%s: is empty: write objects, or remove it", file)
	}
	var faults []error
	for _, root := range documents {
		if items := strictyaml.Field(root, "items"); items != nil {
			for _, item := range strictyaml.Resolve(items).Content {
				faults = append(faults, s.add(file, strictyaml.Resolve(item)))
			}
			continue
		}
		faults = append(faults, s.add(file, root))
	}
	return errors.Join(faults...)
}

func (s *Set) add(file string, root *yaml.Node) error {
	value, problems := strictyaml.Value(root)
	if len(problems) > 0 {
		return fmt.Errorf("%s: is not valid YAML: %s", file, strings.Join(problems, "; "))
	}
	fields, _ := value.(map[string]any)
	metadata, _ := fields["metadata"].(map[string]any)
	kind, _ := fields["kind"].(string)
	name, _ := metadata["name"].(string)
	namespace, _ := metadata["namespace"].(string)
	where := fmt.Sprintf("%s: line %d", file, root.Line)
	switch {
	case !s.versions.AcceptVersion(file, fields["apiVersion"]) || kind != policy.Kind && kind != policy.KindRequest:
		return fmt.Errorf("%s: is not an object of Pullpass: write apiVersion %s and kind %s or %s", where, policy.APIVersion, policy.Kind, policy.KindRequest)
	case !names.IsSubdomain(name):
		return fmt.Errorf("%s: metadata.name: %s is not a name: write lower-case letters, digits, '-' and '.'", where, term.QuoteName(name))
	case kind == policy.KindRequest && !names.IsLabel(namespace):
		return fmt.Errorf("%s: metadata.namespace: is missing: a %s asks for ServiceAccounts of its own namespace", where, policy.KindRequest)
	case fields["spec"] == nil:
		return fmt.Errorf("%s: spec: is missing: a policy file is given with policyFiles, and turned into an object with pullpass policy export", where)
	}
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		if !slices.Contains([]string{"apiVersion", "kind", "metadata", "spec", "status"}, field) {
			return fmt.Errorf("%s: %s: is not a field of an object, so it would have no effect: move it into spec, or remove it", where, term.QuoteName(field))
		}
	}
	key := kind + " " + namespace + "/" + name
	if first, twice := s.seen[key]; twice {
		return fmt.Errorf("%s: %s %s is in %s, too", where, kind, term.QuoteName(name), first)
	}
	if s.seen == nil {
		s.seen, s.requests = map[string]string{}, map[string][]*policy.Request{}
	}
	s.seen[key] = where
	if kind == policy.Kind {
		parsed := policy.ParseObject(name, fields["spec"])
		s.policies, s.rules = append(s.policies, parsed), append(s.rules, written{name, strictyaml.Field(root, "spec")})
		return in(file, parsed.Err())
	}
	parsed := policy.ParseRequest(namespace, name, fields["spec"])
	s.requests[namespace] = append(s.requests[namespace], parsed)
	return in(file, parsed.Err())
}

func in(file string, err error) error {
	var faults []error
	for _, fault := range strictyaml.Flatten(err) {
		faults = append(faults, fmt.Errorf("%s: %w", file, fault))
	}
	return errors.Join(faults...)
}

// Deprecated returns warnings about files that a later release will not read.
func (s *Set) Deprecated() []string { return s.versions.Deprecated }

// Counts says which objects of the set count in a cluster, and how far objects may go.
type Counts struct {
	Policies, Requests bool
	Within             []pattern.Pattern
}

// Of returns the objects that concern a ServiceAccount, as a proxy would find them in the cluster:
// sorted by name.
func (s *Set) Of(c Counts, namespace, account string) policy.Objects {
	said := policy.Objects{Policies: policy.NewPolicies(c.Within)}
	if c.Policies {
		said.Policies = policy.NewPolicies(c.Within, s.Policies()...)
	}
	if c.Requests {
		said.Requests = policy.NewRequests(account, s.requestsIn(namespace))
	}
	return said
}

// Policies returns the AccessPolicy objects by their names.
func (s *Set) Policies() []*policy.ObjectPolicy {
	return slices.SortedFunc(slices.Values(s.policies), func(a, b *policy.ObjectPolicy) int { return strings.Compare(a.Name(), b.Name()) })
}

// Requests returns the RepositoryAccess objects by their namespaces and names.
func (s *Set) Requests() (all []*policy.Request) {
	for _, namespace := range slices.Sorted(maps.Keys(s.requests)) {
		all = append(all, s.requestsIn(namespace)...)
	}
	return all
}

func (s *Set) requestsIn(namespace string) []*policy.Request {
	return slices.SortedFunc(slices.Values(s.requests[namespace]), func(a, b *policy.Request) int { return strings.Compare(a.Name(), b.Name()) })
}
