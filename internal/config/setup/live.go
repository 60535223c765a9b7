package setup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pullpass/pullpass/internal/cluster/account"
	"github.com/pullpass/pullpass/internal/cluster/controller"
	"github.com/pullpass/pullpass/internal/cluster/kube"
	"github.com/pullpass/pullpass/internal/cluster/objectstatus"
	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/policy"
)

const (
	liveTimeout = 20 * time.Second
	liveAtOnce  = 8 // clusters
)

// CheckLive asks each issuer for its keys, and each API server whether Pullpass has the rights that
// the configuration needs.
func CheckLive(ctx context.Context, cfg *config.Config) (faults []error) {
	ctx, cancel := context.WithTimeout(ctx, liveTimeout)
	defer cancel()
	verifier, err := NewVerifier(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil // CheckFiles of package server reports it
	}
	found := make([]error, len(cfg.Clusters))
	var asking errgroup.Group
	asking.SetLimit(liveAtOnce)
	for i := range cfg.Clusters {
		asking.Go(func() error {
			if cfg.Clusters[i].Kubernetes.Connected() {
				found[i] = checkRights(ctx, cfg, i)
			}
			return nil
		})
	}
	verifier.Fetch(ctx)
	_ = asking.Wait()
	for _, issuer := range verifier.Status() {
		if issuer.LastFailure != "" {
			faults = append(faults, fmt.Errorf("%s: no keys of %s: %s", issuer.Name, issuer.Issuer, issuer.LastFailure))
		}
	}
	for _, err := range found {
		if err != nil {
			faults = append(faults, err)
		}
	}
	return faults
}

func checkRights(ctx context.Context, cfg *config.Config, i int) error {
	settings := connectionSettingsOf(cfg, i)
	connection, err := controller.Connect(settings.Kubeconfig)
	if err != nil {
		return nil // CheckConnection reports it
	}
	c, err := account.New(connection)
	if err != nil {
		return err
	}
	missing, err := c.Missing(ctx, settings.rights())
	field := fmt.Sprintf("clusters[%d].kubernetes", i)
	if err != nil {
		return cfg.Fault(field, fmt.Errorf("cannot ask the API server of %s: %w", cfg.Clusters[i].Name, err))
	}
	var faults []error
	for _, right := range missing {
		faults = append(faults, cfg.Fault(field, fmt.Errorf("the API server of %s does not allow %s; apply deploy/kubernetes/%s there", cfg.Clusters[i].Name, right, rightsFile(right))))
	}
	if kinds := settings.objectKinds(); len(kinds) > 0 {
		unserved, err := c.Unserved(ctx, policy.APIVersion, kinds)
		if err != nil {
			faults = append(faults, cfg.Fault(field, fmt.Errorf("cannot ask the API server of %s for %s: %w", cfg.Clusters[i].Name, policy.APIVersion, err)))
		}
		for _, kind := range unserved {
			faults = append(faults, cfg.Fault(field, fmt.Errorf("the API server of %s does not serve %s of %s, so none of them counts, not even a denial; "+
				"kubectl apply --server-side -f deploy/helm/pullpass/files/crds.yaml there", cfg.Clusters[i].Name, kind, policy.APIVersion)))
		}
	}
	return errors.Join(faults...)
}

// objectKinds are the resources of Pullpass itself that the configuration reads.
func (s *connectionSettings) objectKinds() (kinds []string) {
	if s.policies {
		kinds = append(kinds, "accesspolicies")
	}
	if s.requests {
		kinds = append(kinds, "repositoryaccesses")
	}
	return kinds
}

// rightsFile returns the file with a right.
func rightsFile(r account.Right) string {
	switch {
	case r.Group == "authentication.k8s.io":
		return "pull-secrets.yaml"
	case strings.HasSuffix(r.Resource, "/status"), r.Resource == "leases":
		return "policy-objects-status.yaml"
	case r.Group != "":
		return "policy-objects.yaml"
	}
	return "rbac.yaml"
}

// rights are those that the documents want for these settings.
func (s *connectionSettings) rights() []account.Right {
	var all []account.Right
	add := func(group, resource string, verbs ...string) {
		for _, verb := range verbs {
			all = append(all, account.Right{Verb: verb, Group: group, Resource: resource})
		}
	}
	read := []string{"get", "list", "watch"}
	add("", "serviceaccounts", read...)
	add("", "namespaces", read...)
	if s.podChecks {
		add("", "pods", read...)
	} else if s.nodeFallback {
		add("", "pods", "get")
	}
	if s.nodes { // also for their labels and addresses
		add("", "nodes", read...)
	}
	if s.podEvents {
		add("", "events", "create", "patch")
	}
	if s.pullSecretAudience != "" {
		add("authentication.k8s.io", "tokenreviews", "create")
	}
	group, _, _ := strings.Cut(policy.APIVersion, "/")
	for _, kind := range s.objectKinds() {
		add(group, kind, "list", "watch")
	}
	if s.status {
		add(group, "accesspolicies/status", "patch")
		add(group, "repositoryaccesses/status", "patch")
		if namespace, err := kube.Namespace(s.Kubeconfig); err == nil {
			lease := account.Right{Verb: "create", Group: "coordination.k8s.io", Resource: "leases", Namespace: namespace}
			all = append(all, lease)
			lease.Name = objectstatus.LeaseName
			for _, lease.Verb = range []string{"get", "update"} {
				all = append(all, lease)
			}
		}
	}
	return all
}
