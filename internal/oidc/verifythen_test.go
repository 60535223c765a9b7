package oidc

import (
	"errors"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/refusal"
)

// A token is judged as of an earlier moment, by the keys of now, and is not remembered:
// at the present moment it has ended.
func TestVerifyThen(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	raw := keys().rsa.sign(t, payload(t, "kubelet"))
	then := issuedAt.Add(time.Minute)
	impostor := func() keyPair { other := keys().rsa2; other.id = keys().rsa.id; return other }
	f.clock.Set(issuedAt.Add(24 * time.Hour))
	if id, err := f.VerifyThen(t.Context(), presented(raw), then); err != nil || id.TokenID == "" {
		t.Errorf("a token that was good then: %+v, %v", id, err)
	}
	refuse(t, f.Verifier, raw, refusal.TokenExpired, "")
	for name, test := range map[string]struct {
		raw    string
		then   time.Time
		reason refusal.Reason
	}{
		"it had ended then": {raw, issuedAt.Add(2 * time.Hour), refusal.TokenExpired},
		"it began later":    {raw, issuedAt.Add(-time.Hour), refusal.TokenNotYetValid},
		"another signature": {impostor().sign(t, payload(t, "kubelet")), then, refusal.TokenSignature},
		"another audience":  {keys().rsa.sign(t, payload(t, "kubelet", `"registry.example.com"`, `"other.example.com"`)), then, refusal.TokenAudience},
	} {
		_, err := f.VerifyThen(t.Context(), presented(test.raw), test.then)
		if failure, ok := errors.AsType[*Error](err); !ok || failure.Reason != test.reason {
			t.Errorf("%s: %v", name, err)
		}
	}
}
