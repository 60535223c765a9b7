package exchange

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// errOverloaded refuses a request that got no place in the queue, or not in time.
var errOverloaded = errors.New("too many requests at once")

// errMethod is the only refusal that concerns HTTP alone.
var errMethod = errors.New("method not allowed")

// class is a kind of refusal. It determines the whole response except the message.
type class int

const (
	classInternal class = iota // any unexpected error
	classMethod
	classMalformed
	classUnauthenticated
	classForbidden
	classTooMany
	classUnavailable
)

// classes have the registry's error codes (distribution's errcode) and those of OAuth (RFC 6749
// section 5.2).
var classes = [...]struct {
	status     int
	code       string
	oauthError string
	result     Result
}{
	classInternal:        {http.StatusInternalServerError, "UNKNOWN", "server_error", ResultError},
	classMethod:          {http.StatusMethodNotAllowed, "UNSUPPORTED", "invalid_request", ResultInvalid},
	classMalformed:       {http.StatusBadRequest, "UNSUPPORTED", "invalid_request", ResultInvalid},
	classUnauthenticated: {http.StatusUnauthorized, "UNAUTHORIZED", "invalid_grant", ResultRefused},
	classForbidden:       {http.StatusForbidden, "DENIED", "access_denied", ResultRefused},
	classTooMany:         {http.StatusTooManyRequests, "TOOMANYREQUESTS", "temporarily_unavailable", ResultRefused},
	classUnavailable:     {http.StatusServiceUnavailable, "UNAVAILABLE", "temporarily_unavailable", ResultUnavailable},
}

// provesNothing reports whether the request had no valid credential. After these statuses, 400 and
// 401, containerd repeats a POST as GET.
func (c class) provesNothing() bool { return c == classMalformed || c == classUnauthenticated }

const (
	// retryAfter is the Retry-After of a 503: about as long as a key fetch or a watch needs to
	// recover by itself.
	retryAfter = 10 * time.Second
	// overloadRetryAfter is shorter: a full queue is processed in about that time.
	overloadRetryAfter = time.Second
)

// outcome is the response to an error, and its record in the event.
type outcome struct {
	class      class
	reason     string
	message    string // for the client
	operator   string // for the event, if it may say more
	oauthError string // empty: that of the class
	retryAfter time.Duration
}

// classify returns the outcome of an error. All errors are classified here.
func classify(err error, requestID string) outcome {
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
		return outcome{class: classMethod, reason: reasonMethod, message: "the token endpoint takes GET and POST"}
	case errors.As(err, &request):
		return outcome{class: classMalformed, reason: reasonRequest, message: request.Error(), oauthError: request.Code}
	case errors.As(err, &service):
		return outcome{class: classMalformed, reason: reasonUnknownService, message: service.Error()}
	case errors.As(err, &token) && token.Reason == oidc.ReasonUnavailable:
		return outcome{class: classUnavailable, reason: string(token.Reason), message: token.Message, operator: token.Error(), retryAfter: retryAfter}
	case errors.As(err, &token):
		return outcome{class: classUnauthenticated, reason: string(token.Reason), message: token.Message}
	case errors.As(err, &anonymous):
		return outcome{class: classUnauthenticated, reason: reasonAnonymous, message: anonymous.Error(), operator: anonymousCauses}
	case errors.As(err, &gone):
		return outcome{class: classForbidden, reason: gone.Reason(), message: gone.Error()}
	case errors.As(err, &node):
		return outcome{class: classForbidden, reason: node.Reason(), message: node.Error()}
	case errors.As(err, &revoked):
		return outcome{class: classForbidden, reason: reasonRevoked, message: revoked.Error()}
	case errors.As(err, &replay):
		return outcome{class: classForbidden, reason: replay.Reason(), message: replay.Error(), operator: replay.operator}
	case errors.As(err, &limit):
		return outcome{class: classTooMany, reason: limit.Reason(), message: limit.Error(), retryAfter: limit.Wait}
	case errors.As(err, &denied):
		return outcome{class: classForbidden, reason: reasonDenied, message: denied.Error()}
	case errors.As(err, &push) && push == errPushSealed:
		return outcome{class: classUnauthenticated, reason: reasonPushCredential, message: push.Error()}
	case errors.As(err, &push):
		return outcome{class: classForbidden, reason: reasonPushCredential, message: push.Error()}
	case errors.As(err, &unavailable):
		return outcome{
			class: classUnavailable, reason: unavailable.Reason(),
			message: "the token service cannot answer now; try again", operator: unavailable.Error(), retryAfter: retryAfter,
		}
	case errors.Is(err, errOverloaded):
		return outcome{class: classUnavailable, reason: reasonOverloaded, message: "too many requests at once; try again", retryAfter: overloadRetryAfter}
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return outcome{class: classUnavailable, reason: reasonCanceled, message: "the token service did not answer in time; try again", retryAfter: retryAfter}
	default: // the text of such an error may be unfit for the client
		return outcome{class: classInternal, reason: reasonInternal, message: "internal error; the operator finds it in the log under id " + requestID}
	}
}

// failure returns the response to the client. service is the realm of a 401.
func (o outcome) failure(service string) registryauth.Failure {
	kind := classes[o.class]
	f := registryauth.Failure{Status: kind.status, Code: kind.code, OAuthError: kind.oauthError, Message: o.message, RetryAfter: o.retryAfter}
	if o.oauthError != "" {
		f.OAuthError = o.oauthError
	}
	if o.class == classUnauthenticated {
		f.BasicRealm = service
	}
	return f
}
