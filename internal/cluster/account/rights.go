package account

import (
	"context"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
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
