package upstream

import (
	"context"
	"errors"
	"time"

	"github.com/pullpass/pullpass/internal/refusal"
)

// probeAgain is the shortest time between two probes, when requests give a reason for one.
const probeAgain = refusedFor

// Status is the state of an upstream, for readiness and metrics: its response to GET /v2/. No
// request of a client changes it.
type Status struct {
	AnsweredAt    time.Time // the last good response; zero: never
	Failure       string    // of the last probe, if it is newer than AnsweredAt; otherwise empty
	TokenRequests uint64    // since the start
	TokenFailures uint64    // of TokenRequests
	Held          bool      // all requests are refused until the upstream accepts requests again
}

// Status returns the current state.
func (c *Client) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.status
	s.Held = c.held() > 0
	return s
}

// Run checks the upstream regularly until ctx ends, and soon after a request has failed. Its state
// is therefore known before a pull needs it, and no request for one repository decides about all.
func (c *Client) Run(ctx context.Context) {
	defer c.wire.CloseIdleConnections()
	defer c.storage.CloseIdleConnections()
	ticker := time.NewTicker(probeEvery)
	defer ticker.Stop()
	for {
		if c.held() == 0 {
			c.probe(ctx)
		}
		soon := time.NewTimer(probeAgain)
		select {
		case <-ctx.Done():
		case <-soon.C:
		}
		soon.Stop()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-c.doubts:
		}
	}
}

// doubt makes Run check the upstream soon.
func (c *Client) doubt() {
	select {
	case c.doubts <- struct{}{}:
	default: // a check is already pending
	}
}

// probe checks that the upstream responds and accepts the gateway's credential.
func (c *Client) probe(ctx context.Context) {
	wants, err := c.learn(ctx)
	if err != nil {
		return // already noted
	}
	var found *Error
	switch {
	case wants.scheme == schemeNone:
	case !c.canMeet(wants):
		found = c.refused(wants, credential{})
	case c.logins == nil:
		if found = c.tryLogin(ctx, nil); found != nil && found.Reason == refusal.UpstreamCredential {
			found = nil // anonymous requests are for single repositories there
		}
	default:
		found = c.probeLogin(ctx)
	}
	if ctx.Err() != nil {
		return
	}
	if found != nil && found.Reason == refusal.UpstreamDenied {
		found = nil // the token without a scope need not be valid for GET /v2/
	}
	if found != nil && found.Reason == refusal.UpstreamLimited {
		c.holdAll(found)
	}
	c.noted(found)
}

// probeLogin checks the gateway's own login, if it has one. When ctx has ended, its result means nothing.
func (c *Client) probeLogin(ctx context.Context) *Error {
	login, err := c.logins.Login(ctx, "")
	switch {
	case errors.Is(err, ErrNoCaller):
		return nil // each caller has its own credential
	case err != nil:
		return c.asError(c.noLogin(ctx, err))
	}
	found, _ := c.verdictOn(ctx, &login, loginHash(&login))
	return found.failure
}

// noted records the outcome of GET /v2/; nil: success.
func (c *Client) noted(e *Error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e == nil {
		c.status.AnsweredAt, c.status.Failure = c.now(), ""
		return
	}
	c.status.Failure = e.Error()
}

func (c *Client) isFailing() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status.Failure != ""
}

func (c *Client) tokenRequested(ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status.TokenRequests++
	if !ok {
		c.status.TokenFailures++
	}
}
