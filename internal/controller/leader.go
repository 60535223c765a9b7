package controller

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"
)

const (
	// LeadDuration is that of the Lease of a Leader: how long it counts after it was
	// renewed.
	LeadDuration = 30 * time.Second

	leadDeadline = 20 * time.Second // how long who leads goes on without renewing it
	leadRetry    = 5 * time.Second
)

// ErrLost ends who cannot say any more that it leads.
var ErrLost = errors.New("the lead was lost: the Lease could not be renewed in time, or another replica has it")

// Leader is one replica of those of which one leads, by a Lease of LeadDuration.
type Leader struct {
	Lease
	Log *slog.Logger

	heard atomic.Int64 // when the API server last said who leads, in Unix nanoseconds
}

// HeardAt returns when the API server last said who leads; in 1970: never. It is safe for
// concurrent use.
func (l *Leader) HeardAt() time.Time { return time.Unix(0, l.heard.Load()) }

// Run calls lead when this replica leads, with a context that ends when it does not any
// more. It returns nil when ctx ends, and ErrLost otherwise.
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

// hold takes or renews the Lease, and reports whether this replica has it now. An error says
// that this is not known.
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

// release lets another replica lead at once. That it fails costs the time of a Lease.
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
