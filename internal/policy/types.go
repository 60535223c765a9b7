package policy

// Document is a policy file as it is written. The parser takes the names of the
// fields from these types, and the JSON Schema for editors is made of them.
type Document struct {
	APIVersion string   `json:"apiVersion" schema:"required const=pullpass.dev/v1alpha1"` // the version of the format
	Kind       string   `json:"kind" schema:"required const=AccessPolicy"`                // what the file is
	Rules      []Rule   `json:"rules" schema:"nonempty"`                                  // who may have what; nothing is allowed until a rule allows it
	Deny       []Denial `json:"deny"`                                                     // who gets no token, whatever the rules say
}

// Rule allows something to somebody.
type Rule struct {
	Name       string        `json:"name" schema:"required label"`     // unique over all files; stands in audit lines and reasons
	Subjects   []RuleSubject `json:"subjects" schema:"nonempty"`       // for whom the rule is: any of these
	Anonymous  bool          `json:"anonymous"`                        // true: for everybody, with a token or without; then without subjects
	Services   []string      `json:"services" schema:"nonempty"`       // registries[].service, exactly; left out: every registry
	Annotation string        `json:"annotation" schema:"nonempty"`     // key of the ServiceAccount's annotation that selects from what is allowed
	Allow      []Allowance   `json:"allow" schema:"required nonempty"` // what the rule allows; with an annotation, the ceiling
}

// RuleSubject matches a ServiceAccount, or with identities somebody else, if all
// fields that are given do.
type RuleSubject struct {
	Clusters          []string          `json:"clusters" schema:"nonempty"`               // clusters[].name; * is any run of characters
	Namespaces        []string          `json:"namespaces" schema:"nonempty"`             // * is any run of characters
	NamespaceSelector NamespaceSelector `json:"namespaceSelector" schema:"nonempty text"` // labels of the namespace, or text as for kubectl -l; needs clusters[].kubernetes
	ServiceAccounts   []string          `json:"serviceAccounts" schema:"nonempty"`        // * is any run of characters
	Nodes             []string          `json:"nodes" schema:"nonempty"`                  // the node that the token names; * is any run of characters
	// Identities are identities[].name, exactly: CI jobs and others that are no
	// ServiceAccounts. Without it, the subject is a ServiceAccount.
	Identities []string `json:"identities" schema:"nonempty"`
	// Claims are those of an identity's token, and for each the values of which it
	// has one, exactly; * is any run of characters where people choose the value, as
	// in ref. A claim that is missing matches no rule, and every denial.
	Claims    map[string][]string `json:"claims" schema:"nonempty"`
	Condition string              `json:"condition" schema:"nonempty"` // CEL, of claims, kubernetes and service: an expression that must be true
}

// NamespaceSelector is written as in a NetworkPolicy.
type NamespaceSelector struct {
	MatchLabels      map[string]string     `json:"matchLabels" schema:"nonempty"`      // labels and their values; all must be so
	MatchExpressions []SelectorRequirement `json:"matchExpressions" schema:"nonempty"` // all must hold
}

// SelectorRequirement is what a label must be.
type SelectorRequirement struct {
	Key      string           `json:"key" schema:"required nonempty"` // of the label
	Operator SelectorOperator `json:"operator" schema:"required"`     // how the label is compared
	Values   []string         `json:"values"`                         // what In and NotIn compare with
}

// SelectorOperator compares a label.
type SelectorOperator string

// Values returns all that there are.
func (SelectorOperator) Values() []SelectorOperator {
	return []SelectorOperator{"In", "NotIn", "Exists", "DoesNotExist"}
}

// Allowance is repositories, or the catalog, and what may be done with them.
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

// Denial refuses somebody as a whole.
type Denial struct {
	Name     string          `json:"name" schema:"required label"`        // unique over all files; stands in audit lines and reasons
	Subjects []DeniedSubject `json:"subjects" schema:"required nonempty"` // whom to refuse: any of these
}

// DeniedSubject matches as the subject of a rule does, or a single token.
type DeniedSubject struct {
	RuleSubject
	TokenIDs []string `json:"tokenIDs" schema:"nonempty"` // what follows JTI= in the audit log
}
