package oidc

import (
	"fmt"
	"time"

	"github.com/pullpass/pullpass/internal/refusal"
)

// legacyIssuer is the iss of every token that Kubernetes keeps in a Secret. Such a token has no
// audience and never expires, but has the same signing key as other tokens. KEP-2799 explains why
// such tokens are being removed.
const legacyIssuer = "kubernetes/serviceaccount"

// isLegacy is never true for a configured issuer, because its URL is an https URL.
func (c *claims) isLegacy() bool { return c.Issuer == legacyIssuer }

func (c *claims) legacyClaimed() Claimed {
	return Claimed{
		Issuer:         legacyIssuer,
		Subject:        cut(c.Subject),
		Namespace:      cut(c.LegacyNamespace),
		ServiceAccount: ObjectRef{Name: c.LegacyServiceAccount, UID: c.LegacyUID}.cut(),
		Secret:         cut(c.LegacySecret),
	}
}

// refuseLegacy always refuses the token. It first checks whether the token is genuine, so that
// operators can find the last users of such tokens. It uses only keys that were fetched before: a
// token that is refused anyway must not cause a fetch.
func (v *Verifier) refuseLegacy(t *token, now time.Time) *Error {
	claimed := t.claims.legacyClaimed()
	failure := &Error{Reason: refusal.TokenLegacy, Claimed: claimed}
	failure.Message = fmt.Sprintf("the token of Secret %s in namespace %s never expires and is not accepted; "+
		"delete that Secret, and use the kubelet's credential provider, a projected volume or \"kubectl create token --bound-object-kind Pod\" (KEP-2799)",
		quote(claimed.Secret), quote(claimed.Namespace))

	algorithm, keyID, refused := t.checkHeader()
	if refused != nil {
		return failure
	}
	for _, i := range v.issuers {
		if i.Provider != nil {
			continue // only clusters have signed such tokens
		}
		key := i.keys.believed(now).find(keyID)
		if key != nil && key.algorithm == algorithm && key.verify(t.signed, t.signature) {
			failure.Verified, failure.Cluster = true, i.Cluster
			break
		}
	}
	return failure
}
