package nodeinstall

import (
	"context"
	"errors"
	"fmt"
	"path"
	"time"

	"github.com/pullpass/pullpass/internal/node/hostfs"
)

const (
	// startLimit is the time limit for systemd to start the kubelet. Units of k3s and RKE2 report
	// their start themselves (Type=notify), which takes minutes on a slow disk.
	startLimit = 5 * time.Minute
	// patience is the time limit for a started kubelet to become healthy.
	patience = 90 * time.Second
	// paused is how much of patience one look costs at most. It takes longer if this process was paused,
	// perhaps with the kubelet: by a debugger, or with its virtual machine.
	paused = 10 * time.Second
	// steady is the required number of consecutive healthy responses. A kubelet with a wrong
	// configuration may respond before it exits, and is restarted again and again.
	steady = 5
	// hopeless is the number of exits after which the kubelet counts as failed. A kubelet with a
	// wrong configuration exits at once, every time. The node then does not have to wait for the
	// end of patience.
	hopeless = 3
)

// Kubelet is the kubelet of the node.
type Kubelet interface {
	// Restart returns when the kubelet was started, which does not mean that it continues to run.
	// Its error is ErrUnhealthy if the kubelet did not start. It is a different error if the start
	// could not be requested, or another program stopped the kubelet.
	Restart(ctx context.Context) error
	// Healthy returns the result of the kubelet's healthz.
	Healthy(ctx context.Context) error
	// Ended returns how often the kubelet has exited by itself since Restart. Its error is
	// ErrUnhealthy if it has exited and is not restarted, ErrStarting while it is restarted, and
	// ErrStopped while another program keeps it from running.
	Ended(ctx context.Context) (int, error)
}

// Watch restarts the kubelet if that is due. If the kubelet exits three times, or is not healthy
// within 90 seconds, Watch restores the previous files and restarts it once more. After that, it
// restores the files that the kubelet does not read. It records the configuration, so that it is not
// retried, and returns ErrRejected.
//
// If the restart cannot be requested, another program stops the kubelet, or the host is shut down
// meanwhile, the configuration is not to blame. But the kubelet must not start with it unwatched.
func Watch(ctx context.Context, tree *hostfs.Tree, kubelet Kubelet) error {
	return alone(tree, func(s *state) error {
		if !s.owed() {
			return nil
		}
		if err := s.lock(); err != nil {
			return err
		}
		started, failure := restart(ctx, kubelet)
		if failure == nil || len(s.Pending.Before) == 0 {
			return errors.Join(failure, s.restarted(started))
		}
		tried := errors.Is(failure, ErrUnhealthy) && ctx.Err() == nil
		if err := s.rollBack(tried, true); err != nil {
			return errors.Join(failure, fmt.Errorf("rolling back: %w", err))
		}
		if !tried {
			return fmt.Errorf("%w; all that the kubelet reads is put back", failure)
		}
		started, again := restart(ctx, kubelet)
		var err error
		if started {
			err = s.settle()
		}
		return errors.Join(ErrRejected, failure, again, err)
	})
}

// restarted notes that the kubelet has the current files. If it was not started, it still has the
// previous ones, and the restart is still due.
func (s *state) restarted(started bool) error {
	if !started {
		return nil
	}
	if err := s.standDown(); err != nil {
		return err
	}
	if len(s.Pending.Before) > 0 {
		s.Pending.Late = nil // the trial has succeeded
	}
	s.Pending.Restarted, s.Pending.Before, s.Pending.Entries = true, nil, nil
	return s.save()
}

// rollBack restores the previous files. If it is forced, it does so whatever the current files,
// because the kubelet does not run with them. It needs no disk space.
func (s *state) rollBack(tried, forced bool) error {
	for name := range s.Pending.Before {
		current, err := lookup(s.tree, name)
		if err != nil {
			return err
		}
		if _, is, err := s.undone(name, current, forced); err != nil {
			return err
		} else if !is {
			s.Entries[name] = s.merged(name)
			delete(s.Pending.Before, name)
			delete(s.Pending.Entries, name)
			// The kubelet may keep the trial's provider, which needs its hosts.toml.
			s.Pending.Late = nil
		}
	}
	if err := s.standBy(); err != nil { // it does already
		return err
	}
	for _, name := range s.paths() {
		if _, is := s.Pending.Before[name]; !is {
			continue
		}
		if err := s.restore(name); err != nil {
			return err
		}
	}
	after := undoState
	if tried {
		after = undoRejected
	}
	if err := s.tree.Rename(after, path.Base(stateFile)); err != nil {
		return err
	}
	now, err := readState(s.tree)
	if err != nil {
		return err
	}
	now.unlock = s.unlock
	*s = *now
	if err := s.standDown(); err != nil {
		return err
	}
	return s.sweep()
}

// restart reports whether the previous kubelet is gone, and why the new one is not healthy.
func restart(ctx context.Context, kubelet Kubelet) (started bool, err error) {
	starting, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	if err := kubelet.Restart(starting); err != nil {
		_, gone := kubelet.Ended(ctx)
		return errors.Is(gone, ErrUnhealthy), fmt.Errorf("restarting the kubelet: %w", err)
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	left, last := patience, time.Now()
	var stopped error // of the last answer of systemd; nil: it was not stopped
	for healthy := 0; ; {
		err, times, ended := look(ctx, kubelet)
		isStarting, isStopped := errors.Is(ended, ErrStarting), errors.Is(ended, ErrStopped)
		switch {
		case isStopped:
			stopped = ended
		case ended == nil || isStarting:
			stopped = nil
		}
		if err == nil && (isStarting || isStopped) {
			err = ended // a different program responds: any user of the node can listen there
		}
		if healthy++; err != nil {
			healthy = 0
		}
		switch {
		case errors.Is(ended, ErrUnhealthy):
			return true, ended
		case err != nil && (ended == nil || isStarting) && times >= hopeless:
			return true, fmt.Errorf("%w: it ended %d times: %w", ErrUnhealthy, times, err)
		case healthy == steady:
			return true, nil
		case err != nil && left <= 0 && stopped != nil:
			return true, stopped
		case err != nil && left <= 0:
			return true, fmt.Errorf("%w (after %s): %w", ErrUnhealthy, patience, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return true, errors.Join(ctx.Err(), err)
		}
		now := time.Now()
		left -= min(now.Sub(last), paused)
		last = now
	}
}

// look asks the kubelet and systemd once. Its time limit is its own: the end of patience would hide that
// another program has stopped the kubelet.
func look(ctx context.Context, kubelet Kubelet) (unhealthy error, times int, ended error) {
	ctx, cancel := context.WithTimeout(ctx, showLimit)
	defer cancel()
	unhealthy = kubelet.Healthy(ctx)
	times, ended = kubelet.Ended(ctx)
	return unhealthy, times, ended
}
