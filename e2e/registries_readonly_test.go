package e2e

import (
	"strings"
	"testing"

	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/registry"
)

// TestSecondRegistryOnTheSameStorage lets people use one registry with a token server of their own, and nodes pull from
// a second registry that serves the same storage, read-only, and trusts another Pullpass: the way to go where the realm of the
// first cannot be changed.
func TestSecondRegistryOnTheSameStorage(t *testing.T) {
	people := startWorld(t, programs.Distribution(t), pullpass.Signing{Trust: "certificate"})
	people.publish(t)

	nodes := &world{ca: people.ca, issuer: people.issuer}
	nodes.proxy = startProxy(t, nodes, pullpass.Signing{Trust: "certificate"})
	nodes.registry = registry.Start(t, nodes.ca, registry.Config{
		Program: programs.Distribution(t), Realm: nodes.proxy.URL + "/token", Service: service, Issuer: pullpass.Issuer,
		RootCertBundle: nodes.proxy.Certificates(t), ReadOnlyStorage: people.registry.Storage,
	})

	s := nodes.session(t, nodes.token(t, "team-b"))
	if _, err := ggcrImage(t, s, basicAuth(s), "team-b/app"); err != nil {
		t.Errorf("pull of what was pushed to the first: %v", err)
	}
	if _, err := ggcrImage(t, s, basicAuth(s), "team-a/app"); err == nil {
		t.Error("pull of another team's")
	}
	if err := ggcrPush(t, s, basicAuth(s), "team-b/app", newImage(t)); err == nil || !strings.Contains(err.Error(), "405") {
		t.Errorf("push to the second: %v", err)
	}
}
