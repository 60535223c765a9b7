package kube

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/pullpass/pullpass/internal/base/file"
	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/cluster/clients"
	"github.com/pullpass/pullpass/internal/cluster/pages"
)

// userAgent is the name of the proxy in logs of API servers.
const userAgent = "pullpass"

// Live GETs are for objects that the store cannot confirm: pods newer than the watch, and deleted
// pods. They come in a burst when a rollout is faster than the watch. They come in a flood when a
// client holds many tokens of deleted pods.
//
// The rate is twice the rate that a kubelet has (kubeAPIQPS). So a flood costs the API server no
// more than two nodes do.
const (
	getsPerSecond = 100
	getBurst      = 200
)

// maxKubeconfigBytes limits the size of the file. A file with a certificate and a key has about 10
// KiB.
const maxKubeconfigBytes = 1 << 20

const maxNamespaceBytes = 256

const kubeconfigRemedy = "write it as kubectl config view --raw --minify prints it"

// InCluster returns the connection of the pod's own ServiceAccount.
func InCluster() (*rest.Config, error) {
	config, err := rest.InClusterConfig()
	if err != nil {
		return nil, fmt.Errorf("no connection from inside the cluster: %w: run as a pod with automountServiceAccountToken, or give a kubeconfig file", err)
	}
	if err := requireCA(config); err != nil {
		return nil, err
	}
	return config, nil
}

// requireCA rejects a connection without the ServiceAccount's CA. If client-go cannot read that CA,
// it accepts the CAs of the system, any of which could then vouch for the API server.
func requireCA(config *rest.Config) error {
	if config.CAFile == "" {
		return errors.New("no connection from inside the cluster: ca.crt beside the ServiceAccount's token cannot be read: let the pod mount it, or give a kubeconfig file")
	}
	return nil
}

// Namespace returns the namespace of the caller's own objects: that of the pod, or of the current
// context of a kubeconfig.
func Namespace(kubeconfig string) (string, error) {
	if kubeconfig == "" {
		const name = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
		data, err := readFile(name, maxNamespaceBytes, "let the pod mount it")
		return strings.TrimSpace(string(data)), err
	}
	config, err := readKubeconfig(kubeconfig)
	if err != nil {
		return "", err
	}
	if found := config.Contexts[config.CurrentContext]; found != nil && found.Namespace != "" {
		return found.Namespace, nil
	}
	return "", fmt.Errorf("%s: context %q has no namespace, which a Lease is written to: set it with kubectl config set-context", kubeconfig, config.CurrentContext)
}

// readKubeconfig returns the file as it is written.
func readKubeconfig(name string) (*clientcmdapi.Config, error) {
	data, err := readFile(name, maxKubeconfigBytes, "name a file that holds one context")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: give the path of a kubeconfig", err)
	}
	if err != nil {
		return nil, err
	}
	if err := checkAliases(data); err != nil {
		return nil, fmt.Errorf("%s: is not a kubeconfig: %w: %s", name, err, kubeconfigRemedy)
	}
	config, err := clientcmd.Load(data)
	if err != nil {
		return nil, fmt.Errorf("%s: is not a kubeconfig: %w: %s", name, err, kubeconfigRemedy)
	}
	if config.CurrentContext == "" {
		return nil, fmt.Errorf("%s: has no current-context: choose one with kubectl config use-context", name)
	}
	return config, nil
}

// Kubeconfig returns the connection of the current context of a file. Relative paths in the file
// are relative to it.
func Kubeconfig(name string) (*rest.Config, error) { return KubeconfigContext(name, "") }

// KubeconfigContext is Kubeconfig for a context; empty: the current one.
func KubeconfigContext(name, context string) (*rest.Config, error) {
	config, err := readKubeconfig(name)
	if err != nil {
		return nil, err
	}
	if context != "" {
		config.CurrentContext = context
	}
	for _, cluster := range config.Clusters {
		cluster.LocationOfOrigin = name
	}
	for _, user := range config.AuthInfos {
		user.LocationOfOrigin = name
	}
	if err := clientcmd.ResolveLocalPaths(config); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if err := checkNamed(config); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	connection, err := clientcmd.NewNonInteractiveClientConfig(*config, config.CurrentContext, nil, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("%s: context %q: %w: %s", name, config.CurrentContext, err, kubeconfigRemedy)
	}
	// The answers decide who may pull, so the connection must use TLS and verify the API server.
	if connection.Insecure || !rest.IsConfigTransportTLS(*connection) {
		return nil, fmt.Errorf("%s: context %q: the server is not authenticated: give it an https URL and certificate-authority, without insecure-skip-tls-verify", name, config.CurrentContext)
	}
	return connection, nil
}

// checkAliases rejects YAML aliases that would fill the memory, because clientcmd expands them.
func checkAliases(data []byte) error {
	_, err := strictyaml.ParseAll(data, maxKubeconfigBytes)
	return err
}

// checkNamed rejects files that are not regular, which could block client-go: it opens every file
// that a kubeconfig names.
func checkNamed(config *clientcmdapi.Config) error {
	var faults []error
	check := func(field, name string) {
		f, err := file.Open(name)
		if errors.Is(err, file.ErrNotRegular) {
			faults = append(faults, fmt.Errorf("%s: %w", field, err))
		} // client-go reports other read errors if the file matters
		_ = f.Close()
	}
	for _, cluster := range config.Clusters {
		check("certificate-authority", cluster.CertificateAuthority)
	}
	for _, user := range config.AuthInfos {
		check("client-certificate", user.ClientCertificate)
		check("client-key", user.ClientKey)
		check("tokenFile", user.TokenFile)
	}
	return errors.Join(faults...)
}

// apiClients share the connections to one API server.
type apiClients struct {
	metadata metadata.Interface // for lists and watches
	nodes    rest.Interface     // likewise, for whole Nodes
	dynamic  dynamic.Interface  // likewise, for AccessPolicies and RepositoryAccesses

	get     metadata.Interface // for live GETs
	getCore rest.Interface     // likewise, for whole objects
	reviews rest.Interface     // for TokenReviews
}

func newClients(config *rest.Config) (apiClients, error) {
	// Lists and watches follow one another and wait after a failure, so they need no limit. A flood
	// of GETs must not delay them.
	unlimited, err := clients.New(clients.Config{REST: config, UserAgent: userAgent, QPS: -1})
	if err != nil {
		return apiClients{}, err
	}
	gets := unlimited.Limited(getsPerSecond, getBurst)
	reviews := unlimited.Limited(getsPerSecond, getBurst) // separate, so that a flood of GETs does not delay reviews
	var c apiClients
	var faults [6]error
	c.metadata, faults[0] = unlimited.Metadata()
	c.nodes, faults[1] = unlimited.Typed(corev1.SchemeGroupVersion, runtime.ContentTypeProtobuf, &corev1.Node{}, &corev1.NodeList{})
	c.dynamic, faults[2] = unlimited.Dynamic()
	c.get, faults[3] = gets.Metadata()
	c.getCore, faults[4] = gets.Typed(corev1.SchemeGroupVersion, runtime.ContentTypeProtobuf, &corev1.Node{}, &corev1.Pod{})
	c.reviews, faults[5] = reviews.Typed(authenticationv1.SchemeGroupVersion, runtime.ContentTypeJSON, &authenticationv1.TokenReview{})
	return c, errors.Join(faults[:]...)
}

// ready returns nil if the API server has loaded what it needs for its answers, such as RBAC and
// the CustomResourceDefinitions.
func (c *apiClients) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(pages.Bound(ctx, maxGetBytes), maxGetTime)
	defer cancel()
	return c.nodes.Get().AbsPath("/readyz").Do(ctx).Error()
}
