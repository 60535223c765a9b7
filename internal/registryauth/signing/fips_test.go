package signing

import (
	"crypto/fips140"
	"crypto/rand"
	"crypto/rsa"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// Each algorithm signs with GODEBUG=fips140=only. A key that this mode does not allow is refused when it is read, so that "pullpass check"
// says so.
func TestSigningKeysWithOnlyFIPS(t *testing.T) {
	t.Parallel()
	if !testkit.OnlyFIPS(t) {
		return
	}
	for _, algorithm := range Algorithm("").Values() {
		mustIssue(t, newFixedKeys(t, algorithm, TrustJWKS), tokenLifetime)
	}
	var odd *rsa.PrivateKey
	var err error
	fips140.WithoutEnforcement(func() { odd, err = rsa.GenerateKey(rand.Reader, 2049) })
	testkit.Must(t, err)
	const want = "the key cannot sign: crypto/rsa: use of keys with odd size is not allowed in FIPS 140-only mode"
	if _, err := newSigningKey(RS256, odd, nil, nil); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("a key of 2049 bits: %v, want %s", err, want)
	}
}
