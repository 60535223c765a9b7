package setup

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"

	"github.com/pullpass/pullpass/internal/base/filewatch"
	"github.com/pullpass/pullpass/internal/cluster/kube"
	"github.com/pullpass/pullpass/internal/cluster/objectstatus"
	"github.com/pullpass/pullpass/internal/cluster/podevents"
	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy/pattern"
)

// Objects gives access to the objects of each cluster, from its API server or from files.
type Objects struct {
	kube.Directory
	files     map[string][]string // of manifests
	Manifests *kube.Manifests
	Connected []connection                                                         // in the order of the configuration
	Dial      func(ctx context.Context, network, address string) (net.Conn, error) // nil: that of net.Dialer
	Now       func() time.Time                                                     // nil: time.Now
}

// connection is the connection to a cluster's API server.
type connection struct {
	Name     string
	Settings connectionSettings
	Content  [sha256.Size]byte // of the kubeconfig
	*kube.Cluster
	Events       *podevents.Events        // nil: no events are written for pods
	ObjectStatus *objectstatus.Controller // nil: the status of policy objects is not written
}

// connectionSettings are all settings that a connection depends on.
type connectionSettings struct {
	inCluster                        bool
	Kubeconfig                       string
	podChecks, podEvents             bool
	nodeFallback                     bool
	nodes, nodeLabels, nodeAddresses bool
	pullSecretAudience               string
	policies, requests               bool
	within                           string // patterns, one on each line
	status                           bool
	issuer                           string // as far as a status may depend on it
}

func connectionSettingsOf(cfg *config.Config, i int) connectionSettings {
	c := &cfg.Clusters[i]
	byAddress := c.Node.Proof.By(nodeproof.Address)
	fallback := c.Node.Fallback == config.NodeFallbackAPI
	settings := connectionSettings{
		inCluster:    c.Kubernetes.InCluster,
		Kubeconfig:   c.Kubernetes.KubeconfigFile,
		podChecks:    c.Kubernetes.PodChecks,
		podEvents:    c.Kubernetes.PodEvents,
		nodeFallback: fallback,
		// A token that is bound to a node expires with it.
		nodes:         c.Bound != oidc.BoundPod || fallback || c.Node.Selector != "" || byAddress,
		nodeLabels:    c.Node.Selector != "",
		nodeAddresses: byAddress,

		pullSecretAudience: pullSecrets(c.PullSecrets).Audience,

		policies: c.Kubernetes.Objects.Policies,
		requests: c.Kubernetes.Objects.Requests,
		within:   strings.Join(c.Kubernetes.Objects.Within, "\n"),
		status:   c.Kubernetes.Objects.Status,
	}
	if settings.status {
		settings.issuer = c.Issuer
	}
	return settings
}

// OpenObjects reads the manifests and prepares the connections. It keeps the connections of before,
// which may be nil, whose settings are the same. It uses no network. At first, the result queries
// the API servers for each request. Run of each connection makes it answer from memory.
func OpenObjects(cfg *config.Config, annotationKeys []string, logger *slog.Logger, before *Objects) (*Objects, error) {
	if before == nil {
		before = &Objects{}
	}
	o := &Objects{Directory: kube.Directory{}, files: manifestFiles(cfg), Manifests: before.Manifests, Dial: before.Dial, Now: before.Now}
	if o.Manifests == nil || !reflect.DeepEqual(o.files, before.files) {
		var err error
		if o.Manifests, err = NewManifests(cfg, annotationKeys); err != nil {
			return nil, err
		}
	}
	for i := range cfg.Clusters {
		c := &cfg.Clusters[i]
		switch {
		case c.Kubernetes.Connected():
			opened, ok := before.Connection(c.Name)
			if !ok || opened.Settings != connectionSettingsOf(cfg, i) {
				var err error
				if opened, err = o.connect(cfg, i, annotationKeys, logger); err != nil {
					return nil, err
				}
			}
			o.Connected = append(o.Connected, opened)
			o.Directory[c.Name] = opened
		case len(c.Kubernetes.ManifestFiles) > 0:
			o.Directory[c.Name] = o.Manifests
		}
	}
	return o, nil
}

// Connection returns the connection of a cluster.
func (o *Objects) Connection(cluster string) (connection, bool) {
	c, ok := o.Directory[cluster].(connection)
	return c, ok
}

// Without returns a copy without the connection of a cluster.
func (o *Objects) Without(cluster string) *Objects {
	rest := *o
	rest.Directory = maps.Clone(o.Directory)
	delete(rest.Directory, cluster)
	return &rest
}

// CheckConnection reports faults of the connection of the cluster at index i, without using it.
func CheckConnection(cfg *config.Config, i int) error {
	_, err := (&Objects{}).connect(cfg, i, nil, slog.New(slog.DiscardHandler))
	return err
}

// connect prepares the connection of the cluster at index i.
func (o *Objects) connect(cfg *config.Config, i int, annotationKeys []string, logger *slog.Logger) (connection, error) {
	name, settings := cfg.Clusters[i].Name, connectionSettingsOf(cfg, i)
	opened := connection{Name: name, Settings: settings}
	field, config, err := "inCluster", (*rest.Config)(nil), error(nil)
	if settings.inCluster {
		config, err = kube.InCluster()
	} else {
		field = "kubeconfigFile"
		// Before it is read, so that a change during the reading is noticed.
		opened.Content = filewatch.Digest([]string{settings.Kubeconfig})
		config, err = kube.Kubeconfig(settings.Kubeconfig)
	}
	if err == nil {
		config.Dial = o.Dial
		opened.Cluster, err = kube.NewCluster(kube.ClusterConfig{
			Name:           name,
			REST:           config,
			AnnotationKeys: annotationKeys,
			PodChecks:      settings.podChecks,
			NodeFallback:   settings.nodeFallback,
			Nodes:          settings.nodes,
			NodeLabels:     settings.nodeLabels,
			NodeAddresses:  settings.nodeAddresses,

			PullSecretAudience: settings.pullSecretAudience,
			Objects:            PolicyObjects(cfg.Clusters[i].Kubernetes.Objects),

			Logger: logger, Now: o.Now,
		})
	}
	if err == nil && settings.podEvents {
		opened.Events, err = podevents.New(podevents.Config{Clusters: map[string]*rest.Config{name: config}, Logger: logger})
	}
	if err == nil && settings.status {
		opened.ObjectStatus, err = objectStatus(settings, objectstatus.Config{
			Cluster: name, Issuer: settings.issuer, Objects: opened.Cluster, Within: PolicyObjects(cfg.Clusters[i].Kubernetes.Objects).Within, REST: config, Logger: logger, Now: o.Now,
		})
	}
	if err != nil {
		return connection{}, cfg.Fault(fmt.Sprintf("clusters[%d].kubernetes.%s", i, field), err)
	}
	return opened, nil
}

// objectStatus adds the replica's place and name to c.
func objectStatus(settings connectionSettings, c objectstatus.Config) (*objectstatus.Controller, error) {
	namespace, err := kube.Namespace(settings.Kubeconfig)
	if err != nil {
		return nil, err
	}
	host, err := os.Hostname() // the pod's name
	if err != nil {
		return nil, err
	}
	c.LeaseNamespace, c.Identity = namespace, host+"-"+rand.Text()[:8]
	return objectstatus.New(c)
}

// Use passes the state that serves from now on to the writers of object status.
func (o *Objects) Use(s objectstatus.Serving) {
	for _, c := range o.Connected {
		if c.ObjectStatus != nil {
			c.ObjectStatus.Use(s)
		}
	}
}

// PolicyObjects returns which objects of a cluster are used.
func PolicyObjects(o config.Objects) kube.PolicyObjects {
	wanted := kube.PolicyObjects{Policies: o.Policies, Requests: o.Requests, Status: o.Status}
	for _, text := range o.Within {
		wanted.Within = append(wanted.Within, pattern.Pattern(text)) // it was parsed with the configuration
	}
	return wanted
}

// ListPolicyObjects reads the objects of a cluster once, for callers that do not serve requests.
func (o *Objects) ListPolicyObjects(ctx context.Context, cluster string) error {
	if c, ok := o.Connection(cluster); ok {
		return c.ListPolicyObjects(ctx)
	}
	return nil
}

// KeepsAnnotations reports whether every cluster has the annotations.
func (o *Objects) KeepsAnnotations(keys []string) bool {
	return o.Manifests.KeepsAnnotations(keys) &&
		!slices.ContainsFunc(o.Connected, func(c connection) bool { return !c.KeepsAnnotations(keys) })
}

// Record implements exchange.Recorder. It passes refusals to the pods' events, and used rules to
// the writers of object status.
func (o *Objects) Record(e *exchange.Event) {
	c, _ := o.Connection(e.Cluster)
	if c.Events != nil {
		c.Events.Record(e)
	}
	if c.ObjectStatus != nil {
		c.ObjectStatus.Record(e)
	}
}

// PodEvents returns the counts of the pods' events, by cluster.
func (o *Objects) PodEvents() map[string]podevents.Counts {
	counts := map[string]podevents.Counts{}
	for _, c := range o.Connected {
		if c.Events != nil {
			maps.Copy(counts, c.Events.Counts())
		}
	}
	return counts
}

// SetAnnotationKeys returns when every cluster has the annotations. A cluster whose API server does
// not return them before ctx ends is an error. It keeps its previous annotations.
func (o *Objects) SetAnnotationKeys(ctx context.Context, keys []string) error {
	faults := make([]error, len(o.Connected)+1)
	var group errgroup.Group
	for i, c := range o.Connected {
		group.Go(func() error { faults[i] = c.SetAnnotationKeys(ctx, keys); return nil })
	}
	faults[len(o.Connected)] = o.Manifests.SetAnnotationKeys(keys)
	_ = group.Wait()
	return errors.Join(faults...)
}

// UID returns the UID of a ServiceAccount by its name, or "" if it is not known.
func (o *Objects) UID(ctx context.Context, cluster, namespace, name string) (string, error) {
	if c, ok := o.Connection(cluster); ok {
		return c.UID(ctx, namespace, name)
	}
	return o.Manifests.UID(cluster, namespace, name), nil
}

// List returns all objects of a cluster, and whether they can be known.
func (o *Objects) List(ctx context.Context, cluster string) (all kube.Listed, known bool, err error) {
	if c, ok := o.Connection(cluster); ok {
		all, err = c.List(ctx)
		return all, true, err
	}
	return kube.Listed{ServiceAccounts: o.Manifests.ServiceAccounts(cluster)}, o.files[cluster] != nil, nil
}
