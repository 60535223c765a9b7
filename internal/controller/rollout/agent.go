package rollout

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"github.com/pullpass/pullpass/internal/controller"
	"github.com/pullpass/pullpass/internal/hostfs"
	"github.com/pullpass/pullpass/internal/nodeinstall"
)

const (
	component = "pullpass-node-install"

	// How long after a pass the next one is.
	driftInterval = 5 * time.Minute  // to repair what others undo
	retryInterval = time.Minute      // what failed
	turnInterval  = 15 * time.Second // whose turn it is

	pollInterval = 2 * time.Second // what the kubelet and controllers do
	readyLimit   = 3 * time.Minute // for the node, after its kubelet was healthy
	pullLimit    = 3 * time.Minute // for the pod: to be made, scheduled, and its image pulled
	newLimit     = time.Hour       // a node with the taint is new for as long
)

// Config is what an Agent needs. Those without which New fails are required.
type Config struct {
	REST      *rest.Config
	Namespace string // of the Agents, of the Lease, and of the pods that try a pull
	Node      string // on which this one is
	Version   string // of Pullpass
	Tree      *hostfs.Tree
	Profile   string // empty: found out
	Watcher   nodeinstall.Watcher
	// Desired returns what the node is to have. It is called for each pass; nil:
	// everything is taken away.
	Desired func(ctx context.Context, kubeletVersion string) (nodeinstall.Desired, error)
	Probe   bool            // a node is Ready only when a pod has pulled an image there
	Taint   bool            // nodes are made with the taint; it is taken away when they are Ready
	Changed <-chan struct{} // begins a pass
	Logger  *slog.Logger
}

// Agent keeps one node installed.
type Agent struct {
	config    Config
	installer *nodeinstall.Installer
	gate      *gate
	turn      *turn
	cluster   cluster
	events    record.EventRecorder // while it runs
	ended     bool                 // the turn, since the start

	mu     sync.Mutex
	status Status
	looked bool // at the node, once
}

// Status is what an Agent says of itself.
type Status struct {
	Record
	Restarts uint64 // of the kubelet, since the start
}

// New does not use the network.
func New(c Config) (*Agent, error) {
	if c.REST == nil || c.Namespace == "" || c.Node == "" || c.Tree == nil || c.Watcher == nil {
		return nil, errors.New("a connection, a namespace, the name of the node, its files and a watcher are required")
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	core, leases, err := clients(c.REST)
	if err != nil {
		return nil, err
	}
	a := &Agent{config: c, cluster: cluster{client: core, namespace: c.Namespace}}
	a.turn = &turn{
		lease:   controller.Lease{Client: leases, Namespace: c.Namespace, Name: LeaseName, Duration: turnDuration, Now: time.Now},
		cluster: a.cluster, node: c.Node, log: c.Logger,
	}
	a.gate = &gate{Watcher: c.Watcher, allowed: a.turn.allowed}
	a.installer = nodeinstall.New(nodeinstall.Config{Tree: c.Tree, Profile: c.Profile, Watcher: a.gate})
	return a, nil
}

func clients(config *rest.Config) (core, leases rest.Interface, err error) {
	config = rest.CopyConfig(config)
	config.UserAgent, config.Timeout = component, requestTimeout
	config.WarningHandlerWithContext = rest.NoWarnings{}
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.Node{}, &corev1.NodeList{}, &corev1.PodList{}, &corev1.Event{})
	core, coreErr := controller.NewClient(config, scheme, corev1.SchemeGroupVersion, "/api")
	leases, leaseErr := controller.NewLeaseClient(config)
	return core, leases, errors.Join(coreErr, leaseErr)
}

// gate lets the kubelet be restarted only when that is allowed, whatever else was
// planned: package nodeinstall asks Ready before it writes what needs a restart.
type gate struct {
	nodeinstall.Watcher
	allowed   func() error
	restarted bool // since it was last set
}

// Ready asks the host first: no turn is for a node on which nothing can be restarted.
func (g *gate) Ready(ctx context.Context) error {
	if err := g.Watcher.Ready(ctx); err != nil {
		return err
	}
	return g.allowed()
}

func (g *gate) Watch(ctx context.Context) error {
	g.restarted = true
	return g.Watcher.Watch(ctx)
}

// Status returns how the node is.
func (a *Agent) Status() Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.status
}

// Ready returns an error until the node was looked at once, and the Node says so.
func (a *Agent) Ready() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.looked {
		return errors.New("the node was not looked at yet; see the log")
	}
	return nil
}

// Run works until ctx ends.
func (a *Agent) Run(ctx context.Context) {
	broadcaster := record.NewBroadcaster()
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(controller.EventSink{Client: a.cluster.client})
	a.events = broadcaster.NewRecorder(runtime.NewScheme(), corev1.EventSource{Component: component, Host: a.config.Node})
	defer a.turn.leave()
	for {
		next := a.pass(ctx)
		select {
		case <-time.After(spread(next, a.config.Node)):
		case <-a.config.Changed:
		case <-ctx.Done():
			return
		}
	}
}

// spread keeps the agents of many nodes from asking at the same time.
func spread(d time.Duration, node string) time.Duration {
	h := fnv.New32a()
	_, _ = h.Write([]byte(node)) // it never fails
	return d + d*time.Duration(h.Sum32()%100)/200
}

// pass looks at the node once, does what has to be done, and returns when to look
// again.
func (a *Agent) pass(ctx context.Context) time.Duration {
	node, err := a.cluster.get(ctx, a.config.Node)
	if err == nil && node == nil {
		err = fmt.Errorf("there is no Node %s; --node has to be the name of the one that this runs on", a.config.Node)
	}
	if err == nil {
		a.turn.uid = string(node.UID)
		a.turn.lease.Identity = identity(node.Name, string(node.UID))
		p := &work{Agent: a, node: node, before: recordOf(node)}
		if err = p.do(ctx); err == nil {
			return p.next
		}
	}
	if ctx.Err() == nil {
		a.config.Logger.Error("the node cannot be looked after", "node", a.config.Node, "error", err)
	}
	return turnInterval
}

// told remembers the Record that was written, and what people are told of it.
func (a *Agent) told(node *corev1.Node, before, now Record) {
	a.mu.Lock()
	a.status.Record, a.looked = now, true
	a.mu.Unlock()
	if before.State == now.State && before.Reason == now.Reason {
		return
	}
	a.config.Logger.Info("the node is "+string(now.State), "node", node.Name, "revision", now.Revision, "reason", now.Reason)
	kind := corev1.EventTypeNormal
	switch now.State {
	case Failed, Rejected:
		kind = corev1.EventTypeWarning
	case Installing, Ready:
	default:
		return
	}
	// As those of the kubelet: what is about a Node has its name for a UID.
	object := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}
	text := "Pullpass " + now.Revision
	if now.Reason != "" {
		text += ": " + now.Reason
	}
	a.events.Event(object, kind, "NodeInstall"+capital(now.State), text)
}

func capital(s State) string { return string(s[0]-'a'+'A') + string(s[1:]) }
