// Command issuer is a cluster's token issuer without the cluster: discovery and keys, as an API server serves them, and
// tokens of as many pods as anybody asks for, with the claims that a kubelet's tokens have (KEP-4193).
//
// It gives a token to any client. It is for load tests, and for trying things out.
//
//	GET  /.well-known/openid-configuration, /openid/v1/jwks
//	GET  /tokens?from=60&count=30         tokens of the pods 60 to 89, with the names in them
//	GET  /tokens?from=60&count=30&age=2h  the same, signed two hours ago
//	POST /rotate?after=15s                a new key is published now and signs later; the old ones stay published
//
// Keys are files in a directory. They are read at start, so a restarted issuer is the same issuer.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/go-jose/go-jose/v4"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "issuer:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stderr io.Writer) error {
	flags := flag.NewFlagSet("issuer", flag.ContinueOnError)
	flags.SetOutput(stderr)
	listen := flags.String("listen", "localhost:6443", "address to serve at")
	url := flags.String("url", "", "iss of the tokens (default: https:// and the address)")
	audience := flags.String("audience", "registry.example.com", "aud of the tokens")
	lifetime := flags.Duration("lifetime", time.Hour, "how long tokens live")
	keys := flags.String("keys", "issuer-keys", "directory of the signing keys, made if missing")
	certFile := flags.String("tls-cert", "tls.crt", "serving certificate (PEM)")
	keyFile := flags.String("tls-key", "tls.key", "its key (PEM)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *url == "" {
		*url = "https://" + *listen
	}
	signing, err := openKeys(*keys)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	handler := newHandler(*url, newMint(signing, *url, *audience, *lifetime))
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	stopped := context.AfterFunc(ctx, func() { _ = server.Close() }) // ServeTLS says what came of it
	defer stopped()
	if err := server.ServeTLS(listener, *certFile, *keyFile); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func newHandler(url string, m *mint) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, map[string]any{
			"issuer":                                url,
			"jwks_uri":                              url + "/openid/v1/jwks",
			"response_types_supported":              []string{"id_token"},
			"subject_types_supported":               []string{"public"},
			"id_token_signing_alg_values_supported": []string{string(jose.RS256)},
		})
	})
	mux.HandleFunc("GET /openid/v1/jwks", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, m.keys.published())
	})
	mux.HandleFunc("GET /tokens", func(w http.ResponseWriter, r *http.Request) {
		from, fromErr := strconv.ParseUint(r.FormValue("from"), 10, 31)
		count, countErr := strconv.ParseUint(r.FormValue("count"), 10, 31)
		age, ageErr := time.ParseDuration(cmp.Or(r.FormValue("age"), "0"))
		if err := errors.Join(fromErr, countErr, ageErr); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		tokens := make([]token, count)
		for i := range tokens {
			var err error
			if tokens[i], err = m.token(int(from)+i, age); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
		}
		writeJSON(w, tokens)
	})
	mux.HandleFunc("POST /rotate", func(w http.ResponseWriter, r *http.Request) {
		after, err := time.ParseDuration(cmp.Or(r.FormValue("after"), "0"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if err := m.keys.rotate(after); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	return mux
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the client sees a broken answer
}
