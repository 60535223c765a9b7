package migration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pullpass/pullpass/internal/base/names"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/cluster/kube"
	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/config/setup"
	"github.com/pullpass/pullpass/internal/pullsecrets"
)

// timeout bounds the whole command. 150,000 pods are 300 pages, and an API server sends several
// pages a second.
const timeout = 10 * time.Minute

// Options select the objects that the plan covers.
type Options struct {
	Kubeconfig string   // an administrator's
	Registries []string // host[:port] as in the names of images
	Service    string   // of the registries; empty: each registry is its own service
	Cluster    string   // optional if there is only one
	Namespace  string   // empty: all
}

// New reads a cluster and plans the next step for each of its objects. It changes nothing.
func New(ctx context.Context, cfg *config.Config, o Options, now time.Time) (*Plan, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if o.Namespace != "" && !names.IsLabel(o.Namespace) {
		return nil, fmt.Errorf("--namespace %s is not the name of a namespace", term.QuoteValue(o.Namespace))
	}
	cluster, err := config.FindCluster(cfg, o.Cluster)
	if err != nil {
		return nil, err
	}
	services, err := ServicesOf(cfg, o.Registries, o.Service)
	if err != nil {
		return nil, err
	}
	policy, err := setup.LoadPolicy(cfg)
	if err != nil {
		return nil, err
	}
	grants, err := newGrants(cfg, cluster, policy, services)
	if err != nil {
		return nil, err
	}
	connection, err := kube.Kubeconfig(o.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	inventory, err := pullsecrets.Read(ctx, pullsecrets.Config{
		REST: connection, Issuer: cluster.Issuer, Registries: o.Registries, Namespace: o.Namespace,
		AnnotationKeys: policy.AnnotationKeys(), Labels: cluster.Kubernetes.Connected(),
	})
	if err != nil {
		return nil, err
	}
	if o.Namespace != "" && len(inventory.Accounts) == 0 {
		// Kubernetes creates a ServiceAccount in every namespace.
		return nil, fmt.Errorf("--namespace %s has no ServiceAccount; is it a namespace of this cluster?", o.Namespace)
	}
	if err := grants.listObjects(ctx, connection); err != nil {
		return nil, err
	}
	m := &Plan{options: o, config: cfg.File, now: now, inventory: inventory, grants: grants, Cluster: cluster.Name, Namespace: o.Namespace, Unread: inventory.Unread, StaticPods: inventory.StaticPods}
	for _, host := range o.Registries {
		m.Registries = append(m.Registries, Registry{host, services[host]})
	}
	return m, m.plan(ctx)
}

// ServicesOf returns the service of each registry, which does not follow from the host.
func ServicesOf(cfg *config.Config, hosts []string, service string) (map[string]string, error) {
	services := map[string]string{}
	for _, host := range hosts {
		if !config.IsRegistryHost(host) {
			return nil, fmt.Errorf("--registry %s is not a registry's host; write host or host:port as in the names of images, without scheme and path", term.QuoteValue(host))
		}
		if _, twice := services[host]; twice {
			return nil, fmt.Errorf("--registry %s is given twice", host)
		}
		wanted := service
		if service == "" && slices.ContainsFunc(cfg.Registries, func(r config.Registry) bool { return r.Service == host }) {
			wanted = host
		}
		registry, err := config.FindRegistry(cfg, wanted)
		if err != nil {
			if service == "" {
				err = errors.Join(fmt.Errorf("--registry %s is not a configured service, and there are several; name its own", host), err)
			}
			return nil, err
		}
		services[host] = registry.Service
	}
	return services, nil
}
