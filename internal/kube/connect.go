package kube

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/flowcontrol"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/pullpass/pullpass/internal/file"
	"github.com/pullpass/pullpass/internal/strictyaml"
)

// userAgent is how API servers name the proxy in their logs.
const userAgent = "pullpass"

// Live GETs are what the store cannot answer: pods that are newer than the
// watch, and pods that are gone. They may come in a burst, when a rollout is
// faster than the watch, and in a flood, when somebody holds many dead tokens.
// The rate is twice what an API server grants one kubelet (kubeAPIQPS), so a
// flood costs it no more than two nodes do.
const (
	getsPerSecond = 100
	getBurst      = 200
)

// maxKubeconfigBytes caps the file. One that holds a certificate and a key is
// about 10 KiB.
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

// requireCA refuses what client-go accepts when it cannot read the ServiceAccount's
// CA: the CAs of the system, of which any could speak for the API server.
func requireCA(config *rest.Config) error {
	if config.CAFile == "" {
		return errors.New("no connection from inside the cluster: ca.crt beside the ServiceAccount's token cannot be read: let the pod mount it, or give a kubeconfig file")
	}
	return nil
}

// Namespace returns that in which what runs with a connection has its own objects: the
// one of the pod, or of the current context of a kubeconfig.
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

// readKubeconfig returns the file as it is.
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

// Kubeconfig returns the connection of the current context of a file. Relative
// paths in it are relative to it.
func Kubeconfig(name string) (*rest.Config, error) {
	config, err := readKubeconfig(name)
	if err != nil {
		return nil, err
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
	// Who may pull depends on these answers, so nobody on the way may give them.
	if connection.Insecure || !rest.IsConfigTransportTLS(*connection) {
		return nil, fmt.Errorf("%s: context %q: the server is not authenticated: give it an https URL and certificate-authority, without insecure-skip-tls-verify", name, config.CurrentContext)
	}
	return connection, nil
}

// checkAliases refuses what would fill the memory: clientcmd writes aliases out.
func checkAliases(data []byte) error {
	_, err := strictyaml.ParseAll(data, maxKubeconfigBytes)
	return err
}

// checkNamed refuses what client-go would wait for: it opens the files that a
// kubeconfig names itself, whatever they are.
func checkNamed(config *clientcmdapi.Config) error {
	var faults []error
	check := func(field, name string) {
		f, err := file.Open(name)
		if errors.Is(err, file.ErrNotRegular) {
			faults = append(faults, fmt.Errorf("%s: %w", field, err))
		} // what cannot be read for another reason is told by client-go, if it is of use at all
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

// clients speak to one API server over the same connections.
type clients struct {
	metadata metadata.Interface // for lists and watches
	nodes    rest.Interface     // likewise, of whole Nodes
	dynamic  dynamic.Interface  // likewise, of AccessPolicies and RepositoryAccesses

	get     metadata.Interface // for live GETs
	getCore rest.Interface     // likewise, of whole objects
	reviews rest.Interface     // for TokenReviews
}

func newClients(config *rest.Config) (clients, error) {
	config = rest.CopyConfig(config)
	config.UserAgent = userAgent
	config.Timeout = 0 // it would end watches; every request has a limit of its own
	config.WarningHandlerWithContext = rest.NoWarnings{}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return clients{}, err
	}
	// Lists and watches follow one another and wait after a failure: there is
	// nothing to limit, and nothing that a flood of GETs may hold up.
	config.QPS = -1
	var c clients
	var faults [6]error
	c.metadata, faults[0] = metadata.NewForConfigAndClient(config, client)
	c.nodes, faults[1] = rest.RESTClientForConfigAndClient(coreConfig(config), client)
	c.dynamic, faults[5] = dynamic.NewForConfigAndClient(config, client)
	config.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(getsPerSecond, getBurst) // one for both
	c.get, faults[2] = metadata.NewForConfigAndClient(config, client)
	c.getCore, faults[3] = rest.RESTClientForConfigAndClient(coreConfig(config), client)
	config.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(getsPerSecond, getBurst) // GETs in a flood must not keep these waiting
	c.reviews, faults[4] = rest.RESTClientForConfigAndClient(reviewConfig(config), client)
	return c, errors.Join(faults[:]...)
}

// coreConfig is for objects that are wanted with more than their metadata. The
// scheme holds no other: k8s.io/client-go/kubernetes would link every API group.
func coreConfig(config *rest.Config) *rest.Config {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.Node{}, &corev1.NodeList{}, &corev1.Pod{})
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	config = rest.CopyConfig(config)
	config.APIPath = "/api"
	config.GroupVersion = &corev1.SchemeGroupVersion
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	config.ContentType = runtime.ContentTypeProtobuf
	return config
}

// reviewConfig is for TokenReviews.
func reviewConfig(config *rest.Config) *rest.Config {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(authenticationv1.SchemeGroupVersion, &authenticationv1.TokenReview{})
	metav1.AddToGroupVersion(scheme, authenticationv1.SchemeGroupVersion)
	config = rest.CopyConfig(config)
	config.APIPath = "/apis"
	config.GroupVersion = &authenticationv1.SchemeGroupVersion
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	return config
}
