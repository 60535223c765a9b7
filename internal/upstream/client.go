package upstream

import (
	"context"
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

	"golang.org/x/sync/singleflight"

	"github.com/pullpass/pullpass/internal/file"
	"github.com/pullpass/pullpass/internal/registryauth"
)

const (
	maxCABytes   = 1 << 20
	answerWithin = 30 * time.Second // of a request that is sent
	pushedWithin = 5 * time.Minute  // a registry reads a whole layer again before it answers
	probeEvery   = time.Minute
	// continueWithin is how long a body waits for the word that it is wanted. Some never
	// say it: distribution waits for the body before it says that it has no use for it.
	continueWithin = time.Second

	// An upstream that says too many is left alone for as long as it asks, within
	// these bounds: containerd repeats a 429 at once, up to five times.
	shortestHold = time.Second
	longestHold  = time.Minute

	// maxIdle connections stay open: as many streams begin at once when a node pulls
	// an image of many layers, on some nodes.
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
}

// Client asks one upstream. It is safe for concurrent use.
type Client struct {
	name          string
	base          *url.URL
	logins        Logins
	redirectHosts []string
	userAgent     string
	now           func() time.Time

	transport *http.Transport // to the upstream alone
	getter    *getter         // the same, for what has no body; nil: not to this upstream
	storage   *guarded        // to where its redirects lead
	tokens    *tokens
	learning  singleflight.Group
	refusals  refusals
	wants     atomic.Pointer[challenge] // nil: it was not asked yet
	heldUntil atomic.Int64              // nanoseconds since 1970
	patience  time.Duration             // answerWithin, but in tests

	mu     sync.Mutex
	status Status
}

// Need is what a request needs a credential for.
type Need struct {
	Scopes []registryauth.Scope // of repositories as the upstream names them
	Caller string               // CLUSTER/NAMESPACE/SERVICEACCOUNT; empty: anonymous
}

// New returns a Client. It opens the CA file and uses no network.
func New(c Config) (*Client, error) {
	base, err := url.Parse(c.URL)
	if err != nil || base.Host == "" {
		return nil, fmt.Errorf("upstream %s: the URL cannot be read", c.Name)
	}
	client := &Client{name: c.Name, base: base, logins: c.Logins, redirectHosts: c.RedirectHosts, userAgent: c.UserAgent, now: c.Now, patience: answerWithin}
	if client.now == nil {
		client.now = time.Now
	}
	roots, err := ReadCAs(c.CAFile)
	if err != nil {
		return nil, fmt.Errorf("upstream %s: %w", c.Name, err)
	}
	client.transport = &http.Transport{
		Proxy:       http.ProxyFromEnvironment,
		DialContext: inRecords(&net.Dialer{Timeout: dialTimeout}),
		// HTTP/1.1: slow blobs must not share the window of one connection.
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, NextProtos: []string{"http/1.1"}, ClientSessionCache: tls.NewLRUClientSessionCache(maxIdle)},
		TLSHandshakeTimeout:    dialTimeout,
		ExpectContinueTimeout:  continueWithin,
		IdleConnTimeout:        90 * time.Second,
		MaxIdleConnsPerHost:    maxIdle,
		MaxResponseHeaderBytes: 64 << 10,
		DisableCompression:     true, // bytes pass as they are: digests are of them
	}
	client.getter = newGetter(base, client.transport)
	client.storage = newGuarded(client.transport, func(_ context.Context, host string) bool {
		return client.mayName(host) && !client.isAnyPublic() || client.isOwn(host)
	})
	client.tokens = newTokens(client, &realmTransport{client, newGuarded(client.transport, client.realmMayBePrivate)})
	return client, nil
}

// ReadCAs returns the CAs in a file, or nil without a name: those of the system.
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

// Name returns what the upstream is called.
func (c *Client) Name() string { return c.name }

// Base returns the address of the upstream, which nobody may change.
func (c *Client) Base() *url.URL { return c.base }

// Do sends a request, whose URL is one of the upstream's, with the credential that it
// needs. An answer of 401 is asked again once, with another token, if nothing of the
// body was sent. The request's header is Do's from then on, and the caller closes the
// answer's body.
//
// Errors are *Error, that of the request's context, or wrap ErrBody.
func (c *Client) Do(r *http.Request, need Need) (*http.Response, error) {
	if wait := c.held(); wait > 0 {
		e := c.fail(ReasonLimited, nil, "it asked for fewer requests, and is left alone until then")
		e.Status, e.RetryAfter = http.StatusTooManyRequests, wait
		return nil, e
	}
	body := &unsent{from: r.Body}
	for attempt := 0; ; attempt++ {
		authorization, used, err := c.authorize(r.Context(), need)
		if err != nil {
			return nil, c.note(err)
		}
		response, err := c.send(r, authorization, body)
		if err != nil {
			return nil, c.note(err)
		}
		if response.StatusCode != http.StatusUnauthorized {
			return c.judge(response)
		}
		wants := challengeOf(response.Header)
		Discard(response)
		c.wants.Store(&wants)
		used.reject()
		if attempt > 0 || !body.isWhole() {
			e := c.refused(wants, used)
			if used.token == nil && used.login != nil {
				c.refusals.note(used.login, e, c.now())
			}
			return nil, c.note(e)
		}
		body = &unsent{from: r.Body}
	}
}

// credential is what a request was sent with.
type credential struct {
	client *Client
	login  *Login
	token  *tokenKey
}

// reject has the next request sent with another one.
func (u credential) reject() {
	switch {
	case u.token != nil:
		u.client.tokens.forget(*u.token)
	case u.login != nil:
		u.client.logins.Reject(*u.login)
	}
}

// refused says why an upstream answers 401 to what it was given.
func (c *Client) refused(wants challenge, used credential) *Error {
	var e *Error
	switch {
	case wants.scheme == schemeUnknown:
		e = c.fail(ReasonCredential, nil, "it answers 401 and wants neither Basic nor a token")
	case c.logins == nil:
		e = c.fail(ReasonCredential, nil, "it refuses anonymous requests for this: it is private or not there; configure a credential if it is private")
	case used.token != nil:
		e = c.fail(ReasonDenied, nil, "its own token endpoint gave a token that it refuses for this; give the gateway's user the right to it")
	default:
		e = c.fail(ReasonCredential, nil, "it refuses the gateway's credential; see that it is right, and not expired")
	}
	e.Status = http.StatusUnauthorized
	return e
}

// authorize returns the Authorization header for a request; empty: none.
func (c *Client) authorize(ctx context.Context, need Need) (string, credential, error) {
	wants := c.wants.Load()
	if wants == nil {
		learned, err := c.learn(ctx)
		if err != nil {
			return "", credential{}, err
		}
		wants = &learned
	}
	used := credential{client: c}
	if wants.scheme == schemeNone {
		return "", used, nil
	}
	if wants.scheme == schemeUnknown || wants.scheme == schemeBasic && c.logins == nil {
		return "", used, c.refused(*wants, used)
	}
	var login *Login
	if c.logins != nil {
		current, err := c.logins.Login(ctx, need.Caller)
		if err != nil {
			return "", used, c.noLogin(ctx, err)
		}
		login = &current
	}
	if wants.scheme == schemeBasic {
		used.login = login
		if err := c.refusals.known(login, c.now()); err != nil {
			return "", used, err
		}
		basic := http.Request{Header: http.Header{}}
		basic.SetBasicAuth(login.Username, login.Password.Reveal())
		return basic.Header.Get("Authorization"), used, nil
	}
	value, key, err := c.token(ctx, *wants, login, need)
	if err != nil {
		return "", used, err
	}
	used.login, used.token = login, &key
	return "Bearer " + value.Reveal(), used, nil
}

// token asks with another login if the token endpoint refuses the first, and there is
// another: a password that has changed.
func (c *Client) token(ctx context.Context, wants challenge, login *Login, need Need) (registryauth.Secret, tokenKey, error) {
	value, key, err := c.tokens.token(ctx, wants, login, need.Scopes)
	var refused *Error
	if login == nil || !errors.As(err, &refused) || refused.Reason != ReasonCredential {
		return value, key, err
	}
	c.logins.Reject(*login)
	next, nextErr := c.logins.Login(ctx, need.Caller)
	if nextErr != nil || loginHash(&next) == loginHash(login) {
		return value, key, err
	}
	return c.tokens.token(ctx, wants, &next, need.Scopes)
}

func (c *Client) noLogin(ctx context.Context, err error) error {
	var refused *Error
	if ctx.Err() != nil || errors.As(err, &refused) {
		return err
	}
	return c.fail(ReasonCredential, err, "there is no credential for it")
}

// learn asks how the upstream wants to be asked, once for all who want to know.
func (c *Client) learn(ctx context.Context) (challenge, error) {
	flight := c.learning.DoChan("", func() (any, error) {
		return c.ask(context.WithoutCancel(ctx)) // which has a time limit of its own
	})
	select {
	case result := <-flight:
		wants, _ := result.Val.(challenge)
		return wants, result.Err
	case <-ctx.Done():
		return challenge{}, ctx.Err()
	}
}

// ask is the request of distribution specification, end-1.
func (c *Client) ask(ctx context.Context) (challenge, error) {
	response, err := c.send(c.versionRequest(ctx), "", &unsent{})
	if err != nil {
		return challenge{}, c.note(err)
	}
	var wants challenge
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusUnauthorized:
		wants = challengeOf(response.Header)
	default:
		if _, err := c.judge(response); err != nil {
			return challenge{}, err
		}
		Discard(response)
		e := c.fail(ReasonInvalid, nil, "it answers %d to GET /v2/, which a registry does not", response.StatusCode)
		e.Status = response.StatusCode
		return challenge{}, c.note(e)
	}
	Discard(response)
	c.answered()
	c.wants.Store(&wants)
	return wants, nil
}

func (c *Client) versionRequest(ctx context.Context) *http.Request {
	u := *c.base
	u.Path = "/v2/"
	return (&http.Request{Method: http.MethodGet, URL: &u, Host: u.Host, Header: http.Header{}}).WithContext(ctx)
}

// send is one round trip to the upstream.
func (c *Client) send(r *http.Request, authorization string, body *unsent) (*http.Response, error) {
	r.Header.Set("User-Agent", c.userAgent)
	r.Header.Del("Authorization")
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	if c.getter != nil && body.from == nil && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		response, err := c.traced(spanRegistry, c.getter, r)
		switch {
		case err == nil:
			return response, nil
		case r.Context().Err() != nil:
			return nil, r.Context().Err()
		case errors.Is(err, errLate):
			return nil, c.fail(ReasonTimeout, nil, "it did not answer in %s", c.getter.within)
		}
		return nil, c.broken(err, "it cannot be reached")
	}
	out := r.WithContext(r.Context())
	if body.from != nil && body.from != http.NoBody {
		out.Body = body
		out.ProtoMajor, out.ProtoMinor = 1, 1    // or the next line counts for nothing
		out.Header.Set("Expect", "100-continue") // a 401 then costs no bytes
	}
	response, err := c.timed(spanRegistry, c.transport, out, body)
	if err == nil || r.Context().Err() != nil {
		return response, err
	}
	if failed := body.failure(); failed != nil {
		return nil, failed
	}
	return nil, c.broken(err, "it cannot be reached")
}

// timed is one round trip, with a bound for the time until the answer begins. What is
// being sent may take as long as it likes: the time counts from its last move.
func (c *Client) timed(span string, transport http.RoundTripper, r *http.Request, body *unsent) (*http.Response, error) {
	within := c.patience
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		within = pushedWithin
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	late := time.AfterFunc(within, func() { cancel(c.fail(ReasonTimeout, nil, "it did not answer in %s", within)) })
	body.whenRead(func() { late.Reset(within) })
	response, err := c.traced(span, transport, r.WithContext(ctx))
	body.whenRead(nil)
	if !late.Stop() && err == nil {
		_ = response.Body.Close()
		err = context.Cause(ctx)
	}
	switch {
	case err == nil:
		response.Body = &answer{response.Body, cancel}
		return response, nil
	case r.Context().Err() != nil:
		err = r.Context().Err()
	case context.Cause(ctx) != nil:
		err = context.Cause(ctx)
	}
	cancel(nil)
	return nil, err
}

// judge looks at an answer that is not 401.
func (c *Client) judge(response *http.Response) (*http.Response, error) {
	status := response.StatusCode
	var e *Error
	switch {
	case status == http.StatusTooManyRequests:
		e = c.fail(ReasonLimited, nil, "it asks for fewer requests")
		e.RetryAfter = retryAfter(response.Header, c.now())
		c.hold(e.RetryAfter)
	case status == http.StatusForbidden && c.logins == nil:
		e = c.fail(ReasonDenied, nil, "it forbids this to anonymous requests; configure a credential, if it is private")
	case status == http.StatusForbidden:
		e = c.fail(ReasonDenied, nil, "it forbids this to the gateway's credential; give its user the right to it")
	case status == http.StatusProxyAuthRequired:
		e = c.fail(ReasonCredential, nil, "a proxy on the way wants a credential")
	case status >= http.StatusInternalServerError:
		e = c.fail(ReasonFailing, nil, "it answers %d", status)
		e.RetryAfter = retryAfter(response.Header, c.now())
	case status < http.StatusOK:
		e = c.fail(ReasonInvalid, nil, "it answers %d", status)
	default:
		c.answered()
		return response, nil
	}
	e.Status = status
	Discard(response)
	return nil, c.note(e)
}

// held returns for how long nobody is let through.
func (c *Client) held() time.Duration {
	until := c.heldUntil.Load()
	if until == 0 {
		return 0
	}
	return max(time.Unix(0, until).Sub(c.now()), 0)
}

func (c *Client) hold(wait time.Duration) {
	until := c.now().Add(min(max(wait, shortestHold), longestHold)).UnixNano()
	for {
		before := c.heldUntil.Load()
		if before >= until || c.heldUntil.CompareAndSwap(before, until) {
			return
		}
	}
}
