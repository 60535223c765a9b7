// Command floor is the least that a token endpoint of this kind must do, written by hand: one RS256 verification, one ES256
// signature, and JSON. It checks nothing else. It is the yardstick for the cost of an exchange over real sockets, as the floor
// of BenchmarkExchange is without them, and no example to follow.
package main

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-jose/go-jose/v4"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "floor:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stderr io.Writer) error {
	flags := flag.NewFlagSet("floor", flag.ContinueOnError)
	flags.SetOutput(stderr)
	listen := flags.String("listen", "localhost:8443", "address to serve at")
	issuer := flags.String("issuer", "https://localhost:6443", "iss of the tokens, where their keys are")
	caFile := flags.String("ca", "ca.crt", "CA of the issuer (PEM)")
	certFile := flags.String("tls-cert", "", "serving certificate (PEM); without: plain HTTP")
	keyFile := flags.String("tls-key", "", "its key (PEM)")
	least := flags.Bool("least-tls", false, "without what a token endpoint does not need: post-quantum key exchange, HTTP/2, tickets")
	if err := flags.Parse(args); err != nil {
		return err
	}
	key, err := keyOf(ctx, *issuer, *caFile)
	if err != nil {
		return err
	}
	handler, err := newFloor(*issuer, key)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/token", handler)
	server := &http.Server{Addr: *listen, Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	if *least {
		server.TLSConfig = &tls.Config{CurvePreferences: []tls.CurveID{tls.X25519}, SessionTicketsDisabled: true}
		server.Protocols = &http.Protocols{}
		server.Protocols.SetHTTP1(true)
	}
	stopped := context.AfterFunc(ctx, func() { _ = server.Close() }) // serving says what came of it
	defer stopped()
	if *certFile == "" {
		err = server.ListenAndServe()
	} else {
		err = server.ListenAndServeTLS(*certFile, *keyFile)
	}
	if !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// keyOf asks the issuer for the key that signs.
func keyOf(ctx context.Context, issuer, caFile string) (*rsa.PublicKey, error) {
	ca, err := os.ReadFile(caFile)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}, Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, issuer+"/openid/v1/jwks", nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	var set jose.JSONWebKeySet
	if err := json.NewDecoder(response.Body).Decode(&set); err != nil {
		return nil, err
	}
	if len(set.Keys) == 0 {
		return nil, errors.New("the issuer publishes no key")
	}
	key, ok := set.Keys[len(set.Keys)-1].Key.(*rsa.PublicKey)
	if !ok {
		return nil, errors.New("the issuer's key is no RSA key")
	}
	return key, nil
}

func newFloor(issuer string, public *rsa.PublicKey) (http.Handler, error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	type access struct {
		Type    string   `json:"type"`
		Name    string   `json:"name"`
		Actions []string `json:"actions"`
	}
	encode := base64.RawURLEncoding
	header := encode.EncodeToString([]byte(`{"alg":"ES256","typ":"JWT"}`))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		parts := strings.Split(r.PostFormValue("password"), ".")
		scope := strings.Split(r.PostFormValue("scope"), ":")
		if len(parts) != 3 || len(scope) != 3 {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		digest := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
		signature, _ := encode.DecodeString(parts[2]) // a broken one verifies nothing
		payload, _ := encode.DecodeString(parts[1])
		var incoming struct {
			Issuer   string   `json:"iss"`
			Subject  string   `json:"sub"`
			Audience []string `json:"aud"`
		}
		if rsa.VerifyPKCS1v15(public, crypto.SHA256, digest[:], signature) != nil || json.Unmarshal(payload, &incoming) != nil ||
			incoming.Issuer != issuer || !slices.Contains(incoming.Audience, r.PostFormValue("service")) {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		now := time.Now()
		claims, _ := json.Marshal(map[string]any{ // strings and numbers: cannot fail
			"iss": "pullpass.example.com", "sub": incoming.Subject, "aud": r.PostFormValue("service"),
			"iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(5 * time.Minute).Unix(), "jti": rand.Text(),
			"access": []access{{scope[0], scope[1], strings.Split(scope[2], ",")}},
		})
		unsigned := header + "." + encode.EncodeToString(claims)
		digest = sha256.Sum256([]byte(unsigned))
		x, y, err := ecdsa.Sign(rand.Reader, private, digest[:])
		if err != nil {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		raw := make([]byte, 64)
		x.FillBytes(raw[:32])
		y.FillBytes(raw[32:])
		token := unsigned + "." + encode.EncodeToString(raw)
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{ // the client sees a broken answer
			"token": token, "access_token": token, "expires_in": 300, "issued_at": now.UTC().Format(time.RFC3339),
		})
	}), nil
}
