package pulltest

import (
	"flag"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/random"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/isolate"
	"github.com/pullpass/pullpass/e2e/issuer"
	"github.com/pullpass/pullpass/e2e/node"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/registry"
	"github.com/pullpass/pullpass/e2e/relay"
	"github.com/pullpass/pullpass/e2e/testenv"
	"github.com/pullpass/pullpass/e2e/upstream"
)

var (
	turns = flag.Int("pull-turns", 0, "how often each image is pulled each way; 0: the requests are counted, and nothing is timed")
	large = flag.Int64("pull-mib", 1024, "size of the large image, in MiB")
	long  = flag.Duration("pull-time", 8*time.Second, "how long a slow pull takes; the connections are cut at seven eighths of it")
	rate  = flag.Int("pull-rate", 1, "how fast a slow pull is, in MiB a second")
	disk  = flag.String("pull-dir", "", "where slow pulls write; by default in memory")
	valid = flag.Duration("pull-lifetime", lifetime, "tokenLifetime of slow pulls")
)

const (
	service   = "registry.example.com"
	hub       = "hub.example" // the upstream's name in the names of images
	namespace = "team-a"

	// moreRequests is how many requests a pull may have beside those with a static password.
	moreRequests = 3

	lifetime = 5 * time.Minute // of the registry's tokens
)

const policy = `apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- name: own-namespace
  subjects: [{namespaces: ["*"]}]
  allow: [{repositories: ["{namespace}/**", "*/{namespace}/**"], actions: [pull]}]
`

// way is one of the ways to the same content.
type way struct {
	name string
	host string // and the upstream's name, for the gateway
	// recorded is the same behind a recorder, and tokens are the requests that this does not see.
	recorded string
	recorder *relay.Recorder
	tokens   func() int
	login    func() string
}

type site struct {
	ca     *certs.CA
	origin *registry.Registry
	proxy  *pullpass.Proxy
	ways   []way
}

func start(t *testing.T, tokenLifetime time.Duration) *site {
	ca := certs.NewCA(t, "registry-ca")
	s := &site{ca: ca, origin: registry.Start(t, ca, registry.Config{Program: programs.Distribution(t), Realm: "origin", Htpasswd: []byte(upstream.Htpasswd)})}
	issuer := issuer.Start(t, ca)
	clusters := []pullpass.Cluster{{Name: "e2e", Issuer: issuer.URL, Audiences: []string{service}, Discovery: pullpass.Discovery{CAFile: ca.File}}}
	s.proxy = pullpass.Start(t, ca, pullpass.Config{Clusters: clusters, Policy: policy, Service: service, TokenLifetime: tokenLifetime.String()})
	gateway := pullpass.Start(t, ca, pullpass.Config{
		Clusters: clusters, Policy: policy, Service: service, TokenLifetime: tokenLifetime.String(),
		Upstreams: []pullpass.Upstream{{
			Name: hub, URL: "https://" + s.origin.Host, CAFile: ca.File,
			Credential: pullpass.Credential{Basic: pullpass.Basic{
				Username: upstream.Username, PasswordFile: testenv.WriteFile(t, filepath.Join(t.TempDir(), "password"), upstream.Password),
			}},
		}},
	})
	trusting := func(realm string) string {
		return registry.Start(t, ca, registry.Config{
			Program: programs.Distribution(t), Realm: realm, Service: service, Issuer: pullpass.Issuer, RootCertBundle: s.proxy.Certificates(t), ReadOnlyStorage: s.origin.Storage,
		}).Host
	}
	password := func() string { return upstream.Username + ":" + upstream.Password }
	token := func() string { return "serviceaccount:" + issuer.Token(t, service, namespace, "puller") } // a pull has one of its own
	endpoint := relay.Record(t, ca, s.proxy.URL)
	direct := strings.TrimPrefix(gateway.GatewayURL, "https://")
	record := func(to string) *relay.Recorder { return relay.Record(t, ca, "https://"+to) }
	static, tokens, gateways := record(s.origin.Host), record(trusting("https://"+endpoint.Host+"/token")), record(direct)
	s.ways = []way{
		{"a static password", s.origin.Host, static.Host, static, func() int { return 0 }, password},
		{"the token endpoint", trusting(s.proxy.URL + "/token"), tokens.Host, tokens, func() int { return len(endpoint.Exchanges()) }, token},
		{"the gateway", direct + "/" + hub, gateways.Host + "/" + hub, gateways, func() int {
			n := 0
			for _, e := range gateway.Audit(t) {
				if e.Gateway == nil {
					n++
				}
			}
			return n
		}, token},
	}
	return s
}

func (s *site) startNode(t *testing.T, address string, old bool) *node.Node {
	hosts := map[string]string{}
	for _, w := range s.ways {
		for _, host := range []string{w.host, w.recorded} {
			host, _, _ = strings.Cut(host, "/")
			hosts[host] = fmt.Sprintf("server = \"https://%[1]s\"\nca = \"/etc/containerd/certs.d/%[1]s/ca.crt\"\n[host]\n", host)
		}
	}
	name := "containerd-2"
	if old {
		name = "containerd-1"
	}
	return node.StartRuntime(t, node.Config{Name: name, Address: address, OldContainerd: old, Pullpass: s.proxy, Registry: service, CA: s.ca, Hosts: hosts})
}

// publish puts an image into the registry behind all ways.
func (s *site) publish(t *testing.T, name string, image v1.Image) {
	t.Helper()
	transport := s.ca.Transport(t)
	testenv.Must(t, node.Push(t.Context(), transport, upstream.Username, upstream.Password, s.origin.Host+"/"+namespace+"/"+name+":v1", image))
	transport.CloseIdleConnections()
}

// traffic is what a pull of an image asked for, and how many bytes that was, without those of TLS.
func (w way) traffic(t *testing.T, n *node.Node, image string) (requests int, bytes int64) {
	t.Helper()
	before, tokens := len(w.recorder.Exchanges()), w.tokens()
	n.PullOnce(t, w.recorded+"/"+namespace+"/"+image+":v1", w.login())
	exchanges := w.recorder.Exchanges()[before:]
	for _, e := range exchanges {
		e.Body, e.AnswerBody = nil, nil
		bytes += int64(len(e.Requested()) + len(e.Answered()))
		if length, err := strconv.ParseInt(e.AnswerHeader.Get("Content-Length"), 10, 64); err == nil && e.Method != http.MethodHead {
			bytes += length
		}
	}
	return len(exchanges) + w.tokens() - tokens, bytes
}

// TestPull pulls each image each way by each containerd.
func TestPull(t *testing.T) {
	s := start(t, lifetime)
	images := []struct {
		name        string
		mib, layers int64
	}{{"small", 1, 1}}
	if *turns > 0 {
		images = append(images, images[0])
		images[1].name, images[1].mib, images[1].layers = "large", *large, 4
	}
	var nodes []*node.Node
	for i, old := range []bool{false, true} {
		nodes = append(nodes, s.startNode(t, isolate.Addresses()[i], old))
	}
	report := "| containerd | image | way | seconds: least, median | beside a static password | requests | bytes |\n| --- | --- | --- | --- | --- | --- | --- |\n"
	for _, image := range images {
		s.publish(t, image.name, testenv.Value(random.Image(image.mib<<20/image.layers, image.layers))(t))
		for _, n := range nodes {
			times := make([][]time.Duration, len(s.ways))
			for range *turns {
				for i, w := range s.ways {
					times[i] = append(times[i], n.PullOnce(t, w.host+"/"+namespace+"/"+image.name+":v1", w.login()))
				}
			}
			fewest := 0
			for i, w := range s.ways {
				requests, bytes := w.traffic(t, n, image.name)
				if i == 0 {
					fewest = requests
				}
				if requests > fewest+moreRequests {
					t.Errorf("%s, %s, %s: %d requests, with a static password %d", n.Name(), image.name, w.name, requests, fewest)
				}
				seconds, beside := "-", "-"
				if *turns > 0 {
					slices.Sort(times[0])
					slices.Sort(times[i])
					middle := *turns / 2
					seconds = fmt.Sprintf("%.2f, %.2f", times[i][0].Seconds(), times[i][middle].Seconds())
					beside = fmt.Sprintf("%.2f, %.2f", times[i][0].Seconds()/times[0][0].Seconds(), times[i][middle].Seconds()/times[0][middle].Seconds())
				}
				report += fmt.Sprintf("| %s | %d MiB, %d layers | %s | %s | %s | %d | %d |\n", n.Name(), image.mib, image.layers, w.name, seconds, beside, requests, bytes)
			}
		}
	}
	t.Log("a cold pull\n" + report)
}

// A layer takes longer than a registry's token is valid (with -pull-time 8m), and its connection is cut: the pull goes on. containerd 1.6
// begins the layer again, and may fail if the token has expired: docs/reference/capacity.md.
func TestSlowPull(t *testing.T) {
	if *disk != "" {
		t.Setenv("TMPDIR", *disk)
	}
	s := start(t, *valid)
	var nodes []*node.Node
	ways := slices.Clone(s.ways[1:])
	relays := make([]*relay.Relay, len(ways))
	for i := range ways {
		host, rest, _ := strings.Cut(ways[i].host, "/")
		relays[i] = relay.Start(t, "127.0.0.1:0", "127.0.0.1"+host[strings.LastIndex(host, ":"):])
		relays[i].Limit(*rate << 20)
		ways[i].host = strings.TrimSuffix("localhost"+relays[i].Address[strings.LastIndex(relays[i].Address, ":"):]+"/"+rest, "/")
		ways[i].recorded = ways[i].host
		// containerd fetches a layer once, and lets other pulls of it wait: each way has a layer of its own.
		s.publish(t, slow(i), zerosImage(t, int64(long.Seconds())*int64(*rate)<<20+int64(i)*512))
	}
	s.ways = ways
	for i, old := range []bool{false, true} {
		nodes = append(nodes, s.startNode(t, isolate.Addresses()[i], old))
	}
	var pulls sync.WaitGroup
	for n, isOld := range []bool{false, true} {
		for i, w := range ways {
			n, login, begin := nodes[n], w.login(), time.Now()
			pulls.Go(func() {
				took, err := n.TryPullOnce(t.Context(), w.host+"/"+namespace+"/"+slow(i)+":v1", login)
				switch {
				case err != nil && isOld && *long > *valid:
					t.Logf("%s, %s: failed after %v: %v", n.Name(), w.name, time.Since(begin).Round(time.Second), err)
				case err != nil || took < *long*7/8:
					t.Errorf("%s, %s: %v, %v", n.Name(), w.name, took, err)
				default:
					t.Logf("%s, %s: %v", n.Name(), w.name, took.Round(time.Second))
				}
			})
		}
	}
	time.Sleep(*long * 7 / 8)
	for _, r := range relays {
		r.Break() // containerd 1.6 connects again at once, and only once
	}
	pulls.Wait()
}

func slow(way int) string { return fmt.Sprintf("slow-%d", way) }
