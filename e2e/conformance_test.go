//go:build conformance

package e2e

import (
	"encoding/xml"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/issuer"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/relay"
	"github.com/pullpass/pullpass/e2e/testenv"
	"github.com/pullpass/pullpass/e2e/upstream"
)

// The suite is not released as a module, so that nothing can pin it: "make conformance SUITE=DIRECTORY" names its source.
var suite = flag.String("suite", "", "the directory conformance of a checkout of the OCI distribution specification")

// TestConformance runs the conformance suite against registries, directly and by each road through Pullpass. A test of the suite that
// passes directly passes through Pullpass, too.
func TestConformance(t *testing.T) {
	program := buildSuite(t)
	for _, r := range []struct {
		name    string
		program func(testing.TB) string
	}{
		{"distribution 3.1.2", programs.Distribution},
		{"distribution 2.8.2", programs.DockerRegistry},
	} {
		t.Run(r.name, func(t *testing.T) {
			binary := r.program(t)
			direct := runSuite(t, program, "direct", func(t *testing.T) suiteTarget {
				ca := certs.NewCA(t, "registry-ca")
				return suiteTarget{upstream.StartBasic(t, ca, binary).Registry.Host, "", ca, upstream.Username, upstream.Password}
			})
			if n := len(direct.passes); n < 100 {
				t.Fatalf("only %d kinds of tests of the suite pass without Pullpass:\n%s", n, direct.output)
			}
			runSuite(t, program, "token endpoint", func(t *testing.T) suiteTarget {
				w := startWorld(t, binary, pullpass.Signing{Trust: "certificate"})
				return suiteTarget{w.registry.Host, "", w.ca, "serviceaccount", w.token(t, namespace)}
			}).compare(t, direct)
			gateway := func(start func(testing.TB, *certs.CA, string) *upstream.Upstream) func(*testing.T) suiteTarget {
				return func(t *testing.T) suiteTarget {
					w := startGatewayBefore(t, usersUpstream, "", func(ca *certs.CA) *upstream.Upstream { return start(t, ca, binary) })
					return suiteTarget{strings.TrimPrefix(w.proxy.GatewayURL, "https://"), usersUpstream + "/", w.ca, "serviceaccount", w.token(t, namespace)}
				}
			}
			runSuite(t, program, "gateway, password", gateway(upstream.StartBasic)).compare(t, direct)
			runSuite(t, program, "gateway, at the name of the registry", func(t *testing.T) suiteTarget {
				const name = "localhost"
				w := startGatewayBefore(t, name, "https://gateway.example.com", func(ca *certs.CA) *upstream.Upstream { return upstream.StartBasic(t, ca, binary) })
				relay.Start(t, "127.0.0.1:443", w.proxy.GatewayAddress)
				return suiteTarget{name, "", w.ca, "serviceaccount", w.token(t, namespace)}
			}).compare(t, direct)
			if r.name == "distribution 3.1.2" { // an older one knows no JWKS
				runSuite(t, program, "gateway, token endpoint of its own", gateway(upstream.StartToken)).compare(t, direct)
			}
		})
	}
}

// startGatewayBefore is a gateway before one registry, with all actions.
func startGatewayBefore(t *testing.T, name, url string, start func(*certs.CA) *upstream.Upstream) *world {
	t.Helper()
	w := &world{ca: certs.NewCA(t, "registry-ca")}
	w.issuer = issuer.Start(t, w.ca)
	w.proxy = pullpass.Start(t, w.ca, pullpass.Config{
		Clusters: []pullpass.Cluster{{
			Name: "e2e", Issuer: w.issuer.URL, Audiences: []string{audience}, Discovery: pullpass.Discovery{CAFile: w.ca.File},
		}},
		Policy:     gatewayPolicy,
		Service:    gatewayService,
		GatewayURL: url,
		Upstreams:  []pullpass.Upstream{start(w.ca).Setting(name, "pull", "push", "delete")},
	})
	return w
}

func buildSuite(t *testing.T) string {
	t.Helper()
	if *suite == "" {
		t.Fatal(`no conformance suite: name the directory "conformance" of a checkout of opencontainers/distribution-spec, "make conformance SUITE=DIRECTORY"`)
	}
	program := filepath.Join(t.TempDir(), "conformance")
	build := exec.Command("go", "build", "-o", program, ".")
	build.Dir = *suite
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the conformance suite: %v\n%s", err, output)
	}
	return program
}

// suiteTarget is a registry as the suite sees it.
type suiteTarget struct {
	host, prefix       string // the prefix is before its repositories' names
	ca                 *certs.CA
	username, password string
}

// suiteRun is one run of the suite.
type suiteRun struct {
	passes map[string]int // of the tests of one name
	output []byte
}

// runSuite runs the suite against a fresh registry.
func runSuite(t *testing.T, program, name string, start func(*testing.T) suiteTarget) (r suiteRun) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		at := start(t)
		results := t.TempDir()
		cmd := exec.Command(program)
		cmd.Dir = results
		cmd.Env = append(os.Environ(),
			"OCI_RESULTS_DIR="+results, "OCI_REGISTRY="+at.host, "SSL_CERT_FILE="+at.ca.File, "OCI_VERSION=dev", "OCI_DATA_SPARSE=true",
			"OCI_REPO1="+at.prefix+namespace+"/one", "OCI_REPO2="+at.prefix+namespace+"/two", "OCI_USERNAME="+at.username, "OCI_PASSWORD="+at.password,
			"OCI_CACHE_AUTH=false", // a token of another repository is not presented again
		)
		output, err := cmd.CombinedOutput() // it exits with an error when a test fails
		r.output = output
		content, readErr := os.ReadFile(filepath.Join(results, "junit.xml"))
		if readErr != nil {
			t.Fatalf("the suite wrote no results: %v, %v\n%s", readErr, err, output)
		}
		var report struct {
			Tests []struct {
				Name   string `xml:"name,attr"`
				Class  string `xml:"classname,attr"`
				Status string `xml:"status,attr"`
			} `xml:"testsuite>testcase"`
		}
		testenv.Must(t, xml.Unmarshal(content, &report))
		r.passes = map[string]int{}
		counts := map[string]int{}
		for _, test := range report.Tests {
			if counts[test.Status]++; test.Status == "passed" {
				r.passes[test.Class+"/"+test.Name]++
			}
		}
		t.Logf("%d tests: %v", len(report.Tests), counts)
	})
	return r
}

// compare reports the tests that pass directly, and not here.
func (r suiteRun) compare(t *testing.T, direct suiteRun) {
	t.Helper()
	for name, want := range direct.passes {
		if got := r.passes[name]; got < want {
			t.Errorf("%s: %d passed directly, %d through Pullpass", name, want, got)
		}
	}
}
