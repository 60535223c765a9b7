package e2e

import (
	"testing"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/pullpass"
)

// clustersPolicy gives each cluster a repository of its own, and the repositories of shared that its ServiceAccounts request.
const clustersPolicy = `apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- name: first
  subjects: [{clusters: [first]}]
  allow: [{repositories: ["first/**"], actions: [pull]}]
- name: second
  subjects: [{clusters: [second]}]
  allow: [{repositories: ["second/**"], actions: [pull]}]
- name: asked-for
  subjects: [{namespaces: ["*"]}]
  annotation: pullpass.dev/repositories
  allow: [{repositories: ["shared/**"], actions: [pull]}]
`

// testSecondCluster has a cluster of its own, from which lists cannot be streamed: clients list page by page and watch then.
func testSecondCluster(t *testing.T, s *site) {
	second := startSite(t, cluster.Options{OldEtcd: true})
	t.Run("account", func(t *testing.T) { testAccount(t, second) })
	t.Run("same names", func(t *testing.T) { testTwoClusters(t, s, second) })
	t.Run("API server hangs", func(t *testing.T) { testHang(t, second) })
	t.Run("API server crashes", func(t *testing.T) { testCrash(t, second) })
}

// Two clusters in which everything has the same name.
func testTwoClusters(t *testing.T, s, second *site) {
	const namespace, node = "twins", "twin-1"
	const firstScope, secondScope = "repository:first/web:pull", "repository:second/web:pull"
	scopes := []string{firstScope, secondScope, sharedScope}
	twins := []*site{s, second}
	var tokens []string
	config := pullpass.Config{Policy: clustersPolicy, Service: service}
	var cas []*certs.CA
	for i, name := range []string{"first", "second"} {
		twin := twins[i]
		twin.CreateNode(t, node, nil)
		tokens = append(tokens, twin.proofWorkload(t, namespace, node))
		cas = append(cas, certs.NewCA(t, "kubelet-ca"))
		c := twin.cluster(name, twin.access)
		c.Node.Proof = pullpass.Proof{Mode: "enforce", Methods: []string{"certificate"}, ClientCAFile: cas[i].File}
		config.Clusters = append(config.Clusters, c)
	}
	proxy := s.pullpass(t, config)
	onFirst := proxy.Host(t, pullpass.From{Certificate: nodeCertificate(t, cas[0], node)})
	onSecond := proxy.Host(t, pullpass.From{Certificate: nodeCertificate(t, cas[1], node)})

	expect(t, "the first", onFirst.Ask(t, service, tokens[0], scopes...), firstScope)
	expect(t, "the second", onSecond.Ask(t, service, tokens[1], scopes...), secondScope)
	for name, answer := range map[string]pullpass.Answer{
		"the first's token on the second's node": onSecond.Ask(t, service, tokens[0], scopes...),
		"the second's token on the first's node": onFirst.Ask(t, service, tokens[1], scopes...),
	} {
		expect(t, name, answer, "403 caller_not_node")
		if answer.Audit.Proof == nil || answer.Audit.Proof.Reason != "certificate_untrusted" {
			t.Errorf("%s: proof %+v", name, answer.Audit.Proof)
		}
	}

	// An event in one cluster has no effect on the other.
	change := metadata("annotations", cluster.Object{"pullpass.dev/repositories": "shared/base"})
	twins[1].Patch(t, accountPath(namespace), change)
	turns(t, onSecond, tokens[1], sharedScope, "", sharedScope)
	expect(t, "the annotation is the second's", onFirst.Ask(t, service, tokens[0], scopes...), firstScope)
	twins[0].Delete(t, accountPath(namespace))
	turns(t, onFirst, tokens[0], firstScope, firstScope, "403 service_account_gone")
	expect(t, "the ServiceAccount of the first was deleted", onSecond.Ask(t, service, tokens[1], scopes...), secondScope+" "+sharedScope)
}
