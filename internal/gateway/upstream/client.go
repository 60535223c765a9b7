package upstream

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pullpass/pullpass/internal/base/file"
	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/registryauth"
)

const (
	maxCABytes   = 1 << 20
	answerWithin = 30 * time.Second // for a response to GET or HEAD, or from a redirect target
	pushedWithin = 5 * time.Minute  // a registry reads a whole layer again before it responds
	probeEvery   = time.Minute
	// continueWithin is how long a body waits for 100 Continue. Some servers never send it:
	// distribution waits for the body even if it is going to reject the request.
	continueWithin = time.Second

	// An upstream that responds with 429 is not asked again for as long as it says, within these
	// bounds. Otherwise containerd would repeat the request at once, up to five times.
	shortestHold = time.Second
	longestHold  = time.Minute

	// maxChainBytes bounds the certificates of a server: usual chains have 4 KiB, and those with
	// hundreds of names 10.
	maxChainBytes = 16 << 10

	// maxIdle is the number of connections that stay open. A few nodes that pull an image with many
	// layers begin about this number of streams at once.
	maxIdle = 64
)

// Config configures a Client.
type Config struct {
	Name          string   // of the upstream, for people
	URL           string   // https://host[:port]
	CAFile        string   // PEM; empty: the system's
	Logins        Logins   // nil: the upstream is asked anonymously
	RedirectHosts []string // that a redirect may name; empty: every public one
	UserAgent     string
	Now           func() time.Time // nil means time.Now
	// Dial connects to the upstream itself; nil: that of net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Client sends requests to one upstream. It is safe for concurrent use.
type Client struct {
	name          string
	base          *url.URL
	logins        Logins
	redirectHosts []string
	userAgent     string
	now           func() time.Time

	wire      *wire    // to the upstream alone
	storage   *guarded // to the targets of its redirects
	tokens    *tokens
	lessons   lessons
	verdicts  verdicts
	learning  flights[struct{}, learned]
	wants     atomic.Pointer[learned] // from GET /v2/; nil: not asked yet
	heldUntil atomic.Int64            // nanoseconds since 1970
	patience  time.Duration           // answerWithin, except in tests
	doubts    chan struct{}           // holds one element if Run is to check the upstream

	mu     sync.Mutex
	status Status
}

// Need describes the access for which a request needs a credential.
type Need struct {
	Scopes []registryauth.Scope // of repositories as the upstream names them
	Caller string               // CLUSTER/NAMESPACE/SERVICEACCOUNT; empty: anonymous
	Holder string               // the caller, in a unique form: the lessons of a request are for its Holder alone
	Tenant string               // the Holder's namespace or project, whose share of the memory is used
}

// learned is the challenge of a GET /v2/ without a credential, or the error.
type learned struct {
	challenge
	err *Error // not nil: nothing was learned
	at  time.Time
}

// New returns a Client. It opens the CA file and uses no network.
func New(c Config) (*Client, error) {
	base, err := url.Parse(c.URL)
	if err != nil || base.Host == "" {
		return nil, fmt.Errorf("upstream %s: the URL cannot be read", c.Name)
	}
	client := &Client{
		name: c.Name, base: base, logins: c.Logins, redirectHosts: c.RedirectHosts, userAgent: c.UserAgent, now: c.Now, patience: answerWithin,
		lessons: newLessons(), verdicts: newVerdicts(), doubts: make(chan struct{}, 1),
	}
	if client.now == nil {
		client.now = time.Now
	}
	roots, err := ReadCAs(c.CAFile)
	if err != nil {
		return nil, fmt.Errorf("upstream %s: %w", c.Name, err)
	}
	transport := &http.Transport{
		Proxy:       http.ProxyFromEnvironment,
		DialContext: inRecords(&net.Dialer{Timeout: dialTimeout}),
		// HTTP/1.1: slow blobs must not share the window of one connection.
		TLSClientConfig: &tls.Config{
			MinVersion: tls.VersionTLS12, RootCAs: roots, NextProtos: []string{"http/1.1"}, ClientSessionCache: tls.NewLRUClientSessionCache(maxIdle),
			VerifyConnection: checkChain,
		},
		TLSHandshakeTimeout:    dialTimeout,
		IdleConnTimeout:        idleFor,
		MaxIdleConnsPerHost:    maxIdle,
		MaxResponseHeaderBytes: 64 << 10,
		DisableCompression:     true, // bytes pass unchanged because digests are computed from them
	}
	client.wire = newWire(base, transport)
	if c.Dial != nil {
		client.wire.dial = c.Dial
	}
	client.storage = newGuarded(transport, client.storageMayBePrivate)
	client.tokens = newTokens(client, &realmTransport{client, newGuarded(transport, client.realmMayBePrivate)})
	return client, nil
}

var errChain = fmt.Errorf("it presents more than %d KiB of certificates", maxChainBytes>>10)

// checkChain refuses servers whose certificates would fill the memory. A connection keeps them as long
// as it is open, parsed, when they are ten times as large. A valid chain can have any others beside it.
func checkChain(connection tls.ConnectionState) error {
	size := 0
	for _, cert := range connection.PeerCertificates {
		size += len(cert.Raw)
	}
	if size > maxChainBytes {
		return errChain
	}
	return nil
}

// ReadCAs returns the CAs in a file, or nil for an empty name: the system's.
func ReadCAs(name string) (*x509.CertPool, error) {
	if name == "" {
		return nil, nil
	}
	data, err := file.Read(name, maxCABytes)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("%s holds no certificate; put the CAs of the upstream there, as PEM", name)
	}
	return pool, nil
}

// Name returns the name of the upstream.
func (c *Client) Name() string { return c.name }

// Base returns the address of the upstream. It must not be changed.
func (c *Client) Base() *url.URL { return c.base }

// Do sends a request to a URL of the upstream, with the credential that it needs. After a 401, it
// retries once if it has a different credential or challenge and no byte of the body was sent. Do
// may change the request's header from then on. The caller closes the response's body.
//
// The lesson of a response holds for the same need alone. Run checks whether it holds for all.
//
// Errors are *Error, that of the request's context, or wrap ErrBody.
func (c *Client) Do(r *http.Request, need Need) (*http.Response, error) {
	learned := c.lessons.get(need)
	if e := c.refusal(learned); e != nil {
		return nil, e
	}
	response, err := c.do(r, need, learned.wants)
	if e, ok := errors.AsType[*Error](err); ok {
		if e.Reason == refusal.UpstreamLimited {
			c.lessons.refuse(need, e, c.heldBy(e))
		}
		c.doubt()
	} else if err == nil && c.isFailing() {
		c.doubt()
	}
	return response, err
}

// do uses the challenge own; nil: the shared one.
func (c *Client) do(r *http.Request, need Need, own *challenge) (*http.Response, error) {
	ctx := r.Context()
	var wants challenge
	if own != nil {
		wants = *own
	} else {
		var err error
		if wants, err = c.shared(ctx); err != nil {
			return nil, err
		}
	}
	body := &unsent{from: r.Body}
	for attempt := 0; ; attempt++ {
		authorization, used, err := c.authorize(ctx, wants, need)
		if err != nil {
			c.lessons.forget(need)
			return nil, err
		}
		response, err := c.send(r, authorization, body)
		if err != nil {
			return nil, err
		}
		if response.StatusCode != http.StatusUnauthorized {
			if e := c.failureOf(response); e != nil {
				return nil, e
			}
			return response, nil
		}
		says := challengeOf(response.Header)
		Discard(response)
		next, err := c.refusedWith(ctx, need, wants, says, used)
		if err != nil {
			return nil, err
		}
		if attempt > 0 || !body.isWhole() {
			return nil, c.refused(says, used)
		}
		wants, body = next, &unsent{from: r.Body}
	}
}

// credential is the credential that a request was sent with.
type credential struct {
	login *Login
	hash  [sha256.Size]byte // of login
	key   tokenKey          // of token
	token *upstreamToken
}

// refusedWith returns the challenge to use for a retry after a 401 with the challenge says, or an
// error.
func (c *Client) refusedWith(ctx context.Context, need Need, wants, says challenge, used credential) (challenge, error) {
	switch {
	case c.canMeet(says) && !says.equal(wants) && c.mayHaveLogin(says):
		c.lessons.ask(need, says)
		return says, nil
	case used.token != nil && c.tokens.replace(need.Tenant, used.key, *used.token):
		return wants, nil
	case used.token == nil && used.login != nil:
		found, err := c.verdictOn(ctx, used.login, used.hash)
		switch {
		case err != nil:
			return challenge{}, err
		case found.isRefusal(): // there may be a different login: the password may have changed
			return wants, nil
		case found.failure != nil:
			c.lessons.refuse(need, c.refused(says, used), c.now().Add(refusedFor))
		}
	}
	return challenge{}, c.refused(says, used)
}

// canMeet reports whether the gateway supports a challenge.
func (c *Client) canMeet(wants challenge) bool {
	return wants.scheme == schemeNone || wants.scheme == schemeBearer || wants.scheme == schemeBasic && c.logins != nil
}

// mayHaveLogin reports whether the login may be sent where one repository's 401 points. The owner
// of a repository may control that response. The token endpoint must therefore be on the upstream's
// host, at the address from GET /v2/, or on a host that the configuration allows.
func (c *Client) mayHaveLogin(says challenge) bool {
	if c.logins == nil || says.realm == nil || c.isOwn(says.realm.Hostname()) || !c.isAnyPublic() && c.mayName(says.realm.Hostname()) {
		return true
	}
	shared := c.wants.Load()
	return shared != nil && shared.realm != nil && addressOf(shared.realm) == addressOf(says.realm)
}

// refused returns the error for a 401 of an upstream.
func (c *Client) refused(wants challenge, used credential) *Error {
	var e *Error
	switch {
	case wants.scheme == schemeUnknown:
		e = c.fail(refusal.UpstreamCredential, nil, "it answers 401 and wants neither Basic nor a token")
	case c.logins == nil:
		e = c.fail(refusal.UpstreamCredential, nil, "it refuses anonymous requests for this: it is private or not there; configure a credential if it is private")
	case used.token != nil:
		e = c.fail(refusal.UpstreamDenied, nil, "its own token endpoint gave a token that it refuses for this; give the gateway's user the right to it")
	default:
		e = c.fail(refusal.UpstreamCredential, nil, "it refuses the gateway's credential; see that it is right, and not expired")
	}
	e.Status = http.StatusUnauthorized
	return e
}

// authorize returns the Authorization header for a request; empty: none.
func (c *Client) authorize(ctx context.Context, wants challenge, need Need) (string, credential, error) {
	var used credential
	if wants.scheme == schemeNone {
		return "", used, nil
	}
	if !c.canMeet(wants) {
		return "", used, c.refused(wants, used)
	}
	if c.logins != nil {
		login, err := c.logins.Login(ctx, need.Caller)
		if err != nil {
			return "", used, c.noLogin(ctx, err)
		}
		used.login, used.hash = &login, loginHash(&login)
	}
	if wants.scheme == schemeBasic {
		if err := c.refusedLogin(ctx, used.login, used.hash); err != nil {
			return "", used, err
		}
		return used.login.basic(), used, nil
	}
	if err := c.token(ctx, wants, &used, need); err != nil {
		return "", used, err
	}
	return "Bearer " + used.token.value.Reveal(), used, nil
}

// token gets a token. If the token endpoint refuses the login itself, and not only for these
// scopes, token retries with a different login, if there is one: the password may have changed.
func (c *Client) token(ctx context.Context, wants challenge, used *credential, need Need) error {
	for attempt := 0; ; attempt++ {
		used.key = newTokenKey(wants, used.hash, need.Scopes)
		got, err := c.tokens.token(ctx, used.key, wants, used.login, need)
		if err != nil {
			return err
		}
		if used.token = &got; got.err == nil {
			return nil
		}
		if used.login == nil || attempt > 0 || got.err.Reason != refusal.UpstreamCredential {
			return got.err
		}
		found, err := c.verdictOn(ctx, used.login, used.hash)
		if err != nil {
			return err
		}
		if !found.isRefusal() {
			return got.err
		}
		next, err := c.logins.Login(ctx, need.Caller)
		if err != nil {
			return got.err
		}
		used.login, used.hash = &next, loginHash(&next)
	}
}

func (c *Client) noLogin(ctx context.Context, err error) error {
	var refused *Error
	if ctx.Err() != nil || errors.As(err, &refused) {
		return err
	}
	return c.fail(refusal.UpstreamCredential, err, "there is no credential for it")
}

// shared returns the challenge for requests without a lesson of their own. A challenge that the
// gateway does not support is requested again after a moment, because it may have been an accident.
func (c *Client) shared(ctx context.Context) (challenge, error) {
	if l := c.wants.Load(); l != nil && (c.canMeet(l.challenge) || c.now().Sub(l.at) < refusedFor) {
		return l.challenge, nil
	}
	return c.learn(ctx)
}

// learn requests the upstream's challenge, once for all concurrent callers.
func (c *Client) learn(ctx context.Context) (challenge, error) {
	l, err := c.learning.do(ctx, struct{}{}, c.ask)
	if err == nil {
		err = orNil(l.err)
	}
	return l.challenge, err
}

// ask is the request of distribution specification, end-1. It does not depend on a client's
// request, so its result holds for all.
func (c *Client) ask(ctx context.Context) learned {
	l := learned{at: c.now()}
	response, err := c.send(c.versionRequest(ctx), "", &unsent{})
	switch {
	case err != nil:
		l.err = c.asError(err)
	case response.StatusCode == http.StatusOK:
		Discard(response)
	case response.StatusCode == http.StatusUnauthorized:
		l.challenge = challengeOf(response.Header)
		Discard(response)
	default:
		if l.err = c.failureOf(response); l.err == nil {
			Discard(response)
			l.err = c.fail(refusal.UpstreamInvalid, nil, "it answers %d to GET /v2/, which a registry does not", response.StatusCode)
			l.err.Status = response.StatusCode
		}
		if l.err.Reason == refusal.UpstreamLimited {
			c.holdAll(l.err)
		}
	}
	switch {
	case l.err == nil:
		c.wants.Store(&l)
	case ctx.Err() == nil:
		c.noted(l.err)
	}
	return l
}

func (c *Client) versionRequest(ctx context.Context) *http.Request {
	u := *c.base
	u.Path = "/v2/"
	return (&http.Request{Method: http.MethodGet, URL: &u, Host: u.Host, Header: http.Header{}}).WithContext(ctx)
}

// send makes one round trip to the upstream.
func (c *Client) send(r *http.Request, authorization string, body *unsent) (*http.Response, error) {
	r.Header.Set("User-Agent", c.userAgent)
	r.Header.Del("Authorization")
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	out := r
	if body.from != nil && body.from != http.NoBody {
		out = r.WithContext(r.Context())
		out.Body = body
		out.Header.Set("Expect", "100-continue") // a 401 then costs no bytes
	}
	response, err := c.traced(spanRegistry, c.wire, out)
	failed := body.failure()
	if err == nil && failed != nil { // the upstream may answer to the end of the connection as if it had the whole body
		_ = response.Body.Close()
		err = failed
	}
	switch {
	case err == nil:
		return response, nil
	case r.Context().Err() != nil:
		return nil, r.Context().Err()
	case failed != nil:
		return nil, failed
	case errors.Is(err, errLate):
		return nil, c.fail(refusal.UpstreamTimeout, nil, "it did not answer in %s", c.wire.patience(r.Method))
	}
	return nil, c.broken(discreet(err, r), "it cannot be reached")
}

// timed makes one round trip to a redirect target, and bounds the time until the response begins.
func (c *Client) timed(span string, transport http.RoundTripper, r *http.Request) (*http.Response, error) {
	within := c.patience
	ctx, cancel := context.WithCancelCause(r.Context())
	late := time.AfterFunc(within, func() { cancel(c.fail(refusal.UpstreamTimeout, nil, "it did not answer in %s", within)) })
	response, err := c.traced(span, transport, r.WithContext(ctx))
	if !late.Stop() && err == nil {
		_ = response.Body.Close()
		err = context.Cause(ctx)
	}
	switch {
	case err == nil:
		response.Body = &answer{response.Body, cancel}
		return response, nil
	case context.Cause(ctx) != nil: // also that of r
		err = context.Cause(ctx)
	}
	cancel(nil)
	return nil, err
}

// failureOf returns the failure for a response other than 401, or nil.
func (c *Client) failureOf(response *http.Response) *Error {
	status := response.StatusCode
	var e *Error
	switch {
	case status == http.StatusTooManyRequests:
		e = c.fail(refusal.UpstreamLimited, nil, "it asks for fewer requests")
		e.RetryAfter = retryAfter(response.Header, c.now())
	case status == http.StatusForbidden && c.logins == nil:
		e = c.fail(refusal.UpstreamDenied, nil, "it forbids this to anonymous requests; configure a credential, if it is private")
	case status == http.StatusForbidden:
		e = c.fail(refusal.UpstreamDenied, nil, "it forbids this to the gateway's credential; give its user the right to it")
	case status == http.StatusProxyAuthRequired:
		e = c.fail(refusal.UpstreamCredential, nil, "a proxy on the way wants a credential")
	case status >= http.StatusInternalServerError:
		e = c.fail(refusal.UpstreamFailing, nil, "it answers %d", status)
		e.RetryAfter = retryAfter(response.Header, c.now())
	case status < http.StatusOK:
		e = c.fail(refusal.UpstreamInvalid, nil, "it answers %d", status)
	default:
		return nil
	}
	e.Status = status
	Discard(response)
	return e
}
