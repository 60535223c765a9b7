package server

import (
	"net/http"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/registryauth/assertion"
	"github.com/pullpass/pullpass/internal/test/proxytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// The documents for verifying assertions, and the signing key, appear and disappear with the
// configuration.
func TestAssertionsAreServedWhereTheyAreConfigured(t *testing.T) {
	t.Parallel()
	p := startService(t, "")
	paths := []string{assertion.DiscoveryPath, assertion.KeysPath}
	for _, path := range paths {
		if status, _ := p.Fetch(t, "https://"+p.Address+path); status != http.StatusNotFound {
			t.Errorf("%s without assertions: %d", path, status)
		}
	}
	const (
		first   = "assertions: {issuer: \"https://pullpass.example.com\"}\n"
		other   = "assertions: {issuer: \"https://other.example.com\", managedDir: other-keys}\n"
		gateway = "gateway: {address: \"127.0.0.1:0\", url: \"https://gateway.example.com\", service: gateway.example.com}\n" +
			"upstreams: [{name: quay.io, credential: {quay: {robot: acme+pullpass}}}, {name: ghcr.io}]\n"
	)
	p.Configure(t, "issuer: pullpass.example.com}", "issuer: pullpass.example.com}\n- {service: gateway.example.com, issuer: pullpass.example.com}")
	p.Configure(t, proxytest.PolicyInUse, proxytest.PolicyInUse+"\n"+first+gateway)
	testkit.Must(t, p.service.reloadConfig())
	var bodies []string
	for _, path := range paths {
		status, body := p.Fetch(t, "https://"+p.Address+path)
		if status != http.StatusOK {
			t.Errorf("%s: %d", path, status)
		}
		bodies = append(bodies, body)
	}
	before := p.service.current.Load()
	key := testkit.Value(before.assertions.Keys().Signing())(t)
	if !strings.Contains(bodies[0], `"https://pullpass.example.com"`) || !strings.Contains(bodies[1], key.ID) {
		t.Errorf("served are\n%s", strings.Join(bodies, "\n"))
	}
	if _, registries := p.Fetch(t, "https://"+p.Address+"/.well-known/jwks.json"); strings.Contains(registries, key.ID) {
		t.Error("registries are told to trust the key of assertions")
	}
	if _, body := p.Fetch(t, "http://"+p.Admin+"/readyz"); !strings.Contains(body, `"assertions":[{"name":"https://pullpass.example.com","healthy":true}]`) {
		t.Errorf("/readyz: %s", body)
	}

	if _, body := p.Fetch(t, "http://"+p.Admin+"/metrics"); !strings.Contains(body, "\npullpass_assertion_key_since_timestamp_seconds 1.") {
		t.Errorf("/metrics says nothing of the key: %s", body)
	}

	p.Configure(t, first, other)
	testkit.Must(t, p.service.reloadConfig())
	now := p.service.current.Load()
	if now.assertions == before.assertions || now.upstreams["quay.io"] == before.upstreams["quay.io"] {
		t.Error("an upstream goes on with the assertions of an issuer that is not served any more")
	}
	if _, body := p.Fetch(t, "https://"+p.Address+assertion.DiscoveryPath); !strings.Contains(body, "https://other.example.com/assertions/jwks.json") {
		t.Errorf("the discovery document is %s", body)
	}
}
