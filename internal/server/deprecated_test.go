package server

import (
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/proxytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// Files of a deprecated version serve as before. The log and a metric name them until they are
// rewritten, and a version that is not known changes nothing.
func TestReloadReportsDeprecatedFiles(t *testing.T) {
	t.Parallel()
	const current, deprecated = "pullpass.dev/v1beta1", "pullpass.dev/v1alpha1"
	p := startService(t, "")
	raw := kubetest.Token(t, "https://issuer.example.com")
	expect := func(count, warns string) {
		t.Helper()
		testkit.Eventually(t, count+" deprecated files are counted", func() bool {
			_, metrics := p.Fetch(t, "http://"+p.Admin+"/metrics")
			return strings.Contains(metrics, "\npullpass_deprecated_files "+count+"\n") && strings.Contains(p.Log.String(), warns)
		})
		if granted := p.Exchange(t, "/token", raw, "repository:team-a/web:pull"); len(granted) != 1 {
			t.Errorf("with %s deprecated files: granted %v", count, granted)
		}
	}
	expect("0", "")
	p.Configure(t, current, deprecated)
	expect("1", "pullpass.yaml: apiVersion: pullpass.dev/v1alpha1 is deprecated, and Pullpass 0.3.0 will not read it; rewrite the file with pullpass convert --write ")
	policy := proxytest.PolicyFor("{namespace}/**")
	p.Put(t, "policy.yaml", strings.Replace(policy, current, deprecated, 1))
	expect("2", "policy.yaml: apiVersion: pullpass.dev/v1alpha1 is deprecated, ")
	p.Configure(t, deprecated, current)
	p.Put(t, "policy.yaml", policy)
	expect("0", "")
	p.Configure(t, current, "pullpass.dev/v9")
	p.Refuses(t, configGroup, `is "pullpass.dev/v9"; this file must have `+current)
	expect("0", "")
}
