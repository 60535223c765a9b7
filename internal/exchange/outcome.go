package exchange

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// errOverloaded refuses a request that got no place in the queue, or not in time.
var errOverloaded = errors.New("too many requests at once")

// errMethod is the only refusal that concerns HTTP alone.
var errMethod = errors.New("method not allowed")

// results has the result of each class. The gateway has a different one for refusal.Limited.
var results = map[refusal.Class]Result{
	refusal.Narrowed:        ResultPartial,
	refusal.Malformed:       ResultInvalid,
	refusal.Method:          ResultInvalid,
	refusal.NotFound:        ResultInvalid,
	refusal.TooLong:         ResultInvalid,
	refusal.Unauthenticated: ResultRefused,
	refusal.Forbidden:       ResultRefused,
	refusal.Limited:         ResultRefused,
	refusal.Canceled:        ResultGranted, // the client wanted no more of it
	refusal.Stalled:         ResultGranted,
	refusal.Unavailable:     ResultUnavailable,
	refusal.BadGateway:      ResultUnavailable,
	refusal.GatewayTimeout:  ResultUnavailable,
	refusal.Internal:        ResultError,
}

// ResultOf returns the result of a refusal by the token endpoint.
func ResultOf(c refusal.Class) Result { return results[c] }

// Classes returns the classes that a reason may have at the token endpoint, the usual one first.
func Classes(r refusal.Reason) []refusal.Class {
	if r == refusal.PushCredential {
		return []refusal.Class{r.Class(), refusal.Unauthenticated}
	}
	return []refusal.Class{r.Class()}
}

// errorCodes has, for each class at the token endpoint, the registry's error code (distribution's
// errcode) and that of OAuth (RFC 6749 section 5.2).
var errorCodes = map[refusal.Class]struct{ registry, oauth string }{
	refusal.Malformed:       {"UNSUPPORTED", "invalid_request"},
	refusal.Method:          {"UNSUPPORTED", "invalid_request"},
	refusal.Unauthenticated: {"UNAUTHORIZED", "invalid_grant"},
	refusal.Forbidden:       {"DENIED", "access_denied"},
	refusal.Limited:         {"TOOMANYREQUESTS", "temporarily_unavailable"},
	refusal.Unavailable:     {"UNAVAILABLE", "temporarily_unavailable"},
	refusal.Internal:        {"UNKNOWN", "server_error"},
}

// provesNothing reports whether the request had no valid credential. After these statuses, 400 and
// 401, containerd repeats a POST as GET.
func provesNothing(c refusal.Class) bool {
	return c == refusal.Malformed || c == refusal.Unauthenticated
}

const (
	// retryAfter is the Retry-After of a 503: about as long as a key fetch or a watch needs to
	// recover by itself.
	retryAfter = 10 * time.Second
	// overloadRetryAfter is shorter: a full queue is processed in about that time.
	overloadRetryAfter = time.Second
)

// outcome is the response to an error, and its record in the event.
type outcome struct {
	reason     refusal.Reason
	class      refusal.Class // one of Classes; empty: the first
	message    string        // for the client
	operator   string        // for the event, if it may say more
	oauthError string        // empty: that of the class
	retryAfter time.Duration
}

// classify returns the outcome of an error. All errors are classified here.
func classify(err error, requestID string) outcome {
	o := outcomeOf(err, requestID)
	o.class = cmp.Or(o.class, Classes(o.reason)[0])
	return o
}

func outcomeOf(err error, requestID string) outcome {
	var (
		request     *registryauth.RequestError
		service     *UnknownServiceError
		token       *oidc.Error
		anonymous   *AnonymousError
		gone        *GoneError
		node        *NodeError
		revoked     *RevokedError
		replay      *ReplayError
		limit       *LimitError
		denied      *DeniedError
		push        *PushCredentialError
		unavailable *UnavailableError
	)
	switch {
	case errors.Is(err, errMethod):
		return outcome{reason: refusal.MethodNotAllowed, message: "the token endpoint takes GET and POST"}
	case errors.As(err, &request):
		return outcome{reason: refusal.RequestMalformed, message: request.Error(), oauthError: request.Code}
	case errors.As(err, &service):
		return outcome{reason: refusal.ServiceUnknown, message: service.Error()}
	case errors.As(err, &token) && token.Reason == refusal.IssuerUnavailable:
		return outcome{reason: token.Reason, message: token.Message, operator: token.Error(), retryAfter: retryAfter}
	case errors.As(err, &token):
		return outcome{reason: token.Reason, message: token.Message}
	case errors.As(err, &anonymous):
		return outcome{reason: refusal.Anonymous, message: anonymous.Error(), operator: anonymousCauses}
	case errors.As(err, &gone):
		return outcome{reason: gone.Reason(), message: gone.Error()}
	case errors.As(err, &node):
		return outcome{reason: node.Reason(), message: node.Error()}
	case errors.As(err, &revoked):
		return outcome{reason: refusal.Revoked, message: revoked.Error()}
	case errors.As(err, &replay):
		return outcome{reason: replay.Reason(), message: replay.Error(), operator: replay.operator}
	case errors.As(err, &limit):
		return outcome{reason: limit.Reason(), message: limit.Error(), retryAfter: limit.Wait}
	case errors.As(err, &denied):
		return outcome{reason: refusal.SubjectDenied, message: denied.Error()}
	case errors.As(err, &push) && push == errPushSealed:
		return outcome{reason: refusal.PushCredential, class: refusal.Unauthenticated, message: push.Error()}
	case errors.As(err, &push):
		return outcome{reason: refusal.PushCredential, message: push.Error()}
	case errors.As(err, &unavailable):
		return outcome{
			reason:  unavailable.Reason(),
			message: "the token service cannot answer now; try again", operator: unavailable.Error(), retryAfter: retryAfter,
		}
	case errors.Is(err, errOverloaded):
		return outcome{reason: refusal.Overloaded, message: "too many requests at once; try again", retryAfter: overloadRetryAfter}
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return outcome{reason: refusal.RequestCanceled, message: "the token service did not answer in time; try again", retryAfter: retryAfter}
	default: // the text of such an error may be unfit for the client
		return outcome{reason: refusal.InternalError, message: "internal error; the operator finds it in the log under id " + requestID}
	}
}

// failure returns the response to the client. service is the realm of a 401.
func (o outcome) failure(service string) registryauth.Failure {
	code := errorCodes[o.class]
	f := registryauth.Failure{Status: o.class.Status(), Code: code.registry, OAuthError: cmp.Or(o.oauthError, code.oauth), Message: o.message, RetryAfter: o.retryAfter}
	if o.class == refusal.Unauthenticated {
		f.BasicRealm = service
	}
	return f
}
