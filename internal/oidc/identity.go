package oidc

import (
	"time"

	"github.com/pullpass/pullpass/internal/oidc/identity"
)

// ObjectRef names one Kubernetes object. Its UID identifies it, because names are reused.
type ObjectRef struct {
	Name string
	UID  string
}

// Identity is the identity that a verified token proves. It is immutable and safe to share.
type Identity struct {
	Cluster    string // configured name of the cluster whose issuer signed the token; empty for External
	Issuer     string // iss
	Subject    string // sub; PROVIDER/sub for an External: no sub of a cluster has a slash
	TokenID    string // jti; the API server's audit log shows it as JTI=…
	Kubernetes KubernetesIdentity
	External   *identity.External // nil for a ServiceAccount
	IssuedAt   time.Time          // may be 1970 for an External (identity.Profile.RequiresIssuedAt)
	Expiry     time.Time
}

// KubernetesIdentity holds the claims of Kubernetes (KEP-4193). It is zero for a caller that is not
// a ServiceAccount: empty names match nothing.
//
// A Node can have a name without a UID, unless Issuer.RequireNode is set. API servers write that if
// the pod's Node object did not exist. Such a name may be used to refuse a request, but not to
// allow it.
type KubernetesIdentity struct {
	Namespace      string
	ServiceAccount ObjectRef
	Pod            ObjectRef // zero when the token is not bound to a pod
	Node           ObjectRef // zero when the token has no node claim
	// Secret is the Secret that holds a token that was accepted as one of Issuer.PullSecrets. It is
	// zero for every other token, also for one that is bound to a Secret. The signature does not
	// prove that the Secret still exists.
	Secret ObjectRef
}

// InSecret reports whether the token is one of Issuer.PullSecrets. Anyone who can read the Secret
// has the token, so it names no pod and no node.
func (id *Identity) InSecret() bool { return id.Kubernetes.Secret != (ObjectRef{}) }

// IssuerName is the configured name of the cluster or of the identity. It is unique among both.
func (id *Identity) IssuerName() string {
	if id.External != nil {
		return id.External.Provider
	}
	return id.Cluster
}
