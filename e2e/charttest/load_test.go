package charttest

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/relay"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// route does for the Service of Pullpass what kube-proxy does: connections to the realm go to endpoints that are ready.
func (i *installation) route(t testing.TB) {
	t.Helper()
	entrance := relay.Start(t, "127.0.0.1:8443", "")
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	running.Go(func() {
		for turn := 0; ctx.Err() == nil; turn++ {
			if slices, err := i.Try(ctx, "GET", endpointSlices, nil); err == nil {
				if ready := endpoints(slices); len(ready) > 0 {
					entrance.To(ready[turn%len(ready)])
				}
			}
			time.Sleep(pollPeriod)
		}
	})
	testenv.Await(t, waitLimit, "the realm answers", func() bool {
		conn, err := tls.Dial("tcp", "127.0.0.1:8443", &tls.Config{RootCAs: i.ca.Pool(), ServerName: registryName})
		return err == nil && conn.Close() == nil
	})
}

const endpointSlices = "/apis/discovery.k8s.io/v1/namespaces/" + namespace + "/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3Dpullpass"

func (i *installation) endpoints(t testing.TB) []string {
	t.Helper()
	return endpoints(i.Get(t, endpointSlices))
}

// endpoints are the addresses of those that are ready.
func endpoints(endpointSlices cluster.Object) (ready []string) {
	for _, slice := range list(endpointSlices, "items") {
		for _, endpoint := range list(slice, "endpoints") {
			if conditions, _ := endpoint["conditions"].(map[string]any); conditions["ready"] == true {
				ready = append(ready, fmt.Sprintf("%s:%v", texts(endpoint["addresses"])[0], list(slice, "ports")[0]["port"]))
			}
		}
	}
	slices.Sort(ready)
	return ready
}

// ask asks for a token with a pull of a repository, by a connection of its own, with the token of a pod on the builder's node.
func (i *installation) ask(ctx context.Context, token, repository string) (pullpass.Body, error) {
	return askFrom(ctx, i.asker, token, repository)
}

// mustAsk is ask for tests that need an answer.
func (i *installation) mustAsk(t testing.TB, token, repository string) (body pullpass.Body) {
	t.Helper()
	awaitAnswer(t, func() (err error) { body, err = i.ask(t.Context(), token, repository); return err })
	return body
}

// awaitAnswer asks again while the balancer closes connections: on a busy machine no pod may be ready for a moment, and clients
// ask again, too.
func awaitAnswer(t testing.TB, ask func() error) {
	t.Helper()
	var err error
	testenv.Await(t, waitLimit, "an answer", func() bool { err = ask(); return !errors.Is(err, io.EOF) })
	testenv.Must(t, err)
}

func askFrom(ctx context.Context, asker *http.Transport, token, repository string) (pullpass.Body, error) {
	query := url.Values{"service": {registryName}, "scope": {"repository:" + repository + ":pull"}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, realm+"?"+query.Encode(), nil)
	if err != nil {
		return pullpass.Body{}, err
	}
	req.SetBasicAuth("serviceaccount", token)
	resp, err := asker.RoundTrip(req)
	if err != nil {
		return pullpass.Body{}, err
	}
	defer resp.Body.Close()
	var body pullpass.Body
	if err := json.NewDecoder(resp.Body).Decode(&body); err != nil {
		return pullpass.Body{}, err
	}
	if resp.StatusCode != http.StatusOK {
		return body, fmt.Errorf("%s: %+v", resp.Status, body.Errors)
	}
	return body, nil
}

// certificates are the CAs that Pullpass publishes for registries.
func (i *installation) certificates(t testing.TB) string {
	t.Helper()
	req := testenv.Value(http.NewRequestWithContext(t.Context(), http.MethodGet, strings.Replace(realm, "/token", "/certificates.pem", 1), nil))(t)
	var resp *http.Response
	awaitAnswer(t, func() (err error) { resp, err = i.asker.RoundTrip(req); return err })
	defer resp.Body.Close()
	bundle := testenv.Value(io.ReadAll(resp.Body))(t)
	return string(bundle)
}

const (
	// Two pods a second take all of a machine with two processors, and the work under test waits.
	podPeriod  = 2 * time.Second
	askPeriod  = 100 * time.Millisecond
	podsAtOnce = 5 // nodes have room for 110 each, and are slower than this on a busy machine
)

// pulls go on while Pullpass changes: new pods that pull images of their own, and requests for tokens.
type pulls struct {
	*installation
	cancel  context.CancelFunc
	running sync.WaitGroup

	created int             // pods
	ran     map[string]bool // by the pod's name
	asked   int             // requests

	mu       sync.Mutex
	failures []string
}

// startPulls takes the images in turn; an image that is there already is asked for as well.
func (i *installation) startPulls(t testing.TB, images []string) *pulls {
	t.Helper()
	ctx := t.Context()
	stop, cancel := context.WithCancel(ctx) // what is under way is finished
	p := &pulls{installation: i, cancel: cancel, ran: map[string]bool{}}
	t.Cleanup(func() { cancel(); p.running.Wait() })
	every := func(period time.Duration, do func() error) {
		p.running.Go(func() {
			ticker := time.NewTicker(period)
			defer ticker.Stop()
			for {
				select {
				case <-stop.Done():
					return
				case <-ticker.C:
				}
				if err := do(); err != nil {
					p.note(err)
				}
			}
		})
	}
	every(podPeriod, func() error { return p.turnOver(ctx, images) })
	every(askPeriod, func() error {
		_, err := i.ask(ctx, i.token, "team-a/web")
		p.asked++
		return err
	})
	return p
}

// turnOver deletes the running pods, and creates a new one.
func (p *pulls) turnOver(ctx context.Context, images []string) error {
	answer, err := p.Try(ctx, "GET", podsOfPulls, nil)
	if err != nil {
		return err
	}
	waiting := 0
	for _, pod := range list(answer, "items") {
		if pod.Text("status", "phase") != "Running" {
			waiting++
			continue
		}
		p.ran[pod.Name()] = true
		if _, err := p.Try(ctx, "DELETE", cluster.PodPath(pod)+"?gracePeriodSeconds=0", nil); err != nil {
			return err
		}
	}
	if waiting >= podsAtOnce {
		return nil
	}
	_, err = p.Try(ctx, "POST", "/api/v1/namespaces/team-a/pods", cluster.Object{
		"metadata": cluster.Object{"name": fmt.Sprintf("app-%d", p.created), "labels": cluster.Object{"app": "pulls"}},
		"spec": cluster.Object{"containers": []cluster.Object{
			{"name": "c", "image": images[p.created%len(images)], "imagePullPolicy": "Always"},
		}},
	})
	p.created++
	return err
}

const podsOfPulls = "/api/v1/namespaces/team-a/pods?labelSelector=app%3Dpulls"

func (p *pulls) note(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failures = append(p.failures, time.Now().Format("15:04:05.000 ")+err.Error())
}

// finish waits until all pods run. Not one pull and not one request may have failed.
func (p *pulls) finish(t testing.TB) {
	t.Helper()
	p.cancel()
	p.running.Wait()
	for _, failure := range p.failures {
		t.Errorf("a request failed: %s", failure)
	}
	for _, pod := range list(p.Get(t, podsOfPulls), "items") {
		p.awaitRunning(t, pod)
		p.ran[pod.Name()] = true
	}
	if len(p.ran) != p.created {
		t.Errorf("%d pods ran of %d", len(p.ran), p.created)
	}
	for _, event := range list(p.Get(t, "/api/v1/namespaces/team-a/events"), "items") {
		if reason := event.Text("reason"); reason == "Failed" || reason == "BackOff" || reason == "ImagePullDenied" {
			t.Errorf("a pull failed: %s: %s", reason, event.Text("message"))
		}
	}
	p.saw("all pulls of that time", "%d pods and %d requests, %d failures", p.created, p.asked, len(p.failures))
}

func (i *installation) awaitRunning(t testing.TB, pod cluster.Object) {
	t.Helper()
	testenv.Await(t, waitLimit, "pod "+pod.Name()+" runs", func() bool {
		return i.Get(t, cluster.PodPath(pod)).Text("status", "phase") == "Running"
	})
}
