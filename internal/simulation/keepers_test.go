package simulation

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"github.com/pullpass/pullpass/internal/pullsecrets/tokensecrets"
	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/pkitest"
)

// keeper is a process of the controller of pull secrets, in a container that starts it again.
type keeper struct {
	host    string
	cluster *cluster
	clock   clock
	doomed  bool // it dies between any two steps
	stop    context.CancelFunc
	ended   chan struct{}
}

// ward is a ServiceAccount that may opt in.
type ward struct {
	namespace, name, uid string
	opts                 bool
	wanted               history[bool] // it and its namespace have opted in
	meddled              time.Time     // when others last changed its Secret, or let go of the name
	foreign              bool          // others have its Secret's name
}

func (wd *ward) secret() string { return "pullpass-pull-" + wd.name }

func opted(o kubetest.Object, opts bool) kubetest.Object {
	if opts {
		o["metadata"].(kubetest.Object)["labels"] = kubetest.Object{"pullpass.dev/pull-secrets": "enabled"}
	}
	return o
}

// newWards makes the ServiceAccounts that keepers look after. team-c never opts in.
func (c *cluster) newWards() {
	c.api.Put("configmaps", object("pullpass", "pullpass-pull-secrets", "uid-memory"))
	for _, n := range namespaces {
		c.setNamespace(n, n != "team-c")
		for i := range 2 {
			wd := &ward{namespace: n, name: fmt.Sprint("ci-", i), opts: true}
			c.wards = append(c.wards, wd)
			c.remake(wd)
		}
	}
}

func (c *cluster) setNamespace(name string, opts bool) {
	if c.opts == nil {
		c.opts = map[string]bool{}
	}
	c.opts[name] = opts
	c.api.Put("namespaces", opted(object("", name, "ns-"+name), opts))
	for _, wd := range c.wards {
		wd.wanted.set(wd.opts && c.opts[wd.namespace])
	}
}

func (c *cluster) put(wd *ward) {
	c.api.Put("serviceaccounts", opted(object(wd.namespace, wd.name, wd.uid), wd.opts))
	wd.wanted.set(wd.opts && c.opts[wd.namespace])
}

// remake deletes a ServiceAccount, if it is there, and makes one of the same name.
func (c *cluster) remake(wd *ward) {
	c.made++
	wd.uid = fmt.Sprint("ci-", c.name, "-", c.made)
	wd.wanted.set(false)
	c.put(wd)
}

// collect deletes the Secrets whose owner is gone, as the garbage collector does.
func (c *cluster) collect() {
	for _, wd := range c.wards {
		if o := c.api.Object("secrets", wd.namespace, wd.secret()); o != nil && !wd.foreign && ownerOf(o).uid != wd.uid {
			c.api.Remove("secrets", wd.namespace, wd.secret())
		}
	}
}

func (w *world) startKeeper(c *cluster) {
	w.started++
	k := &keeper{host: fmt.Sprint("keeper-", w.started), cluster: c, ended: make(chan struct{})}
	k.clock.drift(w.rate())
	w.join(k.host, "api-"+c.name)
	config := &rest.Config{
		Host: "https://api-" + c.name, TLSClientConfig: rest.TLSClientConfig{CAData: pkitest.CertPEM(w.ca)},
		Dial:          w.net.dialer(k.host, "10.7.0.1"),
		WrapTransport: func(next http.RoundTripper) http.RoundTripper { return &observed{next, w, k} },
	}
	ctx, stop := context.WithCancel(context.Background())
	k.stop = stop
	go func() {
		defer close(k.ended)
		for ctx.Err() == nil {
			controller, err := tokensecrets.New(tokensecrets.Config{
				REST: config, Audience: pullAudience, Registries: []string{registry}, LeaseNamespace: "pullpass", Identity: k.host, Now: k.clock.now,
			})
			if err != nil {
				w.ledger.blame("%v", err)
				return
			}
			_ = controller.Run(ctx) // it lost the lead
			select {
			case <-ctx.Done():
			case <-time.After(10 * time.Second):
			}
		}
	}()
	w.keepers = append(w.keepers, k)
	w.shake()
}

// killKeeper is kill.
func (w *world) killKeeper(k *keeper) {
	w.isolate(k.host)
	k.stop()
	w.keepers = slices.DeleteFunc(w.keepers, func(other *keeper) bool { return other == k })
	w.endingKeepers = append(w.endingKeepers, k)
}

// observed sees the requests of a keeper when it sends them.
type observed struct {
	http.RoundTripper
	world  *world
	keeper *keeper
}

func (o *observed) RoundTrip(r *http.Request) (*http.Response, error) {
	isWrite := r.Method != http.MethodGet && !r.URL.Query().Has("dryRun") && (strings.Contains(r.URL.Path, "/secrets") || strings.HasSuffix(r.URL.Path, "/token"))
	if isWrite && r.Context().Err() == nil && !o.world.net.isDead(o.keeper.host) {
		o.world.ledger.writes(o.keeper, r.Method+" "+r.URL.Path)
	}
	return o.RoundTripper.RoundTrip(r)
}

func (w *world) accountOpts() {
	c := pick(w, w.clusters)
	wd := pick(w, c.wards)
	wd.opts = !wd.opts
	c.put(wd)
	w.say("  %s %s/%s: %t", c.name, wd.namespace, wd.name, wd.opts)
}

func (w *world) namespaceOpts() {
	c, n := pick(w, w.clusters), pick(w, namespaces[:2])
	c.setNamespace(n, !c.opts[n])
	w.say("  %s %s: %t", c.name, n, c.opts[n])
}

func (w *world) accountIsRemade() {
	c := pick(w, w.clusters)
	wd := pick(w, c.wards)
	c.remake(wd)
	w.say("  %s %s/%s is %s", c.name, wd.namespace, wd.name, wd.uid)
	w.after(time.Duration(w.random.Int64N(int64(time.Minute))), c.collect, "garbage of %s is collected", c.name)
}

// secretMeddled lets the owners of a Secret change or delete it, or use its name for their own.
func (w *world) secretMeddled() {
	c := pick(w, w.clusters)
	wd, how, until := pick(w, c.wards), w.random.IntN(3), w.duration()
	if wd.foreign {
		return
	}
	wd.meddled = time.Now()
	w.say("  %s %s/%s: %d", c.name, wd.namespace, wd.name, how)
	if how == 0 {
		c.api.Merge("secrets", wd.namespace, wd.secret(), kubetest.Object{"data": kubetest.Object{".dockerconfigjson": "e30="}})
		return
	}
	if c.api.Object("secrets", wd.namespace, wd.secret()) != nil {
		c.api.Remove("secrets", wd.namespace, wd.secret())
	}
	if how == 1 {
		return
	}
	wd.foreign = true
	c.made++
	o := object(wd.namespace, wd.secret(), fmt.Sprint("foreign-", c.made))
	o["data"] = kubetest.Object{"theirs": "e30="}
	c.api.Put("secrets", o)
	w.after(until, func() {
		if now := c.api.Object("secrets", wd.namespace, wd.secret()); fmt.Sprint(now["data"]) != fmt.Sprint(o["data"]) {
			w.fail("the Secret %s/%s of others was changed: %v", wd.namespace, wd.secret(), now)
		}
		c.api.Remove("secrets", wd.namespace, wd.secret())
		wd.foreign, wd.meddled = false, time.Now()
	}, "others let go of %s/%s", wd.namespace, wd.secret())
}

// keeperDies has another take its place, soon or later. It dies at once, or between two steps.
func (w *world) keeperDies() {
	k, steps, atOnce, again := pick(w, w.keepers), w.random.IntN(40), w.random.IntN(2) == 0, min(w.duration(), 10*time.Minute)
	w.say("  %s", k.host)
	w.shake()
	dies := func() {
		if slices.Contains(w.keepers, k) {
			w.killKeeper(k)
			w.startKeeper(k.cluster)
		}
	}
	if atOnce {
		w.isolate(k.host)
		k.doomed = true
	} else if !k.doomed {
		k.doomed = true
		w.net.doom(k.host, steps)
	}
	w.after(again, dies, "%s is replaced", k.host)
}

func (w *world) keeperLinkFails() {
	k, f := pick(w, w.keepers), w.newFault()
	l := link{k.host, "api-" + k.cluster.name}
	w.say("  %v %+v", l, f)
	w.fails(l, f, false)
	w.later(func() {
		if w.net.fault(link{"", l.to}) == (fault{}) && !k.doomed {
			w.fails(l, fault{}, true)
		}
	}, "%v is mended", l)
}
