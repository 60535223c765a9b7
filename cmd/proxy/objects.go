package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/kube"
	"github.com/pullpass/pullpass/internal/oidc"
)

// annotationKeysTimeout bounds how long a new policy waits for the annotations
// that it reads: in the largest clusters a list of all ServiceAccounts takes
// seconds.
const annotationKeysTimeout = 30 * time.Second

// objects is what is known of the objects of each cluster, by its API server or
// by files.
type objects struct {
	kube.Directory
	manifests *kube.Manifests
	connected []connection // in the order of the configuration
}

// connection is a cluster whose API server is asked.
type connection struct {
	name      string
	rest      *rest.Config
	podEvents bool
	*kube.Cluster
}

// openObjects reads the manifests and prepares the connections. It uses no
// network, and what it returns answers from the API servers at once; Run of
// each connection makes it answer from memory.
func openObjects(cfg *Config, policy *exchange.Policy, logger *slog.Logger) (*objects, error) {
	o := &objects{Directory: kube.Directory{}}
	var err error
	if o.manifests, err = newManifests(cfg, policy); err != nil {
		return nil, err
	}
	for i := range cfg.Clusters {
		c := &cfg.Clusters[i]
		switch {
		case c.Kubernetes.connected():
			opened, err := connect(cfg, i, policy.AnnotationKeys(), logger)
			if err != nil {
				return nil, err
			}
			o.connected = append(o.connected, opened)
			o.Directory[c.Name] = opened
		case len(c.Kubernetes.ManifestFiles) > 0:
			o.Directory[c.Name] = o.manifests
		}
	}
	return o, nil
}

// connect prepares the connection of the cluster at index i.
func connect(cfg *Config, i int, annotationKeys []string, logger *slog.Logger) (connection, error) {
	c := &cfg.Clusters[i]
	field, config, err := "inCluster", (*rest.Config)(nil), error(nil)
	if c.Kubernetes.InCluster {
		config, err = kube.InCluster()
	} else {
		field = "kubeconfigFile"
		config, err = kube.Kubeconfig(c.Kubernetes.KubeconfigFile)
	}
	var cluster *kube.Cluster
	if err == nil {
		byAddress := slices.Contains(cfg.proofMethods(c), proofAddress)
		fallback := c.Node.Fallback == nodeFallbackAPI
		cluster, err = kube.NewCluster(kube.ClusterConfig{
			Name:           c.Name,
			REST:           config,
			AnnotationKeys: annotationKeys,
			PodChecks:      c.Kubernetes.PodChecks,
			NodeFallback:   fallback,
			// A token that is bound to a node ends with it.
			Nodes:         c.Bound != string(oidc.BoundPod) || fallback || c.Node.Selector != "" || byAddress,
			NodeLabels:    c.Node.Selector != "",
			NodeAddresses: byAddress,
			Logger:        logger,
		})
	}
	if err != nil {
		return connection{}, cfg.fault(fmt.Sprintf("clusters[%d].kubernetes.%s", i, field), err)
	}
	return connection{c.Name, config, c.Kubernetes.PodEvents, cluster}, nil
}

// setAnnotationKeys returns when every cluster has the annotations. One whose
// API server does not give them in time is an error, and keeps what it had.
func (o *objects) setAnnotationKeys(ctx context.Context, keys []string) error {
	ctx, cancel := context.WithTimeout(ctx, annotationKeysTimeout)
	defer cancel()
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
	if c, ok := o.Directory[cluster].(connection); ok {
		return c.UID(ctx, namespace, name)
	}
	return o.manifests.UID(cluster, namespace, name), nil
}

// checks says of each cluster whether its objects are known: where an API
// server is asked, whether everything was listed once. If it fails later, the
// cluster stays healthy, for what was listed answers from memory.
func (o *objects) checks(cfg *Config) []check {
	var checks []check
	for i := range cfg.Clusters {
		name := cfg.Clusters[i].Name
		if c, ok := o.Directory[name].(connection); ok {
			checks = append(checks, kubernetesCheck(name, c.Status()))
		} else {
			// It is served whatever becomes of the others' API servers.
			checks = append(checks, check{Name: name, Healthy: true, Message: "no API server is asked"})
		}
	}
	return checks
}

func kubernetesCheck(name string, status kube.ClusterStatus) check {
	c := check{Name: name, Healthy: true}
	var messages []string
	for _, r := range status.Resources {
		c.Healthy = c.Healthy && r.Synced
		switch {
		case r.LastFailure != "":
			messages = append(messages, r.Resource+": "+r.LastFailure)
		case !r.Synced:
			messages = append(messages, r.Resource+": not listed yet")
		}
	}
	c.Message = strings.Join(messages, "; ")
	return c
}
