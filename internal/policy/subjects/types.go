package subjects

// Subject matches a ServiceAccount, or with identities another caller, if all
// fields that are given do.
type Subject struct {
	Clusters          []string          `json:"clusters" schema:"nonempty"`               // clusters[].name; * is any run of characters
	Namespaces        []string          `json:"namespaces" schema:"nonempty"`             // * is any run of characters
	NamespaceSelector NamespaceSelector `json:"namespaceSelector" schema:"nonempty text"` // labels of the namespace; in files also text as for kubectl -l; needs clusters[].kubernetes
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

// Denied matches as the subject of a rule does, or a single token.
type Denied struct {
	Subject
	TokenIDs []string `json:"tokenIDs" schema:"nonempty"` // what follows JTI= in the audit log
}
