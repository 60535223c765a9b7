package simulation

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"hash"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/server"
	"github.com/pullpass/pullpass/internal/state"
	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/pkitest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const (
	registry  = "registry.example.com" // trusts the tokens that replicas issue
	gateway   = "gateway.example.com"  // the replicas themselves, before upstream
	upstream  = "up.example.com"
	password  = "robot-password"
	maxKeyAge = 40 * time.Minute
)

// longestOfSecrets is how long tokens of Secrets live at most; others may live longer.
const longestOfSecrets, noNode = time.Hour, -1

var (
	namespaces       = []string{"team-a", "team-b", "team-c"}
	secretNamespaces = namespaces[:2] // may pull with tokens in Secrets
)

// world is everything that there is. One goroutine changes it.
type world struct {
	t                      *testing.T
	random                 *rand.Rand
	answers                *rand.Rand // for choices among answers, which may differ from run to run
	began                  time.Time
	clock                  time.Time // of what the seed chooses
	trace                  hash.Hash // of what it chose
	net                    *network
	ca                     *pkitest.Cert
	signing                map[string][]byte // keys of the replicas, PEM, by service
	clusters               []*cluster
	redis                  *redisHost
	replicas               []*replica               // that run
	ending                 []*replica               // that were killed
	keepers, endingKeepers []*keeper                // likewise
	alive                  atomic.Pointer[[]string] // hosts of replicas
	shaken                 time.Time                // when controllers were disturbed last
	ledger                 ledger
	started                int
	health                 map[link][]change // of the links of replicas to the hosts that they need
	pods                   []*pod
	tokens                 []*token
	issued                 []issued // for the gateway
	denied                 []*revocation
	operator               *state.RedisRevocations
	files                  history[policy] // the operators' last versions
	longest                time.Duration   // likewise
	closers                []func()
	plan                   []planned
	events                 []string // the last ones
	steps                  int
	counts                 map[string]int

	memory     uint64 // the most so far
	goroutines int
}

// change is a moment at which a link began to work, or ceased to.
type change struct {
	at     time.Time
	up     bool
	silent bool // nothing passes
}

// cluster is an API server and its issuer.
type cluster struct {
	name, issuer string
	api          *kubetest.Server
	keys         history[[]string] // that are published
	signers      map[string]*ecdsa.PrivateKey
	skew         time.Duration // of the issuer's clock
	objects      history[map[string]policy]
	requests     history[requests]
	made         int
	stale        []interval // in which lists and watches stood still; a zero end: they do

	world              *world
	wards              []*ward
	opts               map[string]bool      // namespaces that have opted in
	edited             map[string]time.Time // when a policy object was
	lease, statusLease atomic.Pointer[takeover]
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{
		t: t, random: rand.New(rand.NewPCG(seed, 1)), answers: rand.New(rand.NewPCG(seed, 2)), began: time.Now(), clock: time.Now(), longest: 24 * time.Hour, trace: sha256.New(), net: newNetwork(),
		health: map[link][]change{}, counts: map[string]int{},
	}
	w.ledger.statuses = map[string]time.Time{}
	w.ca = pkitest.NewCA(t, nil, forever)
	w.signing = map[string][]byte{registry: pkitest.KeyPEM(t, pkitest.ECKey(t)), gateway: pkitest.KeyPEM(t, pkitest.ECKey(t))}
	w.serveTLS(upstream, http.HandlerFunc(serveUpstream))
	w.redis = newRedisHost(w)
	for _, name := range []string{"east", "west"} {
		w.clusters = append(w.clusters, w.newCluster(name))
	}
	operator := testkit.Value(state.OpenRedis(state.RedisConfig{Addresses: []string{"redis:6379"}, Dial: w.net.dialer("operator", "10.9.0.1")}))(t)
	w.operator = state.NewRedisRevocations(operator)
	w.closers = append(w.closers, func() { _ = operator.Close() })
	w.files.set(policy{rules: []rule{{namespaces: namespaces, repository: "{namespace}/**"}, {namespaces: namespaces, repository: upstream + "/{namespace}/**"}}})
	for range 3 {
		w.start()
	}
	for _, c := range w.clusters {
		w.startKeeper(c)
		w.startKeeper(c)
	}
	return w
}

func forever(c *x509.Certificate) { c.NotAfter = time.Now().Add(50 * 365 * 24 * time.Hour) }

// close ends everything. Time passes until the last goroutine has seen it.
func (w *world) close() {
	for _, r := range slices.Clone(w.replicas) {
		w.kill(r)
	}
	for _, k := range slices.Clone(w.keepers) {
		w.killKeeper(k)
	}
	for _, stop := range w.closers {
		stop()
	}
	w.net.cut(func(link) bool { return true })
	for _, r := range w.ending {
		<-r.ended
	}
	for _, k := range w.endingKeepers {
		<-k.ended
	}
	time.Sleep(time.Hour)
}

// serveTLS serves a handler on port 443 of a host.
func (w *world) serveTLS(host string, handler http.Handler) {
	cert := pkitest.NewCert(w.t, pkitest.ECKey(w.t), w.ca, forever, func(c *x509.Certificate) { c.DNSNames = []string{host} })
	l, err := w.net.listen(host, "443")
	testkit.Must(w.t, err)
	s := &http.Server{Handler: handler, TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert.TLS()}}, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
	go func() { _ = s.ServeTLS(l, "", "") }()
	w.closers = append(w.closers, func() { _ = s.Close() })
}

func (w *world) newCluster(name string) *cluster {
	c := &cluster{name: name, issuer: "https://issuer-" + name, api: kubetest.NewServer(), signers: map[string]*ecdsa.PrivateKey{}, world: w, edited: map[string]time.Time{}}
	c.objects.set(map[string]policy{})
	c.requests.set(requests{})
	c.keys.set(nil)
	c.rotate(w, true)
	var objects sync.Mutex // the server's maps are read while it answers
	c.newWards()
	for _, n := range namespaces {
		c.api.Put("serviceaccounts", object(n, "web", "sa-"+name+"-"+n))
	}
	for i := range 3 {
		c.api.Put("nodes", object("", fmt.Sprint("node-", i), fmt.Sprint("node-uid-", i)))
	}
	w.serveTLS("api-"+name, c)
	w.serveTLS("issuer-"+name, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/keys" {
			_ = json.NewEncoder(rw).Encode(map[string]any{
				"issuer": c.issuer, "jwks_uri": c.issuer + "/keys", "response_types_supported": []string{"id_token"},
				"subject_types_supported": []string{"public"}, "id_token_signing_alg_values_supported": []string{"ES256"},
			})
			return
		}
		objects.Lock()
		defer objects.Unlock()
		set := jose.JSONWebKeySet{Keys: []jose.JSONWebKey{}}
		for _, id := range c.keys.now() {
			set.Keys = append(set.Keys, jose.JSONWebKey{Key: c.signers[id].Public(), KeyID: id, Algorithm: "ES256", Use: "sig"})
		}
		_ = json.NewEncoder(rw).Encode(set)
	}))
	return c
}

// serveUpstream is a registry behind the gateway: a manifest names its repository.
func serveUpstream(w http.ResponseWriter, r *http.Request) {
	if user, given, _ := r.BasicAuth(); user != "robot" || given != password {
		w.Header().Set("WWW-Authenticate", `Basic realm="upstream"`)
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	repository, isManifest := strings.CutSuffix(strings.TrimPrefix(r.URL.Path, "/v2/"), "/manifests/latest")
	if r.URL.Path != "/v2/" && !isManifest {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
	_, _ = fmt.Fprintf(w, `{"schemaVersion":2,"annotations":{"repository":%q}}`, repository)
}

func object(namespace, name, uid string) kubetest.Object {
	m := kubetest.Object{"name": name, "uid": uid}
	if namespace != "" {
		m["namespace"] = namespace
	}
	return kubetest.Object{"metadata": m}
}

// rotate publishes a new key. Without keep, the others are withdrawn at once.
func (c *cluster) rotate(w *world, keep bool) {
	c.made++
	id := fmt.Sprint(c.name, "-", c.made)
	c.signers[id] = pkitest.ECKey(w.t)
	keys := []string{id}
	if keep {
		keys = append(slices.Clone(c.keys.now()), id)
	}
	c.keys.set(keys[max(0, len(keys)-3):])
	c.api.KeyID(id)
}

// pod is one that runs, or did; or a Secret for which there are tokens, or was.
type pod struct {
	isSecret                      bool
	cluster                       *cluster
	namespace, name, uid, account string // account is the UID of the ServiceAccount
	node                          int
	created, deleted              time.Time
}

// token is one of a pod, with its callers so far.
type token struct {
	*pod
	raw, id, key string
	from, until  time.Time
	flaw         string          // why it is worth nothing; empty: it is worth something
	tried        map[string]bool // addresses that may own it
	owner        string          // the address that does
	split        bool            // Redis lost the owner, and replicas may name different ones
	known        map[*replica]bool
}

// issued is a token that a replica issued for the gateway.
type issued struct {
	*token
	raw          string
	repositories []string
	until        time.Time
	elsewhere    bool // it is for the registry
}

func (w *world) newPod(c *cluster) *pod {
	namespace := pick(w, namespaces)
	c.made++
	p := &pod{cluster: c, namespace: namespace, name: fmt.Sprint("web-", c.made), uid: fmt.Sprint("pod-", c.name, "-", c.made), account: "sa-" + c.name + "-" + namespace, node: w.random.IntN(3), created: time.Now()}
	c.api.Put("pods", object(p.namespace, p.name, p.uid))
	w.pods = append(w.pods, p)
	return p
}

// newSecret is one that holds a token with which any node may pull.
func (w *world) newSecret(c *cluster) *pod {
	namespace := pick(w, namespaces)
	c.made++
	p := &pod{isSecret: true, cluster: c, namespace: namespace, name: fmt.Sprint("pull-", c.made), uid: fmt.Sprint("secret-", c.name, "-", c.made), account: "sa-" + c.name + "-" + namespace, node: noNode, created: time.Now()}
	c.api.Put("secrets", object(p.namespace, p.name, p.uid))
	w.pods = append(w.pods, p)
	return p
}

// end deletes the pod, or the Secret.
func (p *pod) end() {
	p.deleted = time.Now()
	p.cluster.api.Remove(p.resource(), p.namespace, p.name)
}

func (p *pod) resource() string {
	if p.isSecret {
		return "secrets"
	}
	return "pods"
}

// newToken issues a token of a pod. flaw is one of flaws, or empty.
func (w *world) newToken(p *pod, life time.Duration, flaw string) *token {
	c := p.cluster
	c.made++
	now := time.Now().Add(c.skew)
	keys := c.keys.now()
	t := &token{pod: p, id: fmt.Sprint("jti-", c.name, "-", c.made), key: keys[len(keys)-1], flaw: flaw, tried: map[string]bool{}, known: map[*replica]bool{}}
	issuer, audience, otherAudience, signer, header := c.issuer, registry, "https://kubernetes.default.svc", c.signers[t.key], t.key
	if p.isSecret {
		life, audience, otherAudience = min(life, longestOfSecrets), pullAudience, registry
	}
	switch flaw {
	case "audience":
		audience = otherAudience
	case "signature":
		signer = w.clusters[(slices.Index(w.clusters, c)+1)%len(w.clusters)].anySigner()
	case "issuer": // signed by one cluster, and said to be another's
		issuer = w.clusters[(slices.Index(w.clusters, c)+1)%len(w.clusters)].issuer
	}
	if flaw == "lifetime" {
		life = 48 * time.Hour
	}
	t.from, t.until = now.Truncate(time.Second), now.Add(life).Truncate(time.Second)
	account := p.account
	if flaw == "account" {
		account += "-before"
	}
	claims := map[string]any{"namespace": p.namespace, "serviceaccount": map[string]string{"name": "web", "uid": account}}
	if p.isSecret {
		claims["secret"] = map[string]string{"name": p.name, "uid": p.uid}
	} else {
		claims["pod"] = map[string]string{"name": p.name, "uid": p.uid}
		claims["node"] = map[string]string{"name": fmt.Sprint("node-", p.node), "uid": fmt.Sprint("node-uid-", p.node)}
	}
	k, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: signer}, (&jose.SignerOptions{}).WithHeader("kid", header))
	testkit.Must(w.t, err)
	t.raw, err = jwt.Signed(k).Claims(map[string]any{
		"iss": issuer, "aud": []string{audience}, "sub": "system:serviceaccount:" + p.namespace + ":web", "jti": t.id,
		"iat": t.from.Unix(), "nbf": t.from.Unix(), "exp": t.until.Unix(),
		"kubernetes.io": claims,
	}).Serialize()
	testkit.Must(w.t, err)
	w.tokens = append(w.tokens, t)
	return t
}

func (c *cluster) anySigner() *ecdsa.PrivateKey { return c.signers[c.keys.now()[0]] }

// address is that of the pod's node.
func (p *pod) address() netip.Addr {
	second := byte(0)
	if p.cluster.name == "west" {
		second = 1
	}
	return netip.AddrFrom4([4]byte{10, second, 0, byte(1 + p.node)})
}

// redisHost is a Redis. It counts time by a clock of its own.
type redisHost struct {
	*miniredis.Miniredis
	world *world
	mu    sync.Mutex
	skew  time.Duration
	seen  time.Time
}

func newRedisHost(w *world) *redisHost {
	h := &redisHost{Miniredis: miniredis.NewMiniRedis(), world: w, seen: time.Now()}
	testkit.Must(w.t, h.Start())
	h.Server().Close() // its listener is the operating system's, for which no virtual time passes
	l, err := w.net.listen("redis", "6379")
	testkit.Must(w.t, err)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			h.Server().ServeConn(ticking{c, h})
		}
	}()
	w.closers = append(w.closers, func() { _ = l.Close() })
	return h
}

// ticking tells Redis the time before each command.
type ticking struct {
	net.Conn
	redis *redisHost
}

func (t ticking) Read(p []byte) (int, error) {
	n, err := t.Conn.Read(p)
	t.redis.tick()
	return n, err
}

// tick lets keys expire, which miniredis does when it is told to.
func (h *redisHost) tick() {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	if passed := now.Sub(h.seen); passed > 0 {
		h.FastForward(passed)
	}
	h.seen = now
	h.SetTime(now.Add(h.skew))
}

func (h *redisHost) setSkew(skew time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.skew = skew
}

// replica is a process of pullpass serve, from its start to its end.
type replica struct {
	host    string
	dir     string
	born    time.Time
	policy  history[policy]        // of its file
	longest history[time.Duration] // maxTokenLifetime in its configuration
	spoilt  []interval             // in which that could not be read
	stop    context.CancelFunc
	ended   chan error
	audit   *lines
	heard   int // answers of it
	clock   clock
	doomed  bool // it dies between any two steps
}

// lines counts those of an audit log.
type lines struct{ count atomic.Int64 }

func (l *lines) Write(p []byte) (int, error) {
	l.count.Add(int64(bytes.Count(p, []byte("\n"))))
	return len(p), nil
}

type interval struct{ from, to time.Time }

// needs are the hosts that replicas connect to.
func (w *world) needs() []string {
	all := []string{"redis", upstream}
	for _, c := range w.clusters {
		all = append(all, "api-"+c.name, "issuer-"+c.name)
	}
	return all
}

func (w *world) start() {
	w.started++
	r := &replica{host: fmt.Sprint("replica-", w.started), dir: w.t.TempDir(), born: time.Now(), ended: make(chan error, 1), audit: &lines{}}
	r.clock.jump(w.skew())
	r.clock.drift(w.rate())
	for _, c := range w.clusters {
		ca, _ := json.Marshal(pkitest.CertPEM(w.ca))
		testkit.Put(w.t, filepath.Join(r.dir, c.name+".kubeconfig"), fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "c",
"clusters": [{"name": "c", "cluster": {"server": "https://api-%s:443", "certificate-authority-data": %s}}],
"users": [{"name": "u", "user": {"token": "t"}}], "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "pullpass"}}]}`, c.name, ca))
	}
	testkit.Put(w.t, filepath.Join(r.dir, "ca.crt"), pkitest.CertPEM(w.ca))
	for service, key := range w.signing {
		testkit.Put(w.t, filepath.Join(r.dir, service+".key"), key)
	}
	testkit.Put(w.t, filepath.Join(r.dir, "password"), password)
	w.configure(r, w.longest)
	w.write(r, w.files.now())
	cfg, err := config.Load(filepath.Join(r.dir, "pullpass.yaml"))
	testkit.Must(w.t, err)
	s, err := server.New(server.Config{
		Config: cfg, InsecureHTTP: true, Version: "simulated", Getenv: func(string) string { return "" },
		Stdout: r.audit, Logger: testkit.QuietLogger(), Now: r.clock.now,
		Network: server.Network{
			Dial: w.net.dialer(r.host, "10.8.0.1"),
			Listen: func(_, address string) (net.Listener, error) {
				_, port, err := net.SplitHostPort(address)
				testkit.Must(w.t, err)
				return w.net.listen(r.host, port)
			},
		},
	})
	testkit.Must(w.t, err)
	for _, need := range w.needs() {
		w.join(r.host, need)
	}
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	go func() { r.ended <- s.Run(ctx) }()
	w.replicas = append(w.replicas, r)
	w.staffed()
}

// staffed notes that there are other replicas than before.
func (w *world) staffed() {
	var hosts []string
	for _, r := range w.replicas {
		hosts = append(hosts, r.host)
	}
	w.alive.Store(&hosts)
	w.shake()
}

// join links a new host to one that it needs. The fault of that is there for it, too.
func (w *world) join(host, need string) {
	l, f := link{host, need}, w.net.fault(link{"", need})
	w.net.set(l, f)
	w.note(l, f)
}

// isolate lets a host reach nothing from now on, and nothing reach it.
func (w *world) isolate(host string) {
	w.net.doom(host, 0)
	for _, need := range w.needs() {
		w.net.set(link{host, need}, fault{refused: true})
	}
	w.net.cut(func(l link) bool { return l.from == host || l.to == host })
}

// configure replaces the configuration of a replica.
func (w *world) configure(r *replica, longest time.Duration) {
	var clusters strings.Builder
	for _, c := range w.clusters {
		fmt.Fprintf(&clusters, `
- name: %s
  issuer: %s
  audiences: [%s]
  maxTokenLifetime: %s
  discovery: {caFile: ca.crt, maxKeyAge: %s}
  pullSecrets: {audience: %s, namespaces: [%s]}
  kubernetes: {kubeconfigFile: %[1]s.kubeconfig, objects: {policies: true, requests: true, status: true, within: ["team-*/**", "shared/**", "up.example.com/**"]}}`, c.name, c.issuer, registry, longest, maxKeyAge, pullAudience, strings.Join(secretNamespaces, ", "))
	}
	r.longest.set(longest)
	w.replace(r, "pullpass.yaml", fmt.Sprintf(`
apiVersion: pullpass.dev/v1beta1
kind: ProxyConfiguration
server: {address: "127.0.0.1:80"}
admin: {address: "127.0.0.1:81"}
clusters:%s
registries:
- {service: %[2]s, issuer: pullpass.example.com, signing: {trust: jwks, keyFile: %[2]s.key}}
- {service: %[3]s, issuer: pullpass.example.com, signing: {trust: jwks, keyFile: %[3]s.key}}
gateway: {address: "127.0.0.1:82", url: "https://gateway.example.com", service: %[3]s}
upstreams:
- {name: %[4]s, caFile: ca.crt, credential: {basic: {username: robot, passwordFile: password}}}
policyFiles: [policy.yaml]
state: {redis: {addresses: ["redis:6379"]}, replay: enforce}
`, clusters.String(), registry, gateway, upstream))
}

// kill ends a process between two steps: from now on it reaches nothing, and nothing reaches it. Its
// goroutines then end in their own time.
func (w *world) kill(r *replica) {
	w.isolate(r.host)
	r.stop()
	w.replicas = slices.DeleteFunc(w.replicas, func(other *replica) bool { return other == r })
	w.ending = append(w.ending, r)
	w.staffed()
	for _, t := range w.tokens {
		delete(t.known, r)
	}
}

// write replaces the policy file of a replica, in one step.
func (w *world) write(r *replica, p policy) {
	r.policy.set(p)
	w.replace(r, "policy.yaml", p.file())
}

func (w *world) replace(r *replica, name, content string) {
	testkit.Put(w.t, filepath.Join(r.dir, "next"), content)
	testkit.Must(w.t, os.Rename(filepath.Join(r.dir, "next"), filepath.Join(r.dir, name)))
}

// note remembers when a link works.
func (w *world) note(l link, f fault) {
	up := !f.lost && !f.refused && f.delay < 100*time.Millisecond
	silent := f.lost || f.refused
	if changes := w.health[l]; len(changes) == 0 || changes[len(changes)-1].up != up || changes[len(changes)-1].silent != silent {
		w.health[l] = append(changes, change{time.Now(), up, silent})
	}
}

func pick[T any](w *world, from []T) T { return from[w.random.IntN(len(from))] }
