package account

import (
	"context"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Right is a verb on all objects of a resource.
type Right struct{ Verb, Group, Resource string }

func (r Right) String() string {
	return strings.TrimSuffix(r.Verb+" "+r.Resource+"."+r.Group, ".")
}

// Missing returns those of the rights that the connection lacks.
func (c *Cluster) Missing(ctx context.Context, rights []Right) ([]Right, error) {
	client, err := c.clients.Typed(authorizationv1.SchemeGroupVersion, runtime.ContentTypeJSON, &authorizationv1.SelfSubjectAccessReview{})
	if err != nil {
		return nil, err
	}
	var missing []Right
	for _, right := range rights {
		review := &authorizationv1.SelfSubjectAccessReview{
			TypeMeta: metav1.TypeMeta{APIVersion: authorizationv1.SchemeGroupVersion.String(), Kind: "SelfSubjectAccessReview"},
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{
				ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: right.Verb, Group: right.Group, Resource: right.Resource},
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
