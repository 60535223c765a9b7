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
	"strings"
	"time"

	"github.com/pullpass/pullpass/internal/base/lru"
	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/registryauth"
)

const (
	tokenTimeout     = 15 * time.Second
	maxAnswerBytes   = 64 << 10    // of a token endpoint
	maxTokenBytes    = 16 << 10    // registries accept no longer headers
	tokenCacheBytes  = 4 << 20     // of one upstream: some thousand tokens, shared among tenants
	usualLifetime    = time.Minute // of a token without a lifetime (token specification)
	maxTokenLifetime = 24 * time.Hour
)

// tokens requests tokens from the token endpoint of one upstream, and remembers them until near
// their expiry. Concurrent requests for the same key wait for one response.
type tokens struct {
	client    *Client
	transport http.RoundTripper
	asking    flights[tokenKey, upstreamToken]
	cache     *lru.Shared[tokenKey, upstreamToken]
}

// tokenKey holds all that a token depends on.
type tokenKey struct {
	realm, service string
	login          [sha256.Size]byte // of user name and password; zero: anonymous
	scopes         string            // canonical, one a line
}

type upstreamToken struct {
	value   registryauth.Secret
	from    time.Time // time of its response
	useful  time.Time // the end of its use; zero: the upstream refused the token, and the next one replaces it
	instead bool      // it replaces a token that the upstream refused
	err     *Error    // not nil: the reason why there is no token
}

func newTokens(client *Client, transport http.RoundTripper) *tokens {
	return &tokens{client: client, transport: transport, cache: lru.NewShared(tokenCacheBytes, func(k tokenKey, t upstreamToken) int {
		return lru.Bytes(len(k.realm)) + lru.Bytes(len(k.service)) + lru.Bytes(len(k.scopes)) + lru.Bytes(len(t.value.Reveal())) + lru.Bytes(registryauth.SecretBytes)
	})}
}

func newTokenKey(c challenge, login [sha256.Size]byte, scopes []registryauth.Scope) tokenKey {
	return tokenKey{realm: c.realm.String(), service: c.service, login: login, scopes: scopeText(scopes)}
}

// scopeText returns scopes as a text. Different lists have different texts.
func scopeText(scopes []registryauth.Scope) string {
	if len(scopes) == 1 {
		return scopes[0].String()
	}
	text := make([]string, len(scopes))
	for i, scope := range scopes {
		text[i] = scope.String()
	}
	return strings.Join(text, "\n")
}

// token returns a token for the scopes of need: of a login, or anonymous if login is nil. The
// result may instead hold an error. The returned error is that of ctx, or says that the login is
// refused.
func (s *tokens) token(ctx context.Context, key tokenKey, c challenge, login *Login, need Need) (upstreamToken, error) {
	if known, _ := s.cache.Get(key); s.client.now().Before(known.useful) {
		return known, nil
	}
	if err := s.client.refusedLogin(ctx, login, key.login); err != nil {
		return upstreamToken{}, err
	}
	return s.asking.do(ctx, key, func(ctx context.Context) upstreamToken {
		asking, cancel := context.WithTimeout(ctx, tokenTimeout)
		defer cancel()
		return s.ask(asking, key, c, login, need)
	})
}

// orNil keeps a nil *Error from becoming an error that is not nil.
func orNil(err *Error) error {
	if err == nil {
		return nil
	}
	return err
}

func loginHash(login *Login) [sha256.Size]byte {
	password := login.Password.Hash()
	return sha256.Sum256(append([]byte(login.Username+"\x00"), password[:]...))
}

// replace reports whether a different token may be tried after the upstream refused one. A token
// that replaced a refused one stays for a moment. Otherwise each refused request would cost a
// request to the token endpoint.
func (s *tokens) replace(tenant string, key tokenKey, refused upstreamToken) bool {
	if refused.instead && s.client.now().Sub(refused.from) < refusedFor {
		return false
	}
	if known, _ := s.cache.Peek(key); known.value.Hash() == refused.value.Hash() {
		s.cache.Add(tenant, key, upstreamToken{instead: true})
	}
	return true
}

// ask requests a token, and remembers the outcome.
func (s *tokens) ask(ctx context.Context, key tokenKey, c challenge, login *Login, need Need) upstreamToken {
	known, ok := s.cache.Get(key)
	if s.client.now().Before(known.useful) {
		return known // the flight before this one has just ended
	}
	got, err := s.request(ctx, c, login, need.Scopes)
	got.instead = ok && known.useful.IsZero()
	s.client.tokenRequested(err == nil)
	switch {
	case err == nil:
		s.cache.Add(need.Tenant, key, got)
	case err.Reason == refusal.UpstreamCredential:
		got = upstreamToken{err: err, useful: s.client.now().Add(refusedFor)}
		s.cache.Add(need.Tenant, key, got)
	default:
		got = upstreamToken{err: err}
	}
	return got
}

// request makes one request to the token endpoint (distribution's token specification).
func (s *tokens) request(ctx context.Context, c challenge, login *Login, scopes []registryauth.Scope) (upstreamToken, *Error) {
	u := *c.realm
	query := u.Query()
	if c.service != "" {
		query.Set("service", c.service)
	}
	query.Del("scope") // the owner of one repository may have set the realm, so only the needed scopes are requested
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
		return upstreamToken{}, s.client.broken(discreet(err, request), "its token endpoint "+c.realm.Host+" cannot be asked")
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return upstreamToken{}, s.client.tokenRefusal(response, c.realm, login != nil)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswerBytes))
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
		e = c.fail(refusal.UpstreamLimited, nil, "its token endpoint %s asks for fewer requests", realm.Host)
		e.RetryAfter = retryAfter(response.Header, c.now())
	case status >= http.StatusInternalServerError:
		e = c.fail(refusal.UpstreamFailing, nil, "its token endpoint %s answers %d", realm.Host, status)
	case status == http.StatusUnauthorized || status == http.StatusForbidden || status == http.StatusBadRequest || status == http.StatusNotFound:
		whom := "the gateway's user name and password; see that they are those of a user who may pull there, and not expired"
		if !hasLogin {
			whom = "anonymous requests; configure a credential for it"
		}
		e = c.fail(refusal.UpstreamCredential, nil, "its token endpoint %s answers %d to %s", realm.Host, status, whom)
	default:
		e = c.fail(refusal.UpstreamInvalid, nil, "its token endpoint %s answers %d", realm.Host, status)
	}
	e.Status = status
	return e
}

// readToken parses a response. A response that was cut at maxAnswerBytes is not valid JSON.
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
		return upstreamToken{}, c.fail(refusal.UpstreamInvalid, nil, "its token endpoint %s answers with something that is not a token", realm.Host)
	}
	if len(value) > maxTokenBytes {
		return upstreamToken{}, c.fail(refusal.UpstreamInvalid, nil, "its token endpoint %s answers with a token of %d bytes, and %d is the most", realm.Host, len(value), maxTokenBytes)
	}
	lifetime := usualLifetime
	if answer.ExpiresIn > 0 {
		lifetime = time.Duration(min(answer.ExpiresIn, maxTokenLifetime.Seconds()) * float64(time.Second))
	}
	now := c.now()
	// Not until its expiry: a request for a blob must arrive there before.
	return upstreamToken{value: registryauth.NewSecret(value), from: now, useful: now.Add(lifetime - min(lifetime/4, 15*time.Second))}, nil
}

// isTokenValue reports whether a token can be sent in a header.
func isTokenValue(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return s != ""
}

// retryAfter parses the header (RFC 9110 section 10.2.3); 0: it is absent.
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

// broken classifies a failed request: refused, redirected to a private address, late or
// unreachable.
func (c *Client) broken(err error, message string) *Error {
	var refused *Error
	switch {
	case errors.As(err, &refused):
		return refused
	case errors.Is(err, errPrivate):
		return c.fail(refusal.UpstreamRedirect, err, "%s", message)
	case isTimeout(err):
		return c.fail(refusal.UpstreamTimeout, err, "%s", message)
	}
	return c.fail(refusal.UpstreamUnreachable, err, "%s", message)
}
