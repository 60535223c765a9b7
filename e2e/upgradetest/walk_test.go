package upgradetest

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/random"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/issuer"
	"github.com/pullpass/pullpass/e2e/node"
	"github.com/pullpass/pullpass/e2e/process"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/redis"
	"github.com/pullpass/pullpass/e2e/registry"
	"github.com/pullpass/pullpass/e2e/relay"
	"github.com/pullpass/pullpass/e2e/testenv"
	"github.com/pullpass/pullpass/e2e/upstream"
)

const (
	service      = "registry.example.com" // of the registry, and of the gateway
	clusterName  = "prod-eu"
	team         = "team-a"
	tag          = "v1"
	upstreamName = "upstream.example"
	password     = "not-a-secret"

	// formerVersion and currentVersion are the apiVersion of files.
	formerVersion  = "pullpass.dev/v1alpha1"
	currentVersion = "pullpass.dev/v1beta1"

	shutdownDelay = "2s" // many times as often as the load balancer looks
	readyLimit    = time.Minute
	followLimit   = time.Minute
)

const policy = `apiVersion: ` + formerVersion + `
kind: AccessPolicy
rules: # a comment that the conversion keeps
- name: own-namespace
  subjects: [{namespaces: ["team-*"]}]
  allow: [{repositories: ["{namespace}/**", "` + upstreamName + `/{namespace}/**"], actions: [pull, push]}]
- name: jobs
  subjects: [{identities: [github], claims: {repository_id: ["42"]}}]
  allow: [{repositories: ["` + upstreamName + `/team-a/**"], actions: [pull, push]}]
`

// walk is the way from the release before to this one, and back.
type walk struct {
	former  programs.Former
	ca      *certs.CA
	tls     *tls.Config
	issuer  *issuer.Issuer
	gitHub  *issuer.GitHub
	redis   *redis.Server
	config  pullpass.Config
	tokens  *relay.Balancer
	gateway *relay.Balancer
	serving []*replica
	load    *load
	asked   int // accounts of which something was asked once

	direct *registry.Registry
	since  time.Time
	table  strings.Builder
}

// replica is one of either release.
type replica struct {
	*pullpass.Proxy
	name, program string
}

// throughGateway is the same replica, for a load balancer before the gateway.
type throughGateway struct{ *replica }

func (g throughGateway) Address() string { return g.GatewayAddress }

// saw adds a line to the table, with the time since the last.
func (w *walk) saw(what, format string, args ...any) {
	fmt.Fprintf(&w.table, "%-60s %6.1f s  %s\n", what, time.Since(w.since).Seconds(), fmt.Sprintf(format, args...))
	w.since = time.Now()
}

// TestUpgrade replaces replicas of the release before, one at a time, and goes back, while clients pull. No pull fails.
func TestUpgrade(t *testing.T) {
	w := startWalk(t)
	defer func() { t.Logf("from %s\n%s", w.former.Name, &w.table) }()
	first, second := w.start(t, "before-1", w.former.Program), w.start(t, "before-2", w.former.Program)
	w.use(t, first, second)
	w.publish(t, first)
	w.load = w.startLoad(t,
		way{"from the registry", "https://" + w.direct.Host, team + "/app"},
		way{"through the gateway", w.config.GatewayURL, upstreamName + "/" + team + "/app"},
	)
	w.phase(t, "two replicas of the release before")

	third := w.start(t, "after-1", programs.Pullpass(t))
	w.use(t, second, third)
	first.Stop(t)
	w.phase(t, "one of them is replaced")
	w.judgeUnknown(t, second, third)
	w.judgeTogether(t, second, third)
	w.judgeTogether(t, third, second)
	w.phase(t, "one uses what the other has issued")
	w.judgeNewFiles(t, second)
	w.phase(t, "the older one has files of this release")

	fourth := w.start(t, "after-2", programs.Pullpass(t))
	w.use(t, third, fourth)
	second.Stop(t)
	w.phase(t, "both are replaced, with the files of before")
	w.judgeWarnings(t, third, fourth)
	before := []map[string]string{w.convert(t, third), w.convert(t, fourth)}
	w.phase(t, "pullpass convert has rewritten the files")

	w.restore(t, third, before[0]) // as docs/reference/promises.md says
	w.restore(t, fourth, before[1])
	fifth := w.start(t, "before-3", w.former.Program)
	w.use(t, fourth, fifth)
	third.Stop(t)
	w.phase(t, "the files of before are back, and one replica")
	w.judgeTogether(t, fourth, fifth)
	w.judgeTogether(t, fifth, fourth)
	sixth := w.start(t, "before-4", w.former.Program)
	w.use(t, fifth, sixth)
	fourth.Stop(t)
	w.phase(t, "two replicas of the release before again")
	w.load.finish(t, 8)
}

func startWalk(t *testing.T) *walk {
	t.Helper()
	ca := certs.NewCA(t, "registry-ca")
	w := &walk{former: programs.FormerRelease(t), ca: ca, tls: &tls.Config{RootCAs: ca.Pool()}, since: time.Now(), redis: redis.Start(t)}
	w.issuer, w.gitHub = issuer.Start(t, ca), issuer.StartGitHub(t, ca)
	w.redis.AddUser(t, password)
	w.tokens, w.gateway = relay.StartBalancer(t, process.FreeAddress(t)), relay.StartBalancer(t, process.FreeAddress(t))
	behind := registry.Start(t, ca, registry.Config{Program: programs.DockerRegistry(t), Realm: "upstream", Htpasswd: []byte(upstream.Htpasswd)})
	testenv.Must(t, node.Push(t.Context(), ca.Transport(t), upstream.Username, upstream.Password, behind.Host+"/"+team+"/app:"+tag, testenv.Value(random.Image(64<<10, 2))(t)))
	w.config = pullpass.Config{
		APIVersion: formerVersion,
		Clusters:   []pullpass.Cluster{{Name: clusterName, Issuer: w.issuer.URL, Audiences: []string{service}, Discovery: pullpass.Discovery{CAFile: ca.File}}},
		Identities: []pullpass.Identity{{
			Name: "github", Issuer: w.gitHub.URL, Profile: "github", Audiences: []string{service},
			Require: map[string][]string{"repository_owner_id": {"1234"}}, Discovery: pullpass.Discovery{CAFile: ca.File},
		}},
		Policy: policy, Service: service, GatewayURL: urlOf(w.gateway),
		Upstreams: []pullpass.Upstream{{
			Name: upstreamName, URL: "https://" + behind.Host, CAFile: ca.File, Actions: []string{"pull", "push"},
			Credential: pullpass.Credential{Basic: pullpass.Basic{
				Username: upstream.Username, PasswordFile: testenv.WriteFile(t, filepath.Join(t.TempDir(), "upstream"), upstream.Password),
			}},
		}},
		Signing: pullpass.Signing{ManagedDir: filepath.Join(t.TempDir(), "keys")}, // of all replicas
		State: pullpass.State{
			// With enforce, a Redis that a busy machine makes slow would refuse pulls.
			Replay: "audit",
			Redis: pullpass.Redis{
				Addresses: []string{w.redis.Address}, Username: redis.User, PasswordFile: testenv.WriteFile(t, filepath.Join(t.TempDir(), "redis"), password),
			},
		},
		ShutdownDelay: shutdownDelay,
	}
	return w
}

func urlOf(b *relay.Balancer) string {
	_, port, _ := net.SplitHostPort(b.Address)
	return "https://localhost:" + port
}

// start runs a replica of a release, with the files of before.
func (w *walk) start(t *testing.T, name, program string) *replica {
	t.Helper()
	config := w.config
	config.Program = program
	return &replica{pullpass.StartReady(t, w.ca, config), name, program}
}

// use has the load balancers pass new connections to these alone.
func (w *walk) use(t *testing.T, replicas ...*replica) {
	t.Helper()
	var tokens, gateway []relay.Backend
	for _, r := range replicas {
		tokens, gateway = append(tokens, r), append(gateway, throughGateway{r})
	}
	w.serving = replicas
	w.tokens.Use(t, tokens...)
	w.gateway.Use(t, gateway...)
}

// publish starts the registry, which trusts the CA of the keys, and pushes an image.
func (w *walk) publish(t *testing.T, r *replica) {
	t.Helper()
	w.direct = registry.Start(t, w.ca, registry.Config{
		Program: programs.DockerRegistry(t), Realm: urlOf(w.tokens) + "/token", Service: service, Issuer: pullpass.Issuer, RootCertBundle: r.Certificates(t),
	})
	token := w.issuer.Token(t, service, team, "builder")
	testenv.Must(t, node.Push(t.Context(), w.ca.Transport(t), "user", token, w.direct.Host+"/"+team+"/app:"+tag, testenv.Value(random.Image(64<<10, 2))(t)))
}

// phase waits until clients have pulled for a while, by every replica.
func (w *walk) phase(t *testing.T, what string) {
	t.Helper()
	before := map[*replica]int{}
	for _, r := range w.serving {
		before[r] = len(r.Audit(t))
	}
	w.load.more(t, pullsOfPhase)
	var shares []string
	for _, r := range w.serving {
		tokens, blobs := 0, 0
		for _, event := range r.Audit(t)[before[r]:] {
			switch {
			case event.Result != "granted":
			case event.Gateway == nil:
				tokens++
			case event.Gateway.Kind == "blob":
				blobs++
			}
		}
		if tokens == 0 || blobs == 0 {
			t.Errorf("%s: %s has issued %d tokens and sent %d blobs", what, r.name, tokens, blobs)
		}
		shares = append(shares, fmt.Sprintf("%s: %d tokens, %d blobs", r.name, tokens, blobs))
	}
	w.saw(what, "%s", strings.Join(shares, "; "))
}

// account is a ServiceAccount of which nothing was asked so far, and a token of it.
func (w *walk) account(t *testing.T) (name, token string) {
	t.Helper()
	w.asked++
	name = fmt.Sprintf("once-%d", w.asked)
	return name, w.issuer.Token(t, service, team, name)
}

// judgeTogether uses at one replica what the other has issued.
func (w *walk) judgeTogether(t *testing.T, from, to *replica) {
	t.Helper()
	c := w.client("127.0.1.1")
	defer c.CloseIdleConnections()
	what := from.name + " → " + to.name
	repository := upstreamName + "/" + team + "/app"

	_, token := w.account(t)
	for at, manifest := range map[string]struct{ base, repository string }{
		"the registry": {"https://" + w.direct.Host, team + "/app"},
		"the gateway":  {to.own(), repository},
	} {
		bearer := testenv.Value(c.token(t.Context(), from.URL+"/token", token, "repository:"+manifest.repository+":pull"))(t)
		if a, err := c.do(t.Context(), http.MethodGet, manifest.base+"/v2/"+manifest.repository+"/manifests/"+tag, bearer, nil); err != nil || a.status != http.StatusOK {
			t.Errorf("%s: a token at %s: %v", what, at, unexpected(a, err))
		}
	}
	w.judgePush(t, c, from, to)

	// The first caller of a token owns it at every replica.
	answered := to.Host(t, pullpass.From{Address: "127.0.1.2"}).Ask(t, service, token, "repository:"+repository+":pull")
	if r := answered.Audit.Replay; r == nil || r.Passed || r.Owner == r.Caller {
		t.Errorf("%s: another caller with a token: %+v", what, answered.Audit)
	}

	name, revoked := w.account(t)
	scope := "repository:" + team + "/app:pull"
	host := to.Host(t, pullpass.From{})
	if a := host.Ask(t, service, revoked, scope); a.Status != http.StatusOK {
		t.Errorf("%s: before it was revoked: %d", what, a.Status)
	}
	w.command(t, from.program, "revoke", "--config", from.ConfigFile, "--service-account", clusterName+"/"+team+"/"+name, "--reason", "a test", "--for", "1h")
	testenv.Await(t, followLimit, what+": a revocation counts", func() bool { return host.Ask(t, service, revoked, scope).Audit.Reason == "revoked" })
}

// judgePush has a CI job push by a credential and in an upload that the other replica has made.
func (w *walk) judgePush(t *testing.T, c *client, from, to *replica) {
	t.Helper()
	what := from.name + " → " + to.name
	const repository = upstreamName + "/" + team + "/pushed"
	job := w.gitHub.JobToken(t, service, issuer.Job{Repository: "web", RepositoryID: 42, Branch: "main", Protected: true, Run: 1001})
	a, err := c.do(t.Context(), http.MethodPost, from.URL+"/token", "", url.Values{
		"grant_type": {"urn:ietf:params:oauth:grant-type:token-exchange"}, "subject_token": {job}, "subject_token_type": {"urn:ietf:params:oauth:token-type:jwt"},
		"requested_token_type": {"urn:pullpass:token-type:push-credential"}, "service": {service}, "scope": {"repository:" + repository + ":pull,push"},
	})
	var issued struct {
		Credential string `json:"access_token"`
	}
	if err != nil || a.status != http.StatusOK || json.Unmarshal(a.body, &issued) != nil || strings.HasPrefix(issued.Credential, "eyJ") {
		t.Fatalf("%s: no push credential: %v", what, unexpected(a, err))
	}
	from.NeverLog(issued.Credential)
	to.NeverLog(issued.Credential)
	bearer := testenv.Value(c.token(t.Context(), to.URL+"/token", issued.Credential, "repository:"+repository+":pull,push"))(t)

	a, err = c.do(t.Context(), http.MethodPost, from.own()+"/v2/"+repository+"/blobs/uploads/", bearer, nil)
	if err != nil || a.status != http.StatusAccepted {
		t.Fatalf("%s: begin an upload: %v", what, unexpected(a, err))
	}
	location := testenv.Value(url.Parse(a.header.Get("Location")))(t)
	content := "pushed " + what
	sum := sha256.Sum256([]byte(content))
	query := location.Query()
	query.Set("digest", "sha256:"+hex.EncodeToString(sum[:]))
	location.RawQuery = query.Encode()
	a, err = c.send(t.Context(), http.MethodPut, to.own()+location.RequestURI(), bearer, "application/octet-stream", content)
	if err != nil || a.status != http.StatusCreated {
		t.Errorf("%s: end an upload: %v", what, unexpected(a, err))
	}
}

// own is the URL of the replica's own gateway.
func (r *replica) own() string {
	return "https://localhost" + r.GatewayAddress[strings.LastIndex(r.GatewayAddress, ":"):]
}

// judgeUnknown has replicas read what no release before 1.0 knows: both leave it out, and say so.
func (w *walk) judgeUnknown(t *testing.T, replicas ...*replica) {
	t.Helper()
	const field = "not-known"
	w.redis.Do(t, "HSET", "pullpass:revocations", field, `1 0 {"target":{"kind":"later","name":"x"},"by":"a test","reason":"x","until":"2100-01-01T00:00:00Z"}`)
	for _, r := range replicas {
		testenv.Await(t, followLimit, r.name+" says what it does not know", func() bool {
			ready, text := r.Ready(t)
			return ready && strings.Contains(text, `unknown kind`) && strings.Contains(text, field)
		})
	}
	w.redis.Do(t, "HDEL", "pullpass:revocations", field)

	for _, r := range replicas {
		files := w.files(t, r)
		file := testenv.WriteFile(t, filepath.Join(t.TempDir(), "pullpass.yaml"), testenv.Replace(t, files[r.ConfigFile], `"server": {`, `"server": {"later": 1,`))
		if output, err := w.try(t, r.program, "check", "--config", file); err == nil || !strings.Contains(output, "server.later: ") {
			t.Errorf("%s checks a file of a later release: %v: %s", r.name, err, output)
		}
	}
}

// judgeNewFiles gives a replica of the release before the files of this one, as the chart does when pods are replaced.
func (w *walk) judgeNewFiles(t *testing.T, r *replica) {
	t.Helper()
	before := w.files(t, r)
	w.command(t, programs.Pullpass(t), append([]string{"convert", "--write"}, names(before)...)...)
	output, err := w.try(t, r.program, "check", "--config", r.ConfigFile)
	if !w.former.Alpha {
		if err != nil {
			t.Errorf("%s refuses files of this release: %v: %s", r.name, err, output)
		}
		return
	}
	const refusal = `apiVersion: is "` + currentVersion + `"`
	if err == nil || !strings.Contains(output, refusal) {
		t.Errorf("%s checks the files of this release: %v: %s", r.name, err, output)
	}
	testenv.Await(t, followLimit, r.name+" refuses the files of this release", func() bool { return strings.Contains(r.Log(), currentVersion) })
	if n := r.Metric(t, "pullpass_reloads_total", `result="failure"`); n == 0 {
		t.Errorf("%s counts no reload that failed", r.name)
	}
}

// judgeWarnings has replicas of this release name the files of before.
func (w *walk) judgeWarnings(t *testing.T, replicas ...*replica) {
	t.Helper()
	for _, r := range replicas {
		if n := r.Metric(t, "pullpass_deprecated_files"); n != 2 {
			t.Errorf("%s counts %v deprecated files", r.name, n)
		}
		output, err := w.try(t, r.program, "check", "--config", r.ConfigFile)
		testenv.Must(t, err)
		for file := range w.files(t, r) {
			warning := file + ": apiVersion: " + formerVersion + " is deprecated"
			if !strings.Contains(output, warning) || !strings.Contains(r.Log(), filepath.Base(file)+": apiVersion: "+formerVersion+" is deprecated") {
				t.Errorf("%s says nothing of %s: %s", r.name, file, output)
			}
		}
	}
}

// convert rewrites the files of a replica while it runs, and returns those of before.
func (w *walk) convert(t *testing.T, r *replica) (before map[string]string) {
	t.Helper()
	before = w.files(t, r)
	w.command(t, r.program, append([]string{"convert", "--write"}, names(before)...)...)
	for name, content := range w.files(t, r) {
		if want := testenv.Replace(t, before[name], formerVersion, currentVersion); content != want {
			t.Errorf("%s was converted to\n%s", name, content)
		}
	}
	testenv.Await(t, followLimit, r.name+" has read what was converted", func() bool { return r.Metric(t, "pullpass_deprecated_files") == 0 })
	if output, err := w.try(t, r.program, "check", "--config", r.ConfigFile); err != nil || strings.Contains(output, "deprecated") {
		t.Errorf("check after the conversion: %v: %s", err, output)
	}
	return before
}

// restore puts files back while the replica runs.
func (w *walk) restore(t *testing.T, r *replica, files map[string]string) {
	t.Helper()
	for name, content := range files {
		testenv.Must(t, os.Rename(testenv.WriteFile(t, name+".new", content), name))
	}
	testenv.Await(t, followLimit, r.name+" has read the files of before", func() bool { return r.Metric(t, "pullpass_deprecated_files") == 2 })
}

// files are the contents of a replica's files.
func (w *walk) files(t *testing.T, r *replica) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, name := range []string{r.ConfigFile, filepath.Join(filepath.Dir(r.ConfigFile), "policy.yaml")} {
		all[name] = testenv.ReadFile(t, name)
	}
	return all
}

func names(files map[string]string) (all []string) {
	for name := range files {
		all = append(all, name)
	}
	return all
}

func (w *walk) command(t *testing.T, program string, args ...string) {
	t.Helper()
	if output, err := w.try(t, program, args...); err != nil {
		t.Fatalf("%s %q: %v\n%s", program, args, err, output)
	}
}

// try runs a command, and returns all that it prints.
func (w *walk) try(t *testing.T, program string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), readyLimit)
	defer cancel()
	output, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	return string(output), err
}
