package account

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Right is a verb on a resource, such as pods or pods/status.
type Right struct {
	Verb, Group, Resource string
	Namespace             string // "": all
	Name                  string // of one object; "": all
}

func (r Right) String() string {
	text := strings.TrimSuffix(r.Verb+" "+r.Resource+"."+r.Group, ".")
	if r.Name != "" {
		text += " called " + r.Name
	}
	if r.Namespace != "" {
		text += " in " + r.Namespace
	}
	return text
}

// Unserved returns those of the resources that the API server does not serve in this version. A
// right to them says nothing about that.
func (c *Cluster) Unserved(ctx context.Context, version string, resources []string) ([]string, error) {
	client, err := c.clients.Typed(schema.GroupVersion{Version: "v1"}, runtime.ContentTypeJSON)
	if err != nil {
		return nil, err
	}
	var served metav1.APIResourceList
	data, err := client.Get().AbsPath("/apis/" + version).DoRaw(ctx)
	if err == nil {
		err = json.Unmarshal(data, &served)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(resources), func(name string) bool {
		return slices.ContainsFunc(served.APIResources, func(r metav1.APIResource) bool { return r.Name == name })
	}), nil
}

// Missing returns those of the rights that the connection lacks.
func (c *Cluster) Missing(ctx context.Context, rights []Right) ([]Right, error) {
	client, err := c.clients.Typed(authorizationv1.SchemeGroupVersion, runtime.ContentTypeJSON, &authorizationv1.SelfSubjectAccessReview{})
	if err != nil {
		return nil, err
	}
	var missing []Right
	for _, right := range rights {
		resource, subresource, _ := strings.Cut(right.Resource, "/")
		review := &authorizationv1.SelfSubjectAccessReview{
			TypeMeta: metav1.TypeMeta{APIVersion: authorizationv1.SchemeGroupVersion.String(), Kind: "SelfSubjectAccessReview"},
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{
				ResourceAttributes: &authorizationv1.ResourceAttributes{
					Verb: right.Verb, Group: right.Group, Resource: resource, Subresource: subresource, Namespace: right.Namespace, Name: right.Name,
				},
			},
		}
		var answer authorizationv1.SelfSubjectAccessReview
		if err := client.Post().Resource("selfsubjectaccessreviews").Body(review).Do(ctx).Into(&answer); err != nil {
			return nil, err
		}
		if !answer.Status.Allowed {
			missing = append(missing, right)
		}
	}
	return missing, nil
}
