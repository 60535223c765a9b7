// Command bareproxy is the reverse proxy of Go's library between two TLS connections, and nothing else: it checks no client,
// writes nothing down and passes on whatever it is sent. The cost of the gateway beyond it is the gateway's; the cost that
// nginx saves is the library's. It is not an example to follow.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
)

func main() {
	listen := flag.String("listen", "localhost:8443", "address to serve at")
	upstream := flag.String("upstream", "https://localhost:5000", "what is asked")
	caFile := flag.String("ca", "ca.crt", "its CA (PEM)")
	certFile := flag.String("tls-cert", "tls.crt", "serving certificate (PEM)")
	keyFile := flag.String("tls-key", "tls.key", "its key (PEM)")
	flag.Parse()
	if err := run(*listen, *upstream, *caFile, *certFile, *keyFile); err != nil {
		fmt.Fprintln(os.Stderr, "bareproxy:", err)
		os.Exit(1)
	}
}

func run(listen, upstream, caFile, certFile, keyFile string) error {
	to, err := url.Parse(upstream)
	if err != nil {
		return err
	}
	pem, err := os.ReadFile(caFile)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return errors.New("no certificate in -ca")
	}
	proxy := &httputil.ReverseProxy{
		Transport: &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: roots}, MaxIdleConnsPerHost: 64, DisableCompression: true,
			TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{}, // HTTP/1.1, as to nginx
		},
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.URL.Path = "/v2/" + strings.TrimPrefix(r.In.URL.Path, "/v2/ghcr.io/")
		},
	}
	return http.ListenAndServeTLS(listen, certFile, keyFile, proxy)
}
