package policytest

import "github.com/pullpass/pullpass/internal/base/strictyaml"

// Document is a file of tests as it is written. The parser takes the names of
// the fields from these types, and the JSON Schema for editors is made of them.
type Document struct {
	APIVersion strictyaml.Version `json:"apiVersion" schema:"required"`                   // the version of the format
	Kind       string             `json:"kind" schema:"required const=AccessPolicyTests"` // what the file is
	Tests      []Test             `json:"tests" schema:"required nonempty"`               // each is a line of the output
}

// Test is a request and its expected result.
type Test struct {
	Name      string      `json:"name" schema:"required nonempty"` // unique over all files; one line
	Identity  Identity    `json:"identity"`                        // what the token would say
	Anonymous bool        `json:"anonymous"`                       // instead of identity: a caller without a token
	Service   string      `json:"service" schema:"nonempty"`       // registries[].service; may be left out when there is only one
	Scopes    []string    `json:"scopes" schema:"nonempty"`        // like repository:team-a/web:pull,push; left out: a login
	Expect    Expectation `json:"expect" schema:"required"`        // what must come of it
}

// Identity is what a good token says, of a ServiceAccount with what is known of it, or
// of a caller that is not a pod.
type Identity struct {
	Cluster         string            `json:"cluster" schema:"either=pod label"`           // clusters[].name
	Namespace       string            `json:"namespace" schema:"either=pod label"`         // of the ServiceAccount
	ServiceAccount  string            `json:"serviceAccount" schema:"either=pod nonempty"` // its name
	Node            string            `json:"node" schema:"nonempty"`                      // that the token names
	PullSecret      string            `json:"pullSecret" schema:"nonempty"`                // instead of node: the Secret that the token lies in, which only pulls
	TokenID         string            `json:"tokenID" schema:"nonempty"`                   // what follows JTI= in the audit log
	Annotations     map[string]string `json:"annotations"`                                 // of the ServiceAccount
	NamespaceLabels map[string]string `json:"namespaceLabels"`                             // left out: not known; {}: there are none

	Provider string         `json:"provider" schema:"either=other label"`  // instead of a ServiceAccount: identities[].name
	Claims   map[string]any `json:"claims" schema:"either=other nonempty"` // of its token; those that every token needs, and those that the policy compares
}

// Expectation is what the policy must decide: granted, or denied.
type Expectation struct {
	Granted []string `json:"granted"`                  // these scopes and no others; [] for none
	Denied  string   `json:"denied" schema:"nonempty"` // the deny rule that must match; of an AccessPolicy object: OBJECT/RULE
	Rules   []string `json:"rules" schema:"nonempty"`  // that grant it; left out: whichever
	Reason  string   `json:"reason" schema:"nonempty"` // a part of why not more is granted; left out: whyever
}
