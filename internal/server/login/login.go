// Package login asks a token endpoint for a token, as clients of registries do, and checks the
// response. It is for tests of an installation: it knows no configuration, and goes through all
// that is on the way of a client.
package login

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/pullpass/pullpass/internal/base/file"
	"github.com/pullpass/pullpass/internal/gateway/upstream/logins"
	"github.com/pullpass/pullpass/internal/registryauth"
)

const (
	requestWithin       = 30 * time.Second
	maxBodyBytes        = 256 << 10
	maxCertificateBytes = 64 << 10
)

// Request is a login: a token request without a scope.
type Request struct {
	URL       string // of the token endpoint
	Service   string // of the registry
	TokenFile string // the credential
	// CertFile has the certificate that the server must present. The URL may then have another
	// name: the Service of a cluster, for example. Empty: the system's CAs must have issued a
	// certificate for the URL.
	CertFile string
}

// Send sends the request and returns the time at which the token of the response expires. A
// refusal, and a response without a token for the service, are errors.
func Send(ctx context.Context, r Request, now func() time.Time) (expiry time.Time, err error) {
	endpoint, err := url.Parse(r.URL)
	if err != nil || endpoint.Scheme != "https" || endpoint.Host == "" || endpoint.RawQuery != "" {
		return time.Time{}, fmt.Errorf("--url %q is not the address of a token endpoint; write https://HOST:PORT/token", r.URL)
	}
	content, err := file.ReadArgument(ctx, r.TokenFile, registryauth.MaxTokenBytes+2) // a line break may follow
	if err != nil {
		return time.Time{}, fmt.Errorf("--token-file: %w", err)
	}
	secret := registryauth.NewSecret(strings.TrimSpace(string(content)))
	tlsConfig := &tls.Config{MinVersion: tls.VersionTLS12}
	if r.CertFile != "" {
		if err := pin(ctx, tlsConfig, r.CertFile); err != nil {
			return time.Time{}, fmt.Errorf("--certificate: %w", err)
		}
	}
	client := &http.Client{
		Timeout:       requestWithin,
		Transport:     &http.Transport{TLSClientConfig: tlsConfig, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	endpoint.RawQuery = url.Values{"service": {r.Service}}.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, endpoint.String(), nil)
	if err != nil {
		return time.Time{}, err
	}
	request.Header.Set("User-Agent", "pullpass")
	request.SetBasicAuth("serviceaccount", secret.Reveal())
	response, err := client.Do(request)
	if err != nil {
		return time.Time{}, logins.Failure(err, secret)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxBodyBytes))
	if err != nil {
		return time.Time{}, logins.Failure(err, secret)
	}
	if response.StatusCode != http.StatusOK {
		return time.Time{}, logins.Refusal(endpoint.Host, response.StatusCode, body, secret)
	}
	expiry, err = check(body, r.Service, now())
	if err != nil {
		return time.Time{}, fmt.Errorf("%s answers 200, but %w", endpoint.Host, err)
	}
	return expiry, nil
}

// pin makes the first certificate of a file the only trusted one, under the name that it has.
func pin(ctx context.Context, config *tls.Config, name string) error {
	content, err := file.ReadArgument(ctx, name, maxCertificateBytes)
	if err != nil {
		return err
	}
	block, _ := pem.Decode(content)
	if block == nil || block.Type != "CERTIFICATE" {
		return fmt.Errorf("%s does not begin with a certificate in PEM", name)
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	switch {
	case len(certificate.DNSNames) > 0:
		config.ServerName = strings.Replace(certificate.DNSNames[0], "*", "wildcard", 1)
	case len(certificate.IPAddresses) > 0:
		config.ServerName = certificate.IPAddresses[0].String()
	default:
		return fmt.Errorf("%s has no subject alternative name, so no client accepts it", name)
	}
	config.RootCAs = x509.NewCertPool()
	config.RootCAs.AddCert(certificate)
	return nil
}

// check returns the expiry of the token in a response. Registries verify the signature.
func check(body []byte, service string, now time.Time) (time.Time, error) {
	var answer struct {
		Token string `json:"token"`
	}
	if json.Unmarshal(body, &answer) != nil || answer.Token == "" { // the error could quote the token
		return time.Time{}, errors.New("the response has no token")
	}
	var claims struct {
		Audience audience `json:"aud"`
	}
	parts := strings.Split(answer.Token, ".")
	if len(parts) != 3 {
		return time.Time{}, errors.New("the token is not a JWT")
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(payload, &claims) != nil {
		return time.Time{}, errors.New("the claims of the token cannot be read")
	}
	if !slices.Contains(claims.Audience, service) {
		return time.Time{}, fmt.Errorf("the token is for %q; want %q", []string(claims.Audience), service)
	}
	expiry := logins.End(answer.Token)
	if !expiry.After(now) {
		return time.Time{}, fmt.Errorf("the token expired at %s; check the clocks of both machines", expiry.UTC().Format(time.RFC3339))
	}
	return expiry, nil
}

// audience is one text or a list (RFC 7519, section 4.1.3).
type audience []string

func (a *audience) UnmarshalJSON(data []byte) error {
	var one string
	if json.Unmarshal(data, &one) == nil {
		*a = audience{one}
		return nil
	}
	return json.Unmarshal(data, (*[]string)(a))
}
