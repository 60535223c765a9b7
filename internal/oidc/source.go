package oidc

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/pullpass/pullpass/internal/base/names"

	"github.com/pullpass/pullpass/internal/base/file"
)

const (
	maxDocumentBytes = 1 << 20 // discovery document, key set, CA bundle
	maxHeaderLimit   = 64 << 10
	maxRedirects     = 3
)

// fileSource reads a JWK set from a file. It opens the file at every fetch, so it follows a mount
// that Kubernetes replaces through a symbolic link.
type fileSource string

func (s fileSource) fetch(context.Context) (map[string]*key, error) {
	data, err := readFile(string(s), maxDocumentBytes)
	if err != nil {
		return nil, fmt.Errorf("discovery.jwksFile: %w", err)
	}
	keys, err := parseKeySet(data)
	if err != nil {
		return nil, fmt.Errorf("discovery.jwksFile %s: %w", s, err)
	}
	return keys, nil
}

// networkSource fetches a JWK set with or without discovery.
type networkSource struct {
	issuer    string
	discovery *url.URL // nil: keys is known
	keys      *url.URL
	caFile    string
	tokenFile string
	dial      func(ctx context.Context, network, address string) (net.Conn, error) // nil: that of net.Dialer
}

func newNetworkSource(i Issuer, dial func(ctx context.Context, network, address string) (net.Conn, error)) (*networkSource, error) {
	s := &networkSource{issuer: i.URL, caFile: i.Discovery.CAFile, tokenFile: i.Discovery.TokenFile, dial: dial}
	var err error
	switch {
	case i.Discovery.JWKSURL != "":
		s.keys, err = parseHTTPS(i.Discovery.JWKSURL)
	case i.Discovery.URL != "":
		s.discovery, err = parseHTTPS(i.Discovery.URL)
	default:
		s.discovery, err = parseHTTPS(strings.TrimSuffix(i.URL, "/") + wellKnownPath)
	}
	return s, err
}

// fetch reads the CA bundle and the bearer token each time, because both are rotated.
func (s *networkSource) fetch(ctx context.Context) (map[string]*key, error) {
	client, err := s.client()
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	bearer, err := s.bearer()
	if err != nil {
		return nil, err
	}
	keysURL := s.keys
	if s.discovery != nil {
		if keysURL, err = s.discover(ctx, client, bearer); err != nil {
			return nil, err
		}
		if !sameOrigin(keysURL, s.discovery) {
			// The issuer chooses that host, and the bearer token was not configured for it.
			bearer = ""
		}
	}
	data, err := get(ctx, client, keysURL, bearer)
	if err != nil {
		return nil, fmt.Errorf("key set: %w%s", err, s.keysRemedy(keysURL, err))
	}
	keys, err := parseKeySet(data)
	if err != nil {
		return nil, fmt.Errorf("key set %s: %w", keysURL, err)
	}
	return keys, nil
}

// remedy says what to configure if the issuer refuses this request.
func (s *networkSource) remedy(err error) string {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return "; the CA of the issuer's certificate belongs into discovery.caFile"
	}
	if status, _ := errors.AsType[statusError](err); status != http.StatusUnauthorized && status != http.StatusForbidden {
		return ""
	}
	if s.tokenFile != "" {
		return "; the issuer does not accept the token of discovery.tokenFile for this"
	}
	return "; the issuer answers authenticated callers only: set discovery.tokenFile, or bind the role " +
		"system:service-account-issuer-discovery to the group system:unauthenticated"
}

func (s *networkSource) keysRemedy(keysURL *url.URL, err error) string {
	if s.discovery == nil || sameOrigin(keysURL, s.discovery) {
		return s.remedy(err)
	}
	return fmt.Sprintf("; the discovery document names another host (%s), which gets no token: set discovery.jwksURL", quote(keysURL.Host))
}

// client is made for one fetch. It ignores proxy variables of the environment, because such a proxy
// could deliver false keys.
func (s *networkSource) client() (*http.Client, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if s.caFile != "" {
		bundle, err := readFile(s.caFile, maxDocumentBytes)
		if err != nil {
			return nil, fmt.Errorf("discovery.caFile: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(bundle) {
			return nil, fmt.Errorf("discovery.caFile: %s holds no PEM certificate", s.caFile)
		}
	}
	return &http.Client{
		Transport: &http.Transport{
			DialContext:            s.dial,
			TLSClientConfig:        config,
			ForceAttemptHTTP2:      true,
			DisableCompression:     true, // the limit is on what is sent
			MaxResponseHeaderBytes: maxHeaderLimit,
		},
		CheckRedirect: checkRedirect,
	}, nil
}

// checkRedirect keeps a redirect on the same host. An issuer must not direct this process, or its
// bearer token, to other hosts.
func checkRedirect(next *http.Request, via []*http.Request) error {
	if !sameOrigin(next.URL, via[0].URL) {
		return fmt.Errorf("redirected to another host (%s)", quote(next.URL.Host))
	}
	if len(via) > maxRedirects {
		return fmt.Errorf("more than %d redirects", maxRedirects)
	}
	return nil
}

func (s *networkSource) bearer() (string, error) {
	if s.tokenFile == "" {
		return "", nil
	}
	data, err := readFile(s.tokenFile, MaxTokenBytes)
	if err != nil {
		return "", fmt.Errorf("discovery.tokenFile: %w", err)
	}
	bearer := strings.TrimSpace(string(data))
	if bearer == "" || !names.IsVisible(bearer) {
		return "", fmt.Errorf("discovery.tokenFile: %s holds no token", s.tokenFile)
	}
	return bearer, nil
}

// statusError is an HTTP status other than 200.
type statusError int

func (e statusError) Error() string { return fmt.Sprintf("%d %s", int(e), http.StatusText(int(e))) }

func get(ctx context.Context, client *http.Client, address *url.URL, bearer string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address.String(), nil)
	if err != nil {
		return nil, err
	}
	// No Accept header: API servers answer 406 to some.
	request.Header.Set("User-Agent", "pullpass")
	if bearer != "" {
		request.Header.Set("Authorization", "Bearer "+bearer)
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, withoutOwnPort(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s: %w", address, statusError(response.StatusCode))
	}
	data, err := readAll(response.Body, maxDocumentBytes)
	if err != nil {
		return nil, fmt.Errorf("GET %s: %w", address, withoutOwnPort(err))
	}
	return data, nil
}

// withoutOwnPort removes the local port, which differs at every attempt. The same failure then has
// the same text and is logged once.
func withoutOwnPort(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		op.Source = nil
	}
	return err
}

func readFile(path string, limit int64) ([]byte, error) {
	f, err := file.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := readAll(f, limit)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return data, nil
}

// readAll fails if the input exceeds the limit, because a truncated document could be read as a
// complete one.
func readAll(r io.Reader, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("longer than %d bytes", limit)
	}
	return data, nil
}

func sameOrigin(a, b *url.URL) bool {
	return a.Scheme == b.Scheme && strings.EqualFold(a.Hostname(), b.Hostname()) && port(a) == port(b)
}

func port(u *url.URL) string {
	if p := u.Port(); p != "" {
		return p
	}
	return "443" // every URL here is https
}
