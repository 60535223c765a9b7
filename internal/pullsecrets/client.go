package pullsecrets

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/pullpass/pullpass/internal/cluster/clients"
)

const (
	// pageSize is the number of objects in one response. All of them are in memory in the form that
	// the API server sends. A Secret can have a megabyte, although few do.
	pageSize       = 500
	secretPageSize = 100
	// maxPageTime is the time limit of one response.
	maxPageTime = time.Minute
)

// client asks one API server.
type client struct {
	metadata  metadata.Interface
	whole     map[schema.GroupVersion]rest.Interface
	namespace string // empty: all
}

func newClient(config *rest.Config, namespace string) (*client, error) {
	// Pages follow one another, so a limit has no use.
	shared, err := clients.New(clients.Config{REST: config, UserAgent: "pullpass-pull-secrets", QPS: -1})
	if err != nil {
		return nil, err
	}
	c := &client{namespace: namespace, whole: map[schema.GroupVersion]rest.Interface{}}
	if c.metadata, err = shared.Metadata(); err != nil {
		return nil, err
	}
	for group, types := range map[schema.GroupVersion][]runtime.Object{
		corev1.SchemeGroupVersion:  {&corev1.ConfigMap{}, &corev1.SecretList{}, &corev1.ServiceAccountList{}, &corev1.PodList{}, &corev1.ReplicationControllerList{}},
		appsv1.SchemeGroupVersion:  {&appsv1.DeploymentList{}, &appsv1.StatefulSetList{}, &appsv1.DaemonSetList{}, &appsv1.ReplicaSetList{}},
		batchv1.SchemeGroupVersion: {&batchv1.JobList{}, &batchv1.CronJobList{}},
	} {
		if c.whole[group], err = shared.Typed(group, runtime.ContentTypeProtobuf, types...); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// wanted describes a list of whole objects.
type wanted struct {
	group    schema.GroupVersion
	resource string
	secrets  corev1.SecretType // for Secrets: of this type only
	page     func() runtime.Object
}

// list calls each for every object. It reads one page after the other and keeps none of them.
func (c *client) list(ctx context.Context, w wanted, each func(runtime.Object)) error {
	options := metav1.ListOptions{Limit: pageSize}
	if w.secrets != "" {
		options.Limit, options.FieldSelector = secretPageSize, "type="+string(w.secrets)
	}
	return c.pages(ctx, w.resource, options, func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		page := w.page()
		return page, c.whole[w.group].Get().Namespace(c.namespace).Resource(w.resource).
			VersionedParams(&options, metav1.ParameterCodec).Do(ctx).Into(page)
	}, each)
}

// listMetadata lists objects of which only the metadata is needed. The API server sends nothing
// else.
func (c *client) listMetadata(ctx context.Context, resource, fields string, each func(runtime.Object)) error {
	kind := corev1.SchemeGroupVersion.WithResource(resource)
	if resource == "namespaces" && c.namespace != "" {
		ctx, cancel := context.WithTimeout(ctx, maxPageTime)
		defer cancel()
		found, err := c.metadata.Resource(kind).Get(ctx, c.namespace, metav1.GetOptions{})
		if err != nil {
			return newFault("get", resource, err)
		}
		each(found)
		return nil
	}
	return c.pages(ctx, resource, metav1.ListOptions{Limit: pageSize, FieldSelector: fields}, func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return c.metadata.Resource(kind).Namespace(c.namespace).List(ctx, options)
	}, each)
}

func (c *client) pages(ctx context.Context, resource string, options metav1.ListOptions,
	get func(context.Context, metav1.ListOptions) (runtime.Object, error), each func(runtime.Object)) error {
	for {
		page, err := c.page(ctx, options, get)
		if err != nil {
			return newFault("list", resource, err)
		}
		if err := meta.EachListItem(page, func(o runtime.Object) error { each(o); return nil }); err != nil {
			return newFault("list", resource, err)
		}
		list, err := meta.ListAccessor(page)
		if err != nil {
			return newFault("list", resource, err)
		}
		if options.Continue = list.GetContinue(); options.Continue == "" {
			return nil
		}
	}
}

func (c *client) page(ctx context.Context, options metav1.ListOptions,
	get func(context.Context, metav1.ListOptions) (runtime.Object, error)) (runtime.Object, error) {
	ctx, cancel := context.WithTimeout(ctx, maxPageTime)
	defer cancel()
	return get(ctx, options)
}

// trackedSince returns the date on which the API server began to track the use of tokens. It is
// zero if the API server does not track it.
func (c *client) trackedSince(ctx context.Context) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, maxPageTime)
	defer cancel()
	found := &corev1.ConfigMap{}
	err := c.whole[corev1.SchemeGroupVersion].Get().Namespace(metav1.NamespaceSystem).Resource("configmaps").
		Name("kube-apiserver-legacy-service-account-token-tracking").Do(ctx).Into(found)
	switch {
	case apierrors.IsNotFound(err):
		return time.Time{}, nil
	case err != nil:
		return time.Time{}, newFault("get", "configmaps", err)
	}
	return date(found.Data["since"]), nil
}

// discoverIssuer returns the issuer of the tokens that the API server issues.
func (c *client) discoverIssuer(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, maxPageTime)
	defer cancel()
	const path = "/.well-known/openid-configuration"
	data, err := c.whole[corev1.SchemeGroupVersion].Get().AbsPath(path).Do(ctx).Raw()
	if err != nil {
		return "", newFault("get", path, err)
	}
	var document struct {
		Issuer string `json:"issuer"`
	}
	if err := json.Unmarshal(data, &document); err != nil {
		return "", newFault("get", path, err)
	}
	return document.Issuer, nil
}

// date returns zero for an invalid date, as time.Parse does.
func date(s string) time.Time {
	t, _ := time.Parse(time.DateOnly, s)
	return t
}

// fault is the reason why a resource could not be read. It quotes nothing from a response, which
// could contain a Secret.
type fault struct {
	verb, resource, why string
	forbidden           bool
}

func (f *fault) Error() string { return "cannot " + f.verb + " " + f.resource + ": " + f.why }

func newFault(verb, resource string, err error) error {
	f := &fault{verb: verb, resource: resource}
	var request *url.Error
	var status apierrors.APIStatus
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		f.why = "the API server takes too long; --namespace asks for less"
	case errors.Is(err, context.Canceled):
		f.why = "interrupted"
	case apierrors.IsForbidden(err):
		f.forbidden = true
		f.why = fmt.Sprintf("not allowed; the kubeconfig's user needs the verb %q on %q", verb, resource)
	case apierrors.IsUnauthorized(err):
		f.why = "the API server does not know the kubeconfig's user; renew its credentials"
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		f.why = "the list took longer than the API server keeps its history; run it again, or with --namespace"
	case errors.As(err, &status):
		f.why = fmt.Sprintf("the API server answers %d %q", status.Status().Code, status.Status().Reason)
	case errors.As(err, &request):
		f.why = request.Err.Error()
	default:
		f.why = "the answer cannot be read"
	}
	return f
}
