package controller

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// Lease is held by at most one of several candidates. Like client-go, it measures expiry from the
// time at which a change was seen. So the clocks of the candidates need not agree. It is for one
// goroutine.
type Lease struct {
	Client          rest.Interface // of coordination.k8s.io/v1
	Namespace, Name string
	Identity        string        // of the candidate, unique
	Duration        time.Duration // how long it counts after a renewal
	Now             func() time.Time

	seen   string // the last resourceVersion
	seenAt time.Time
}

// Read returns the Lease. If there is none, it returns a Lease without a resourceVersion.
func (l *Lease) Read(ctx context.Context) (*coordinationv1.Lease, error) {
	found := &coordinationv1.Lease{}
	err := l.Client.Get().Namespace(l.Namespace).Resource("leases").Name(l.Name).Do(ctx).Into(found)
	if apierrors.IsNotFound(err) {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: l.Name, Namespace: l.Namespace}}, nil
	}
	if err != nil {
		return nil, l.wrap(err)
	}
	if found.ResourceVersion != l.seen {
		l.seen, l.seenAt = found.ResourceVersion, l.Now()
	}
	return found, nil
}

// Holder returns the current or former holder of the Lease that was read. It is empty if there was
// none.
func Holder(found *coordinationv1.Lease) string {
	if found.Spec.HolderIdentity == nil {
		return ""
	}
	return *found.Spec.HolderIdentity
}

// Ended reports whether the Lease that was read last has not been renewed for its duration.
func (l *Lease) Ended() bool { return !l.Now().Before(l.seenAt.Add(l.Duration)) }

// Taken reports whether a different candidate holds the Lease that was read.
func (l *Lease) Taken(found *coordinationv1.Lease) bool {
	holder := Holder(found)
	return holder != "" && holder != l.Identity && !l.Ended()
}

// Claim makes this candidate the holder. It takes effect with Write.
func (l *Lease) Claim(o *coordinationv1.Lease) {
	now, seconds, transitions := metav1.NewMicroTime(l.Now()), int32(l.Duration/time.Second), int32(0)
	if o.Spec.LeaseTransitions != nil {
		transitions = *o.Spec.LeaseTransitions
	}
	if Holder(o) != l.Identity {
		// The API server refuses negative numbers. Without this, a candidate that writes the largest
		// one would be the last holder.
		transitions = max(transitions+1, 0)
		o.Spec.AcquireTime = &now
	}
	o.Spec.HolderIdentity, o.Spec.LeaseDurationSeconds, o.Spec.RenewTime, o.Spec.LeaseTransitions = &l.Identity, &seconds, &now, &transitions
}

// Write writes the Lease that was read. It returns false if others have changed the Lease since. An
// error means that the result is not known.
func (l *Lease) Write(ctx context.Context, o *coordinationv1.Lease) (bool, error) {
	var err error
	if o.ResourceVersion == "" {
		err = l.Client.Post().Namespace(l.Namespace).Resource("leases").Body(o).Do(ctx).Error()
	} else {
		err = l.Client.Put().Namespace(l.Namespace).Resource("leases").Name(l.Name).Body(o).Do(ctx).Error()
	}
	if apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) {
		return false, nil
	}
	return err == nil, l.wrap(err)
}

func (l *Lease) wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("the Lease %s: %w", l.Name, err)
}
