package policy

import (
	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/policy/subjects"
)

// Document is a policy file as it is written. The parser takes the names of the
// fields from these types, and the JSON Schema for editors is made of them.
type Document struct {
	APIVersion strictyaml.Version `json:"apiVersion" schema:"required"`              // the version of the format
	Kind       string             `json:"kind" schema:"required const=AccessPolicy"` // what the file is
	Rules      []Rule             `json:"rules" schema:"nonempty"`                   // who may have what; nothing is allowed until a rule allows it
	Deny       []Denial           `json:"deny"`                                      // who gets no token, whatever the rules say
}

// Rule allows actions to callers.
type Rule struct {
	Name       string             `json:"name" schema:"required label"`     // unique over all files; stands in audit lines and reasons
	Subjects   []subjects.Subject `json:"subjects" schema:"nonempty"`       // for whom the rule is: any of these
	Anonymous  bool               `json:"anonymous"`                        // true: for all callers, with a token or without; then without subjects
	Services   []string           `json:"services" schema:"nonempty"`       // registries[].service, exactly; left out: every registry
	Annotation string             `json:"annotation" schema:"nonempty"`     // key of the ServiceAccount's annotation that selects from what is allowed
	Requests   bool               `json:"requests"`                         // true: RepositoryAccess objects of the ServiceAccount's cluster select from what is allowed
	Allow      []Allowance        `json:"allow" schema:"required nonempty"` // what the rule allows; with an annotation or requests, the ceiling
}

// Allowance is repositories, or the catalog, and the actions on them.
type Allowance struct {
	Repositories []string      `json:"repositories" schema:"nonempty"`     // patterns: * is within a component, ** is any components; {namespace}, {serviceAccount} and {cluster} stand for names
	Registry     []CatalogName `json:"registry" schema:"nonempty"`         // the list of all repositories, instead of repositories
	Actions      []ActionName  `json:"actions" schema:"required nonempty"` // what may be done; * is whatever is asked
}

// CatalogName is what of a registry itself can be allowed.
type CatalogName string

// Values returns all that there are.
func (CatalogName) Values() []CatalogName { return []CatalogName{"catalog"} }

// ActionName is an action on a repository.
type ActionName string

// Values returns all that there are.
func (ActionName) Values() []ActionName { return []ActionName{"pull", "push", "delete", "*"} }

// RequestSpec is the spec of a RepositoryAccess: what ServiceAccounts of its namespace
// ask for. They get what rules with requests: true allow of it.
type RequestSpec struct {
	ServiceAccounts []string     `json:"serviceAccounts" schema:"required nonempty"` // of the namespace of the object, exactly
	Repositories    []string     `json:"repositories" schema:"required nonempty"`    // patterns: * is within a component, ** is any components
	Actions         []ActionName `json:"actions" schema:"required nonempty"`         // what is asked for; * is whatever is asked
}

// Denial refuses all requests of its subjects.
type Denial struct {
	Name     string            `json:"name" schema:"required label"`        // unique over all files; stands in audit lines and reasons
	Subjects []subjects.Denied `json:"subjects" schema:"required nonempty"` // whom to refuse: any of these
}
