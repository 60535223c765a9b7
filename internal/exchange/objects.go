package exchange

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/refusal"
)

// Objects looks up the objects that an identity names, as the API server of its cluster has them
// now.
//
// A *GoneError says for sure that one of them no longer exists. Any other error means that this is
// unknown now. The request is then answered 503, because both a grant and a refusal could be wrong.
// Implementations must be safe for concurrent use and return within their own time limit.
type Objects interface {
	// Lookup also reviews a credential from a Secret, because its signature does not prove that the
	// Secret still exists.
	Lookup(ctx context.Context, id oidc.Identity, credential oidc.Credential) (Facts, error)
}

// errNotReviewed refuses a credential that was not reviewed by an API server.
var errNotReviewed = errors.New("no API server says that the token's Secret is still there; pull secrets need clusters[].kubernetes")

// Facts holds the known facts about the objects that an identity names. It must not be changed. The
// zero Facts is empty.
type Facts struct {
	Confirmed       bool              // an API server says that the objects exist; files cannot say that
	Annotations     map[string]string // of the ServiceAccount, those that policies read
	NamespaceLabels map[string]string // nil: not known
	Objects         policy.Objects    // facts from objects of the cluster about the ServiceAccount
	Node            *Node             // the node of the token, or else of its pod; nil: not known
}

// Node is a Node object.
type Node struct {
	Name, UID string            // without UID: a pod names it, but the object does not exist
	Labels    map[string]string // nil where no check reads them
	Addresses []netip.Addr      // likewise
}

// Kind is the kind of an object that a token names.
type Kind string

// The kinds.
const (
	KindServiceAccount Kind = "ServiceAccount"
	KindPod            Kind = "Pod"
	KindNode           Kind = "Node"
	KindSecret         Kind = "Secret"
)

// GoneError refuses an identity because an object that it names no longer exists: it was deleted,
// or recreated under the same name (KEP-4412).
type GoneError struct {
	Kind Kind
	Name string // NAMESPACE/NAME; for a Node its name
	UID  string // in the token
	Now  string // UID of the object that has this name now; empty: there is none
}

func (e *GoneError) Error() string {
	if e.Kind == KindSecret { // the API server does not report the cause
		return fmt.Sprintf("the API server does not accept the token in the Secret %s (UID %s) any more: the Secret was deleted, or the key that signed the token is not used any more", e.Name, e.UID)
	}
	if e.Now == "" {
		return fmt.Sprintf("the %s %s that the token names was deleted (UID %s); its tokens ended with it", e.Kind, e.Name, e.UID)
	}
	return fmt.Sprintf("the %s %s that the token names was deleted (UID %s), and recreated under the same name (UID %s); tokens that are requested now are for the new one",
		e.Kind, e.Name, e.UID, e.Now)
}

// Reason is service_account_gone, pod_gone, node_gone or secret_gone.
func (e *GoneError) Reason() refusal.Reason {
	switch e.Kind {
	case KindServiceAccount:
		return refusal.ServiceAccountGone
	case KindPod:
		return refusal.PodGone
	case KindNode:
		return refusal.NodeGone
	}
	return refusal.SecretGone
}
