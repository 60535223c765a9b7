package exchange

import (
	"fmt"

	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/refusal"
)

// UnknownServiceError refuses a request for a registry that is not configured.
// The service becomes the audience of the issued token, so it is never taken
// from the request unasked (GHSA-p2fr-6hmx-4528).
type UnknownServiceError struct{ Service string }

func (e *UnknownServiceError) Error() string {
	return fmt.Sprintf("service %.100q is not served here; the registry's auth.token.service and registries[].service must be the same", e.Service)
}

// AnonymousError refuses a request without a credential for which no anonymous
// rule grants anything.
type AnonymousError struct{}

func (*AnonymousError) Error() string {
	return "no credential was sent, and no rule grants anonymous access to what was asked for"
}

// anonymousCauses is for the audit log. Every failure on the kubelet's side becomes an anonymous
// pull. The kubelet emits no event for it, and containerd shows the user only a status (seen with
// Kubernetes 1.36).
const anonymousCauses = "no credential was sent; if a pod should have pulled with its ServiceAccount, look at its kubelet: " +
	"is the plugin installed and executable, does matchImages match the image, is tokenAttributes.cacheType Token, " +
	"may system:nodes request this audience (verb request-serviceaccounts-token-audience), " +
	"does the ServiceAccount have every required annotation, and does the pod have a ServiceAccount at all"

// DeniedError refuses a subject as a whole: a deny rule matches it.
type DeniedError struct{ Rule string }

func (e *DeniedError) Error() string {
	return fmt.Sprintf("refused by the deny rule %q", e.Rule)
}

// UnavailableError says that the decision needs something that is unavailable now. A failure
// neither grants nor refuses access.
type UnavailableError struct {
	reason refusal.Reason
	Err    error
}

func (e *UnavailableError) Error() string { return string(e.reason) + ": " + e.Err.Error() }

func (e *UnavailableError) Unwrap() error { return e.Err }

// Reason is kubernetes_unavailable, revocations_unavailable,
// replay_unavailable or signing_key_unavailable.
func (e *UnavailableError) Reason() refusal.Reason { return e.reason }

// decisionError returns the error of a decision that leads to no token, or nil. A denied subject
// gets no token. An anonymous caller gets no token if nothing is granted.
func decisionError(d policy.Decision, subject policy.Subject) error {
	switch {
	case d.DeniedBy != "":
		return &DeniedError{Rule: d.DeniedBy}
	case subject.Identity == nil && len(d.Granted()) == 0:
		return &AnonymousError{}
	}
	return nil
}
