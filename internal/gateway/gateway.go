package gateway

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/pullpass/pullpass/internal/base/lru"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
	"github.com/pullpass/pullpass/internal/gateway/upstream"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/oidc/identity"
	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/registryauth/seal"
	"github.com/pullpass/pullpass/internal/registryauth/signing"
)

// Config configures a Handler. Every field except Now is required.
type Config struct {
	URL         string       // URL of the gateway for clients; its token endpoint is below it
	Issuer      string       // iss of its tokens
	Service     string       // aud of its tokens
	Keys        signing.Keys // of its tokens
	Upstreams   map[string]Upstream
	Revocations exchange.Revocations
	Addresses   *exchange.AddressLimit // of requests without a valid token
	Recorder    exchange.Recorder
	Caller      func(*http.Request) nodeproof.Caller
	Logger      *slog.Logger
	Memory      *Memory
	Now         func() time.Time // nil means time.Now
}

// Upstream is a registry behind the gateway.
type Upstream struct {
	Client  *upstream.Client
	Actions []string // the actions that are allowed there
	Follow  bool     // the gateway follows its redirects instead of the clients
}

// Memory holds the state that successive Handlers share.
type Memory struct {
	judged     *lru.Cache[[32]byte, *judgedToken]
	trust      *latestTrust
	sealed     *seal.Box
	shares     *shares
	streams    atomic.Int64
	challenges atomic.Uint64
}

// NewMemory returns an empty Memory for the given number of client connections.
func NewMemory(connections int) *Memory {
	return &Memory{judged: newJudged(), trust: &latestTrust{}, sealed: seal.NewBox(sealPurpose), shares: newShares(connections)}
}

// Load describes the current load.
type Load struct {
	Streams    int64  // requests in progress
	Challenges uint64 // requests without a token since the start; every pull begins with one
}

// Load returns the current load.
func (m *Memory) Load() Load { return Load{m.streams.Load(), m.challenges.Load()} }

// Handler serves all paths below /v2/. It is safe for concurrent use.
type Handler struct {
	Config
	names Names
	judge *judge
}

// New returns a Handler.
func New(c Config) (*Handler, error) {
	if c.URL == "" || c.Service == "" || c.Issuer == "" || c.Keys == nil || len(c.Upstreams) == 0 || c.Revocations == nil || c.Addresses == nil ||
		c.Recorder == nil || c.Caller == nil || c.Logger == nil || c.Memory == nil {
		return nil, errors.New("gateway: every field but Now is required")
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	h := &Handler{Config: c, judge: &judge{issuer: c.Issuer, service: c.Service, keys: c.Keys, now: c.Now, judged: c.Memory.judged, latest: c.Memory.trust}}
	for name := range c.Upstreams {
		h.names = append(h.names, name)
	}
	return h, nil
}

// request is one request in progress.
type request struct {
	http     *http.Request
	w        http.ResponseWriter
	body     *clientBody
	caller   nodeproof.Caller
	event    *exchange.Event
	target   target
	query    query
	bearer   *bearer
	upstream Upstream
	tenant   string // the tenant whose share of the places the request uses
	answered bool   // a status was sent
	broken   bool   // the body after the status is incomplete
	silent   bool   // it gets no event
}

// ServeHTTP answers one request and records its event, whatever happens.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.Memory.streams.Add(1)
	defer h.Memory.streams.Add(-1)
	q := h.begin(w, r)
	defer h.finish(q)
	if err := h.serve(q); err != nil {
		h.refuse(q, err)
	}
}

// serve runs the steps of a request. Errors are *rejection, those of an upstream.Client, or
// errClient.
func (h *Handler) serve(q *request) error {
	if err := h.parse(q); err != nil {
		return h.limited(q, err)
	}
	if err := h.authenticate(q); err != nil {
		return err
	}
	if err := h.revoked(q); err != nil {
		return err
	}
	if err := h.authorize(q); err != nil {
		return err
	}
	if q.target.kind == kindVersion {
		return h.answerVersion(q)
	}
	st, err := h.admit(q)
	if err != nil {
		return err
	}
	err = h.forward(q, st.cancel)
	if cause := st.leave(q); err != nil && cause != nil {
		err = cause
	}
	return err
}

func (h *Handler) begin(w http.ResponseWriter, r *http.Request) *request {
	caller := h.Caller(r)
	return &request{http: r, w: w, body: newClientBody(w, r), caller: caller, event: h.newEvent(r, caller)}
}

func (h *Handler) parse(q *request) error {
	var err error
	if q.target, err = parseTarget(q.http.Method, q.http.Host, q.http.URL, h.names); err != nil {
		return err
	}
	g := q.event.Gateway
	if g.Kind = string(q.target.kind); q.target.kind != kindVersion {
		q.upstream = h.Upstreams[q.target.upstream]
		g.Upstream, g.Repository = q.target.upstream, q.target.name
		q.event.Requested = []string{q.scope()}
		if q.target.kind != kindUpload {
			g.Reference = q.target.reference
		}
	}
	if q.query, err = parseQuery(q.http.URL); err != nil {
		return err
	}
	if q.target.action != actionPush || !isDigest(q.target.reference) { // no upload has a digest for its address
		q.query.tags = nil // distribution specification, end-7b: only the push of a manifest by digest has tags
	}
	g.Tags = q.query.tags
	return nil
}

// authenticate identifies the holder of the token. An invalid token takes one from the limit of its
// address. When the limit is spent, only tokens that are already known are accepted.
func (h *Handler) authenticate(q *request) error {
	credential, err := credentialOf(q.http.Header)
	if err == nil && credential.IsZero() {
		h.Memory.challenges.Add(1)
		q.silent = true // every pull begins with such a request
		return &rejection{reason: refusal.TokenInvalid, code: "UNAUTHORIZED", message: "a token is needed; ask the gateway's token endpoint for one", challenge: "-"}
	}
	b, known := h.judge.known(credential)
	if !known {
		from := exchange.Network(q.caller.Address)
		if wait := h.Addresses.Wait(from); wait > 0 {
			return tooMany(wait)
		}
		if err == nil {
			b, err = h.judge.verify(credential)
		}
		if err != nil {
			h.Addresses.Take(q.http.Context(), from)
			return err
		}
	}
	q.bearer = b
	q.event.Gateway.TokenID = b.tokenID
	if b.holder != nil {
		holds(q.event, b)
	}
	return nil
}

// limited returns the refusal of a request that could not be read. Like an invalid token, such a
// request takes one from the limit of its address, because each is a line in the audit log. It is
// free for a caller with a valid token.
func (h *Handler) limited(q *request, unread error) error {
	if credential, _ := credentialOf(q.http.Header); !credential.IsZero() { // with an error, none
		var refused *rejection
		if errors.As(h.authenticate(q), &refused) && refused.reason == refusal.LimitedAddress {
			return refused
		}
		return unread
	}
	from := exchange.Network(q.caller.Address)
	if wait := h.Addresses.Wait(from); wait > 0 {
		return tooMany(wait)
	}
	h.Addresses.Take(q.http.Context(), from)
	return unread
}

func tooMany(wait time.Duration) *rejection {
	return &rejection{reason: refusal.LimitedAddress, code: "TOOMANYREQUESTS", retryAfter: wait,
		message: "too many requests without a good credential from this address (limits.perAddress); try again later"}
}

// revoked refuses a holder that an operator has revoked since the token was issued.
func (h *Handler) revoked(q *request) error {
	revocation, err := h.revocationOf(q.bearer)
	if err != nil {
		return &rejection{reason: refusal.RevocationsUnavailable, code: "UNAVAILABLE", message: "it is not known who is revoked; try again", operator: err.Error(), retryAfter: 10 * time.Second, err: err}
	}
	if revocation != nil {
		return revokedBy(revocation)
	}
	return nil
}

// revocationOf returns the revocation of a bearer, or nil.
func (h *Handler) revocationOf(b *bearer) (*exchange.Revocation, error) {
	for _, id := range b.revocable {
		if revocation, err := h.Revocations.Revoked(id); revocation != nil || err != nil {
			return revocation, err
		}
	}
	return nil, nil
}

func revokedBy(revocation *exchange.Revocation) *rejection {
	r := refuse(refusal.Revoked, "DENIED", fmt.Sprintf("revoked by an operator: %q", revocation.Reason))
	r.revocation = revocation
	return r
}

// revocable returns what ends a token, in the form that revocations match: the token itself, its
// holder, and the credential that the token was issued for.
func revocable(tokenID, subject string, p *registryauth.Holder) []*oidc.Identity {
	all := []*oidc.Identity{{TokenID: tokenID}}
	if p != nil {
		all = append(all, identityOf(subject, p))
		if p.PushCredential != "" {
			all = append(all, &oidc.Identity{TokenID: p.PushCredential})
		}
	}
	return all
}

// identityOf returns the holder of a token.
func identityOf(subject string, p *registryauth.Holder) *oidc.Identity {
	if p.Identity != "" {
		return &oidc.Identity{Subject: subject, TokenID: p.TokenID, External: &identity.External{Provider: p.Identity, Project: p.Project, Run: p.Run}}
	}
	return &oidc.Identity{Cluster: p.Cluster, Subject: subject, TokenID: p.TokenID, Kubernetes: oidc.KubernetesIdentity{
		Namespace:      p.Namespace,
		ServiceAccount: oidc.ObjectRef{Name: p.ServiceAccount, UID: p.ServiceAccountUID},
		Pod:            oidc.ObjectRef{Name: p.Pod, UID: p.PodUID},
		Node:           oidc.ObjectRef{Name: p.Node, UID: p.NodeUID},
	}}
}

// account returns the ServiceAccount that a token was issued to, for upstreams that are asked as
// the caller; empty: the token is anonymous, or of an identity that is not a ServiceAccount. The
// subject of a CI job is not used: it could look like a ServiceAccount, and it contains names that
// can change owners.
func (b *bearer) account() string {
	if b.holder == nil || b.holder.Identity != "" {
		return ""
	}
	return b.holder.Cluster + "/" + b.holder.Namespace + "/" + b.holder.ServiceAccount
}

// identityText returns the holder of a token as sealed addresses are bound to it; empty: the token
// is anonymous.
func (b *bearer) identityText() string {
	if b.holder != nil && b.holder.Identity != "" {
		return b.subject // with the identity's name in front
	}
	return b.account()
}

// authorize checks that the token allows the request. As in distribution, a push also requires
// pull.
func (h *Handler) authorize(q *request) error {
	t := &q.target
	if t.kind == kindVersion {
		return nil
	}
	for _, action := range actionsFor(t.action) {
		if !q.bearer.may(t.name, action) {
			return &rejection{reason: refusal.InsufficientScope, code: "DENIED", challenge: "insufficient_scope",
				message: "the token does not allow to " + t.action + " " + t.name}
		}
	}
	if !slices.Contains(q.upstream.Actions, t.action) {
		return refuse(refusal.ActionNotConfigured, "DENIED", "the gateway does not let anybody "+t.action+" at "+t.upstream+" (upstreams[].actions)")
	}
	return nil
}

func actionsFor(action string) []string {
	if action == actionPush {
		return []string{actionPull, actionPush}
	}
	return []string{action}
}

// refuse responds to an error, if no response was sent yet. Otherwise it ends the connection, so
// that the client does not take a partial body for a complete one.
func (h *Handler) refuse(q *request, err error) {
	r := h.classify(q, err)
	class := cmp.Or(r.class, Classes(r.reason)[0])
	q.event.Result, q.event.Reason, q.event.Message, q.event.Revocation = ResultOf(class), string(r.reason), r.message, r.revocation
	if r.operator != "" {
		q.event.Message = r.operator
	}
	if q.answered { // the event keeps the status that was sent; flush it so that the client gets it
		client := http.NewResponseController(q.w)
		// The deadline of the last write may be over. After a late write, TLS has a gap in its records.
		_ = client.SetWriteDeadline(time.Now().Add(endWithin))
		_ = client.Flush()
		q.broken = true
		return
	}
	if q.event.Status = class.Status(); class == refusal.Canceled { // the status is for the log alone
		q.broken = true
		return
	}
	q.answered = true
	q.prepare()
	if r.challenge != "" {
		q.w.Header().Set("WWW-Authenticate", h.challenge(q, r.challenge))
	}
	q.w.Header().Set(apiVersionHeader, apiVersion)
	registryauth.WriteFailure(q.w, "", registryauth.Failure{Status: class.Status(), Code: r.code, Message: r.message, RetryAfter: r.retryAfter})
}

// classify returns the refusal for an error. All errors are classified here.
func (h *Handler) classify(q *request, err error) *rejection {
	var refused *rejection
	var failed *upstream.Error
	if errors.As(err, &failed) {
		q.event.Gateway.UpstreamStatus = failed.Status // also if the client is gone
	}
	switch {
	case errors.As(err, &refused):
		return refused
	case q.body.stalled():
		return refuseAs(refusal.Stalled, refusal.RequestCanceled, "UNKNOWN", "the client sent nothing more of its body for two minutes")
	case errors.Is(err, upstream.ErrBody):
		return refuse(refusal.RequestCanceled, "UNKNOWN", "the client did not send the whole body")
	// Before the upstream's failures: once the client is gone, they are only a consequence.
	case errors.Is(err, errClient), q.http.Context().Err() != nil:
		return refuse(refusal.RequestCanceled, "UNKNOWN", "the client did not take the whole answer")
	case failed != nil:
		return ofUpstream(failed)
	}
	h.Logger.Error("gateway request failed", "id", q.event.ID, "error", err)
	return internalError(q)
}

// challenge returns the challenge that leads a client to the token that it needs (distribution's
// token specification; RFC 6750 section 3).
func (h *Handler) challenge(q *request, fault string) string {
	var b strings.Builder
	url, prefix := h.URL, q.target.upstream+"/"
	if h.names.at(q.http.Host) != "" { // its token endpoint takes names as its other paths do
		scheme, _, _ := strings.Cut(h.URL, "://")
		url, prefix = scheme+"://"+q.http.Host, ""
	}
	fmt.Fprintf(&b, `Bearer realm="%s/token",service="%s"`, url, h.Service)
	if q.target.kind != kindVersion {
		scopes := scope(q.target.asked, actionsFor(q.target.action))
		if from := h.mountedFrom(q); from != "" { // as in distribution: clients ask for the scopes in the challenge
			scopes += " " + scope(prefix+from, []string{actionPull})
		}
		fmt.Fprintf(&b, `,scope="%s"`, scopes)
	}
	if fault != "-" {
		fmt.Fprintf(&b, `,error="%s"`, fault)
	}
	return b.String()
}

// begin sends the status of a request that was forwarded. The headers are already set.
func (q *request) begin(status int) {
	q.event.Status, q.event.Result, q.answered = status, exchange.ResultGranted, true
	q.prepare()
	q.w.WriteHeader(status)
}

// prepare bounds the time in which the client must read the response. Before that there is no bound,
// because a pushed body may take hours. If the body has not arrived in full, the response is the last
// one on its connection. The rest of the body must not be read as a request (RFC 9112, section 9.3),
// and net/http would wait for it without a bound.
func (q *request) prepare() {
	if !q.body.ended.Load() {
		q.w.Header().Set("Connection", "close")
	}
	_ = http.NewResponseController(q.w).SetWriteDeadline(time.Now().Add(stallTimeout))
}

// scope returns the scope that a token must have for the request.
func (q *request) scope() string {
	return scope(q.target.name, actionsFor(q.target.action))
}

func scope(repository string, actions []string) string {
	return registryauth.Scope{Type: "repository", Name: repository, Actions: actions}.String()
}

// finish records the event. It must be deferred directly because it recovers from panics.
func (h *Handler) finish(q *request) {
	if p := recover(); p != nil {
		// The panic's value may hold anything, including a token, so only its type is logged.
		h.Logger.Error("panic while serving a gateway request", "id", q.event.ID, "type", fmt.Sprintf("%T", p), "stack", string(debug.Stack()))
		q.silent = false
		h.refuse(q, internalError(q))
	}
	if !q.silent || trace.SpanFromContext(q.http.Context()).IsRecording() { // a silent request has a span, too
		conceal(q.event, q.http)
	}
	if !q.silent {
		q.event.Latency = h.Now().Sub(q.event.Time).Seconds()
		h.Recorder.Record(q.event)
	}
	if q.broken {
		panic(http.ErrAbortHandler) // net/http ends the connection
	}
}

func internalError(q *request) *rejection {
	return refuse(refusal.InternalError, "UNKNOWN", "internal error; the operator finds it in the log under id "+q.event.ID)
}
