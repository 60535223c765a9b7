package pages

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// maxCheckTime is the time limit of CheckRevision.
const maxCheckTime = time.Minute

// CheckRevision returns the error Expired if a watch with these options would begin in the future,
// because etcd was restored to an earlier state. kube-apiserver 1.36 accepts such a watch and drops
// all events up to there. A reflector lists after this error.
//
// Resource versions that cannot be compared (KEP-5504) are not checked. Without the right to list, the
// error is Expired too: a watch with all objects (KEP-3157) does not need that right, and an API server
// that has just started refuses all until it has read its roles. list is of the watched resource,
// without a selector, so that the API server reads one object.
func CheckRevision(ctx context.Context, list func(context.Context, metav1.ListOptions) (runtime.Object, error), watch metav1.ListOptions) error {
	if watch.SendInitialEvents != nil { // it begins with all objects
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, maxCheckTime)
	defer cancel()
	// Without a resourceVersion, the API server asks a quorum of etcd.
	page, err := list(Bound(ctx, maxObjectBytes), metav1.ListOptions{Limit: 1})
	if apierrors.IsForbidden(err) {
		return apierrors.NewResourceExpired("the revision of the API server is not known: " + err.Error())
	}
	if err != nil {
		return err
	}
	from, err := meta.ListAccessor(page)
	if err != nil {
		return err
	}
	// With an error, it returns 0.
	if order, _ := resourceversion.CompareResourceVersion(from.GetResourceVersion(), watch.ResourceVersion); order < 0 {
		return apierrors.NewResourceExpired("the API server has the revision " + from.GetResourceVersion() + ", which is before " + watch.ResourceVersion)
	}
	return nil
}
