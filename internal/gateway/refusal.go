package gateway

import (
	"net/http"
	"time"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/gateway/upstream"
	"github.com/pullpass/pullpass/internal/refusal"
)

// Classes returns the classes that a reason may have at the gateway, the usual one first.
func Classes(r refusal.Reason) []refusal.Class {
	switch r {
	case refusal.RequestCanceled:
		return []refusal.Class{refusal.Canceled, refusal.Stalled} // at the token endpoint: unavailable
	case refusal.PathInvalid:
		return []refusal.Class{r.Class(), refusal.NotFound, refusal.TooLong}
	case refusal.UpstreamFailing:
		return []refusal.Class{r.Class(), refusal.Unavailable, refusal.GatewayTimeout}
	case refusal.InternalError:
		return []refusal.Class{r.Class(), refusal.Unavailable}
	}
	return []refusal.Class{r.Class()}
}

// ResultOf returns the result of a class at the gateway.
func ResultOf(c refusal.Class) exchange.Result {
	if c == refusal.Limited {
		return exchange.ResultUnavailable // at the token endpoint: refused
	}
	return exchange.ResultOf(c)
}

// rejection is a response that does not come from the upstream.
type rejection struct {
	reason     refusal.Reason
	class      refusal.Class // one of Classes; empty: the first
	code       string        // of the registry's errors (distribution's errcode)
	message    string
	operator   string // for the event, if it may say more
	challenge  string // the error of a Bearer challenge (RFC 6750 section 3.1); "-": a challenge without error
	retryAfter time.Duration
	revocation *exchange.Revocation // nil: not revoked
	err        error
}

func (r *rejection) Error() string { return r.message }

func (r *rejection) Unwrap() error { return r.err }

func refuse(reason refusal.Reason, code, message string) *rejection {
	return &rejection{reason: reason, code: code, message: message}
}

// refuseAs refuses with another of the Classes of a reason.
func refuseAs(class refusal.Class, reason refusal.Reason, code, message string) *rejection {
	return &rejection{reason: reason, class: class, code: code, message: message}
}

// ofUpstream returns the refusal for the failure of an upstream. It never says that a resource does
// not exist, and never quotes the upstream.
func ofUpstream(e *upstream.Error) *rejection {
	r := &rejection{reason: e.Reason, code: "UNAVAILABLE", message: e.Upstream + ": " + e.Message, operator: e.Error(), err: e}
	switch {
	case e.Reason == refusal.UpstreamLimited:
		r.code, r.retryAfter = "TOOMANYREQUESTS", max(e.RetryAfter, time.Second)
	case e.Reason == refusal.UpstreamFailing && e.Status == http.StatusServiceUnavailable:
		r.class, r.retryAfter = refusal.Unavailable, e.RetryAfter
	case e.Reason == refusal.UpstreamFailing && e.Status == http.StatusGatewayTimeout:
		r.class = refusal.GatewayTimeout
	}
	return r
}
