package oidc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	goidc "github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-json-experiment/json"
)

const wellKnownPath = "/.well-known/openid-configuration" // OpenID Connect Discovery 1.0, section 4

// discover returns the URL of the key set. go-oidc checks the document, which it reads through
// discoveryTransport. Its errors repeat text of the server, so they are not passed on unchanged.
//
// Its provider is not kept: go-oidc fetches keys again for each unknown kid, and keyring does not.
func (s *networkSource) discover(ctx context.Context, client *http.Client, bearer string) (*url.URL, error) {
	transport := &discoveryTransport{source: s, client: client, bearer: bearer}
	_, err := goidc.NewProvider(goidc.ClientContext(ctx, &http.Client{Transport: transport}), s.issuer)
	if transport.err != nil {
		return nil, transport.err
	}
	if mismatch, ok := errors.AsType[*goidc.IssuerMismatchError](err); ok {
		return nil, s.otherIssuer(mismatch.Discovered)
	}
	if err != nil {
		return nil, s.noDocument(err)
	}
	// Compared again, because go-oidc accepts "ISSUER" for "issuer".
	if transport.document.Issuer != s.issuer {
		return nil, s.otherIssuer(transport.document.Issuer)
	}
	keysURL, err := parseHTTPS(transport.document.KeysURL)
	if err != nil {
		return nil, fmt.Errorf("discovery: jwks_uri: %w", err)
	}
	return keysURL, nil
}

func (s *networkSource) otherIssuer(issuer string) error {
	return fmt.Errorf("discovery: %s is of issuer %s, not of %s", s.discovery, quote(issuer), quote(s.issuer))
}

func (s *networkSource) noDocument(err error) error {
	return fmt.Errorf("discovery: %s is not a discovery document: %w", s.discovery, boundedError(err))
}

// discoveryTransport answers go-oidc's one request with the document at the configured URL. Unlike
// go-oidc, its client bounds the size of the response and the targets of redirects. It accepts only
// a 200 whose document has no duplicate members.
type discoveryTransport struct {
	source *networkSource
	client *http.Client
	bearer string

	document struct {
		Issuer  string `json:"issuer"`
		KeysURL string `json:"jwks_uri"`
	}
	err error // of the request
}

// RoundTrip must be called only once.
func (t *discoveryTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	data, err := get(r.Context(), t.client, t.source.discovery, t.bearer)
	if err != nil {
		t.err = fmt.Errorf("discovery: %w%s", err, t.source.remedy(err))
		return nil, t.err
	}
	if err := json.Unmarshal(data, &t.document); err != nil {
		t.err = t.source.noDocument(err)
		return nil, t.err
	}
	return &http.Response{
		StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(bytes.NewReader(data)), Request: r,
	}, nil
}
