package gateway

import (
	"net/http"
	"time"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/upstream"
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
	reasonCanceled   = "request_canceled"
	reasonInternal   = "internal_error"
)

// Reasons returns all that an event of the gateway may have, for metric labels.
func Reasons() []string {
	all := []string{
		reasonPath, reasonMethod, reasonUpstream, reasonToken, reasonScope, reasonAction, reasonUpload, reasonRevoked, reasonRevocation,
		reasonLimited, reasonCanceled, reasonInternal,
	}
	for _, reason := range upstream.Reasons() {
		all = append(all, string(reason))
	}
	return all
}

// class is a kind of refusal. It decides the status, and what the event calls it.
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
	classUnavailable // of what the gateway itself needs
	classBadGateway
	classGatewayTimeout
	classCanceled // of a client that hung up, or stood still
)

// statusCanceled is what servers log who have no client to answer (nginx's number; no
// RFC has one).
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
	classCanceled:        {statusCanceled, exchange.ResultGranted}, // so much of it as the client wanted
}

// refusal is an answer that is not the upstream's.
type refusal struct {
	class      class
	code       string // of the registry's errors (distribution's errcode)
	reason     string
	message    string
	operator   string // for the event, where that may say more
	challenge  string // the error of a Bearer challenge (RFC 6750 section 3.1); "-": one without
	retryAfter time.Duration
	err        error
}

func (r *refusal) Error() string { return r.message }

func (r *refusal) Unwrap() error { return r.err }

func refuse(c class, code, reason, message string) *refusal {
	return &refusal{class: c, code: code, reason: reason, message: message}
}

// ofUpstream says what the failure of an upstream means to the client: never that
// something is not there, and nothing of what the upstream said.
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
