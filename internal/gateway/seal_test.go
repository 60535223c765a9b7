package gateway

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/pkitest"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/signing"
	"github.com/pullpass/pullpass/internal/testkit"
)

// What is sealed opens until its end, for the same alone, in every replica that has the
// key, and after a change of the key in the one that had it.
func TestSealer(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "key.pem")
	newKey := func() { testkit.Must(t, os.WriteFile(file, pkitest.KeyPEM(t, pkitest.ECKey(t)), 0o600)) }
	newKey()
	keys, err := signing.NewFileKeys(signing.FileKeysConfig{Algorithm: signing.ES256, Trust: signing.TrustJWKS, KeyFile: file, Overlap: time.Hour, Logger: testkit.QuietLogger()})
	testkit.Must(t, err)
	now := time.Now()
	one, other := &sealer{}, &sealer{}
	sealed, err := one.seal(keys, "/v2/acme/app/blobs/uploads/x?state=y", "bound", now)
	testkit.Must(t, err)
	for name, test := range map[string]struct {
		by     *sealer
		sealed string
		bound  string
		after  time.Duration
		opens  bool
	}{
		"at once":           {one, sealed, "bound", 0, true},
		"before its end":    {one, sealed, "bound", sealedFor - 2*time.Second, true},
		"at its end":        {one, sealed, "bound", sealedFor, false},
		"another replica":   {other, sealed, "bound", 0, true},
		"bound otherwise":   {one, sealed, "bounds", 0, false},
		"cut":               {one, sealed[:len(sealed)-4], "bound", 0, false},
		"no base64":         {one, sealed[:len(sealed)-1] + "!", "bound", 0, false},
		"another last bits": {one, sealed + "A", "bound", 0, false},
		"nothing":           {one, "", "bound", 0, false},
		"much":              {one, strings.Repeat("A", 8<<10), "bound", 0, false},
	} {
		plain, err := test.by.open(keys, test.sealed, test.bound, now.Add(test.after))
		if (err == nil) != test.opens || test.opens && plain != "/v2/acme/app/blobs/uploads/x?state=y" {
			t.Errorf("%s: %q, %v", name, plain, err)
		}
	}
	again, err := one.seal(keys, "/v2/acme/app/blobs/uploads/x?state=y", "bound", now)
	testkit.Must(t, err)
	if again == sealed {
		t.Error("the same is sealed in the same way twice")
	}
	newKey()
	testkit.Must(t, keys.Reload())
	if _, err := one.open(keys, sealed, "bound", now); err != nil {
		t.Errorf("after a change of the key: %v", err)
	}
	if _, err := (&sealer{}).open(keys, sealed, "bound", now); err == nil {
		t.Error("it opens with another key")
	}
}

// What was found out about a token ends with it.
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
	if _, err := j.judge(issued.Value); err != nil {
		t.Fatal(err)
	}
	for after, want := range map[time.Duration]bool{0: true, 119 * time.Second: true, 121 * time.Second: false} {
		now = time.Now().Add(after)
		if _, known := j.known(issued.Value); known != want {
			t.Errorf("after %s: %t", after, known)
		}
	}
}
