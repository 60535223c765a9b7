package nodetest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/node"
)

// TestNode's last scenario: pulls on all nodes while Pullpass ends in every way and keys change. Every pod runs in the end, and
// none that may not.
const (
	disruptedPods = 20 // half of them on each node
	pullsOfPod    = 5  // containers, each with an image of its own
	disruptLimit  = 3 * time.Minute
)

// disruptions happen one after the other, each when as many more pulls were granted.
func (s *site) disruptions() []disruption {
	return []disruption{
		{"signing key rotated", func(t *testing.T) { s.proxy.Command(t, "keys", "rotate") }},
		{"restarted", func(t *testing.T) {
			s.proxy.Stop(t)
			s.relay.Cut() // what a closed port is: connections end at once
			s.replace(t)
		}},
		{"rolled", func(t *testing.T) {
			old := s.proxy
			s.replace(t) // new connections go to the new one from now on
			old.Stop(t)  // and those that are open end when they are answered
		}},
		{"killed", func(t *testing.T) {
			s.proxy.Kill(t)
			s.relay.Cut()
			s.replace(t)
		}},
		{"the API server's key rotated", func(t *testing.T) {
			next := certs.NewRSAKey(t)
			s.Crash(t) // nothing waits for the watches of the kubelets to end
			s.SetKeys(next, s.key, next)
			s.Recover(t)
		}},
	}
}

type disruption struct {
	name string
	do   func(*testing.T)
}

// replace runs another Pullpass, and lets new connections go there.
func (s *site) replace(t *testing.T) {
	t.Helper()
	s.retired = append(s.retired, s.proxy)
	s.proxy = s.startPullpass(t)
	s.relay.To(s.proxy.Address())
	s.relay.Restore()
}

func testDisruptions(t *testing.T, s *site, nodes []*node.Node) {
	w := &work{site: s, node: nodes[0], order: 50, namespace: "disrupted", since: time.Now()}
	w.account(t, "puller", nil)
	var images []string
	for i := range pullsOfPod * disruptedPods {
		images = append(images, w.push(t, fmt.Sprintf("%s/app-%d", w.namespace, i)))
	}
	foreign := w.push(t, "elsewhere/app")
	w.saw("disruptions: images pushed", "%d", len(images))

	var allowed, denied []cluster.Object
	create := func(i int) {
		mine := images[i*pullsOfPod : (i+1)*pullsOfPod]
		where := nodes[i%len(nodes)].Name()
		allowed = append(allowed, w.pods(t, fmt.Sprintf("app-%d", i), where, mine...))
		if i%4 == 0 {
			denied = append(denied, w.pods(t, fmt.Sprintf("denied-%d", i), where, foreign))
		}
	}
	each := disruptedPods / len(s.disruptions())
	for n, d := range s.disruptions() {
		for i := range each {
			create(n*each + i)
		}
		start := time.Now()
		d.do(t)
		w.saw("disruptions: Pullpass "+d.name, "with %d pods that pull; it took %s", each, milliseconds(time.Since(start)))
	}
	for _, pod := range allowed {
		await(t, disruptLimit, "pod "+pod.Name()+" runs", func() bool { running, _ := w.running(t, pod); return running })
	}
	granted, other := 0, map[string]int{}
	for _, proxy := range append(s.retired, s.proxy) {
		for _, e := range proxy.Audit(t) {
			if e.Namespace != w.namespace {
				continue
			}
			if e.Result == "granted" {
				granted++
			} else {
				other[e.Result+" "+e.Reason]++
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
	w.saw("disruptions: every pod runs", "%d pods, %d containers; %d requests granted; others: %v; %d foreign pods do not run",
		len(allowed), len(images), granted, other, len(denied))
}

// pods creates a pod with a container for each image.
func (w *work) pods(t *testing.T, name, where string, images ...string) cluster.Object {
	t.Helper()
	return w.Create(t, "/api/v1/namespaces/"+w.namespace+"/pods", cluster.Object{
		"metadata": cluster.Object{"name": name}, "spec": podSpec(where, "puller", "Always", images...),
	})
}
