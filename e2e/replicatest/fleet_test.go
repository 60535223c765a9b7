package replicatest

import (
	"encoding/json"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/issuer"
	"github.com/pullpass/pullpass/e2e/node"
	"github.com/pullpass/pullpass/e2e/process"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/registry"
	"github.com/pullpass/pullpass/e2e/relay"
	"github.com/pullpass/pullpass/e2e/testenv"
)

const (
	service     = "registry.example.com" // also the audience
	clusterName = "prod-eu"
	replicas    = 3

	// The modes of state.replay, which are also the namespaces of those who pull there.
	audit   = "audit"
	enforce = "enforce"

	image     = "app:v1" // in each namespace
	elsewhere = "elsewhere"

	shutdownDelay = "1s" // several times as often as the load balancer looks

	recoverLimit = 20 * time.Second // several times what docs/how-to/redis.md says
)

// perServiceAccount is more than a pod needs, and less than the greedy one asks for.
var perServiceAccount = pullpass.Limit{Rate: 5, Burst: 10}

const policy = `apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- name: own-namespace
  subjects: [{namespaces: ["*"]}]
  allow: [{repositories: ["{namespace}/**"], actions: [pull, push]}]
`

// world is what stays: the registry with its images, the issuer, and a load balancer for the replicas of each mode.
type world struct {
	ca        *certs.CA
	issuer    *issuer.Issuer
	registry  *registry.Registry
	signing   pullpass.Signing
	balancers map[string]*relay.Balancer
	report    *report
}

func startWorld(t *testing.T) *world {
	t.Helper()
	w := &world{ca: certs.NewCA(t, "registry-ca"), balancers: map[string]*relay.Balancer{}, report: &report{}}
	w.issuer = issuer.Start(t, w.ca)
	signingCA := certs.NewCA(t, "token-ca")
	signer := signingCA.Signer(t, "token-signer")
	w.signing = pullpass.Signing{KeyFile: signer.KeyFile, CertFile: signer.CertFile, CAFile: signingCA.File}
	for _, mode := range []string{audit, enforce} {
		w.balancers[mode] = relay.StartBalancer(t, process.FreeAddress(t))
	}
	trust := testenv.ReadFile(t, signingCA.File)
	w.registry = registry.Start(t, w.ca, registry.Config{
		Program: programs.Distribution(t), Realm: w.url(enforce) + "/token", Service: service, Issuer: pullpass.Issuer, RootCertBundle: []byte(trust),
	})
	w.publish(t)
	return w
}

// publish pushes an image for each namespace, by a Pullpass of its own.
func (w *world) publish(t *testing.T) {
	t.Helper()
	proxy := pullpass.StartReady(t, w.ca, w.config())
	w.balancers[enforce].Use(t, proxy)
	transport := w.ca.Transport(t)
	for _, namespace := range []string{audit, enforce, elsewhere} {
		token := w.issuer.Token(t, service, namespace, "builder")
		proxy.NeverLog(token)
		testenv.Must(t, node.Push(t.Context(), transport, "serviceaccount", token, w.registry.Host+"/"+namespace+"/"+image, node.Image(t, namespace)))
	}
	proxy.Stop(t)
}

// config is that of a Pullpass without Redis.
func (w *world) config() pullpass.Config {
	return pullpass.Config{
		Clusters: []pullpass.Cluster{{
			Name: clusterName, Issuer: w.issuer.URL, Audiences: []string{service}, Discovery: pullpass.Discovery{CAFile: w.ca.File},
		}},
		Policy: policy, Service: service, Signing: w.signing,
	}
}

// url is that of a load balancer.
func (w *world) url(mode string) string {
	_, port, _ := net.SplitHostPort(w.balancers[mode].Address)
	return "https://localhost:" + port
}

// fleet is the replicas of one mode.
type fleet struct {
	*world
	mode     string
	config   pullpass.Config
	replicas []*pullpass.Proxy
	retired  []*pullpass.Proxy
	load     *load

	calm float64 // failures before the scenario
	late bool    // Redis did not answer in time before the fault: the machine is busy
}

// startFleet runs the replicas, and waits until they serve behind their load balancer.
func (w *world) startFleet(t *testing.T, mode string, redis pullpass.Redis) *fleet {
	t.Helper()
	f := &fleet{world: w, mode: mode, config: w.config()}
	f.config.State = pullpass.State{Redis: redis, Replay: mode}
	f.config.PerServiceAccount = perServiceAccount
	f.config.ShutdownDelay = shutdownDelay
	for range replicas {
		f.replicas = append(f.replicas, pullpass.StartReady(t, f.ca, f.config))
	}
	f.balance(t)
	return f
}

func (f *fleet) balance(t *testing.T) {
	t.Helper()
	var backends []relay.Backend
	for _, replica := range f.replicas {
		backends = append(backends, replica)
	}
	f.balancers[f.mode].Use(t, backends...)
}

// all are the replicas, also those that have ended.
func (f *fleet) all() []*pullpass.Proxy {
	return append(append([]*pullpass.Proxy{}, f.retired...), f.replicas...)
}

// health is what /readyz says of Redis.
func health(t *testing.T, replica *pullpass.Proxy) (ready, healthy bool, text string) {
	t.Helper()
	ready, text = replica.Ready(t)
	var answer struct {
		Checks struct {
			Redis []struct {
				Healthy bool `json:"healthy"`
			} `json:"redis"`
		} `json:"checks"`
	}
	testenv.Must(t, json.Unmarshal([]byte(text), &answer))
	return ready, len(answer.Checks.Redis) == 1 && answer.Checks.Redis[0].Healthy, text
}

// healthy reports whether all replicas have Redis, by /readyz and by the metric.
func (f *fleet) healthy(t *testing.T) bool {
	t.Helper()
	for _, replica := range f.replicas {
		if _, healthy, _ := health(t, replica); !healthy || replica.Metric(t, "pullpass_redis_healthy") != 1 {
			return false
		}
	}
	return true
}

// failures adds up the calls that Redis did not answer.
func (f *fleet) failures(t *testing.T) (sum float64) {
	t.Helper()
	for _, replica := range f.replicas {
		sum += replica.Metric(t, "pullpass_redis_failures_total")
	}
	return sum
}

// revoke revokes a ServiceAccount of the fleet with the command of docs/how-to/redis.md.
func (f *fleet) revoke(t *testing.T, account string) error {
	t.Helper()
	_, err := f.replicas[0].TryCommand(t, "revoke", "--service-account", clusterName+"/"+f.mode+"/"+account, "--reason", "a test", "--for", "1h")
	return err
}

// awaitRevoked waits until every replica refuses a token, and returns how long that took since it was called.
func (f *fleet) awaitRevoked(t *testing.T, token string) time.Duration {
	t.Helper()
	begin := time.Now()
	clients := map[*pullpass.Proxy]*http.Client{}
	for _, replica := range f.replicas {
		clients[replica] = f.load.client(f.load.node(0), true)
		defer clients[replica].CloseIdleConnections()
	}
	testenv.Await(t, recoverLimit, "every replica refuses what was revoked", func() bool {
		for replica, client := range clients {
			a := f.load.askAt(t.Context(), client, replica.URL, kindProbe, token, f.mode+"/app")
			if a.status != http.StatusForbidden {
				return false
			}
			delete(clients, replica)
		}
		return true
	})
	return time.Since(begin)
}
