package setup

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/cluster/account"
	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

func TestRightsFollowTheSettings(t *testing.T) {
	t.Parallel()
	kubeconfig := testkit.TempFile(t, "kubeconfig", "current-context: x\ncontexts: [{name: x, context: {cluster: x, namespace: a}}]\n")
	const least = "get serviceaccounts list serviceaccounts watch serviceaccounts get namespaces list namespaces watch namespaces"
	for _, test := range []struct {
		settings connectionSettings
		more     string
	}{
		{connectionSettings{}, ""},
		{connectionSettings{podChecks: true, nodeFallback: true}, " get pods list pods watch pods"},
		{connectionSettings{nodeFallback: true}, " get pods"},
		{connectionSettings{nodes: true}, " get nodes list nodes watch nodes"},
		{connectionSettings{podEvents: true}, " create events patch events"},
		{connectionSettings{pullSecretAudience: "a"}, " create tokenreviews.authentication.k8s.io"},
		{connectionSettings{policies: true}, " list accesspolicies.pullpass.dev watch accesspolicies.pullpass.dev"},
		{connectionSettings{requests: true}, " list repositoryaccesses.pullpass.dev watch repositoryaccesses.pullpass.dev"},
		{connectionSettings{status: true, Kubeconfig: kubeconfig}, " patch accesspolicies/status.pullpass.dev patch repositoryaccesses/status.pullpass.dev create leases.coordination.k8s.io in a" +
			" get leases.coordination.k8s.io called pullpass-policy-status in a update leases.coordination.k8s.io called pullpass-policy-status in a"},
	} {
		if got := strings.Trim(fmt.Sprint(test.settings.rights()), "[]"); got != least+test.more {
			t.Errorf("%+v: %s", test.settings, got)
		}
	}
}

// The remedy names the file that has the right.
func TestRightsAreInTheFiles(t *testing.T) {
	t.Parallel()
	kubeconfig := testkit.TempFile(t, "kubeconfig", "current-context: x\ncontexts: [{name: x, context: {cluster: x, namespace: a}}]\n")
	all := connectionSettings{podChecks: true, nodes: true, podEvents: true, pullSecretAudience: "a", policies: true, requests: true, status: true, Kubeconfig: kubeconfig}
	for _, right := range all.rights() {
		text := testkit.Read(t, testkit.InModule("deploy/kubernetes/"+rightsFile(right)))
		if !strings.Contains(text, right.Resource) || !strings.Contains(text, right.Verb) {
			t.Errorf("%s is not in %s", right, rightsFile(right))
		}
	}
	if got := rightsFile(account.Right{Resource: "pods"}); got != "rbac.yaml" {
		t.Error(got)
	}
}

// A revocation counts until the last token has expired that it was for, whatever its issuer's clock says, and a push credential.
func TestLongestAcceptance(t *testing.T) {
	t.Parallel()
	lifetimes := func(cluster, identity time.Duration) *config.Config {
		return &config.Config{
			Clusters:   []config.Cluster{{MaxTokenLifetime: config.Duration(cluster)}},
			Identities: []config.Provider{{MaxTokenLifetime: config.Duration(identity)}},
		}
	}
	for _, test := range []struct{ cluster, identity, want time.Duration }{
		{time.Hour, time.Minute, time.Hour + 2*time.Minute},
		{time.Minute, time.Minute, 18 * time.Minute},
	} {
		if got := LongestAcceptance(lifetimes(test.cluster, test.identity)); got != test.want {
			t.Errorf("%+v: %s", test, got)
		}
	}
}
