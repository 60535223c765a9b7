package config

import (
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// Resolve sets whole file names, and omits methods with missing settings.
func TestNodeProofIsResolved(t *testing.T) {
	t.Parallel()
	const text = `
apiVersion: pullpass.dev/v1beta1
kind: ProxyConfiguration
server: {tls: {clientCAFile: common.crt}}
clusters:
- {name: own, issuer: "https://a", audiences: [a], node: {proof: {mode: audit, clientCAFile: own.crt}}}
- {name: common, issuer: "https://b", audiences: [a], node: {proof: {mode: enforce}}, kubernetes: {inCluster: true}}
- {name: address, issuer: "https://c", audiences: [a], node: {proof: {mode: audit, methods: [address]}}, kubernetes: {kubeconfigFile: k}}
- {name: "off", issuer: "https://d", audiences: [a], node: {proof: {clientCAFile: off.crt}}, kubernetes: {kubeconfigFile: k}}
registries: [{service: a, issuer: a}]
policyFiles: [policy.yaml]
`
	c := testkit.Value(Parse([]byte(text), "config.yaml", "/etc/pullpass"))(t)
	common := ClientCAs{"server.tls.clientCAFile", "/etc/pullpass/common.crt"}
	own := ClientCAs{"clusters[0].node.proof.clientCAFile", "/etc/pullpass/own.crt"}
	if want := []ClientCAs{common, own, {"clusters[3].node.proof.clientCAFile", "/etc/pullpass/off.crt"}}; !slices.Equal(c.ClientCAs, want) {
		t.Errorf("CAs %v, want %v", c.ClientCAs, want)
	}
	for i, want := range []struct {
		effective string
		cas       ClientCAs
	}{
		{"certificate", own}, {"certificate address", common}, {"address", ClientCAs{}}, {"", ClientCAs{}},
	} {
		p := c.Clusters[i].Node.Proof
		var effective []string
		for _, method := range p.Effective {
			effective = append(effective, string(method))
		}
		if got := strings.Join(effective, " "); got != want.effective || p.CAs != want.cas {
			t.Errorf("%s: %q, %v; want %q, %v", c.Clusters[i].Name, got, p.CAs, want.effective, want.cas)
		}
		if p.By(nodeproof.Address) != strings.Contains(want.effective, "address") {
			t.Errorf("%s: by address: %t", c.Clusters[i].Name, p.By(nodeproof.Address))
		}
	}
}
