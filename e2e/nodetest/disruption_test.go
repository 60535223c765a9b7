package nodetest

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/node"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/testenv"
)

const (
	podsEach     = 4 // in each disruption, half of them on each node
	pullsOfPod   = 5 // containers, each with an image of its own
	disruptLimit = 3 * time.Minute
)

// disruption happens while pods pull. late creates one more pod, and waits until its pull has failed.
type disruption struct {
	name string
	do   func(t *testing.T, late func())
}

func (s *site) disruptions() []disruption {
	return []disruption{
		{"the signing key is rotated", func(t *testing.T, _ func()) { s.proxy.Command(t, "keys", "rotate") }},
		{"Pullpass is replaced by another", func(t *testing.T, _ func()) {
			old := s.proxy
			s.replace(t) // new connections go to the new one from now on
			old.Stop(t)  // and those that are open end when they are answered
		}},
		{"Pullpass is stopped, and started later", func(t *testing.T, late func()) {
			s.proxy.Stop(t)
			late()
			s.replace(t)
		}},
		{"Pullpass is killed, and started later", func(t *testing.T, late func()) {
			s.proxy.Kill(t)
			late()
			s.replace(t)
		}},
		{"the API server's key is rotated", func(t *testing.T, _ func()) {
			next := certs.NewRSAKey(t)
			s.Crash(t) // nothing waits for the watches of the kubelets to end
			s.SetKeys(next, s.key, next)
			s.Recover(t)
		}},
	}
}

// replace runs another Pullpass, and lets new connections go there.
func (s *site) replace(t *testing.T) {
	t.Helper()
	s.retired = append(s.retired, s.proxy)
	s.proxy = pullpass.StartReady(t, s.ca, s.config)
	s.relay.To(s.proxy.Address())
}

// testDisruptions lets pods pull on all nodes while Pullpass ends in every way and keys change. Every pod runs in the end, and
// none that may not.
func testDisruptions(t *testing.T, s *site, nodes []*node.Node) {
	w := &work{site: s, order: len(scenarios()) + 1, namespace: "disrupted", since: time.Now()}
	w.account(t, "puller", nil)
	disruptions := s.disruptions()
	var images []string
	for i := range len(disruptions) * podsEach * pullsOfPod {
		images = append(images, w.push(t, fmt.Sprintf("%s/app-%d", w.namespace, i)))
	}
	foreign := w.push(t, "elsewhere/app")
	w.saw("disruptions: images pushed", "%d", len(images))

	var allowed, denied []cluster.Object
	rest := images
	for n, d := range disruptions {
		var batch []cluster.Object
		for i := range podsEach {
			batch = append(batch, w.pods(t, fmt.Sprintf("app-%d-%d", n, i), nodes[i%len(nodes)].Name(), rest[:pullsOfPod]...))
			rest = rest[pullsOfPod:]
		}
		allowed = append(allowed, batch...)
		denied = append(denied, w.pods(t, fmt.Sprintf("denied-%d", n), nodes[n%len(nodes)].Name(), foreign))
		s.proxy.AwaitAudit(t, 0, "the first pull of many", func(e pullpass.Event) bool {
			return e.Result == "granted" && slices.ContainsFunc(batch, func(pod cluster.Object) bool { return pod.UID() == e.Pod.UID })
		})
		start := time.Now()
		d.do(t, func() {
			pod := w.pods(t, fmt.Sprintf("late-%d", n), nodes[n%len(nodes)].Name(), images[n])
			allowed = append(allowed, pod)
			s.awaitEvent(t, pod, "Failed", "kubelet", "failed to fetch oauth token")
		})
		w.saw("while "+d.name, "%d pods pull %d images; it took %s", podsEach, podsEach*pullsOfPod, milliseconds(time.Since(start)))
	}
	for _, pod := range allowed {
		testenv.Await(t, disruptLimit, "pod "+pod.Name()+" runs", func() bool { running, _ := w.running(t, pod); return running })
	}
	granted, other := 0, map[string]int{}
	for _, proxy := range append(s.retired, s.proxy) {
		for _, e := range proxy.Audit(t) {
			if e.Namespace != w.namespace {
				continue
			}
			foreign := slices.ContainsFunc(denied, func(pod cluster.Object) bool { return pod.UID() == e.Pod.UID })
			switch {
			case e.Result == "granted" && !foreign:
				granted++
			case foreign && e.Reason == "scope_not_granted", e.Status == 503:
				other[e.Reason]++
			default:
				t.Errorf("a wrong answer: %+v", e)
			}
			if slices.ContainsFunc(e.Granted, func(scope string) bool { return !strings.HasPrefix(scope, "repository:"+w.namespace+"/") }) {
				t.Errorf("a wrong grant: %+v", e)
			}
		}
	}
	for _, pod := range denied {
		if running, _ := w.running(t, pod); running {
			t.Errorf("pod %s runs", pod.Name())
		}
	}
	w.saw("after that every pod runs", "%d pods, %d containers; %d requests granted, others: %v; %d foreign pods do not run",
		len(allowed), len(images), granted, other, len(denied))
}

// pods creates a pod with a container for each image.
func (w *work) pods(t *testing.T, name, where string, images ...string) cluster.Object {
	t.Helper()
	return w.Create(t, "/api/v1/namespaces/"+w.namespace+"/pods", cluster.Object{
		"metadata": cluster.Object{"name": name}, "spec": podSpec(where, "puller", "Always", images...),
	})
}

// testClocks lets the clock of Pullpass be wrong, by what RFC 7519 section 4.1.4 calls a small leeway.
func testClocks(t *testing.T, s *site, nodes []*node.Node) {
	w := &work{site: s, order: len(scenarios()) + 2, namespace: "clocks", since: time.Now()}
	w.account(t, "puller", nil)
	s.config.Program = programs.PullpassWithClock(t)
	for _, seconds := range []int{-30, 30} {
		s.config.Environment = []string{fmt.Sprintf("%s=%d", programs.ClockVariable, seconds)}
		old := s.proxy
		s.replace(t)
		old.Stop(t)
		said := testenv.Value(http.ParseTime(s.proxy.Host(t, pullpass.From{}).Ask(t, registryName, "nothing", "repository:a:pull").Header.Get("Date")))(t)
		if off := time.Until(said).Seconds() - float64(seconds); off < -5 || off > 5 {
			t.Errorf("the clock is %v s off what it should be", off)
		}
		for i, n := range nodes {
			name := fmt.Sprintf("clock-%d-%d", seconds+100, i)
			pod := w.pods(t, name, n.Name(), w.push(t, w.namespace+"/"+name))
			w.saw(fmt.Sprintf("the clock of Pullpass is %+d s off", seconds), "a pod on %s runs %s after it was created", n.Name(), s.awaitRunning(t, pod))
		}
	}
}
