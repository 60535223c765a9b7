package registryauth

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// GrantType is the wire form of a credential.
type GrantType string

// The wire forms. Their names are stable, because they are metric labels and audit fields.
const (
	GrantAnonymous     GrantType = "anonymous"      // GET without a credential
	GrantBasic         GrantType = "basic"          // GET with Authorization: Basic
	GrantBearer        GrantType = "bearer"         // GET with Authorization: Bearer
	GrantPassword      GrantType = "password"       // POST form, containerd's first attempt
	GrantRefreshToken  GrantType = "refresh_token"  // POST form, docker's identity token
	GrantTokenExchange GrantType = "token_exchange" // POST form, RFC 8693
)

// Limits of one request, checked before anything is parsed.
const (
	MaxTokenBytes = 16 << 10 // a credential
	MaxBodyBytes  = 64 << 10 // a form; also a query
)

const (
	maxTextBytes  = 256  // service, username, account, client_id
	maxParameters = 2048 // in one query or form: enough for all scopes that fit there
)

// Request is one token request. It has the same form for every wire form.
type Request struct {
	GrantType  GrantType
	Service    string
	Scopes     []Scope // the last MaxScopes, as ReadScopes returns them
	Malformed  []MalformedScope
	Omitted    int    // number of earlier scopes, which were not read
	Credential Secret // zero only for GrantAnonymous
	// Push says that the client requests a push credential instead of a token. Only with
	// GrantTokenExchange.
	Push     bool
	Account  string // the client's name for the user; never used for a decision
	ClientID string // the client's own name; never used for a decision
}

// RequestError is a fault of the request itself: 400.
type RequestError struct {
	Code    string // invalid_request, invalid_scope, unsupported_grant_type (RFC 6749 section 5.2), invalid_target (RFC 8693 section 2.2.2)
	Field   string // the header, parameter or form field at fault
	Message string // the fault and the remedy; never a credential
}

func (e *RequestError) Error() string { return e.Field + ": " + e.Message }

// ParseRequest reads a token request: a GET with Basic, Bearer or no credential, or a POST form
// (distribution's token and oauth documents, RFC 8693). The error is always a *RequestError, and
// the Request is then zero.
//
// It refuses ambiguous requests:
//
//   - two credentials, even equal ones
//   - a credential in the URL, where it could be logged
//   - a duplicate of a parameter that is allowed once
//   - a form with protocol parameters in its URL
//
// Unknown parameters are ignored, and a form field without a value counts as absent (RFC 6749
// section 3.2).
//
// Service, Account, ClientID and the scopes are copies. Keeping one of them in memory does not keep
// the credential.
func ParseRequest(r *http.Request) (Request, error) {
	switch r.Method {
	case http.MethodGet:
		return parseGet(r)
	case http.MethodPost:
		return parsePost(r)
	default:
		return Request{}, invalidRequest("method", "use GET or POST")
	}
}

func parseGet(r *http.Request) (Request, error) {
	if r.ContentLength != 0 { // -1: chunked
		return Request{}, invalidRequest("body", "a GET has none; send a form by POST")
	}
	query, err := parseQuery(r)
	if err != nil {
		return Request{}, err
	}
	for p := range query.seen {
		if query.seen[p] && parameter(p) >= firstCredential {
			return Request{}, invalidRequest(parameterNames[p], "a credential in the URL ends up in logs; send it as Authorization: Basic or in a POST form")
		}
	}
	req, err := query.request()
	if err != nil {
		return Request{}, err
	}
	username := ""
	req.GrantType, username, req.Credential, err = parseAuthorization(r.Header["Authorization"])
	if err != nil {
		return Request{}, err
	}
	req.Account = cmp.Or(username, req.Account)
	return req, nil
}

func parsePost(r *http.Request) (Request, error) {
	if len(r.Header["Authorization"]) > 0 {
		return Request{}, invalidRequest("Authorization", "a POST brings its credential in the form alone; leave the header out, or use GET")
	}
	types := r.Header["Content-Type"]
	if len(types) != 1 {
		return Request{}, invalidRequest("Content-Type", "send exactly one, application/x-www-form-urlencoded")
	}
	mediaType, _, _ := strings.Cut(types[0], ";")
	if !strings.EqualFold(strings.TrimSpace(mediaType), "application/x-www-form-urlencoded") {
		return Request{}, invalidRequest("Content-Type", "want application/x-www-form-urlencoded")
	}
	query, err := parseQuery(r)
	if err != nil {
		return Request{}, err
	}
	for p := range query.seen {
		if query.seen[p] {
			return Request{}, invalidRequest(parameterNames[p], "is in the URL of a POST; send it in the form alone")
		}
	}
	body, err := readBody(r)
	if err != nil {
		return Request{}, err
	}
	form, err := parseParameters(body)
	if err != nil {
		return Request{}, err
	}
	grantType, credential, err := form.credential()
	if err != nil {
		return Request{}, err
	}
	if audience, service := form.values[paramAudience], form.values[paramService]; audience != "" {
		if service == "" && grantType == GrantTokenExchange {
			form.values[paramService] = audience
		} else if audience != service {
			return Request{}, &RequestError{Code: "invalid_target", Field: "audience", Message: "differs from service; send one of them"}
		}
	}
	if form.values[paramResource] != "" {
		return Request{}, &RequestError{Code: "invalid_target", Field: "resource", Message: "is not supported; name the registry in service"}
	}
	req, err := form.request()
	if err != nil {
		return Request{}, err
	}
	req.GrantType, req.Credential = grantType, credential
	req.Push = grantType == GrantTokenExchange && form.values[paramRequestedTokenType] == TokenTypePushCredential
	return req, nil
}

// readBody reads a form of at most MaxBodyBytes.
func readBody(r *http.Request) (string, error) {
	if r.ContentLength > MaxBodyBytes {
		return "", invalidRequest("body", "larger than %d bytes", MaxBodyBytes)
	}
	if r.Body == nil {
		return "", nil
	}
	var body bytes.Buffer
	body.Grow(int(max(r.ContentLength, 0)) + bytes.MinRead) // ReadFrom needs this much free space to see the end
	if _, err := body.ReadFrom(io.LimitReader(r.Body, MaxBodyBytes+1)); err != nil {
		return "", invalidRequest("body", "could not be read to its end; send it whole and in time")
	}
	if body.Len() > MaxBodyBytes {
		return "", invalidRequest("body", "larger than %d bytes", MaxBodyBytes)
	}
	return body.String(), nil
}

// basicEncoding also refuses the trailing bits that a decoder may ignore: a credential has only one
// encoding.
var basicEncoding = base64.StdEncoding.Strict()

// maxBasicBytes is the longest base64 of username:password.
const maxBasicBytes = (maxTextBytes + len(":") + MaxTokenBytes + 2) / 3 * 4

// parseAuthorization returns the credential of a GET. Its errors never quote the header, because
// clients often send a credential without its scheme.
func parseAuthorization(headers []string) (grantType GrantType, username string, credential Secret, err error) {
	const field = "Authorization"
	switch len(headers) {
	case 0:
		return GrantAnonymous, "", Secret{}, nil
	case 1:
	default:
		return "", "", Secret{}, invalidRequest(field, "comes several times; send one")
	}
	scheme, value, _ := strings.Cut(headers[0], " ")
	switch { // the lengths, because EqualFold also folds letters outside ASCII
	case len(scheme) == len("Basic") && strings.EqualFold(scheme, "Basic"):
		username, credential, err = parseBasic(value)
		return GrantBasic, username, credential, err
	case len(scheme) == len("Bearer") && strings.EqualFold(scheme, "Bearer"):
		credential, err = newCredential(field, value)
		if err == nil && !isToken68(value) {
			err = invalidRequest(field, "want Bearer, one space and one token")
		}
		return GrantBearer, "", credential, err
	default:
		return "", "", Secret{}, invalidRequest(field, "want the scheme Basic or Bearer")
	}
}

// parseBasic reads the base64 of username:password (RFC 7617).
func parseBasic(value string) (username string, password Secret, err error) {
	const field = "Authorization"
	if len(value) > maxBasicBytes {
		return "", Secret{}, invalidRequest(field, "longer than a username of %d and a password of %d bytes", maxTextBytes, MaxTokenBytes)
	}
	decoded, err := basicEncoding.DecodeString(value)
	if err != nil || basicEncoding.EncodedLen(len(decoded)) != len(value) { // the decoder skips line ends
		return "", Secret{}, invalidRequest(field, "want Basic, one space and the padded standard base64 of username:password")
	}
	before, after, found := bytes.Cut(decoded, []byte(":"))
	if !found {
		return "", Secret{}, invalidRequest(field, "the decoded Basic value has no ':' between username and password")
	}
	if username, err = text(field, "the username", string(before)); err != nil {
		return "", Secret{}, err
	}
	password, err = newCredential(field, string(after))
	return username, password, err
}

// credential returns the only credential of a form, and its wire form.
func (p *parameters) credential() (GrantType, Secret, error) {
	var (
		grantType GrantType
		field     parameter
	)
	switch p.values[paramGrantType] {
	case "password":
		grantType, field = GrantPassword, paramPassword
	case "refresh_token":
		grantType, field = GrantRefreshToken, paramRefreshToken
	case "urn:ietf:params:oauth:grant-type:token-exchange":
		grantType, field = GrantTokenExchange, paramSubjectToken
	case "":
		return "", Secret{}, invalidRequest("grant_type", "is missing; send password, refresh_token or urn:ietf:params:oauth:grant-type:token-exchange")
	default:
		return "", Secret{}, &RequestError{
			Code:    "unsupported_grant_type",
			Field:   "grant_type",
			Message: "want password, refresh_token or urn:ietf:params:oauth:grant-type:token-exchange",
		}
	}
	for other := firstCredential; other < parameterCount; other++ {
		if other != field && p.values[other] != "" {
			return "", Secret{}, invalidRequest(parameterNames[other], "is not for grant type %s; send its %s alone", grantType, parameterNames[field])
		}
	}
	if grantType == GrantTokenExchange {
		switch p.values[paramSubjectTokenType] {
		case tokenTypeJWT, tokenTypeIDToken, tokenTypeAccessToken:
		case "":
			return "", Secret{}, invalidRequest("subject_token_type", "is missing; send %s", tokenTypeJWT)
		default:
			return "", Secret{}, invalidRequest("subject_token_type", "want %s", tokenTypeJWT)
		}
		switch p.values[paramRequestedTokenType] {
		case "", tokenTypeJWT, tokenTypeAccessToken, TokenTypePushCredential:
		default:
			return "", Secret{}, invalidRequest("requested_token_type", "want %s or %s", tokenTypeAccessToken, TokenTypePushCredential)
		}
	}
	credential, err := newCredential(parameterNames[field], p.values[field])
	return grantType, credential, err
}

// Token type identifiers (RFC 8693 section 3). A ServiceAccount token may have any of the three
// types. The issued token is an access token.
const (
	tokenTypeJWT         = "urn:ietf:params:oauth:token-type:jwt"
	tokenTypeIDToken     = "urn:ietf:params:oauth:token-type:id_token"
	tokenTypeAccessToken = "urn:ietf:params:oauth:token-type:access_token"
)

// TokenTypePushCredential requests a push credential. A CI job sends it as its password for some
// minutes, also after the job's own token has expired.
const TokenTypePushCredential = "urn:pullpass:token-type:push-credential"

// request reads the parameters that are the same in every wire form.
func (p *parameters) request() (Request, error) {
	var (
		req Request
		err error
	)
	if p.values[paramService] == "" {
		return Request{}, invalidRequest("service", "is missing; send the service of the registry's challenge")
	}
	if req.Service, err = p.text(paramService); err != nil {
		return Request{}, err
	}
	if req.ClientID, err = p.text(paramClientID); err != nil {
		return Request{}, err
	}
	account, err := p.text(paramAccount)
	if err != nil {
		return Request{}, err
	}
	username, err := p.text(paramUsername)
	if err != nil {
		return Request{}, err
	}
	req.Account = cmp.Or(username, account) // prefer the name that came with the credential
	req.Scopes, req.Malformed, req.Omitted = ReadScopes(p.scopes)
	return req, nil
}

func (p *parameters) text(field parameter) (string, error) {
	return text(parameterNames[field], "the value", p.values[field])
}

// parameter is a parameter that the protocol knows.
type parameter int

const (
	paramScope parameter = iota // the only one that may be repeated
	paramService
	paramAudience
	paramResource
	paramGrantType
	paramClientID
	paramAccount
	paramUsername
	paramAccessType
	paramOfflineToken
	paramSubjectTokenType
	paramActorTokenType
	paramRequestedTokenType
	// The parameters from here on are credentials, also those of other protocols. In the wrong
	// place, a credential must be refused, not ignored.
	paramPassword
	paramRefreshToken
	paramSubjectToken
	paramActorToken
	paramAccessToken
	paramIDToken
	paramToken
	paramClientSecret
	paramClientAssertion
	paramAssertion
	paramCode

	parameterCount
	firstCredential = paramPassword
)

var parameterNames = [parameterCount]string{
	paramScope:              "scope",
	paramService:            "service",
	paramAudience:           "audience",
	paramResource:           "resource",
	paramGrantType:          "grant_type",
	paramClientID:           "client_id",
	paramAccount:            "account",
	paramUsername:           "username",
	paramAccessType:         "access_type",
	paramOfflineToken:       "offline_token",
	paramSubjectTokenType:   "subject_token_type",
	paramActorTokenType:     "actor_token_type",
	paramRequestedTokenType: "requested_token_type",
	paramPassword:           "password",
	paramRefreshToken:       "refresh_token",
	paramSubjectToken:       "subject_token",
	paramActorToken:         "actor_token",
	paramAccessToken:        "access_token",
	paramIDToken:            "id_token",
	paramToken:              "token",
	paramClientSecret:       "client_secret",
	paramClientAssertion:    "client_assertion",
	paramAssertion:          "assertion",
	paramCode:               "code",
}

// parameters are the parameters of one query or form. The values may share its memory: see
// ParseRequest.
type parameters struct {
	scopes []string
	values [parameterCount]string
	seen   [parameterCount]bool
}

func parseQuery(r *http.Request) (parameters, error) {
	if len(r.URL.RawQuery) > MaxBodyBytes {
		return parameters{}, invalidRequest("query", "longer than %d bytes", MaxBodyBytes)
	}
	return parseParameters(r.URL.RawQuery)
}

// parseParameters reads application/x-www-form-urlencoded pairs. It is stricter than
// url.ParseQuery, because it refuses duplicates. url.Values.Get would return the first value, while
// a proxy in front may have checked the last one.
func parseParameters(raw string) (parameters, error) {
	var p parameters
	if strings.Contains(raw, ";") {
		return p, invalidRequest("parameters", "hold a ';', which some take for a separator; write %%3B")
	}
	for count := 0; raw != ""; count++ {
		if count == maxParameters {
			return p, invalidRequest("parameters", "more than %d", maxParameters)
		}
		var pair string
		pair, raw, _ = strings.Cut(raw, "&")
		encodedName, encodedValue, _ := strings.Cut(pair, "=")
		name, nameErr := unescape(encodedName)
		value, valueErr := unescape(encodedValue)
		if nameErr != nil || valueErr != nil {
			return p, invalidRequest("parameters", "hold a '%%' that is not followed by two hexadecimal digits")
		}
		field := parameter(slices.Index(parameterNames[:], name))
		switch {
		case field < 0: // unknown to this protocol
		case field == paramScope:
			p.scopes = append(p.scopes, value)
			p.seen[field] = true
		case p.seen[field]:
			return p, invalidRequest(name, "comes several times; send it once")
		default:
			p.values[field], p.seen[field] = value, true
		}
	}
	return p, nil
}

// unescape is url.QueryUnescape without its loop over every byte. That matters for a token of a
// kilobyte, which has no escapes.
func unescape(s string) (string, error) {
	if strings.IndexByte(s, '%') < 0 && strings.IndexByte(s, '+') < 0 {
		return s, nil
	}
	return url.QueryUnescape(s)
}

// text checks and copies a value that is shown in logs and on terminals. A client must not be able
// to forge lines there or change their appearance.
func text(field, what, value string) (string, error) {
	if len(value) > maxTextBytes {
		return "", invalidRequest(field, "%s is longer than %d bytes", what, maxTextBytes)
	}
	if !utf8.ValidString(value) || strings.ContainsFunc(value, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return "", invalidRequest(field, "%s holds a byte or character that cannot be printed", what)
	}
	return strings.Clone(value), nil
}

func newCredential(field, value string) (Secret, error) {
	if value == "" {
		return Secret{}, invalidRequest(field, "holds no password or token; put the ServiceAccount token there")
	}
	if len(value) > MaxTokenBytes {
		return Secret{}, invalidRequest(field, "the password or token is longer than %d bytes", MaxTokenBytes)
	}
	for i := range len(value) {
		if value[i] < ' ' || value[i] == 0x7f {
			return Secret{}, invalidRequest(field, "the password or token holds a control character; perhaps the end of a line was copied with it")
		}
	}
	return NewSecret(value), nil
}

// isToken68 reports whether s has the token form of RFC 6750, section 2.1.
func isToken68(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !isLowerAlphanumeric(c) && (c < 'A' || 'Z' < c) && !strings.ContainsRune("-._~+/=", rune(c)) {
			return false
		}
	}
	return true
}

func invalidRequest(field, format string, args ...any) error {
	return &RequestError{Code: "invalid_request", Field: field, Message: fmt.Sprintf(format, args...)}
}
