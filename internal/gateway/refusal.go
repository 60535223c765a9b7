package gateway

import (
	"net/http"
	"time"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/gateway/upstream"
)

// Reasons of the gateway's own refusals; those of an upstream are upstream.Reason.
const (
	reasonPath       = "path_invalid"
	reasonMethod     = "method_not_allowed"
	reasonUpstream   = "upstream_unknown"
	reasonToken      = "token_invalid"
	reasonScope      = exchange.ReasonInsufficientScope
	reasonAction     = "action_not_configured"
	reasonUpload     = "upload_unknown"
	reasonRevoked    = "revoked"
	reasonRevocation = "revocations_unavailable"
	reasonLimited    = "limited_address"
	reasonShared     = "limited_holder"
	reasonCanceled   = "request_canceled"
	reasonInternal   = "internal_error"
)

// Reasons returns all reasons of the gateway's events, for metric labels.
func Reasons() []string {
	all := []string{
		reasonPath, reasonMethod, reasonUpstream, reasonToken, reasonScope, reasonAction, reasonUpload, reasonRevoked, reasonRevocation,
		reasonLimited, reasonShared, reasonCanceled, reasonInternal,
	}
	for _, reason := range upstream.Reasons() {
		all = append(all, string(reason))
	}
	return all
}

// class is a kind of refusal. It determines the status and the result of the event.
type class int

const (
	classInternal class = iota
	classInvalid
	classMethod
	classNotFound
	classTooLong
	classUnauthenticated
	classForbidden
	classTooMany
	classUnavailable // a dependency of the gateway itself is down
	classBadGateway
	classGatewayTimeout
	classCanceled // the client hung up or stalled
)

// statusCanceled is the status that servers log for a client that hung up (nginx's number; it is in
// no RFC).
const statusCanceled = 499

var classes = [...]struct {
	status int
	result exchange.Result
}{
	classInternal:        {http.StatusInternalServerError, exchange.ResultError},
	classInvalid:         {http.StatusBadRequest, exchange.ResultInvalid},
	classMethod:          {http.StatusMethodNotAllowed, exchange.ResultInvalid},
	classNotFound:        {http.StatusNotFound, exchange.ResultInvalid},
	classTooLong:         {http.StatusRequestURITooLong, exchange.ResultInvalid},
	classUnauthenticated: {http.StatusUnauthorized, exchange.ResultRefused},
	classForbidden:       {http.StatusForbidden, exchange.ResultRefused},
	classTooMany:         {http.StatusTooManyRequests, exchange.ResultUnavailable},
	classUnavailable:     {http.StatusServiceUnavailable, exchange.ResultUnavailable},
	classBadGateway:      {http.StatusBadGateway, exchange.ResultUnavailable},
	classGatewayTimeout:  {http.StatusGatewayTimeout, exchange.ResultUnavailable},
	classCanceled:        {statusCanceled, exchange.ResultGranted}, // the client wanted no more of it
}

// refusal is a response that does not come from the upstream.
type refusal struct {
	class      class
	code       string // of the registry's errors (distribution's errcode)
	reason     string
	message    string
	operator   string // for the event, if it may say more
	challenge  string // the error of a Bearer challenge (RFC 6750 section 3.1); "-": a challenge without error
	retryAfter time.Duration
	revocation *exchange.Revocation // nil: not revoked
	err        error
}

func (r *refusal) Error() string { return r.message }

func (r *refusal) Unwrap() error { return r.err }

func refuse(c class, code, reason, message string) *refusal {
	return &refusal{class: c, code: code, reason: reason, message: message}
}

// ofUpstream returns the refusal for the failure of an upstream. It never says that a resource does
// not exist, and never quotes the upstream.
func ofUpstream(e *upstream.Error) *refusal {
	r := &refusal{class: classBadGateway, code: "UNAVAILABLE", reason: string(e.Reason), message: e.Upstream + ": " + e.Message, operator: e.Error(), err: e}
	switch e.Reason {
	case upstream.ReasonTimeout:
		r.class = classGatewayTimeout
	case upstream.ReasonLimited:
		r.class, r.code, r.retryAfter = classTooMany, "TOOMANYREQUESTS", max(e.RetryAfter, time.Second)
	case upstream.ReasonFailing:
		switch e.Status {
		case http.StatusServiceUnavailable:
			r.class, r.retryAfter = classUnavailable, e.RetryAfter
		case http.StatusGatewayTimeout:
			r.class = classGatewayTimeout
		}
	}
	return r
}
