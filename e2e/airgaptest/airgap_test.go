// Package airgaptest runs Pullpass in a network without a route, as docs/how-to/air-gap.md says, and looks at each connection that it tries.
package airgaptest

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/isolate"
	"github.com/pullpass/pullpass/e2e/issuer"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/registry"
	"github.com/pullpass/pullpass/e2e/testenv"
)

func TestMain(m *testing.M) {
	isolate.Main(m, func(t testing.TB) {
		programs.Build(t, programs.Pullpass, programs.Distribution)
	})
}

const policy = `apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- name: own-namespace
  subjects: [{namespaces: ["*"]}]
  allow: [{repositories: ["{namespace}/**"], actions: [pull, push]}]
`

// TestNoCallsHome lets an image be pushed and pulled. Pullpass connects to the issuer that its configuration names and to nothing else, and
// asks no DNS server.
func TestNoCallsHome(t *testing.T) {
	ca := certs.NewCA(t, "registry-ca")
	cluster := issuer.Start(t, ca)
	calls := filepath.Join(t.TempDir(), "calls")
	proxy := pullpass.Start(t, ca, pullpass.Config{
		Clusters: []pullpass.Cluster{{
			Name: "e2e", Issuer: cluster.URL, Audiences: []string{"registry.example.com"}, Discovery: pullpass.Discovery{CAFile: ca.File},
		}},
		Policy: policy, Service: "registry.example.com",
		Program: traced(t, calls),
	})
	direct := registry.Start(t, ca, registry.Config{
		Program: programs.Distribution(t), Realm: proxy.URL + "/token", Service: "registry.example.com", Issuer: pullpass.Issuer,
		RootCertBundle: proxy.Certificates(t),
	})
	token := cluster.Token(t, "registry.example.com", "team-a", "web")
	proxy.NeverLog(token)
	ref := testenv.Value(name.NewTag(direct.Host + "/team-a/web:v1"))(t)
	options := []remote.Option{remote.WithTransport(ca.Transport(t)), remote.WithAuth(&authn.Basic{Username: "serviceaccount", Password: token})}
	testenv.Must(t, remote.Write(ref, testenv.Value(random.Image(64, 1))(t), options...))
	testenv.Value(remote.Get(ref, options...))(t)
	proxy.Stop(t)

	allowed := netip.MustParseAddrPort(strings.TrimPrefix(cluster.URL, "https://"))
	reached := false
	for _, to := range destinations(t, testenv.ReadFile(t, calls)) {
		if to != allowed {
			t.Errorf("Pullpass tried to reach %s, and its configuration names %s alone", to, allowed)
		}
		reached = reached || to == allowed
	}
	if !reached {
		t.Errorf("the trace does not show the connection to the issuer, %s: %s", allowed, testenv.ReadFile(t, calls))
	}
}

// traced is Pullpass, and writes where it connects and sends to.
func traced(t *testing.T, calls string) string {
	t.Helper()
	script := filepath.Join(t.TempDir(), "pullpass")
	content := fmt.Sprintf("#!/bin/sh\nexec strace -D -f -e trace=connect,sendto,sendmsg,sendmmsg -o '%s' '%s' \"$@\"\n", calls, programs.Pullpass(t))
	testenv.Must(t, os.WriteFile(script, []byte(content), 0o755))
	return script
}

var (
	socketAddress = regexp.MustCompile(`sa_family=(AF_INET6?)\b`)
	ipv4          = regexp.MustCompile(`sin_port=htons\((\d+)\), sin_addr=inet_addr\("([^"]+)"\)`)
	ipv6          = regexp.MustCompile(`sin6_port=htons\((\d+)\), .*inet_pton\(AF_INET6, "([^"]+)"`)
)

// destinations are the addresses of the trace's calls.
func destinations(t *testing.T, trace string) (all []netip.AddrPort) {
	t.Helper()
	for line := range strings.Lines(trace) {
		family := socketAddress.FindString(line)
		if family == "" {
			continue // a Unix socket, or a connection that is open
		}
		found := ipv4.FindStringSubmatch(line)
		if found == nil {
			found = ipv6.FindStringSubmatch(line)
		}
		if found == nil {
			t.Fatalf("the address of %q", line)
		}
		port := testenv.Value(strconv.ParseUint(found[1], 10, 16))(t)
		all = append(all, netip.AddrPortFrom(testenv.Value(netip.ParseAddr(found[2]))(t).Unmap(), uint16(port)))
	}
	return all
}
