package upstream

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/pullpass/pullpass/internal/lru"
	"github.com/pullpass/pullpass/internal/registryauth"
)

const (
	tokenTimeout     = 15 * time.Second
	maxTokenBytes    = 64 << 10        // of a token endpoint's answer
	tokenCacheBytes  = 4 << 20         // of one upstream: some thousand tokens
	usualLifetime    = time.Minute     // of a token that says nothing (token specification)
	refusedFor       = 5 * time.Second // a login that was refused is not tried again, so that no account is locked
	maxTokenLifetime = 24 * time.Hour
)

// tokens asks the token endpoint of one upstream, and remembers what it got until
// near its end. Who needs the same at the same time waits for one answer.
type tokens struct {
	client    *Client
	transport http.RoundTripper
	asking    singleflight.Group
	cache     *lru.Cache[tokenKey, upstreamToken]
}

// tokenKey is all that a token depends on.
type tokenKey struct {
	realm, service string
	login          [sha256.Size]byte // of user name and password; zero: anonymous
	scopes         string            // canonical, one a line
}

type upstreamToken struct {
	value  registryauth.Secret
	useful time.Time // until when
	err    *Error    // not nil: there is none, and this is why
}

func newTokens(client *Client, transport http.RoundTripper) *tokens {
	return &tokens{client: client, transport: transport, cache: lru.New(tokenCacheBytes, func(k tokenKey, t upstreamToken) int {
		return lru.Bytes(len(k.realm)) + lru.Bytes(len(k.service)) + lru.Bytes(len(k.scopes)) + lru.Bytes(len(t.value.Reveal())) + lru.Bytes(registryauth.SecretBytes)
	})}
}

// token returns a token for scopes, of a login or, without one, an anonymous one.
func (s *tokens) token(ctx context.Context, c challenge, login *Login, scopes []registryauth.Scope) (registryauth.Secret, tokenKey, error) {
	key := tokenKey{realm: c.realm.String(), service: c.service}
	if login != nil {
		key.login = loginHash(login)
	}
	for i, scope := range scopes {
		if i > 0 {
			key.scopes += "\n"
		}
		key.scopes += scope.String()
	}
	if known, ok := s.cache.Get(key); ok && s.client.now().Before(known.useful) {
		return known.value, key, orNil(known.err)
	}
	// The flight outlives a caller that hangs up: others wait for it.
	flight := s.asking.DoChan(key.id(), func() (any, error) {
		asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), tokenTimeout)
		defer cancel()
		return s.ask(asking, key, c, login, scopes), nil
	})
	select {
	case result := <-flight:
		got := result.Val.(upstreamToken)
		return got.value, key, orNil(got.err)
	case <-ctx.Done():
		return registryauth.Secret{}, key, ctx.Err()
	}
}

// orNil keeps a nil *Error from becoming an error that is not nil.
func orNil(err *Error) error {
	if err == nil {
		return nil
	}
	return err
}

// id is the key as text: its hashes have any bytes, its texts no zero.
func (k tokenKey) id() string {
	return k.realm + "\x00" + k.service + "\x00" + string(k.login[:]) + k.scopes
}

func loginHash(login *Login) [sha256.Size]byte {
	password := login.Password.Hash()
	return sha256.Sum256(append([]byte(login.Username+"\x00"), password[:]...))
}

// forget has the next request for the same ask again.
func (s *tokens) forget(key tokenKey) { s.cache.Remove(key) }

// ask asks, and remembers what came of it.
func (s *tokens) ask(ctx context.Context, key tokenKey, c challenge, login *Login, scopes []registryauth.Scope) upstreamToken {
	if known, ok := s.cache.Get(key); ok && s.client.now().Before(known.useful) {
		return known // the flight before this one has just ended
	}
	got, err := s.request(ctx, c, login, scopes)
	s.client.tokenRequested(err == nil)
	switch {
	case err == nil:
		s.cache.Add(key, got)
	case err.Reason == ReasonCredential:
		got = upstreamToken{err: err, useful: s.client.now().Add(refusedFor)}
		s.cache.Add(key, got)
	default:
		got = upstreamToken{err: err}
	}
	return got
}

// request is one request to the token endpoint (distribution's token
// specification).
func (s *tokens) request(ctx context.Context, c challenge, login *Login, scopes []registryauth.Scope) (upstreamToken, *Error) {
	u := *c.realm
	query := u.Query()
	if c.service != "" {
		query.Set("service", c.service)
	}
	for _, scope := range scopes {
		query.Add("scope", scope.String())
	}
	u.RawQuery = query.Encode()
	request := (&http.Request{Method: http.MethodGet, URL: &u, Host: u.Host, Header: http.Header{"User-Agent": {s.client.userAgent}}}).WithContext(ctx)
	if login != nil {
		request.SetBasicAuth(login.Username, login.Password.Reveal())
	}
	response, err := s.client.traced(spanTokens, s.transport, request)
	if err != nil {
		return upstreamToken{}, s.client.broken(err, "its token endpoint "+c.realm.Host+" cannot be asked")
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return upstreamToken{}, s.client.tokenRefusal(response, c.realm, login != nil)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxTokenBytes))
	if err != nil {
		return upstreamToken{}, s.client.broken(err, "the answer of its token endpoint "+c.realm.Host+" broke off")
	}
	return s.client.readToken(body, c.realm)
}

func (c *Client) tokenRefusal(response *http.Response, realm *url.URL, hasLogin bool) *Error {
	status := response.StatusCode
	var e *Error
	switch {
	case status == http.StatusTooManyRequests:
		e = c.fail(ReasonLimited, nil, "its token endpoint %s asks for fewer requests", realm.Host)
		e.RetryAfter = retryAfter(response.Header, c.now())
		c.hold(e.RetryAfter)
	case status >= http.StatusInternalServerError:
		e = c.fail(ReasonFailing, nil, "its token endpoint %s answers %d", realm.Host, status)
	case status == http.StatusUnauthorized || status == http.StatusForbidden || status == http.StatusBadRequest || status == http.StatusNotFound:
		whom := "the gateway's user name and password; see that they are those of a user who may pull there, and not expired"
		if !hasLogin {
			whom = "anonymous requests; configure a credential for it"
		}
		e = c.fail(ReasonCredential, nil, "its token endpoint %s answers %d to %s", realm.Host, status, whom)
	default:
		e = c.fail(ReasonInvalid, nil, "its token endpoint %s answers %d", realm.Host, status)
	}
	e.Status = status
	return e
}

// readToken reads an answer. One that was cut at maxTokenBytes is no JSON.
func (c *Client) readToken(body []byte, realm *url.URL) (upstreamToken, *Error) {
	var answer struct {
		Token       string  `json:"token"`
		AccessToken string  `json:"access_token"`
		ExpiresIn   float64 `json:"expires_in"` // seconds
	}
	value := ""
	if json.Unmarshal(body, &answer) == nil {
		if value = answer.Token; value == "" {
			value = answer.AccessToken
		}
	}
	if !isTokenValue(value) {
		return upstreamToken{}, c.fail(ReasonInvalid, nil, "its token endpoint %s answers with something that is no token", realm.Host)
	}
	lifetime := usualLifetime
	if answer.ExpiresIn > 0 {
		lifetime = time.Duration(min(answer.ExpiresIn, maxTokenLifetime.Seconds()) * float64(time.Second))
	}
	// Not to the end: a blob's request must arrive there before.
	return upstreamToken{value: registryauth.NewSecret(value), useful: c.now().Add(lifetime - min(lifetime/4, 15*time.Second))}, nil
}

// isTokenValue accepts what can stand in a header.
func isTokenValue(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return s != ""
}

// retryAfter reads the header (RFC 9110 section 10.2.3); 0: it is not there.
func retryAfter(header http.Header, now time.Time) time.Duration {
	value := header.Get("Retry-After")
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(at.Sub(now), 0)
	}
	return 0
}

// broken tells apart what did not come in time, and what did not come.
func (c *Client) broken(err error, message string) *Error {
	var refused *Error
	switch {
	case errors.As(err, &refused):
		return refused
	case errors.Is(err, errPrivate):
		return c.fail(ReasonRedirect, err, "%s", message)
	case isTimeout(err):
		return c.fail(ReasonTimeout, err, "%s", message)
	}
	return c.fail(ReasonUnreachable, err, "%s", message)
}
