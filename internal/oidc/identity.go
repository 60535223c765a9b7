package oidc

import (
	"time"

	"github.com/pullpass/pullpass/internal/identity"
)

// ObjectRef names one Kubernetes object. The UID, not the name, is its
// identity: names are reused.
type ObjectRef struct {
	Name string
	UID  string
}

// Identity is what a verified token proves. It is immutable and safe to share.
type Identity struct {
	Cluster    string // configured name of the issuer that signed the token; empty for External
	Issuer     string // iss
	Subject    string // sub: system:serviceaccount:NAMESPACE:NAME; of an External PROVIDER/sub, and no cluster's sub has a slash
	TokenID    string // jti; the API server's audit log shows it as JTI=…
	Kubernetes KubernetesIdentity
	External   *identity.External // nil: it is a ServiceAccount
	IssuedAt   time.Time          // of some Externals 1970: their issuers need not say (identity.Profile.RequiresIssuedAt)
	Expiry     time.Time
}

// KubernetesIdentity is what the claims of Kubernetes say (KEP-4193). It is zero
// for who is no ServiceAccount of a cluster: empty names match nothing.
//
// A Node can have a name without a UID, unless Issuer.RequireNode is set: API
// servers write that when the pod's Node object was not there. The name may be
// used to refuse, not to allow.
type KubernetesIdentity struct {
	Namespace      string
	ServiceAccount ObjectRef
	Pod            ObjectRef // zero when the token is not bound to a pod
	Node           ObjectRef // zero when the token has no node claim
	// Secret is where a token is that was accepted as one of Issuer.PullSecrets, and
	// zero for every other token, whatever it is bound to. That the Secret is still
	// there the signature does not say.
	Secret ObjectRef
}

// InSecret reports whether the token is one of Issuer.PullSecrets: whoever reads the
// Secret has it, so it names no pod and no node.
func (id *Identity) InSecret() bool { return id.Kubernetes.Secret != (ObjectRef{}) }

// IssuerName is the configured name of the cluster or of the identity: no two of
// them have the same.
func (id *Identity) IssuerName() string {
	if id.External != nil {
		return id.External.Provider
	}
	return id.Cluster
}
