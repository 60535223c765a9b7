package nodeinstall

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/pullpass/pullpass/internal/hostfs"
)

const (
	// patience is how long a kubelet may take to be healthy again.
	patience = 90 * time.Second
	// steady is how often in a row it must be: one whose configuration is wrong may
	// answer before it ends, and is started over and over.
	steady = 5
	// hopeless is how often it may end by itself. One whose configuration is wrong
	// does so at once, every time; a node has not to wait for the end of patience then.
	hopeless = 3
)

// Kubelet is that of the node.
type Kubelet interface {
	// Restart returns when the kubelet was started, which does not mean that it stays.
	// Its error is ErrUnhealthy if the kubelet did not start, and another one if nobody
	// could be asked to start it.
	Restart(ctx context.Context) error
	// Healthy is what it says of itself (healthz).
	Healthy(ctx context.Context) error
	// Ended is how often it has ended by itself since Restart. Its error is
	// ErrUnhealthy if it has, and nobody starts it again.
	Ended(ctx context.Context) (int, error)
}

// Watch restarts the kubelet if that is due. If it ends three times, or is not
// healthy within 90 seconds, Watch puts back what was there before, restarts it once more, and
// remembers the configuration as one that is not tried again: ErrRejected. If
// nobody could restart it, or the host is shut down meanwhile, that says nothing of
// the configuration, but is no reason to start with it unwatched.
func Watch(ctx context.Context, tree *hostfs.Tree, kubelet Kubelet) error {
	return alone(tree, func(s *state) error {
		if s.Pending == nil {
			return nil
		}
		failure := restart(ctx, kubelet)
		if failure == nil || s.Pending.Digest == "" {
			s.Pending = nil
			return errors.Join(failure, s.save(tree))
		}
		tried := errors.Is(failure, ErrUnhealthy) && ctx.Err() == nil
		if tried {
			s.Rejected = append(s.Rejected, s.Pending.Digest)
		}
		if err := rollBack(tree, s); err != nil {
			return errors.Join(failure, fmt.Errorf("rolling back: %w", err))
		}
		if !tried {
			return fmt.Errorf("%w; all that the kubelet reads is put back", failure)
		}
		return errors.Join(ErrRejected, failure, restart(ctx, kubelet))
	})
}

// rollBack puts back what was there before, whatever is there now: the kubelet
// does not run with it.
func rollBack(tree *hostfs.Tree, s *state) error {
	for _, name := range slices.Sorted(maps.Keys(s.Pending.Before)) {
		var err error
		if v := s.Pending.Before[name]; v == nil {
			err = remove(tree, name)
		} else {
			var f hostfs.File
			if f, err = restored(tree, *v); err == nil {
				err = put(tree, name, f, maxFileBytes)
			}
		}
		if err != nil {
			return err
		}
	}
	*s = *s.rolledBack()
	if err := s.save(tree); err != nil {
		return err
	}
	if err := sweep(tree, s); err != nil {
		return err
	}
	return s.save(tree)
}

func restart(ctx context.Context, kubelet Kubelet) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := kubelet.Restart(ctx); err != nil {
		return fmt.Errorf("restarting the kubelet: %w", err)
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for healthy := 0; ; {
		err := kubelet.Healthy(ctx)
		if healthy++; err != nil {
			healthy = 0
			switch times, gone := kubelet.Ended(ctx); {
			case errors.Is(gone, ErrUnhealthy):
				return gone
			case gone == nil && times >= hopeless:
				return fmt.Errorf("%w: it ended %d times: %w", ErrUnhealthy, times, err)
			}
		}
		if healthy == steady {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ErrUnhealthy, errors.Join(err, ctx.Err()))
		}
	}
}
