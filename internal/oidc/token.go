package oidc

import (
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-json-experiment/json"

	"github.com/pullpass/pullpass/internal/oidc/identity"
	"github.com/pullpass/pullpass/internal/refusal"
)

// MaxTokenBytes is the size of the longest token that is read. Tokens of API servers have
// about 1 KiB.
const MaxTokenBytes = 16 << 10

const (
	// maxHeaderBytes bounds a header before it is decoded, because the decoder is recursive.
	// Headers of API servers have 85 bytes.
	maxHeaderBytes = 1 << 10
	maxKeyIDBytes  = 256

	// maxDepth bounds the nesting of a payload. The decoder keeps names and buffers for each level,
	// so a deep payload takes ten times the CPU and memory of others of its length. API servers
	// write three levels.
	maxDepth = 64
)

// token is a token of valid form. Its contents are not proven.
type token struct {
	signed    string // header and payload as sent, which the signature covers
	header    map[string]any
	payload   []byte
	claims    claims
	signature []byte
}

// parse splits and decodes a token in JWS compact serialization (RFC 7515, section 7.1). It is
// stricter than libraries, because a token must have only one form. It refuses padding, line
// breaks, leftover bits at the end of a part, and duplicate members.
func parse(raw string) (*token, *Error) {
	malformed := func(message string, cause error) (*token, *Error) {
		return nil, &Error{Reason: refusal.TokenMalformed, Message: message, Err: cause}
	}
	if len(raw) > MaxTokenBytes {
		return malformed("the token is longer than 16 KiB", nil)
	}
	if !isCompact(raw) {
		return malformed("the credential is not a token: a token is three base64url parts, joined with dots", nil)
	}
	end := strings.LastIndexByte(raw, '.')
	t := &token{signed: raw[:end]}
	headerPart, payloadPart, _ := strings.Cut(t.signed, ".")

	encoding := base64.RawURLEncoding.Strict()
	header, err := encoding.DecodeString(headerPart)
	if err != nil {
		return malformed("the token's header is not base64url", nil)
	}
	payload, err := encoding.DecodeString(payloadPart)
	if err != nil {
		return malformed("the token's payload is not base64url", nil)
	}
	if t.signature, err = encoding.DecodeString(raw[end+1:]); err != nil {
		return malformed("the token's signature is not base64url", nil)
	}

	if len(header) > maxHeaderBytes {
		return malformed("the token's header is longer than 1 KiB", nil)
	}
	if !utf8.Valid(header) || !utf8.Valid(payload) {
		return malformed("the token is not UTF-8", nil)
	}
	if err := json.Unmarshal(header, &t.header); err != nil {
		return malformed("the token's header is not a JSON object with distinct members", boundedError(err))
	}
	if identity.IsNestedDeeper(payload, maxDepth) {
		return malformed(fmt.Sprintf("the token's payload is nested more than %d deep", maxDepth), nil)
	}
	t.payload = payload
	if t.claims, err = parseClaims(payload); err != nil {
		if _, ok := errors.AsType[*wrongTypeError](err); ok {
			return nil, &Error{
				Reason: refusal.TokenClaims, Claimed: t.claims.claimed(), Err: boundedError(err),
				Message: "a claim of the token has another type than issuers give it",
			}
		}
		return malformed("the token's payload is not a JSON object with distinct members", boundedError(err))
	}
	return t, nil
}

// isCompact reports whether s consists of three parts in the alphabet of
// base64url. The decoder alone would skip line breaks.
func isCompact(s string) bool {
	dots := 0
	for i := range len(s) {
		switch inToken[s[i]] {
		case 0:
			return false
		case '.':
			dots++
		}
	}
	return dots == 2
}

// inToken marks the characters of a token. It is a table, because tokens are long.
var inToken = func() (table [256]byte) {
	for _, c := range []byte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.") {
		table[c] = c
	}
	return table
}()

// checkHeader returns the algorithm and the key id that the header names. Both are only compared
// with configured and published values. A header must never cause this process to trust, fetch or
// skip anything (RFC 8725, sections 3.1 and 3.10). ignored lists other members that are allowed.
func (t *token) checkHeader(ignored ...string) (jose.SignatureAlgorithm, string, *Error) {
	name, _ := t.header["alg"].(string)
	algorithm := jose.SignatureAlgorithm(name)
	if !slices.Contains(algorithms[:], algorithm) {
		return "", "", &Error{
			Reason:  refusal.TokenAlgorithm,
			Message: "the token's algorithm " + quote(name) + " is not accepted; issuers sign with RS256, ES256, ES384 or ES512",
		}
	}
	refuse := func(message string) (jose.SignatureAlgorithm, string, *Error) {
		return "", "", &Error{Reason: refusal.TokenHeader, Message: "the token's header " + message}
	}
	for name := range t.header {
		if name != "alg" && name != "kid" && name != "typ" && !slices.Contains(ignored, name) {
			return refuse("has " + quote(name) + "; only alg, kid and typ are accepted")
		}
	}
	// A token of another kind (at+jwt, logout+jwt) of the same issuer is not a
	// credential: RFC 8725, section 3.11.
	if kind, ok := t.header["typ"]; ok {
		if s, _ := kind.(string); !strings.EqualFold(s, "JWT") {
			return refuse("has a typ other than JWT")
		}
	}
	keyID, _ := t.header["kid"].(string)
	if keyID == "" || len(keyID) > maxKeyIDBytes {
		return refuse("needs a kid, the name of the signing key")
	}
	return algorithm, keyID, nil
}

// boundedError keeps the text of an error for the log. The text may repeat untrusted input, so it
// is cut.
func boundedError(err error) error {
	quoted := quote(err.Error())
	return errors.New(quoted[1 : len(quoted)-1])
}
