package tokensecrets

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

const (
	leaseName     = "pullpass-pull-secrets"
	leaseDuration = 30 * time.Second // how long it counts after it was renewed
	leaseDeadline = 20 * time.Second // how long who leads goes on without renewing it
	leaseRetry    = 5 * time.Second
)

// errLost ends a Controller that cannot say any more that it leads.
var errLost = errors.New("the lead was lost: the Lease could not be renewed in time, or another replica has it")

// lease is the Lease by which one replica leads. It is as client-go's, which would link
// every API group: whether it has ended is judged by when it was seen to change, so that the
// clocks of replicas need not agree.
type lease struct {
	client    rest.Interface // of coordination.k8s.io/v1
	namespace string
	identity  string
	now       func() time.Time
	log       *slog.Logger

	seen   string // the resourceVersion, last
	seenAt time.Time
}

// run calls lead when this replica leads, with a context that ends when it does not any
// more. It returns nil when ctx ends, and errLost otherwise.
func (l *lease) run(ctx context.Context, lead func(ctx context.Context)) error {
	for {
		isHeld, err := l.hold(ctx)
		if err != nil && ctx.Err() == nil {
			l.log.Warn("cannot ask for the lead", "error", err)
		}
		if isHeld {
			break
		}
		select {
		case <-time.After(leaseRetry):
		case <-ctx.Done():
			return nil
		}
	}
	l.log.Info("this replica leads")
	leading, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { lead(leading); close(done) }()
	err := l.keep(ctx)
	stop()
	<-done
	if err == nil {
		l.release()
	}
	return err
}

// keep renews the Lease until ctx ends.
func (l *lease) keep(ctx context.Context) error {
	renewed := l.now()
	for {
		select {
		case <-time.After(leaseRetry):
		case <-ctx.Done():
			return nil
		}
		began := l.now()
		isHeld, err := l.hold(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case isHeld:
			renewed = began
		case err == nil, !l.now().Before(renewed.Add(leaseDeadline)):
			return errLost
		default:
			l.log.Warn("cannot renew the lead", "error", err)
		}
	}
}

// hold takes or renews the Lease, and reports whether this replica has it now. An error says
// that this is not known.
func (l *lease) hold(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, leaseRetry)
	defer cancel()
	var found coordinationv1.Lease
	err := l.client.Get().Namespace(l.namespace).Resource("leases").Name(leaseName).Do(ctx).Into(&found)
	if apierrors.IsNotFound(err) {
		fresh := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: leaseName, Namespace: l.namespace}}
		l.claim(fresh)
		err := l.client.Post().Namespace(l.namespace).Resource("leases").Body(fresh).Do(ctx).Error()
		if apierrors.IsAlreadyExists(err) {
			return false, nil
		}
		return err == nil, wrapLease(err)
	}
	if err != nil {
		return false, wrapLease(err)
	}
	if found.ResourceVersion != l.seen {
		l.seen, l.seenAt = found.ResourceVersion, l.now()
	}
	holder := found.Spec.HolderIdentity
	if holder != nil && *holder != "" && *holder != l.identity && l.now().Before(l.seenAt.Add(leaseDuration)) {
		return false, nil
	}
	l.claim(&found)
	// The resourceVersion makes it fail if another replica was faster.
	err = l.client.Put().Namespace(l.namespace).Resource("leases").Name(leaseName).Body(&found).Do(ctx).Error()
	if apierrors.IsConflict(err) {
		return false, nil
	}
	return err == nil, wrapLease(err)
}

func (l *lease) claim(o *coordinationv1.Lease) {
	now, seconds, transitions := metav1.NewMicroTime(l.now()), int32(leaseDuration/time.Second), int32(0)
	if o.Spec.LeaseTransitions != nil {
		transitions = *o.Spec.LeaseTransitions
	}
	if o.Spec.HolderIdentity == nil || *o.Spec.HolderIdentity != l.identity {
		transitions++
		o.Spec.AcquireTime = &now
	}
	o.Spec.HolderIdentity, o.Spec.LeaseDurationSeconds, o.Spec.RenewTime, o.Spec.LeaseTransitions = &l.identity, &seconds, &now, &transitions
}

// release lets another replica lead at once. That it fails costs the time of a Lease.
func (l *lease) release() {
	ctx, cancel := context.WithTimeout(context.Background(), leaseRetry)
	defer cancel()
	var found coordinationv1.Lease
	err := l.client.Get().Namespace(l.namespace).Resource("leases").Name(leaseName).Do(ctx).Into(&found)
	if err != nil || found.Spec.HolderIdentity == nil || *found.Spec.HolderIdentity != l.identity {
		return
	}
	found.Spec.HolderIdentity = new(string)
	if err := l.client.Put().Namespace(l.namespace).Resource("leases").Name(leaseName).Body(&found).Do(ctx).Error(); err != nil {
		l.log.Warn("cannot give up the lead", "error", err)
	}
}

func wrapLease(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("the Lease %s: %w", leaseName, err)
}
