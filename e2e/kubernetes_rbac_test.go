package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/pullpass"
)

// losses shows for each thing that the ClusterRole allows what is lost without it.
var losses = map[cluster.Verb]func(*limited, *testing.T){
	{Resource: "serviceaccounts", Verb: "get"}: func(l *limited, t *testing.T) {
		l.cannotTellThatItIsGone(t, l.pod(t, "web"), accountPath(l.namespace))
	},
	{Resource: "pods", Verb: "get"}: func(l *limited, t *testing.T) {
		pod := l.pod(t, "web")
		l.cannotTellThatItIsGone(t, pod, cluster.PodPath(pod))
	},
	{Resource: "nodes", Verb: "get"}: func(l *limited, t *testing.T) {
		l.cannotTellThatItIsGone(t, nil, "/api/v1/nodes/"+l.node.Name())
	},
	{Resource: "namespaces", Verb: "get"}: (*limited).cannotKnowANewNamespace,

	{Resource: "serviceaccounts", Verb: "list"}: (*limited).cannotListWithoutStreams,
	{Resource: "namespaces", Verb: "list"}:      (*limited).cannotListWithoutStreams,
	{Resource: "pods", Verb: "list"}:            (*limited).cannotListWithoutStreams,
	{Resource: "nodes", Verb: "list"}:           (*limited).cannotListWithoutStreams,

	{Resource: "serviceaccounts", Verb: "watch"}: func(l *limited, t *testing.T) {
		token := l.Token(t, cluster.PodToken(l.pod(t, "web"), audience))
		l.seesChangesLate(t, token, sharedScope, accountPath(l.namespace), func(on bool) cluster.Object {
			return metadata("annotations", cluster.Object{"pullpass.dev/repositories": map[bool]any{true: "shared/base"}[on]})
		}, "", sharedScope)
	},
	{Resource: "namespaces", Verb: "watch"}: func(l *limited, t *testing.T) {
		token := l.Token(t, cluster.PodToken(l.pod(t, "web"), audience))
		l.seesChangesLate(t, token, goldScope, "/api/v1/namespaces/"+l.namespace, func(on bool) cluster.Object {
			return metadata("labels", cluster.Object{"tier": map[bool]any{true: "gold"}[on]})
		}, "", goldScope)
	},
	{Resource: "nodes", Verb: "watch"}: func(l *limited, t *testing.T) {
		token := l.Token(t, cluster.PodToken(l.pod(t, "web"), audience))
		l.seesChangesLate(t, token, own(l.namespace), "/api/v1/nodes/"+l.node.Name(), func(on bool) cluster.Object {
			return metadata("labels", cluster.Object{"pool": map[bool]any{false: "limited"}[on]})
		}, own(l.namespace), "403 node_not_selected")
	},
	{Resource: "pods", Verb: "watch"}: (*limited).seesDeletedPodsLate,

	{Resource: "events", Verb: "create"}: func(l *limited, t *testing.T) {
		if events := l.refuse(t, l.start(t), 1); len(events) > 0 {
			t.Errorf("events %+v", events)
		}
	},
	{Resource: "events", Verb: "patch"}: func(l *limited, t *testing.T) {
		if events := l.refuse(t, l.start(t), 3); len(events) != 1 || events[0].Count != 1 {
			t.Errorf("events %+v", events)
		}
	},
}

// testRights shows that the ClusterRole allows nothing that is not needed: each run lacks one verb. All the other tests show that
// nothing more is needed.
func testRights(t *testing.T, s *site) {
	verbs := s.Verbs(t)
	for _, verb := range verbs {
		if losses[verb] == nil {
			t.Errorf("the ClusterRole allows %s on %s: show what is lost without it", verb.Verb, verb.Resource)
		}
	}
	for verb, lost := range losses {
		if !slices.Contains(verbs, verb) {
			t.Errorf("the ClusterRole does not allow %s on %s", verb.Verb, verb.Resource)
			continue
		}
		t.Run("without "+verb.Resource+" "+verb.Verb, func(t *testing.T) {
			t.Parallel()
			lost(newLimited(t, s, verb), t)
		})
	}
	t.Run("without what is switched off", func(t *testing.T) {
		t.Parallel()
		testLeastRights(t, s, verbs)
	})
}

// A disabled feature needs no right.
func testLeastRights(t *testing.T, s *site, verbs []cluster.Verb) {
	const namespace = "least"
	s.workload(t, namespace)
	pod := s.CreatePod(t, namespace, "web", puller, "node1")
	token := s.podToken(t, pod)
	missing := slices.DeleteFunc(verbs, func(v cluster.Verb) bool { return v.Resource == "serviceaccounts" || v.Resource == "namespaces" })
	limited, no := s.AccessWithout(t, namespace, missing...), false
	config := s.config(func(c *pullpass.Cluster) {
		c.Kubernetes = pullpass.Kubernetes{KubeconfigFile: limited.KubeconfigFile, PodChecks: &no, PodEvents: &no}
	})
	proxy := s.pullpass(t, config)
	host := proxy.Host(t, pullpass.From{})
	expect(t, "granted", host.Ask(t, service, token, own(namespace)), own(namespace))
	expect(t, "refused", host.Ask(t, service, token, sharedScope), "")
	s.Delete(t, accountPath(namespace))
	turns(t, host, token, own(namespace), own(namespace), "403 service_account_gone")
	if ready, report := proxy.Ready(t); !ready || strings.Contains(report, "forbidden") {
		t.Errorf("readyz: %s", report)
	}
	if log := proxy.Log(); strings.Contains(log, "forbidden") {
		t.Errorf("log: %s", log)
	}
}

// limited is a workload of its own for a Pullpass that lacks a right.
type limited struct {
	*site
	missing   cluster.Verb
	namespace string
	node      cluster.Object
}

func newLimited(t *testing.T, s *site, missing cluster.Verb) *limited {
	t.Helper()
	l := &limited{site: s, missing: missing, namespace: "no-" + missing.Resource + "-" + missing.Verb}
	s.workload(t, l.namespace)
	l.node = s.CreateNode(t, l.namespace, cluster.Object{"pool": "limited"})
	return l
}

func (l *limited) pod(t *testing.T, name string) cluster.Object {
	t.Helper()
	return l.CreatePod(t, l.namespace, name, puller, l.node.Name())
}

// start runs Pullpass without the right.
func (l *limited) start(t *testing.T) *pullpass.Proxy {
	t.Helper()
	return l.pullpass(t, l.without(t, l.namespace, l.missing))
}

// without is a configuration in which everything is watched that can be, as a ServiceAccount without rights.
func (l *limited) without(t *testing.T, account string, missing ...cluster.Verb) pullpass.Config {
	t.Helper()
	c := l.cluster("e2e", l.AccessWithout(t, account, missing...))
	c.Bound, c.Node.Selector = "pod-or-node", "pool=limited"
	return pullpass.Config{Clusters: []pullpass.Cluster{c}, Policy: livePolicy, Service: service}
}

// complains waits until Pullpass says which right is missing.
func (l *limited) complains(t *testing.T, proxy *pullpass.Proxy, ready bool) {
	t.Helper()
	remedy := fmt.Sprintf("the verb %q on %q", l.missing.Verb, l.missing.Resource)
	within(t, reconnectLimit, "says what is missing", func() bool {
		is, report := proxy.Ready(t)
		return is == ready && strings.Contains(strings.ReplaceAll(report, `\"`, `"`), remedy)
	})
}

// cannotTellThatItIsGone: an object that the watch lacks may also be newer than the watch. Without the right to get it, Pullpass cannot
// know, and refuses no token for good.
func (l *limited) cannotTellThatItIsGone(t *testing.T, pod cluster.Object, path string) {
	token := ""
	if pod == nil {
		token = l.nodeToken(t, l.namespace, l.node)
	} else {
		token = l.podToken(t, pod)
	}
	host := l.start(t).Host(t, pullpass.From{})
	expect(t, "before", host.Ask(t, service, token, own(l.namespace)), own(l.namespace))
	l.Delete(t, path)
	turns(t, host, token, own(l.namespace), own(l.namespace), "503 kubernetes_unavailable")
	answer := host.Ask(t, service, token, own(l.namespace))
	if want := fmt.Sprintf("the verb %q on %q", "get", l.missing.Resource); !strings.Contains(answer.Audit.Message, want) {
		t.Errorf("the audit line does not say %s: %s", want, answer.Audit.Message)
	}
}

// cannotKnowANewNamespace: the labels of a namespace that is newer than the watch. The watch is taken away too, or it would
// nearly always be the faster.
func (l *limited) cannotKnowANewNamespace(t *testing.T) {
	noWatch := cluster.Verb{Resource: "namespaces", Verb: "watch"}
	refused := l.pullpass(t, l.without(t, l.namespace, l.missing, noWatch)).Host(t, pullpass.From{})
	granted := l.pullpass(t, l.without(t, l.namespace+"-watch", noWatch)).Host(t, pullpass.From{})
	number := 0
	// Between creation and question everything may have been listed again.
	within(t, reconnectLimit, "a new namespace is not known", func() bool {
		number++
		namespace := fmt.Sprintf("%s-%d", l.namespace, number)
		l.workload(t, namespace)
		token := l.podToken(t, l.CreatePod(t, namespace, "web", puller, l.node.Name()))
		answer := refused.Ask(t, service, token, own(namespace))
		expect(t, "with the right to get", granted.Ask(t, service, token, own(namespace)), own(namespace))
		return outcome(answer) == "503 kubernetes_unavailable" && strings.Contains(answer.Audit.Message, `the verb "get" on "namespaces"`)
	})
}

// cannotListWithoutStreams: API servers before 1.32 do not stream lists through a watch (KEP-3157), and client-go lists when a
// stream fails.
func (l *limited) cannotListWithoutStreams(t *testing.T) {
	config := l.without(t, l.namespace, l.missing)
	config.Environment = []string{"KUBE_FEATURE_WatchListClient=false"}
	l.complains(t, pullpass.Start(t, l.ca, config), false)
	config.Environment = nil
	l.pullpass(t, config) // with streams it is ready
}

// seesChangesLate: without a watch, everything is listed again and again, at ever longer intervals.
func (l *limited) seesChangesLate(t *testing.T, token, scope, path string, change func(on bool) cluster.Object, off, on string) {
	proxy := l.start(t)
	host := proxy.Host(t, pullpass.From{})
	expect(t, "before", host.Ask(t, service, token, scope), off)
	l.complains(t, proxy, true)
	state := false
	within(t, reconnectLimit, "a change that is seen late", func() bool {
		state = !state
		l.Patch(t, path, change(state))
		want := map[bool]string{false: off, true: on}[state]
		return within(t, reconnectLimit, want, func() bool { return outcome(host.Ask(t, service, token, scope)) == want }) > lateLimit
	})
}

func (l *limited) seesDeletedPodsLate(t *testing.T) {
	const count = 8
	var pods []cluster.Object
	var tokens []string
	for n := range count {
		pods = append(pods, l.pod(t, fmt.Sprintf("web-%d", n)))
		tokens = append(tokens, l.podToken(t, pods[n]))
	}
	proxy := l.start(t)
	host := proxy.Host(t, pullpass.From{})
	l.complains(t, proxy, true)
	next := 0
	within(t, reconnectLimit, "a deletion that is seen late", func() bool {
		if next == count {
			t.Fatal("all deletions were seen at once")
		}
		l.Delete(t, cluster.PodPath(pods[next]))
		next++
		return within(t, reconnectLimit, "refused", func() bool {
			return outcome(host.Ask(t, service, tokens[next-1], own(l.namespace))) == "403 pod_gone"
		}) > lateLimit
	})
}

// refuse lets a pod be refused, waits until an event about it could not be written, and returns the events on the pod.
func (l *limited) refuse(t *testing.T, proxy *pullpass.Proxy, times int) []cluster.Event {
	t.Helper()
	pod := l.pod(t, "web")
	token := l.podToken(t, pod)
	host := proxy.Host(t, pullpass.From{})
	for range times {
		expect(t, "refused", host.Ask(t, service, token, "repository:team-b/secret:pull"), "")
	}
	within(t, reconnectLimit, "an event that could not be written", func() bool {
		return proxy.Metric(t, "pullpass_pod_event_failures_total") > 0
	})
	return l.Events(t, pod)
}
