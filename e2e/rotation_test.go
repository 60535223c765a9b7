package e2e

import (
	"net/http"
	"testing"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// TestAPIServerKeyRotation changes the API server's signing key as its documentation says: first the new key signs and both
// are trusted, later only the new one is. Pullpass runs all the while.
func TestAPIServerKeyRotation(t *testing.T) {
	oldKey, newKey, unknownKey := certs.NewRSAKey(t), certs.NewRSAKey(t), certs.NewRSAKey(t)
	c := cluster.Start(t, oldKey)
	createWorkload(t, c)
	c.OpenDiscovery(t)
	proxy := pullpass.Start(t, certs.NewCA(t, "pullpass-ca"), clusterConfig(c, pullpass.Discovery{CAFile: c.CA.File}))
	status := func(token string) int {
		t.Helper()
		return proxy.Post(t, service, token, asked...).Status
	}
	refusal := func(token string) string {
		t.Helper()
		return proxy.Post(t, service, token, asked...).Audit.Reason
	}

	// The first is remembered as verified; the others are not known to Pullpass until they are presented.
	used, unused, unusedUntilRemoved := podToken(t, c), podToken(t, c), podToken(t, c)
	if got := status(used); got != http.StatusOK {
		t.Fatalf("before the rotation: status %d", got)
	}

	c.RestartAPIServer(t, newKey, oldKey, newKey)
	ofNewKey := podToken(t, c)
	if keyID(t, ofNewKey) == keyID(t, used) {
		t.Fatal("the API server did not change its key")
	}
	t.Log("both keys are published: the new one is fetched when the first token of it arrives")
	testenv.Await(t, fetchLimit, "a token of the new key is accepted", func() bool { return status(ofNewKey) == http.StatusOK })
	for name, token := range map[string]string{"used": used, "unused": unused, "of the new key": ofNewKey} {
		if got := status(token); got != http.StatusOK {
			t.Errorf("both keys: the token %s gets status %d, want 200", name, got)
		}
	}

	c.RestartAPIServer(t, newKey, newKey)
	t.Log("only the new key is published: the next fetch drops the old one; a token of an unknown key causes it")
	forged := resign(t, used, unknownKey)
	testenv.Await(t, fetchLimit, "a token of the removed key is refused", func() bool {
		if got := refusal(forged); got != "token_unknown_key" {
			t.Fatalf("a token of a key that no issuer has: reason %q, want token_unknown_key", got)
		}
		return refusal(used) == "token_unknown_key"
	})
	if got := refusal(unusedUntilRemoved); got != "token_unknown_key" {
		t.Errorf("a token of the removed key that was never seen before: reason %q, want token_unknown_key", got)
	}
	if got := status(ofNewKey); got != http.StatusOK {
		t.Errorf("the token of the key that stays gets status %d, want 200", got)
	}
}
