package kubectl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/cluster/clients"
)

// requestTimeout is the time limit of one request to the API server.
const requestTimeout = 15 * time.Second

// Options select a cluster, as the flags of kubectl do.
type Options struct {
	Kubeconfig string // file; empty: $KUBECONFIG, or ~/.kube/config
	Context    string // empty: the current context
	Namespace  string // empty: that of the context
	Pullpass   string // namespace of Pullpass
	Release    string // of Pullpass there; empty: the only one
}

// Cluster is the API server of a kubeconfig, with the rights of its user.
type Cluster struct {
	Namespace string // of the objects in question
	options   Options
	config    *rest.Config
	core      rest.Interface
}

// Connect reads the kubeconfig. It does not use the network.
func Connect(o Options) (*Cluster, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.Kubeconfig
	chosen := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{
		CurrentContext: o.Context, Context: clientcmdapi.Context{Namespace: o.Namespace},
	})
	config, err := chosen.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("the kubeconfig: %w", err)
	}
	namespace, _, err := chosen.Namespace()
	if err != nil {
		return nil, fmt.Errorf("the kubeconfig: %w", err)
	}
	all, err := clients.New(clients.Config{REST: config, UserAgent: "kubectl-pullpass", QPS: -1})
	if err != nil {
		return nil, fmt.Errorf("the kubeconfig: %w", err)
	}
	core, err := all.Typed(corev1.SchemeGroupVersion, runtime.ContentTypeJSON, &corev1.Pod{}, &corev1.PodList{}, &corev1.Event{}, &corev1.EventList{}, &corev1.ServiceAccount{})
	if err != nil {
		return nil, err
	}
	return &Cluster{Namespace: namespace, options: o, config: config, core: core}, nil
}

// MissingRight is a right that the user does not have.
type MissingRight struct {
	Verb, Resource, Subresource, Namespace string
	flags                                  string // that select the cluster
}

// Error names the right, and the command that checks it.
func (m *MissingRight) Error() string {
	resource, check := m.Resource, m.Resource
	if m.Subresource != "" {
		resource, check = m.Resource+"/"+m.Subresource, m.Resource+" --subresource="+m.Subresource
	}
	where, in := "in the cluster", ""
	if m.Namespace != "" {
		where, in = "in namespace "+m.Namespace, " -n "+m.Namespace
	}
	return fmt.Sprintf("you may not %s %s %s; an administrator can allow it; to check, run: kubectl auth can-i %s %s%s%s", m.Verb, resource, where, m.Verb, check, in, m.flags)
}

// right turns an error of the API server into a MissingRight, if it is one.
func (c *Cluster) right(err error, verb, resource, subresource, namespace string) error {
	if !apierrors.IsForbidden(err) {
		return err
	}
	return c.missing(verb, resource, subresource, namespace)
}

func (c *Cluster) missing(verb, resource, subresource, namespace string) *MissingRight {
	m := &MissingRight{Verb: verb, Resource: resource, Subresource: subresource, Namespace: namespace}
	for _, flag := range []struct{ name, value string }{{"kubeconfig", c.options.Kubeconfig}, {"context", c.options.Context}} {
		if flag.value != "" {
			m.flags += " --" + flag.name + "=" + term.ShellWord(flag.value)
		}
	}
	return m
}

// get reads an object.
func (c *Cluster) get(ctx context.Context, resource, name string, into runtime.Object) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	err := c.core.Get().Namespace(c.Namespace).Resource(resource).Name(name).Do(ctx).Into(into)
	return c.right(err, "get", resource, "", c.Namespace)
}

// list reads the objects that selectors match.
func (c *Cluster) list(ctx context.Context, namespace, resource string, selectors map[string]string, into runtime.Object) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	request := c.core.Get().Namespace(namespace).Resource(resource)
	for name, value := range selectors {
		request = request.Param(name, value)
	}
	return c.right(request.Do(ctx).Into(into), "list", resource, "", namespace)
}

// errNotInstalled is for clusters without the CustomResourceDefinitions of Pullpass.
var errNotInstalled = errors.New("the cluster has no RepositoryAccess objects; an administrator can install their CustomResourceDefinition")

// Access is a RepositoryAccess.
type Access struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Metadata   AccessMetadata `json:"metadata"`
	Spec       AccessSpec     `json:"spec"`
	Status     *AccessStatus  `json:"status,omitempty"`
}

func accessPath(namespace string) string {
	return "/apis/" + apiVersion + "/namespaces/" + namespace + "/" + accessResource
}

// accesses returns the RepositoryAccess objects of the namespace.
func (c *Cluster) accesses(ctx context.Context) ([]Access, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	text, err := c.core.Get().AbsPath(accessPath(c.Namespace)).Do(ctx).Raw()
	if apierrors.IsNotFound(err) {
		return nil, errNotInstalled
	}
	if err != nil {
		return nil, c.right(err, "list", accessResource+"."+apiGroup, "", c.Namespace)
	}
	var list struct{ Items []Access }
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, fmt.Errorf("the RepositoryAccess objects: %w", err)
	}
	return list.Items, nil
}
