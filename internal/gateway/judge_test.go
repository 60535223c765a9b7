package gateway

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/registryauth/signing"
	"github.com/pullpass/pullpass/internal/test/pkitest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// The remembered result for a token ends with the token.
func TestJudgedTokensEnd(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "key.pem")
	testkit.Must(t, os.WriteFile(file, pkitest.KeyPEM(t, pkitest.ECKey(t)), 0o600))
	keys, err := signing.NewFileKeys(signing.FileKeysConfig{Algorithm: signing.ES256, Trust: signing.TrustJWKS, KeyFile: file, Overlap: time.Hour, Logger: testkit.QuietLogger()})
	testkit.Must(t, err)
	issuer, err := registryauth.NewIssuer(registryauth.IssuerConfig{Issuer: "i", Service: "s", Lifetime: time.Minute, Keys: keys, NamesHolder: true})
	testkit.Must(t, err)
	issued, err := issuer.Issue(registryauth.Grant{})
	testkit.Must(t, err)
	now := time.Now()
	j := &judge{issuer: "i", service: "s", keys: keys, now: func() time.Time { return now }, judged: newJudged(), latest: &latestTrust{}}
	if _, err := j.verify(issued.Value); err != nil {
		t.Fatal(err)
	}
	for after, want := range map[time.Duration]bool{0: true, 119 * time.Second: true, 121 * time.Second: false} {
		now = time.Now().Add(after)
		if _, known := j.known(issued.Value); known != want {
			t.Errorf("after %s: %t", after, known)
		}
	}
}
