package seal

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/registryauth/signing"
	"github.com/pullpass/pullpass/internal/test/pkitest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// Only the text that was sealed opens, and only for what it is bound to. {sealed} stands for it.
func FuzzOpen(f *testing.F) {
	file := filepath.Join(f.TempDir(), "key.pem")
	testkit.Must(f, os.WriteFile(file, pkitest.KeyPEM(f, pkitest.ECKey(f)), 0o600))
	keys, err := signing.NewFileKeys(signing.FileKeysConfig{Algorithm: signing.ES256, Trust: signing.TrustJWKS, KeyFile: file, Overlap: time.Hour, Logger: testkit.QuietLogger()})
	testkit.Must(f, err)
	box, now := NewBox("fuzz"), time.Now()
	sealed := testkit.Value(box.Seal(keys, "/v2/x", "bound", now.Add(time.Hour)))(f)
	f.Add("", 0, "", "bound")
	f.Add("A", 3, "", "bound")
	f.Add("", 0, "A", "bound")
	f.Add("", 0, "", "other")
	f.Add("", 0, "\n", "bound")
	f.Fuzz(func(t *testing.T, before string, cut int, behind, bound string) {
		text := before + sealed[min(max(cut, 0), len(sealed)):] + behind
		got, err := box.Open(keys, text, bound, now)
		if isSealed := text == sealed && bound == "bound"; isSealed != (err == nil) || isSealed && got != "/v2/x" {
			t.Errorf("%q for %q: %q, %v", text, bound, got, err)
		}
		if _, err := box.Open(keys, text, bound, now.Add(time.Hour)); err == nil {
			t.Errorf("%q opens at its end", text)
		}
	})
}
