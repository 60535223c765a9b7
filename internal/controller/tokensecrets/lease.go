package tokensecrets

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/pullpass/pullpass/internal/controller"
)

const (
	leaseName     = "pullpass-pull-secrets"
	leaseDuration = 30 * time.Second // how long it counts after it was renewed
	leaseDeadline = 20 * time.Second // how long who leads goes on without renewing it
	leaseRetry    = 5 * time.Second
)

// errLost ends a Controller that cannot say any more that it leads.
var errLost = errors.New("the lead was lost: the Lease could not be renewed in time, or another replica has it")

// lease is the Lease by which one replica leads.
type lease struct {
	controller.Lease
	log   *slog.Logger
	heard atomic.Int64 // when the API server last said who leads, in Unix nanoseconds
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
	renewed := l.Now()
	for {
		select {
		case <-time.After(leaseRetry):
		case <-ctx.Done():
			return nil
		}
		began := l.Now()
		isHeld, err := l.hold(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case isHeld:
			renewed = began
		case err == nil, !l.Now().Before(renewed.Add(leaseDeadline)):
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
	found, err := l.Read(ctx)
	if err != nil {
		return false, err
	}
	l.heard.Store(l.Now().UnixNano())
	if l.Taken(found) {
		return false, nil
	}
	l.Claim(found)
	return l.Write(ctx, found)
}

// release lets another replica lead at once. That it fails costs the time of a Lease.
func (l *lease) release() {
	ctx, cancel := context.WithTimeout(context.Background(), leaseRetry)
	defer cancel()
	found, err := l.Read(ctx)
	if err == nil && controller.Holder(found) == l.Identity {
		found.Spec.HolderIdentity = new(string)
		_, err = l.Write(ctx, found)
	}
	if err != nil {
		l.log.Warn("cannot give up the lead", "error", err)
	}
}
