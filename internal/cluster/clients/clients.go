// Package clients makes the clients of API servers. They know only the types in use:
// k8s.io/client-go/kubernetes would link every API group.
package clients

import (
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/pullpass/pullpass/internal/cluster/pages"
)

// Config is what the clients of one API server have in common.
type Config struct {
	REST      *rest.Config // the connection
	UserAgent string       // the name in logs of the API server
	// QPS and Burst limit the requests of each client. Zero means the defaults of client-go, and a
	// negative QPS no limit.
	QPS   float32
	Burst int
	// Timeout limits each request, and would end watches. Zero is for requests with a limit each.
	Timeout time.Duration
}

// Clients makes clients that share their connections. It is not for concurrent use.
type Clients struct {
	config *rest.Config
	http   *http.Client
}

// New does not use the network.
func New(c Config) (*Clients, error) {
	config := rest.CopyConfig(c.REST)
	config.UserAgent, config.Timeout = c.UserAgent, c.Timeout
	config.QPS, config.Burst, config.RateLimiter = c.QPS, c.Burst, nil
	config.WarningHandler, config.WarningHandlerWithContext = nil, rest.NoWarnings{}
	config.Wrap(pages.Transport)
	config.Wrap(discreet)
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	client.CheckRedirect = stay
	return &Clients{config, client}, nil
}

// Limited returns Clients whose clients share one limit of requests.
func (c *Clients) Limited(perSecond float32, burst int) *Clients {
	config := rest.CopyConfig(c.config)
	config.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(perSecond, burst)
	return &Clients{config, c.http}
}

// Metadata returns a client for the metadata of objects.
func (c *Clients) Metadata() (metadata.Interface, error) {
	return metadata.NewForConfigAndClient(c.config, c.http)
}

// Dynamic returns a client for objects without Go types.
func (c *Clients) Dynamic() (dynamic.Interface, error) {
	return dynamic.NewForConfigAndClient(c.config, c.http)
}

// Typed returns a client for types of one version of an API group. The content type is that of
// requests and, where the API server has it, of responses.
func (c *Clients) Typed(version schema.GroupVersion, content string, types ...runtime.Object) (rest.Interface, error) {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(version, types...)
	return c.Schemed(version, content, scheme)
}

// Schemed is Typed with a scheme that may also have types of subresources, which have a version of
// their own.
func (c *Clients) Schemed(version schema.GroupVersion, content string, scheme *runtime.Scheme) (rest.Interface, error) {
	metav1.AddToGroupVersion(scheme, version)
	config := rest.CopyConfig(c.config)
	if config.APIPath = "/apis"; version.Group == "" {
		config.APIPath = "/api"
	}
	config.ContentConfig = rest.ContentConfig{
		ContentType: content, AcceptContentTypes: runtime.ContentTypeJSON, GroupVersion: &version,
		NegotiatedSerializer: serializer.NewCodecFactory(scheme).WithoutConversion(),
	}
	if content == runtime.ContentTypeProtobuf {
		config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	}
	return rest.RESTClientForConfigAndClient(config, c.http)
}
