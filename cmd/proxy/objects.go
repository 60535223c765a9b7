package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/filewatch"
	"github.com/pullpass/pullpass/internal/kube"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy"
)

// objects is what is known of the objects of each cluster, by its API server or
// by files.
type objects struct {
	kube.Directory
	files     map[string][]string // of manifests
	manifests *kube.Manifests
	connected []connection // in the order of the configuration
}

// connection is a cluster whose API server is asked.
type connection struct {
	name     string
	settings connectionSettings
	content  [sha256.Size]byte // of the kubeconfig
	*kube.Cluster
	events *kube.PodEvents // nil: pods are not told
}

// connectionSettings are all settings that a connection depends on.
type connectionSettings struct {
	inCluster                        bool
	kubeconfig                       string
	podChecks, podEvents             bool
	nodeFallback                     bool
	nodes, nodeLabels, nodeAddresses bool
}

func connectionSettingsOf(cfg *Config, i int) connectionSettings {
	c := &cfg.Clusters[i]
	byAddress := slices.Contains(cfg.proofMethods(c), proofAddress)
	fallback := c.Node.Fallback == nodeFallbackAPI
	return connectionSettings{
		inCluster:    c.Kubernetes.InCluster,
		kubeconfig:   c.Kubernetes.KubeconfigFile,
		podChecks:    c.Kubernetes.PodChecks,
		podEvents:    c.Kubernetes.PodEvents,
		nodeFallback: fallback,
		// A token that is bound to a node ends with it.
		nodes:         c.Bound != string(oidc.BoundPod) || fallback || c.Node.Selector != "" || byAddress,
		nodeLabels:    c.Node.Selector != "",
		nodeAddresses: byAddress,
	}
}

// openObjects reads the manifests and prepares the connections. What before has,
// which may be nil, is kept where its settings are the same. It uses no network,
// and what it returns answers from the API servers at once; Run of each
// connection makes it answer from memory.
func openObjects(cfg *Config, policy *policy.Policy, logger *slog.Logger, before *objects) (*objects, error) {
	if before == nil {
		before = &objects{}
	}
	o := &objects{Directory: kube.Directory{}, files: manifestFiles(cfg), manifests: before.manifests}
	if o.manifests == nil || !reflect.DeepEqual(o.files, before.files) {
		var err error
		if o.manifests, err = newManifests(cfg, policy); err != nil {
			return nil, err
		}
	}
	for i := range cfg.Clusters {
		c := &cfg.Clusters[i]
		switch {
		case c.Kubernetes.connected():
			opened, ok := before.connection(c.Name)
			if !ok || opened.settings != connectionSettingsOf(cfg, i) {
				var err error
				if opened, err = connect(cfg, i, policy.AnnotationKeys(), logger); err != nil {
					return nil, err
				}
			}
			o.connected = append(o.connected, opened)
			o.Directory[c.Name] = opened
		case len(c.Kubernetes.ManifestFiles) > 0:
			o.Directory[c.Name] = o.manifests
		}
	}
	return o, nil
}

// connection returns the one of a cluster.
func (o *objects) connection(cluster string) (connection, bool) {
	c, ok := o.Directory[cluster].(connection)
	return c, ok
}

// without returns what is left without the connection of a cluster.
func (o *objects) without(cluster string) *objects {
	rest := *o
	rest.Directory = maps.Clone(o.Directory)
	delete(rest.Directory, cluster)
	return &rest
}

// connect prepares the connection of the cluster at index i.
func connect(cfg *Config, i int, annotationKeys []string, logger *slog.Logger) (connection, error) {
	name, settings := cfg.Clusters[i].Name, connectionSettingsOf(cfg, i)
	opened := connection{name: name, settings: settings}
	field, config, err := "inCluster", (*rest.Config)(nil), error(nil)
	if settings.inCluster {
		config, err = kube.InCluster()
	} else {
		field = "kubeconfigFile"
		// Before it is read: what changes meanwhile is seen as a change.
		opened.content = filewatch.Digest([]string{settings.kubeconfig})
		config, err = kube.Kubeconfig(settings.kubeconfig)
	}
	if err == nil {
		opened.Cluster, err = kube.NewCluster(kube.ClusterConfig{
			Name:           name,
			REST:           config,
			AnnotationKeys: annotationKeys,
			PodChecks:      settings.podChecks,
			NodeFallback:   settings.nodeFallback,
			Nodes:          settings.nodes,
			NodeLabels:     settings.nodeLabels,
			NodeAddresses:  settings.nodeAddresses,
			Logger:         logger,
		})
	}
	if err == nil && settings.podEvents {
		opened.events, err = kube.NewPodEvents(kube.PodEventsConfig{Clusters: map[string]*rest.Config{name: config}, Logger: logger})
	}
	if err != nil {
		return connection{}, cfg.fault(fmt.Sprintf("clusters[%d].kubernetes.%s", i, field), err)
	}
	return opened, nil
}

// keepsAnnotations reports whether every cluster has the annotations.
func (o *objects) keepsAnnotations(keys []string) bool {
	return o.manifests.KeepsAnnotations(keys) &&
		!slices.ContainsFunc(o.connected, func(c connection) bool { return !c.KeepsAnnotations(keys) })
}

// podRecorders tell pods of what is refused.
type podRecorders map[string]*kube.PodEvents // by cluster; not of each are pods told

func (o *objects) podRecorders() podRecorders {
	all := podRecorders{}
	for _, c := range o.connected {
		if c.events != nil {
			all[c.name] = c.events
		}
	}
	return all
}

// Record implements exchange.Recorder.
func (all podRecorders) Record(e *exchange.Event) {
	if events := all[e.Cluster]; events != nil {
		events.Record(e)
	}
}

// counts says what became of the events, by cluster.
func (all podRecorders) counts() map[string]kube.PodEventCounts {
	counts := map[string]kube.PodEventCounts{}
	for _, events := range all {
		maps.Copy(counts, events.Counts())
	}
	return counts
}

// setAnnotationKeys returns when every cluster has the annotations. One whose
// API server does not give them before ctx ends is an error, and keeps what it had.
func (o *objects) setAnnotationKeys(ctx context.Context, keys []string) error {
	faults := make([]error, len(o.connected)+1)
	var group errgroup.Group
	for i, c := range o.connected {
		group.Go(func() error { faults[i] = c.SetAnnotationKeys(ctx, keys); return nil })
	}
	faults[len(o.connected)] = o.manifests.SetAnnotationKeys(keys)
	_ = group.Wait()
	return errors.Join(faults...)
}

// uid returns the UID of a ServiceAccount by its name, or "" when none is known.
func (o *objects) uid(ctx context.Context, cluster, namespace, name string) (string, error) {
	if c, ok := o.connection(cluster); ok {
		return c.UID(ctx, namespace, name)
	}
	return o.manifests.UID(cluster, namespace, name), nil
}
