package setup

import (
	"fmt"
	"strings"
	"testing"
)

func TestRightsFollowTheSettings(t *testing.T) {
	t.Parallel()
	const least = "get serviceaccounts list serviceaccounts watch serviceaccounts get namespaces list namespaces watch namespaces"
	for _, test := range []struct {
		settings connectionSettings
		more     string
	}{
		{connectionSettings{}, ""},
		{connectionSettings{podChecks: true, nodeFallback: true}, " get pods list pods watch pods"},
		{connectionSettings{nodeFallback: true}, " get pods"},
		{connectionSettings{nodes: true}, " get nodes list nodes watch nodes"},
		{connectionSettings{nodeLabels: true}, " get nodes list nodes watch nodes"},
		{connectionSettings{nodeAddresses: true}, " get nodes list nodes watch nodes"},
		{connectionSettings{podEvents: true}, " create events patch events"},
		{connectionSettings{pullSecretAudience: "a"}, " create tokenreviews.authentication.k8s.io"},
		{connectionSettings{policies: true}, " list accesspolicies.pullpass.dev watch accesspolicies.pullpass.dev"},
		{connectionSettings{requests: true}, " list repositoryaccesses.pullpass.dev watch repositoryaccesses.pullpass.dev"},
	} {
		if got := strings.Trim(fmt.Sprint(test.settings.rights()), "[]"); got != least+test.more {
			t.Errorf("%+v: %s", test.settings, got)
		}
	}
}
