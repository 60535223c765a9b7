package e2e

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/issuer"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/registry"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// registries are the versions of the distribution registry, and the ways in which each can trust Pullpass.
var registries = []struct {
	name, trust string
	program     func(testing.TB) string
}{
	{"distribution 3.1.2, certificate", "certificate", programs.Distribution},
	{"distribution 3.1.2, jwks", "jwks", programs.Distribution},
	{"distribution 2.8.2, certificate", "certificate", programs.DockerRegistry},
}

// clientPolicy: everything in the own namespace, pull in shared, and the catalog.
const clientPolicy = `apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- name: own-namespace
  subjects: [{namespaces: ["*"]}]
  allow: [{repositories: ["{namespace}/**"], actions: ["*"]}]
- name: shared
  subjects: [{namespaces: ["*"]}]
  allow: [{repositories: ["shared/**"], actions: [pull]}]
- name: catalog
  subjects: [{namespaces: ["*"]}]
  allow: [{registry: [catalog], actions: ["*"]}]
`

// session is what a client is given: a registry, and a ServiceAccount token as the password.
type session struct {
	host     string
	ca       *certs.CA
	password string
	dir      string        // of its own, for its files
	env      []string      // for programs, beyond what run gives them
	heard    *bytes.Buffer // nil, or the output of programs
}

// client is a program or library that uses a registry as its users do. An operation that it does not have is nil.
// Repositories are named without the host; the tag is always tag. An error holds what the user sees.
type client struct {
	name string
	// The user's error for a refused credential, and for a good one without access to the repository.
	refusedLogin, refusedAccess string

	login  func(*testing.T, session) error
	push   func(t *testing.T, s session, repository string) error
	pull   func(t *testing.T, s session, repository string) error
	mount  func(t *testing.T, s session, from, to string) error
	list   func(*testing.T, session) ([]string, error) // the catalog
	remove func(t *testing.T, s session, repository string) error
}

const tag = "v1"

// TestClients lets real clients use real registries with ServiceAccount tokens as passwords.
func TestClients(t *testing.T) {
	clients := []client{
		ggcrClient("go-containerregistry", basicAuth),
		ggcrClient("go-containerregistry, identity token", identityToken),
		orasClient("oras-go", orasPassword),
		orasClient("oras-go, identity token", orasIdentityToken),
		skopeoClient(programs.Skopeo(t)),
		podmanClient(programs.Podman(t)),
		helmClient(programs.Helm(t)),
	}
	seen := results{operations: []string{"login", "push", "pull", "mount", "catalog", "delete"}}
	for _, r := range registries {
		t.Run(r.name, func(t *testing.T) {
			world := startWorld(t, r.program(t), pullpass.Signing{Trust: r.trust})
			world.publish(t)
			for _, c := range clients {
				t.Run(c.name, func(t *testing.T) {
					world.use(t, c, seen.row(r.name, c.name))
				})
			}
			world.checkReplays(t)
			// A client of the field that Pullpass does not understand, or that makes it fail.
			for _, event := range world.proxy.Audit(t) {
				if strings.Contains(event.Message, "could not be read to its end") {
					continue // a client that pushes in parallel gives up its other requests when one is refused
				}
				if event.Result == "invalid" || event.Result == "error" || event.Result == "unavailable" {
					t.Errorf("a real client's request ended as %s: %+v", event.Result, event)
				}
			}
		})
	}
	t.Log("\n" + seen.table())
}

// world is a registry with Pullpass as its token server, and an issuer of ServiceAccount tokens.
type world struct {
	ca       *certs.CA
	issuer   *issuer.Issuer
	proxy    *pullpass.Proxy
	registry *registry.Registry
}

func startWorld(t *testing.T, program string, signing pullpass.Signing) *world {
	t.Helper()
	w := &world{ca: certs.NewCA(t, "registry-ca")}
	w.issuer = issuer.Start(t, w.ca)
	w.proxy = startProxy(t, w, signing)
	config := registry.Config{Program: program, Realm: w.proxy.URL + "/token", Service: service, Issuer: pullpass.Issuer}
	if signing.Trust == "jwks" {
		config.JWKS = w.proxy.JWKS(t)
	} else {
		config.RootCertBundle = w.proxy.Certificates(t)
	}
	w.registry = registry.Start(t, w.ca, config)
	return w
}

func startProxy(t *testing.T, w *world, signing pullpass.Signing) *pullpass.Proxy {
	t.Helper()
	return pullpass.Start(t, w.ca, pullpass.Config{
		Clusters: []pullpass.Cluster{{
			Name: "e2e", Issuer: w.issuer.URL, Audiences: []string{audience}, Discovery: pullpass.Discovery{CAFile: w.ca.File},
		}},
		Policy:  clientPolicy,
		Service: service,
		Signing: signing,
		State:   pullpass.State{Replay: "enforce"},
	})
}

// publish pushes the images that exist before the clients come: a public one, and one of another team. Their
// owners push them.
func (w *world) publish(t *testing.T) {
	t.Helper()
	for _, repository := range []string{"shared/base", "team-b/app"} {
		owner, _, _ := strings.Cut(repository, "/")
		s := w.session(t, w.token(t, owner))
		if err := ggcrPush(t, s, basicAuth(s), repository, newImage(t)); err != nil {
			t.Fatalf("push %s: %v", repository, err)
		}
	}
}

// token is what the kubelet has for a pod in the namespace.
func (w *world) token(t *testing.T, namespace string) string {
	t.Helper()
	token := w.issuer.Token(t, audience, namespace, puller)
	w.proxy.NeverLog(token)
	return token
}

func (w *world) session(t *testing.T, password string) session {
	t.Helper()
	return newSession(t, w.registry.Host, w.ca, password)
}

func newSession(t *testing.T, host string, ca *certs.CA, password string) session {
	t.Helper()
	// Not t.TempDir, whose name holds the test's: podman refuses a run root of more than 50 characters.
	dir := testenv.Value(os.MkdirTemp("", "e2e-"))(t)
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return session{host: host, ca: ca, password: password, dir: dir}
}

// use does with one client all that it can do, first what is allowed, then what is not.
func (w *world) use(t *testing.T, c client, row *row) {
	s := w.session(t, w.token(t, namespace))
	own := namespace + "/" + strings.ToLower(strings.NewReplacer(", ", "-", " ", "-").Replace(c.name))

	row.allowed(t, "login", c.login != nil, func() error { return c.login(t, s) })
	row.allowed(t, "push", c.push != nil, func() error { return c.push(t, s, own) })
	row.allowed(t, "pull", c.pull != nil, func() error { return c.pull(t, s, own) })
	row.allowed(t, "mount", c.mount != nil, func() error {
		if err := c.mount(t, s, "shared/base", own+"/copy"); err != nil {
			return err
		}
		if !w.registry.Mounted("shared/base", own+"/copy") {
			return fmt.Errorf("the registry mounted no blob of shared/base")
		}
		return nil
	})
	row.allowed(t, "catalog", c.list != nil, func() error {
		repositories, err := c.list(t, s)
		if err == nil && !slices.Contains(repositories, own) {
			err = fmt.Errorf("%s is not among %v", own, repositories)
		}
		return err
	})
	row.allowed(t, "delete", c.remove != nil, func() error {
		if err := c.remove(t, s, own); err != nil {
			return err
		}
		if w.exists(t, own) {
			return fmt.Errorf("%s is still there", own)
		}
		return nil
	})

	foreign := w.issuer.Token(t, "another.audience", namespace, puller)
	w.proxy.NeverLog(foreign)
	row.refused(t, w.proxy, "pull of another team's", c.refusedAccess, func() error { return c.pull(t, s, "team-b/app") })
	row.refused(t, w.proxy, "push to shared", c.refusedAccess, func() error { return c.push(t, s, "shared/base") })
	row.refused(t, w.proxy, "login with a token for others", c.refusedLogin, func() error { return c.login(t, w.session(t, foreign)) })
}

// checkReplays shows that nothing that a client repeats, or does over several connections, is a replay. All clients come from one
// address here; the same from a different address is a replay.
func (w *world) checkReplays(t *testing.T) {
	t.Helper()
	for _, event := range w.proxy.Replays(t) {
		t.Errorf("a real client's request counts as a replay: %+v, %+v", event, event.Replay)
	}
	token := w.token(t, namespace)
	if answer := w.proxy.Get(t, service, token); answer.Status != http.StatusOK || answer.Audit.Replay == nil {
		t.Errorf("the first request with a token: status %d, audit %+v", answer.Status, answer.Audit)
	}
	answer := w.proxy.Host(t, pullpass.From{Address: "127.0.0.2"}).Ask(t, service, token)
	if answer.Status != http.StatusForbidden || answer.Audit.Reason != "token_replayed" {
		t.Errorf("from another address: status %d, audit %+v", answer.Status, answer.Audit)
	}
}

// exists asks for the repository's tag as its owner.
func (w *world) exists(t *testing.T, repository string) bool {
	t.Helper()
	owner, _, _ := strings.Cut(repository, "/")
	s := w.session(t, w.token(t, owner))
	status, err := ggcrHead(t, s, basicAuth(s), repository)
	if err != nil && status != http.StatusNotFound {
		t.Fatal(err)
	}
	return err == nil
}

// results is what became of every operation of every client.
type results struct {
	operations []string // in the order of the table
	rows       []*row
}

type row struct {
	registry, client string
	ok               map[string]string // by operation
	messages         map[string]string // of refusals, by operation
}

func (r *results) row(registry, client string) *row {
	row := &row{registry, client, map[string]string{}, map[string]string{}}
	r.rows = append(r.rows, row)
	return row
}

func (r *row) allowed(t *testing.T, operation string, has bool, do func() error) {
	t.Helper()
	if !has {
		r.ok[operation] = "–"
		return
	}
	if err := do(); err != nil {
		r.ok[operation] = "FAILED"
		t.Errorf("%s: %v", operation, err)
		return
	}
	r.ok[operation] = "ok"
}

// refused expects do to fail with what the user is to see, and for a reason of Pullpass's: its audit log must say that
// something was not given.
func (r *row) refused(t *testing.T, proxy *pullpass.Proxy, operation, sees string, do func() error) {
	t.Helper()
	before := len(proxy.Audit(t))
	err := do()
	if err == nil {
		r.messages[operation] = "PASSED"
		t.Errorf("%s: passed", operation)
		return
	}
	r.messages[operation] = excerpt(err.Error(), sees)
	if !strings.Contains(err.Error(), sees) {
		t.Errorf("%s: the user sees %q, want %q in it", operation, err, sees)
	}
	// The audit line is written after the answer.
	var outcomes []string
	if !testenv.Poll(time.Minute, func() bool {
		outcomes = nil
		for _, event := range proxy.Audit(t)[before:] {
			outcomes = append(outcomes, event.Result)
		}
		return slices.ContainsFunc(outcomes, func(result string) bool { return result == "none" || result == "partial" || result == "refused" })
	}) {
		t.Errorf("%s: Pullpass did not cause the failure; its results: %v; the client says: %v", operation, outcomes, err)
	}
}

func (r *results) table() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "REGISTRY\tCLIENT\t%s\n", strings.ToUpper(strings.Join(r.operations, "\t")))
	for _, row := range r.rows {
		fmt.Fprintf(w, "%s\t%s", row.registry, row.client)
		for _, operation := range r.operations {
			fmt.Fprintf(w, "\t%s", row.ok[operation])
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintf(w, "\nREFUSED (%s)\tCLIENT\tWHAT THE USER SEES\n", r.rows[0].registry)
	for _, row := range r.rows {
		if row.registry != r.rows[0].registry {
			continue // the others say the same
		}
		for _, operation := range slices.Sorted(maps.Keys(row.messages)) {
			fmt.Fprintf(w, "%s\t%s\t%s\n", operation, row.client, row.messages[operation])
		}
	}
	w.Flush()
	return b.String()
}

// excerpt is the line with text, cut so that it fits into a table.
func excerpt(message, text string) string {
	const most = 120
	for line := range strings.Lines(message) {
		line = strings.TrimSpace(line)
		if !strings.Contains(line, text) {
			continue
		}
		if len(line) > most {
			end := min(len(line), strings.Index(line, text)+len(text)+most/3)
			line = "…" + line[max(0, end-most):end]
		}
		return line
	}
	return "(something else)"
}

func basicAuth(s session) authn.Authenticator {
	return &authn.Basic{Username: "serviceaccount", Password: s.password}
}

func identityToken(s session) authn.Authenticator {
	return authn.FromConfig(authn.AuthConfig{IdentityToken: s.password})
}
