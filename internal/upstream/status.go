package upstream

import (
	"context"
	"errors"
	"time"
)

// Status is the state of an upstream, for readiness and metrics.
type Status struct {
	AnsweredAt    time.Time // the last time that it answered as it should; zero: never
	Failure       string    // of the last request, if it is newer; otherwise empty
	TokenRequests uint64    // since the start
	TokenFailures uint64    // of which
	Held          bool      // nobody is let through until it takes requests again
}

// Status says how it goes.
func (c *Client) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.status
	s.Held = c.held() > 0
	return s
}

// Run asks the upstream now and then, when nobody else does, until ctx ends: so its
// state is known before a pull needs it.
func (c *Client) Run(ctx context.Context) {
	defer c.transport.CloseIdleConnections()
	if c.getter != nil {
		defer c.getter.CloseIdleConnections()
	}
	defer c.storage.CloseIdleConnections()
	ticker := time.NewTicker(probeEvery)
	defer ticker.Stop()
	for {
		if c.now().Sub(c.Status().AnsweredAt) >= probeEvery && c.held() == 0 {
			c.probe(ctx)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// probe finds out whether the upstream answers, and takes the gateway's credential.
func (c *Client) probe(ctx context.Context) {
	response, err := c.Do(c.versionRequest(ctx), Need{})
	switch {
	case err == nil:
		Discard(response)
	case errors.Is(err, ErrNoCaller):
		_, _ = c.learn(ctx) // the credential is each caller's
	}
}

func (c *Client) answered() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status.AnsweredAt, c.status.Failure = c.now(), ""
}

// note remembers a failure of the upstream as a whole, and returns it. What one
// repository lacks is none.
func (c *Client) note(err error) error {
	var e *Error
	if errors.As(err, &e) && !errors.Is(err, ErrNoCaller) && e.Reason != ReasonDenied && (e.Reason != ReasonCredential || c.logins != nil) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.status.Failure = e.Error()
	}
	return err
}

func (c *Client) tokenRequested(ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status.TokenRequests++
	if !ok {
		c.status.TokenFailures++
	}
}
