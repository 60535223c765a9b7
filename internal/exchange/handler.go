package exchange

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/redact"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/term"
)

// maxClientLength bounds what the audit log keeps of a User-Agent, in bytes.
const maxClientLength = 256

// HandlerConfig configures a Handler.
type HandlerConfig struct {
	Exchanger *Exchanger                 // required
	Recorder  Recorder                   // required
	Caller    func(*http.Request) Caller // required
	Addresses Limiter                    // of requests without a good credential; required
	Logger    *slog.Logger               // faults of ours; required
	Now       func() time.Time           // nil means time.Now
	InFlight  int                        // requests worked on at a time; required
	Waiting   int                        // requests that may wait for that; then 503
	// Before is the Handler that this one takes the place of, and with whose memory
	// it goes on; nil: none. InFlight and Waiting are then Before's, and count the
	// requests of both.
	Before *Handler
}

// Handler is the token endpoint. It is safe for concurrent use.
type Handler struct {
	exchanger *Exchanger
	recorder  Recorder
	caller    func(*http.Request) Caller
	logger    *slog.Logger
	now       func() time.Time
	attempts  *attempts
	addresses *addressLimit
	readers   *readers
	queue     *queue
}

// NewHandler returns the token endpoint.
func NewHandler(c HandlerConfig) (*Handler, error) {
	if c.Exchanger == nil || c.Recorder == nil || c.Caller == nil || c.Addresses == nil || c.Logger == nil || c.InFlight <= 0 {
		return nil, errors.New("exchange: Exchanger, Recorder, Caller, Addresses, Logger and InFlight are required")
	}
	h := &Handler{
		exchanger: c.Exchanger,
		recorder:  c.Recorder,
		caller:    c.Caller,
		logger:    c.Logger,
		now:       c.Now,
	}
	if h.now == nil {
		h.now = time.Now
	}
	if c.Before != nil {
		h.queue, h.attempts, h.readers = c.Before.queue, c.Before.attempts, c.Before.readers
		h.addresses = &addressLimit{limiter: c.Addresses, spent: c.Before.addresses.spent, now: h.now}
		return h, nil
	}
	h.queue, h.readers = newQueue(c.InFlight, c.Waiting), newReaders()
	h.attempts, h.addresses = newAttempts(), newAddressLimit(c.Addresses, h.now)
	return h, nil
}

// Load returns how many requests are worked on now, and how many wait.
func (h *Handler) Load() Load { return h.queue.load() }

// ServeHTTP answers one token request and records its event, whatever happens.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	caller := h.caller(r)
	var req registryauth.Request
	event := &Event{
		Time:   h.now(),
		ID:     rand.Text(),
		Caller: caller.String(),
		Client: term.Cut(redact.Text(r.UserAgent()), maxClientLength), // in this order: half a token would look like none
	}
	span := trace.SpanFromContext(r.Context())
	if id := span.SpanContext().TraceID(); id.IsValid() {
		event.TraceID = id.String()
	}
	answered := false
	defer func() {
		if p := recover(); p != nil {
			// The panic's value may hold anything, a token too: only its type is logged.
			h.logger.Error("panic while serving a token request", "id", event.ID, "type", fmt.Sprintf("%T", p), "stack", string(debug.Stack()))
			if !answered { // otherwise the token may be out, and the event says so
				registryauth.WriteFailure(w, "", h.failure(event, errors.New("panic"), sent(r, req)))
			}
		}
		event.Latency = h.now().Sub(event.Time).Seconds()
		event.redact(sent(r, req))
		redactSpan(span, r, sent(r, req))
		event.describe(span)
		h.recorder.Record(event)
	}()

	if r.Method != http.MethodGet && r.Method != http.MethodPost {
		w.Header().Set("Allow", "GET, POST")
		registryauth.WriteFailure(w, "", h.failure(event, errMethod, sent(r, req)))
		return
	}
	grantType := registryauth.GrantType("")
	if r.Method == http.MethodPost {
		grantType = registryauth.GrantPassword // the form of an error, until more is known
	}
	// A place is held for what is ours alone: neither while a client sends nor while
	// it reads, which may take as long as it likes.
	var err error
	if req, err = h.read(w, r, caller); err != nil {
		failure := h.failure(event, err, sent(r, req))
		h.addresses.failed(r.Context(), caller, event)
		registryauth.WriteFailure(w, grantType, failure)
		return
	}
	event.request(req)
	event.Retry = h.attempts.repeats(r.Method, caller, event, req)
	token, failure := h.answer(r, req, caller, event)
	answered = true
	if failure != nil {
		registryauth.WriteFailure(w, req.GrantType, *failure)
		return
	}
	registryauth.WriteToken(w, req.GrantType, token, h.now())
}

// read parses a request.
func (h *Handler) read(w http.ResponseWriter, r *http.Request, caller Caller) (registryauth.Request, error) {
	if r.Body == http.NoBody {
		return registryauth.ParseRequest(r)
	}
	from := Network(caller.Address)
	// Of a copy: what net/http does with a body afterwards depends on its type.
	r = r.WithContext(r.Context())
	body := &watchedBody{ReadCloser: r.Body}
	r.Body = body
	hurried := h.readers.begin(w, from)
	defer func() { h.readers.end(w, from, hurried, body.ended) }()
	return registryauth.ParseRequest(r)
}

// answer judges a request, and has what came of it counted before the client knows.
func (h *Handler) answer(r *http.Request, req registryauth.Request, caller Caller, event *Event) (registryauth.Token, *registryauth.Failure) {
	token, err := h.inTurn(r, req, caller, event)
	if err != nil {
		failure := h.failure(event, err, sent(r, req))
		h.attempts.failed(r.Method, caller, event, req)
		h.addresses.failed(r.Context(), caller, event)
		return registryauth.Token{}, &failure
	}
	event.Status = http.StatusOK
	return token, nil
}

// inTurn judges a request when there is a place. Those of an address that has spent
// its limit do not wait for one.
func (h *Handler) inTurn(r *http.Request, req registryauth.Request, caller Caller, event *Event) (registryauth.Token, error) {
	if err := h.addresses.refusal(caller, req, event, h.exchanger.remembers); err != nil {
		return registryauth.Token{}, err
	}
	if !h.queue.enter(r) {
		return registryauth.Token{}, errOverloaded
	}
	defer h.queue.leave()
	if err := h.addresses.admit(r.Context(), caller, req, event); err != nil {
		return registryauth.Token{}, err
	}
	authorization, err := h.exchanger.Authorize(r.Context(), req, caller, event)
	if err != nil {
		return registryauth.Token{}, err
	}
	return h.exchanger.Issue(r.Context(), authorization, event)
}

// errMethod is the one refusal that belongs to HTTP alone.
var errMethod = errors.New("method not allowed")

// failure notes in the event what err means, and returns it. What the client is
// told is written down at its end, so no credential is repeated there either.
func (h *Handler) failure(event *Event, err error, secrets [2]string) registryauth.Failure {
	failure := event.fail(err)
	failure.Message = redact.Message(failure.Message, secrets[:]...)
	if event.Result == ResultError {
		// What an unknown error says is not known to be fit for the caller.
		h.logger.Error("token request failed", "id", event.ID, "error", redact.Message(err.Error(), secrets[:]...))
	}
	return failure
}

// fail notes what err means, and returns what the caller is told.
func (e *Event) fail(err error) registryauth.Failure {
	failure, result, reason := classify(err, e)
	e.Status = failure.Status
	e.Result = result
	e.Reason = reason
	if e.Message == "" {
		e.Message = failure.Message
	}
	e.Granted, e.IssuedID = nil, ""
	if failure.Status == http.StatusTooManyRequests {
		e.Requested = e.Requested[:min(len(e.Requested), policy.MaxScopesTold)]
	}
	return failure
}

// classify is the only place that gives a domain error its HTTP status.
func classify(err error, event *Event) (registryauth.Failure, Result, string) {
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
		unavailable *UnavailableError
	)
	switch {
	case errors.Is(err, errMethod):
		return registryauth.Failure{
			Status: http.StatusMethodNotAllowed, Code: "UNSUPPORTED", OAuthError: "invalid_request",
			Message: "the token endpoint takes GET and POST",
		}, ResultInvalid, reasonMethod
	case errors.As(err, &request):
		return registryauth.Failure{
			Status: http.StatusBadRequest, Code: "UNSUPPORTED", OAuthError: request.Code, Message: request.Error(),
		}, ResultInvalid, reasonRequest
	case errors.As(err, &service):
		return registryauth.Failure{
			Status: http.StatusBadRequest, Code: "UNSUPPORTED", OAuthError: "invalid_request", Message: service.Error(),
		}, ResultInvalid, reasonUnknownService
	case errors.As(err, &token) && token.Reason == oidc.ReasonUnavailable:
		event.Message = token.Error() // the cause is for the operator, not for the caller
		return registryauth.Failure{
			Status: http.StatusServiceUnavailable, Code: "UNAVAILABLE", OAuthError: "temporarily_unavailable",
			Message: token.Message, RetryAfter: retryAfter,
		}, ResultUnavailable, string(token.Reason)
	case errors.As(err, &token):
		return unauthorized(token.Message, event.Service), ResultRefused, string(token.Reason)
	case errors.As(err, &anonymous):
		event.Message = anonymousCauses
		return unauthorized(anonymous.Error(), event.Service), ResultRefused, reasonAnonymous
	case errors.As(err, &gone):
		return forbidden(gone.Error()), ResultRefused, gone.Reason()
	case errors.As(err, &node):
		return forbidden(node.Error()), ResultRefused, node.Reason()
	case errors.As(err, &revoked):
		return forbidden(revoked.Error()), ResultRefused, reasonRevoked
	case errors.As(err, &replay):
		event.Message = event.Replay.Message // who came first is for the operator
		return forbidden(replay.Error()), ResultRefused, replay.Reason()
	case errors.As(err, &limit):
		return registryauth.Failure{
			Status: http.StatusTooManyRequests, Code: "TOOMANYREQUESTS", OAuthError: "temporarily_unavailable",
			Message: limit.Error(), RetryAfter: limit.Wait,
		}, ResultRefused, limit.Reason()
	case errors.As(err, &denied):
		return forbidden(denied.Error()), ResultRefused, reasonDenied
	case errors.As(err, &unavailable):
		event.Message = unavailable.Error()
		return registryauth.Failure{
			Status: http.StatusServiceUnavailable, Code: "UNAVAILABLE", OAuthError: "temporarily_unavailable",
			Message: "the token service cannot answer now; try again", RetryAfter: retryAfter,
		}, ResultUnavailable, unavailable.Reason()
	case errors.Is(err, errOverloaded):
		return registryauth.Failure{
			Status: http.StatusServiceUnavailable, Code: "UNAVAILABLE", OAuthError: "temporarily_unavailable",
			Message: "too many requests at once; try again", RetryAfter: overloadRetryAfter,
		}, ResultUnavailable, reasonOverloaded
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return registryauth.Failure{
			Status: http.StatusServiceUnavailable, Code: "UNAVAILABLE", OAuthError: "temporarily_unavailable",
			Message: "the token service did not answer in time; try again", RetryAfter: retryAfter,
		}, ResultUnavailable, reasonCanceled
	default:
		return registryauth.Failure{
			Status: http.StatusInternalServerError, Code: "UNKNOWN", OAuthError: "server_error",
			Message: "internal error; the operator finds it in the log under id " + event.ID,
		}, ResultError, reasonInternal
	}
}

// retryAfter is what a 503 asks clients to wait: about as long as a key fetch
// or a watch needs to recover by itself.
const retryAfter = 10 * time.Second

// overloadRetryAfter is shorter: a full queue is worked off in about that time.
const overloadRetryAfter = time.Second

func unauthorized(message, service string) registryauth.Failure {
	return registryauth.Failure{
		Status: http.StatusUnauthorized, Code: "UNAUTHORIZED", OAuthError: "invalid_grant",
		Message: message, BasicRealm: service,
	}
}

func forbidden(message string) registryauth.Failure {
	return registryauth.Failure{Status: http.StatusForbidden, Code: "DENIED", OAuthError: "access_denied", Message: message}
}

func (e *Event) request(req registryauth.Request) {
	e.GrantType = string(req.GrantType)
	e.ClientID = req.ClientID
	e.Account = req.Account
	e.Requested, e.Omitted = policy.ScopeStrings(req.Scopes), req.Omitted
	for _, m := range req.Malformed {
		e.Requested = append(e.Requested, m.Text)
	}
}

// decide notes a decision: what was granted, by which rules, and for what is
// missing, why.
func (e *Event) decide(d policy.Decision, granted []string) {
	if d.DeniedBy != "" {
		e.Rule = d.DeniedBy
		return
	}
	e.Granted = granted
	e.Result = ResultGranted
	var rules []string
	for _, s := range d.Scopes {
		for _, rule := range s.Rules {
			if !slices.Contains(rules, rule) {
				rules = append(rules, rule)
			}
		}
		if s.Reason != "" {
			e.notGranted(reasonNotGranted, ScopeEvent{Scope: s.Requested.String(), Granted: s.Granted, Rules: s.Rules, Reason: s.Reason, Remedy: s.Remedy})
		}
	}
	e.Rule = strings.Join(rules, ",")
}

// unread notes, after a decision, what it could not be about. That is no error: a
// scope that is not granted never is (token specification).
func (e *Event) unread(req registryauth.Request) {
	for _, m := range req.Malformed {
		e.notGranted(reasonMalformedScope, ScopeEvent{Scope: m.Text, Reason: "it is no scope: " + m.Fault.Message})
	}
	if req.Omitted > 0 {
		e.notGranted(reasonOmittedScopes)
	}
}

// notGranted notes that not all was granted, and of the first scopes, why. Of
// several reasons it keeps the first.
func (e *Event) notGranted(reason string, scopes ...ScopeEvent) {
	e.Result, e.Reason = ResultPartial, cmp.Or(e.Reason, reason)
	if len(e.Granted) == 0 {
		e.Result = ResultNone
	}
	e.Scopes = append(e.Scopes, scopes[:min(len(scopes), policy.MaxScopesTold-len(e.Scopes))]...)
}
