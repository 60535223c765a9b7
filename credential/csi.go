package credential

import (
	"fmt"
	"time"
)

const (
	// tokensKey is where the kubelet puts the tokens that spec.tokenRequests of
	// the CSIDriver object asks for.
	tokensKey = "csi.storage.k8s.io/serviceAccount.tokens"

	// maxTokensSize is in bytes.
	maxTokensSize = 16 * maxTokenSize
)

// FromCSI takes the token for one audience from what a CSI driver gets with
// NodePublishVolume: the volume context or, if the CSIDriver object has
// serviceAccountTokenInSecrets, the secrets (KEP-5538). The audience must not be
// empty; it is the one that Pullpass expects of this cluster.
//
// Pass the one map that the CSIDriver object asks for and never try the other:
// the kubelet writes no tokens there, so a value under their key comes
// from the author of the volume.
func FromCSI(values map[string]string, audience string, now time.Time) (Credential, error) {
	if audience == "" {
		return Credential{}, errNoAudience
	}
	tokens, found := values[tokensKey]
	if !found {
		return Credential{}, fmt.Errorf("%s: %w; add audience %q to spec.tokenRequests of the CSIDriver object, and read the secrets "+
			"instead of the volume context if and only if it has serviceAccountTokenInSecrets", tokensKey, ErrMissing, audience)
	}
	if len(tokens) > maxTokensSize {
		return Credential{}, fmt.Errorf("%s: %w: longer than %d KiB", tokensKey, ErrMalformed, maxTokensSize>>10)
	}
	entries, err := members([]byte(tokens))
	if err != nil {
		return Credential{}, fmt.Errorf("%s: %w: %w", tokensKey, ErrMalformed, err)
	}
	entry, found := entries[audience]
	if !found {
		return Credential{}, fmt.Errorf("%s: %w for audience %q; add it to spec.tokenRequests of the CSIDriver object",
			tokensKey, ErrMissing, audience)
	}
	token, end, err := parseEntry(entry)
	if err != nil {
		return Credential{}, fmt.Errorf("%s: entry for audience %q: %w: %w", tokensKey, audience, ErrMalformed, err)
	}
	from := Source{
		Name:     tokensKey,
		Audience: "spec.tokenRequests[].audience of the CSIDriver object",
		Renewal:  "with spec.requiresRepublish of the CSIDriver object the kubelet brings new ones",
	}
	return from.credential(token, audience, end, now)
}

// parseEntry reads a TokenRequestStatus, which is what kubelets write. KEP-1855
// has "expiry" for its end; the earlier one counts.
func parseEntry(entry []byte) (token string, end time.Time, err error) {
	var expiry time.Time
	err = decode(entry, field{"token", &token}, field{"expirationTimestamp", &end}, field{"expiry", &expiry})
	if end.IsZero() || !expiry.IsZero() && expiry.Before(end) {
		end = expiry
	}
	if err == nil && end.IsZero() {
		err = fmt.Errorf("%q is missing", "expirationTimestamp")
	}
	return token, end, err
}
