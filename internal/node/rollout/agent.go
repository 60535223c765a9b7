package rollout

import (
	"cmp"
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

	"github.com/pullpass/pullpass/internal/cluster/clients"
	"github.com/pullpass/pullpass/internal/cluster/controller"
	"github.com/pullpass/pullpass/internal/node/hostfs"
	"github.com/pullpass/pullpass/internal/node/nodeinstall"
	"github.com/pullpass/pullpass/internal/node/progress"
)

const (
	component = "pullpass-node-install"

	// Intervals until the next pass, and limits.
	driftInterval = 5 * time.Minute  // to repair changes of others
	retryInterval = time.Minute      // after a failure
	turnInterval  = 15 * time.Second // while the node waits for its turn

	pollInterval = 2 * time.Second // while the kubelet and controllers work
	readyLimit   = 3 * time.Minute // for the node to be Ready, after its kubelet was healthy
	pullLimit    = 3 * time.Minute // for the pod to be created and scheduled, and its image to be pulled
	newLimit     = time.Hour       // the age until which a node with the taint counts as new

	// agentLock is the lock of the Agent that keeps a node. The kernel releases it when the Agent's
	// process ends in any way.
	agentLock = "/run/pullpass-node-install-run.lock"
)

// errSecond prevents that two Agents, of two releases of the chart, undo each other's changes with a
// restart of the kubelet each time. The second one does not write the Record, which is the first one's.
var errSecond = errors.New("another installer keeps this node; set nodes.install.enabled in one release of the chart only")

// Config configures an Agent. New fails without the required fields.
type Config struct {
	REST      *rest.Config
	Namespace string // of the Agents, the Lease, and the pods that try a pull
	Node      string // the Agent's node
	Version   string // of Pullpass
	Tree      *hostfs.Tree
	Profile   string // empty: detected
	Watcher   nodeinstall.Watcher
	// Desired returns the desired state of the node. It is called for each pass. If it is nil,
	// everything is removed.
	Desired func(ctx context.Context, kubeletVersion string) (nodeinstall.Desired, error)
	Probe   bool            // a node is Ready only after a pod has pulled an image there
	Taint   bool            // new nodes have the taint; it is removed when they are Ready
	Changed <-chan struct{} // a message begins a pass
	Logger  *slog.Logger
}

// Agent keeps one node installed.
type Agent struct {
	config    Config
	installer *nodeinstall.Installer
	gate      *gate
	turn      *turn
	cluster   cluster
	sink      record.EventSink
	ended     bool // a turn has ended since the start
	keeper    *keeper
	unlock    func() error  // of agentLock; nil: it is not taken
	fought    chan struct{} // a message begins a pass
	applied   chan struct{} // a message says that Files may have changed

	mu     sync.Mutex
	events record.EventRecorder // while it runs
	object *corev1.ObjectReference
	status Status
	looked bool // the node was examined once
}

// New does not use the network.
func New(c Config) (*Agent, error) {
	if c.REST == nil || c.Namespace == "" || c.Node == "" || c.Tree == nil || c.Watcher == nil {
		return nil, errors.New("a connection, a namespace, the name of the node, its files and a watcher are required")
	}
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	core, leases, events, err := newClients(c.REST)
	if err != nil {
		return nil, err
	}
	a := &Agent{config: c, cluster: cluster{client: core, namespace: c.Namespace}, sink: controller.EventSink{Client: events}, fought: make(chan struct{}, 1), applied: make(chan struct{}, 1)}
	a.keeper = &keeper{installer: nodeinstall.New(nodeinstall.Config{Tree: c.Tree, Profile: c.Profile})}
	a.turn = &turn{
		lease:   controller.Lease{Client: leases, Namespace: c.Namespace, Name: progress.LeaseName, Duration: turnDuration, Now: time.Now},
		cluster: a.cluster, node: c.Node, log: c.Logger,
	}
	a.gate = &gate{Watcher: c.Watcher, allowed: a.turn.allowed}
	a.installer = nodeinstall.New(nodeinstall.Config{Tree: c.Tree, Profile: c.Profile, Watcher: a.gate})
	return a, nil
}

func newClients(config *rest.Config) (core, leases, events rest.Interface, err error) {
	shared, err := clients.New(clients.Config{REST: config, UserAgent: component, Timeout: requestTimeout})
	if err != nil {
		return nil, nil, nil, err
	}
	// Not JSON: a node can give its Node a time after the year 9999 (managedFields), which the API
	// server accepts, and sends in a form that is not one of a time. All Nodes are read.
	core, coreErr := shared.Typed(corev1.SchemeGroupVersion, runtime.ContentTypeProtobuf, &corev1.Node{}, &corev1.NodeList{}, &corev1.PodList{})
	events, eventErr := shared.Typed(corev1.SchemeGroupVersion, runtime.ContentTypeJSON, &corev1.Event{})
	leases, leaseErr := controller.NewLeaseClient(shared)
	return core, leases, events, errors.Join(coreErr, eventErr, leaseErr)
}

// gate permits a restart of the kubelet only when it is allowed, whatever the plan. Package
// nodeinstall calls Ready before it writes a change that needs a restart.
type gate struct {
	nodeinstall.Watcher
	allowed   func() error
	restarted bool // since it was last cleared
}

// Ready asks the host first: a node on which nothing can be restarted must not take a turn.
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

// Status returns the state of the node.
func (a *Agent) Status() Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	status := a.status
	status.Repairs = a.keeper.repairsSoFar()
	return status
}

// Ready returns an error until the node was examined once and its Record was written.
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
	broadcaster.StartRecordingToSink(a.sink)
	a.mu.Lock()
	a.events = broadcaster.NewRecorder(runtime.NewScheme(), corev1.EventSource{Component: component, Host: a.config.Node})
	a.mu.Unlock()
	defer a.turn.leave()
	defer func() {
		if a.unlock != nil {
			_ = a.unlock() // the end of the process releases it, too
		}
	}()
	for {
		next := a.pass(ctx)
		select {
		case <-time.After(spread(next, a.config.Node)):
		case <-a.config.Changed:
		case <-a.fought:
		case <-ctx.Done():
			return
		}
	}
}

// spread prevents the agents of many nodes from sending requests at the same time.
func spread(d time.Duration, node string) time.Duration {
	h := fnv.New32a()
	_, _ = h.Write([]byte(node)) // never fails
	return d + d*time.Duration(h.Sum32()%100)/200
}

// lock takes agentLock if this Agent does not have it.
func (a *Agent) lock() error {
	if a.unlock != nil {
		return nil
	}
	unlock, is, err := a.config.Tree.Lock(agentLock, true)
	if err == nil && !is {
		err = errSecond
	}
	a.unlock = unlock
	return err
}

// pass examines the node once, does the necessary work, and returns the delay until the next pass.
func (a *Agent) pass(ctx context.Context) time.Duration {
	err := a.lock()
	var node *corev1.Node
	if err == nil {
		node, err = a.cluster.get(ctx, a.config.Node)
	}
	if err == nil && node == nil {
		err = fmt.Errorf("there is no Node %s; --node has to be the name of the one that this runs on", a.config.Node)
	}
	if err == nil {
		a.mu.Lock()
		// As in the kubelet's events: a reference to a Node has its name as the UID.
		a.object = &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}
		a.mu.Unlock()
		a.turn.uid = string(node.UID)
		a.turn.lease.Identity = identity(node.Name, string(node.UID))
		p := &work{Agent: a, node: node, before: progress.RecordOf(node)}
		if err = p.do(ctx); err == nil {
			return p.next
		}
	}
	if ctx.Err() == nil {
		a.config.Logger.Error("the node cannot be looked after", "node", a.config.Node, "error", err)
	}
	return turnInterval
}

// told remembers the written Record, and reports it in events.
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
	text := "Pullpass " + now.Revision
	if now.Reason != "" {
		text += ": " + now.Reason
	}
	a.event(kind, "NodeInstall"+capital(now.State), text)
}

// event writes an event on the Node. It does not wait.
func (a *Agent) event(kind, reason, text string) {
	a.mu.Lock()
	events, object := a.events, a.object
	a.mu.Unlock()
	if events != nil && object != nil {
		events.Event(object, kind, reason, text)
	}
}

func capital(s State) string { return string(s[0]-'a'+'A') + string(s[1:]) }
