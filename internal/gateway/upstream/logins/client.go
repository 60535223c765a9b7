package logins

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

const (
	requestWithin = 10 * time.Second
	maxBodyBytes  = 256 << 10 // of a response: logins have a few thousand
)

// NewClient returns a client for services that issue logins. roots are the CAs of their
// certificates; nil: the system's. It follows no redirect, because the request is only for the
// configured service. It bounds the time and the size of a response.
func NewClient(roots *x509.CertPool) *http.Client {
	return &http.Client{
		Transport: capped{&http.Transport{
			Proxy:                  http.ProxyFromEnvironment,
			DialContext:            (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
			TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots},
			TLSHandshakeTimeout:    5 * time.Second,
			IdleConnTimeout:        90 * time.Second,
			MaxResponseHeaderBytes: 64 << 10,
			ForceAttemptHTTP2:      true,
			DisableCompression:     true, // the limit applies to the bytes on the wire
		}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Timeout:       requestWithin,
	}
}

// capped bounds the size of response bodies. SDKs would read all.
type capped struct{ http.RoundTripper }

func (c capped) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := c.RoundTripper.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	response.Body = Capped(response.Body)
	return response, nil
}

// CloseIdleConnections is for http.Client, which looks for this method.
func (c capped) CloseIdleConnections() {
	c.RoundTripper.(*http.Transport).CloseIdleConnections()
}

// Capped returns a body that fails if it is longer than a valid response, for SDKs that have their
// own client.
func Capped(body io.ReadCloser) io.ReadCloser { return &cappedBody{body, maxBodyBytes} }

type cappedBody struct {
	io.ReadCloser
	left int
}

// Read fails at the limit: a partial response must not be taken for a complete one.
func (b *cappedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > b.left {
		return 0, fmt.Errorf("the answer has more than %d bytes", maxBodyBytes)
	}
	b.left -= n
	return n, err
}
