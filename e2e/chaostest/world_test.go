package chaostest

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/isolate"
	"github.com/pullpass/pullpass/e2e/issuer"
	"github.com/pullpass/pullpass/e2e/process"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/redis"
	"github.com/pullpass/pullpass/e2e/relay"
	"github.com/pullpass/pullpass/e2e/testenv"
)

const (
	service     = "registry.example.com"
	clusterName = "prod-eu"
	issuerHost  = "issuer.chaos.test"
	password    = "not-a-secret"
	replicas    = 3
	auditing    = 2 // the replica that only notes replays, so it grants without Redis
	diskSize    = 1 << 20
)

var namespaces = []string{"team-a", "team-b", "team-c"}

type span struct{ from, to time.Time }

// world is the parts, and the facts about them. The test changes it, the load reads it.
type world struct {
	ca       *certs.CA
	issuer   *issuer.Issuer
	resolver *resolver
	link     *isolate.Link
	server   *redis.Server
	config   pullpass.Config
	api      *apiServer
	other    string // program of the other release
	jwks     jose.JSONWebKeySet
	replicas []*replica

	mu           sync.Mutex
	key          int // number of the issuer's
	published    map[int]time.Time
	withdrawn    map[int]time.Time
	issuerUp     history[bool]
	issuerFaults int
	redisLost    time.Time // since when it may have lost data
	revoked      []*revocation
	events       []string
	counts       map[string]int
	deck         []kind // that come before any comes again
	stalls       []span // when this machine was too busy
}

// revocation is one that was tried, and confirmed if the command said so.
type revocation struct {
	account, namespace string
	number             int
	tried, confirmed   time.Time
}

// replica is one of the service, through all its processes.
type replica struct {
	number int
	proxy  *pullpass.Proxy
	way    *relay.Relay // to Redis
	api    *relay.Relay // to the API server
	config pullpass.Config
	disk   string
	clocks string // file of its clock
	jumps  bool   // it runs the program whose clock can jump

	alive          history[bool]
	started, born  time.Time // when its process was started, and answered
	redis          history[bool]
	redisFaults    int
	clock          history[time.Duration]
	policy         history[policy]
	spoilt, frozen []span
	knownKeys      map[int]time.Time    // since when it has granted for tokens of the key
	refusedAccount map[string]time.Time // since when it has said that the account is revoked
	listed         time.Time            // since when it has the revocations
	apiFaults      int
	cutOff         []span    // when it may not have been able to ask the API server
	liveGranted    time.Time // since when it has granted to pods of the second cluster
}

func (w *world) event(format string, args ...any) {
	w.events = append(w.events, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

func startWorld(t *testing.T, other string) *world {
	t.Helper()
	w := &world{
		ca: certs.NewCA(t, "chaos-ca"), link: isolate.NewLink(t), other: other, counts: map[string]int{},
		published: map[int]time.Time{0: time.Now()}, withdrawn: map[int]time.Time{},
	}
	w.resolver = startResolver(t)
	w.issuer = issuer.StartAs(t, w.ca, issuerHost)
	w.server = redis.StartBy(t, w.link.Command, w.link.Address()+":6379", "--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction")
	w.server.AddUser(t, password)
	signingCA := certs.NewCA(t, "token-ca")
	signer := signingCA.Signer(t, "token-signer")
	w.config = pullpass.Config{
		Clusters: []pullpass.Cluster{{
			Name: clusterName, Issuer: w.issuer.URL, Audiences: []string{service}, Discovery: pullpass.Discovery{CAFile: w.ca.File},
		}},
		Service: service, ShutdownDelay: "1s",
		Signing: pullpass.Signing{Trust: "jwks", KeyFile: signer.KeyFile},
	}
	w.issuerUp.set(true)
	w.startAPIServer(t)
	passwordFile := testenv.WriteFile(t, filepath.Join(t.TempDir(), "password"), password)
	for n := range replicas {
		r := &replica{
			number: n, way: relay.Start(t, process.FreeAddress(t), w.server.Address), config: w.config, disk: t.TempDir(), jumps: true,
			clocks: filepath.Join(t.TempDir(), "clock"),
		}
		r.config.State.Replay = "enforce"
		if n == auditing {
			r.config.State.Replay = "audit"
		}
		testenv.Must(t, syscall.Mount("tmpfs", r.disk, "tmpfs", 0, fmt.Sprintf("size=%d", diskSize)))
		t.Cleanup(func() { testenv.Must(t, syscall.Unmount(r.disk, 0)) })
		programs.WriteClock(t, r.clocks, 0)
		r.config.AuditFile = filepath.Join(r.disk, "audit.log")
		r.config.State.Redis = pullpass.Redis{Addresses: []string{r.way.Address}, Username: redis.User, PasswordFile: passwordFile}
		r.config.Environment = []string{programs.ClockFileVariable + "=" + r.clocks}
		w.api.connect(t, r)
		r.redis.set(true)
		r.clock.set(0)
		r.policy.set(policy{allow: namespaces})
		w.replicas = append(w.replicas, r)
		w.start(t, r)
	}
	testenv.Must(t, json.Unmarshal(w.replicas[0].proxy.JWKS(t), &w.jwks))
	return w
}

// start runs a process of the replica. It has the policy that counts.
func (w *world) start(t *testing.T, r *replica) {
	t.Helper()
	r.config.Program = w.other
	if r.jumps {
		r.config.Program = programs.PullpassWithClock(t)
	}
	r.config.Policy = r.policy.now().file()
	started := time.Now()
	proxy := pullpass.Start(t, w.ca, r.config)
	w.mu.Lock()
	defer w.mu.Unlock()
	r.proxy, r.started, r.born, r.listed, r.liveGranted = proxy, started, time.Now(), time.Time{}, time.Time{}
	r.policy = history[policy]{{r.born, r.policy.now()}}
	r.spoilt, r.frozen, r.knownKeys, r.refusedAccount = nil, nil, map[int]time.Time{}, map[string]time.Time{}
	r.alive.set(true)
}

func accountOf(namespace string, number int) string {
	return fmt.Sprintf("%s/web-%d", namespace, number)
}

func (p policy) file() string {
	list := func(names []string) string { return strings.Join(names, ", ") }
	text := "apiVersion: pullpass.dev/v1beta1\nkind: AccessPolicy\nrules:\n" +
		fmt.Sprintf("- {name: own, subjects: [{namespaces: [%s]}], allow: [{repositories: [\"{namespace}/**\"], actions: [pull]}]}\n", list(p.allow)) +
		"- {name: ceiling, subjects: [{namespaces: [live-*]}], requests: true, allow: [{repositories: [\"{namespace}/**\"], actions: [pull]}]}\n"
	if len(p.deny) > 0 {
		text += fmt.Sprintf("deny:\n- {name: denied, subjects: [{namespaces: [%s]}]}\n", list(p.deny))
	}
	return text
}
