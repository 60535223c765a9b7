package policyobjects

import "github.com/pullpass/pullpass/internal/policy"

// AccessPolicy is the spec of an AccessPolicy: the content of a policy file, for the
// ServiceAccounts of the cluster that the object is in.
type AccessPolicy struct {
	Rules []policy.Rule   `json:"rules" schema:"nonempty"` // who may have what, within clusters[].kubernetes.objects.within
	Deny  []policy.Denial `json:"deny"`                    // who gets no token, whatever rules say; also those of policy files
	Trial bool            `json:"trial"`                   // decides nothing: differences are recorded
}

// RepositoryAccess is the spec of a RepositoryAccess.
type RepositoryAccess struct {
	policy.RequestSpec
}
