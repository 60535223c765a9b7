package migration

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/pullpass/pullpass/internal/cluster/kube"
	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/config/setup"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/pullsecrets"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// grant is the policy's decision about a pull today.
type grant struct {
	Registry   string `json:"registry"`
	Repository string `json:"repository"`
	Granted    bool   `json:"granted"`
	Reason     string `json:"reason,omitempty"`
	Remedy     string `json:"remedy,omitempty"`
}

// grants asks the policy as the serving proxy does. It uses the same facts about a ServiceAccount:
// from the API server, from manifest files, or none. Objects of the cluster count as they do there.
// It has neither a token nor a node, so rules for nodes grant nothing.
type grants struct {
	cluster   *config.Cluster
	policy    *policy.Policy
	services  map[string]string // by host
	manifests *kube.Manifests
	objects   *kube.Cluster // of the policy
	asked     map[question]grant
}

type question struct {
	account pullsecrets.Key
	image   pullsecrets.Image
}

func newGrants(cfg *config.Config, cluster *config.Cluster, policy *policy.Policy, services map[string]string) (*grants, error) {
	manifests, err := setup.NewManifests(cfg, policy.AnnotationKeys())
	if err != nil {
		return nil, err
	}
	return &grants{cluster: cluster, policy: policy, services: services, manifests: manifests, asked: map[question]grant{}}, nil
}

// listObjects reads the policy objects that count. Without them, a plan could break pulls: they may
// have denials.
func (g *grants) listObjects(ctx context.Context, connection *rest.Config) (err error) {
	g.objects, err = kube.NewCluster(kube.ClusterConfig{Name: g.cluster.Name, REST: connection, Objects: setup.PolicyObjects(g.cluster.Kubernetes.Objects)})
	if err == nil {
		err = g.objects.ListPolicyObjects(ctx)
	}
	switch {
	case apierrors.IsNotFound(err): // without definitions, files alone count
		return nil
	case apierrors.IsForbidden(err): // err would name the proxy's rights
		return errors.New(`cannot list the objects that count in the policy (clusters[].kubernetes.objects): not allowed; the kubeconfig's user needs the verb "list" on "accesspolicies" and "repositoryaccesses" in all namespaces`)
	}
	return err
}

func (g *grants) ask(ctx context.Context, inventory *pullsecrets.Inventory, account pullsecrets.Key, image pullsecrets.Image) (grant, error) {
	question := question{account, image}
	if known, ok := g.asked[question]; ok {
		return known, nil
	}
	answer, err := g.decide(ctx, inventory, account, image)
	g.asked[question] = answer
	return answer, err
}

func (g *grants) decide(ctx context.Context, inventory *pullsecrets.Inventory, account pullsecrets.Key, image pullsecrets.Image) (grant, error) {
	answer := grant{Registry: image.Registry, Repository: image.Repository}
	live, ok := inventory.Accounts[account]
	if !ok {
		answer.Reason = "the ServiceAccount is not there, so no token can be issued for its pods"
		answer.Remedy = "create it, or let the pods use a different ServiceAccount"
		return answer, nil
	}
	scope, err := registryauth.ParseScope("repository:" + image.Repository + ":pull")
	if err != nil {
		answer.Reason, answer.Remedy = "no registry can have such a repository", "correct the name of the image"
		return answer, nil
	}
	id := oidc.Identity{
		Cluster: g.cluster.Name,
		Issuer:  g.cluster.Issuer,
		Subject: oidc.ServiceAccountSubject(account.Namespace, account.Name),
		Kubernetes: oidc.KubernetesIdentity{Namespace: account.Namespace,
			ServiceAccount: oidc.ObjectRef{Name: account.Name, UID: live.UID}},
	}
	objects, err := g.objects.ObjectsOf(account.Namespace, account.Name)
	if err != nil {
		return answer, err
	}
	subject := policy.Subject{Identity: &id, Objects: objects}
	if g.cluster.Kubernetes.Connected() {
		subject.Annotations, subject.NamespaceLabels = live.Annotations, inventory.NamespaceLabels[account.Namespace]
	} else {
		facts, err := g.manifests.Lookup(ctx, id, nil)
		if err != nil {
			return answer, err
		}
		subject.Annotations = facts.Annotations
	}
	decision := g.policy.Decide(subject, g.services[image.Registry], []registryauth.Scope{scope})
	if decision.DeniedBy != "" {
		answer.Reason = "the deny rule " + decision.DeniedBy + " refuses the ServiceAccount"
		answer.Remedy = "let an administrator of Pullpass change that rule, or use another ServiceAccount"
		return answer, nil
	}
	scopeDecision := decision.Scopes[0]
	answer.Reason, answer.Remedy = scopeDecision.Reason, scopeDecision.Remedy
	answer.Granted = len(scopeDecision.Granted) > 0 // pull is the only action
	return answer, nil
}
