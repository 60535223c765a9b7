package chaostest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/testenv"
)

const (
	liveCluster    = "prod-us"
	liveAccount    = "web"
	liveNode       = "node1"
	objectsLag     = 10 * time.Second // a watch has a change at once, and a busy machine needs time
	reconnectLag   = time.Minute      // for a watch that ended
	apiServerLimit = time.Minute
)

var liveNamespaces = []string{"live-a", "live-b"}

// apiServer is a second cluster, with a real API server: its pods come and go, and its namespaces have a RepositoryAccess, or none.
type apiServer struct {
	*cluster.Cluster
	faults int
	made   int // pods so far
	facts  history[facts]
	gone   map[string]*token // of the last pod of a namespace that was deleted
}

// facts are what is true in the second cluster, by namespace.
type facts struct {
	access map[string]bool
	pods   map[string]*token // of the pod; nil while there is none
}

func (f facts) allow(tok *token) bool { return f.access[tok.namespace] && f.pods[tok.namespace] == tok }

func (w *world) startAPIServer(t *testing.T) {
	t.Helper()
	w.api = &apiServer{Cluster: cluster.StartWith(t, certs.NewRSAKey(t), cluster.Options{}), gone: map[string]*token{}}
	w.api.CreateNode(t, liveNode, nil)
	w.api.ApplyRBAC(t)
	for _, name := range []string{"deploy/helm/pullpass/files/crds.yaml", "deploy/kubernetes/policy-objects.yaml"} {
		w.api.Apply(t, testenv.ReadFile(t, filepath.Join(programs.Checkout(t), name)))
	}
	testenv.Await(t, apiServerLimit, "RepositoryAccess is served", func() bool {
		_, err := w.api.Try(t.Context(), http.MethodGet, accessPath("default"), nil)
		return err == nil
	})
	now := facts{map[string]bool{}, map[string]*token{}}
	for _, namespace := range liveNamespaces {
		w.api.CreateNamespace(t, namespace, nil)
		w.api.CreateServiceAccount(t, namespace, liveAccount, nil)
		w.api.gone[namespace] = w.api.pod(t, namespace)
		w.api.Delete(t, w.api.gone[namespace].pod)
		now.access[namespace], now.pods[namespace] = true, w.api.pod(t, namespace)
		w.api.grant(t, namespace)
	}
	w.api.facts.set(now)
}

// connect gives a replica a way of its own to the API server.
func (a *apiServer) connect(t *testing.T, r *replica) {
	t.Helper()
	r.api = a.Relay(t)
	access := a.AccessThrough(t, r.api)
	r.config.Clusters = append(slices.Clone(r.config.Clusters), pullpass.Cluster{
		Name: liveCluster, Issuer: a.Issuer, Audiences: []string{service},
		Discovery: pullpass.Discovery{CAFile: a.CA.File, TokenFile: access.TokenFile},
		Kubernetes: pullpass.Kubernetes{
			KubeconfigFile: access.KubeconfigFile, Objects: &pullpass.Objects{Requests: true, Within: []string{"live-*/**"}},
		},
	})
}

func accessPath(namespace string) string {
	return "/apis/pullpass.dev/v1beta1/namespaces/" + namespace + "/repositoryaccesses"
}

func (a *apiServer) grant(t *testing.T, namespace string) {
	t.Helper()
	a.Create(t, accessPath(namespace), cluster.Object{
		"apiVersion": "pullpass.dev/v1beta1", "kind": "RepositoryAccess", "metadata": cluster.Object{"name": "own"},
		"spec": cluster.Object{"serviceAccounts": []string{liveAccount}, "repositories": []string{namespace + "/**"}, "actions": []string{"pull"}},
	})
}

// pod creates one, and returns the token with which its images are pulled.
func (a *apiServer) pod(t *testing.T, namespace string) *token {
	t.Helper()
	a.made++
	pod := a.CreatePod(t, namespace, fmt.Sprintf("web-%d", a.made), liveAccount, liveNode)
	now := time.Now().Truncate(time.Second)
	return &token{
		text: a.Token(t, cluster.PodToken(pod, service)), account: liveCluster + ":" + namespace, namespace: namespace, pod: cluster.PodPath(pod),
		address: addressOf(3, a.made), key: noKey, issued: now, until: now.Add(lifetime), known: map[*replica]time.Time{},
	}
}

// changeFacts notes other facts: before they begin to be true, so that neither is expected meanwhile.
func (w *world) changeFacts(do func(facts)) {
	w.change(func() {
		now := w.api.facts.now()
		next := facts{maps.Clone(now.access), maps.Clone(now.pods)}
		do(next)
		w.api.facts.set(next)
	})
}

// accessEdited removes or creates the RepositoryAccess of a namespace.
func (w *world) accessEdited(random *rand.Rand, _ *replica) *fault {
	namespace := liveNamespaces[random.IntN(len(liveNamespaces))]
	if w.api.faults > 0 {
		return nil // it cannot be told
	}
	there := w.api.facts.now().access[namespace]
	return &fault{detail: fmt.Sprintf("%s, %v", namespace, !there), begin: func(t *testing.T) {
		w.changeFacts(func(f facts) { f.access[namespace] = !there })
		if there {
			w.api.Delete(t, accessPath(namespace)+"/own")
		} else {
			w.api.grant(t, namespace)
		}
	}}
}

// podReplaced deletes a pod, whose token counts no more, and creates another.
func (w *world) podReplaced(random *rand.Rand, _ *replica) *fault {
	namespace := liveNamespaces[random.IntN(len(liveNamespaces))]
	if w.api.faults > 0 {
		return nil
	}
	return &fault{detail: namespace, begin: func(t *testing.T) {
		old := w.api.facts.now().pods[namespace]
		w.changeFacts(func(f facts) { f.pods[namespace] = nil })
		w.api.Delete(t, old.pod)
		pod := w.api.pod(t, namespace)
		w.changeFacts(func(f facts) { f.pods[namespace] = pod })
		w.change(func() { w.api.gone[namespace] = old })
	}}
}

func (w *world) apiGone(begin, end func(testing.TB)) *fault {
	all := func(do func(*replica)) {
		w.change(func() {
			for _, r := range w.replicas {
				do(r)
			}
		})
	}
	return &fault{
		begin: func(t *testing.T) { w.api.faults++; all((*replica).loseAPI); begin(t) },
		end:   func(t *testing.T) { end(t); all((*replica).findAPI); w.api.faults-- },
	}
}

func (w *world) apiKilled(*rand.Rand, *replica) *fault { return w.apiGone(w.api.Crash, w.api.Recover) }

func (w *world) apiHangs(*rand.Rand, *replica) *fault { return w.apiGone(w.api.Hang, w.api.Resume) }

func (w *world) apiFar(random *rand.Rand, r *replica) *fault {
	delay := time.Duration(100+random.IntN(900)) * time.Millisecond
	return &fault{
		where: r, detail: delay.String(),
		begin: func(*testing.T) { w.change(r.loseAPI); r.api.Slow(delay) },
		end:   func(*testing.T) { r.api.Slow(0); w.change(r.findAPI) },
	}
}

func (w *world) apiPartitioned(_ *rand.Rand, r *replica) *fault {
	return &fault{
		where: r,
		begin: func(*testing.T) { w.change(r.loseAPI); r.api.Cut() },
		end:   func(*testing.T) { r.api.Restore(); w.change(r.findAPI) },
	}
}

func (r *replica) loseAPI() {
	r.apiFaults++
	if r.apiFaults == 1 {
		r.cutOff = append(r.cutOff, span{from: time.Now()})
	}
}

func (r *replica) findAPI() {
	r.apiFaults--
	if r.apiFaults == 0 {
		r.cutOff[len(r.cutOff)-1].to = time.Now()
	}
}

// chooseLive is a request of a pod of the second cluster, or with the token of one that was deleted.
func (l *load) chooseLive() (request, bool) {
	namespace := liveNamespaces[l.random.IntN(len(liveNamespaces))]
	kind, tok := "pod", l.api.facts.now().pods[namespace]
	if l.random.IntN(3) == 0 {
		kind, tok = "deleted pod", l.api.gone[namespace]
	}
	if tok == nil {
		return request{}, false
	}
	q := request{
		kind: kind, token: tok, text: tok.text, key: noKey, live: true, namespace: namespace, repository: namespace, address: tok.address,
		get: l.random.IntN(2) == 0,
	}
	if l.random.IntN(6) == 0 {
		q.kind, q.repository = "pod, foreign", liveNamespaces[0]+"-other"
	}
	return q, true
}

// judgeLive says what the replica may know of the second cluster. While it cannot ask, its last answers count (for 24 hours). Later
// changes may count or not, until it has connected again.
func (w *world) judgeLive(r *replica, q request, from, to time.Time, v *verdict) {
	since := from.Add(-objectsLag)
	for _, s := range slices.Backward(r.cutOff) {
		if (s.to.IsZero() || s.to.After(since.Add(-reconnectLag))) && s.from.Before(to) {
			since = s.from.Add(-objectsLag)
		}
	}
	may, must, known := false, true, true
	for _, f := range w.api.facts.between(since, to) {
		allowed := f.allow(q.token) && q.repository == q.namespace
		may, must = may || allowed, must && allowed
		known = known && f.pods[q.namespace] == q.token
	}
	if !may {
		v.never("its pod is gone, or no object allows it")
	}
	// A process that could not read the cluster yet grants nothing for it.
	read := before(r.liveGranted, from) || !within(r.cutOff, r.started.Add(-reconnectLag), to)
	v.mustGrant = v.mustGrant && must && read
	v.mustAnswer = v.mustAnswer && known && read
}
