package nodeconfig

import (
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// The files equal the printed text, without the comments about their paths.
func TestFiles(t *testing.T) {
	t.Parallel()
	target := testTarget(t, testConfig, Options{Registry: "registry.example.com"})
	content := testkit.Value(target.ProviderFile())(t)
	if !strings.HasPrefix(string(content), "apiVersion: ") || !strings.HasSuffix(string(printed(t, target, "provider")), string(content)) {
		t.Errorf("%s", content)
	}
	for _, certificate := range []bool{false, true} {
		for _, withCA := range []bool{false, true} {
			target.Certificate = certificate
			files := testkit.Value(target.HostsFiles(withCA))(t)
			text := string(files["registry.example.com"])
			if needed := certificate || withCA; len(files) > 0 != needed || needed && !strings.HasPrefix(text, "server = ") {
				t.Errorf("certificate %v, CA %v: %q", certificate, withCA, files)
			}
			if got := strings.Contains("\n"+text, "\nca = \"ca.crt\"\n"); got != withCA || withCA && strings.Contains(text, "# ca =") {
				t.Errorf("certificate %v, CA %v: %s", certificate, withCA, text)
			}
		}
	}
}
