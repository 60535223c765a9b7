package controller

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"
)

const (
	// LeadDuration is the duration of a Leader's Lease, counted from its last renewal.
	LeadDuration = 30 * time.Second

	leadDeadline = 20 * time.Second // how long the leader continues without a renewal
	leadRetry    = 5 * time.Second
)

// ErrLost ends a leader that can no longer prove its lead.
var ErrLost = errors.New("the lead was lost: the Lease could not be renewed in time, or another replica has it")

// Leader is one of several replicas, of which one leads. The leader holds a Lease of LeadDuration.
type Leader struct {
	Lease
	Log *slog.Logger

	heard atomic.Int64 // when the API server last confirmed the leader, in Unix nanoseconds
}

// HeardAt returns when the API server last confirmed the leader. A time in 1970 means never. It is
// safe for concurrent use.
func (l *Leader) HeardAt() time.Time { return time.Unix(0, l.heard.Load()) }

// Run calls lead when this replica leads. The context of lead ends when the replica no longer
// leads. Run returns nil when ctx ends, and ErrLost otherwise.
func (l *Leader) Run(ctx context.Context, lead func(ctx context.Context)) error {
	for {
		isHeld, err := l.hold(ctx)
		if err != nil && ctx.Err() == nil {
			l.Log.Warn("cannot ask for the lead", "error", err)
		}
		if isHeld {
			break
		}
		select {
		case <-time.After(leadRetry):
		case <-ctx.Done():
			return nil
		}
	}
	l.Log.Info("this replica leads")
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
func (l *Leader) keep(ctx context.Context) error {
	renewed := l.Now()
	for {
		select {
		case <-time.After(leadRetry):
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
		case err == nil, !l.Now().Before(renewed.Add(leadDeadline)):
			return ErrLost
		default:
			l.Log.Warn("cannot renew the lead", "error", err)
		}
	}
}

// hold takes or renews the Lease, and reports whether this replica now has it. An error means that
// this is not known.
func (l *Leader) hold(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, leadRetry)
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

// release lets another replica lead at once. If it fails, the others wait until the Lease expires.
func (l *Leader) release() {
	ctx, cancel := context.WithTimeout(context.Background(), leadRetry)
	defer cancel()
	found, err := l.Read(ctx)
	if err == nil && Holder(found) == l.Identity {
		found.Spec.HolderIdentity = new(string)
		_, err = l.Write(ctx, found)
	}
	if err != nil {
		l.Log.Warn("cannot give up the lead", "error", err)
	}
}
