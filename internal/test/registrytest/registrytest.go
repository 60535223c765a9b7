// Package registrytest has real registries for tests: distribution in this process, by
// TLS, with a user.
package registrytest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/distribution/distribution/v3/configuration"
	_ "github.com/distribution/distribution/v3/registry/auth/htpasswd"
	_ "github.com/distribution/distribution/v3/registry/auth/token"
	"github.com/distribution/distribution/v3/registry/handlers"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/inmemory"
	"github.com/sirupsen/logrus"
	"golang.org/x/crypto/bcrypt"

	"github.com/pullpass/pullpass/internal/test/pkitest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// The user of a registry.
const (
	User = "acme-robot"
	// Password is long enough that no other text contains a piece of it by chance.
	Password = "the-password-of-the-robot-0123456789"
)

// ManifestType is the media type of the manifests that Put makes.
const ManifestType = "application/vnd.oci.image.manifest.v1+json"

// Server is an HTTPS server that counts what it is asked, and can be put in the way.
type Server struct {
	*httptest.Server
	CAFile string

	mu       sync.Mutex
	requests []*http.Request // without bodies
	handler  http.Handler
	instead  func(w http.ResponseWriter, r *http.Request) bool // reports whether it has answered
}

func NewServer(t testing.TB, handler http.Handler) *Server {
	t.Helper()
	s := &Server{handler: handler, CAFile: filepath.Join(t.TempDir(), "ca.crt")}
	cert := pkitest.NewCA(t, nil, func(c *x509.Certificate) {
		c.Subject, c.IPAddresses, c.DNSNames = pkix.Name{CommonName: "upstream"}, []net.IP{net.IPv4(127, 0, 0, 1)}, []string{"localhost"}
		c.KeyUsage, c.ExtKeyUsage = 0, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	})
	testkit.Must(t, os.WriteFile(s.CAFile, pkitest.CertPEM(cert), 0o600))
	s.Server = httptest.NewUnstartedServer(s)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{cert.TLS()}}
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requests = append(s.requests, r.Clone(context.Background()))
	instead := s.instead
	s.mu.Unlock()
	if instead == nil || !instead(w, r) {
		s.handler.ServeHTTP(w, r)
	}
}

// Answer puts f in the way of the registry; nil: nothing any more.
func (s *Server) Answer(f func(w http.ResponseWriter, r *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.instead = f
}

// Asked returns the requests since the last call.
func (s *Server) Asked() []*http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.requests
	s.requests = nil
	return all
}

// Count returns how many of the requests since the last call begin like that.
func (s *Server) Count(method, prefix string) int {
	n := 0
	for _, r := range s.Asked() {
		if r.Method == method && strings.HasPrefix(r.URL.Path, prefix) {
			n++
		}
	}
	return n
}

// newRegistry is distribution with a user, User.
func NewRegistry(t testing.TB, auth string) *Server {
	t.Helper()
	logrus.SetOutput(io.Discard)
	if auth == "" {
		dir := t.TempDir()
		// bcrypt of the password, cost 4, made by htpasswd -nbB.
		testkit.Must(t, os.WriteFile(filepath.Join(dir, "htpasswd"), htpasswd(t), 0o600))
		auth = "auth: {htpasswd: {realm: upstream, path: " + filepath.Join(dir, "htpasswd") + "}}"
	}
	config, err := configuration.Parse(strings.NewReader("version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\nstorage: {inmemory: {}, delete: {enabled: true}}\nhttp: {secret: secret-of-the-test, relativeurls: false}\n" + auth + "\n"))
	testkit.Must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	return NewServer(t, handlers.NewApp(ctx, config))
}

func htpasswd(t testing.TB) []byte {
	t.Helper()
	hash := testkit.Value(bcrypt.GenerateFromPassword([]byte(Password), bcrypt.MinCost))(t)
	return []byte(User + ":" + string(hash) + "\n")
}

func DigestOf(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Image is a manifest of one layer.
type Image struct{ Manifest, Digest, Layer, LayerDigest string }

// Put puts an image into a registry directly.
func (s *Server) Put(t testing.TB, repository, tag string, layer []byte) Image {
	t.Helper()
	client := s.Client()
	send := func(method, address string, body []byte, contentType string, want int) http.Header {
		request := testkit.Value(http.NewRequest(method, address, bytes.NewReader(body)))(t)
		request.SetBasicAuth(User, Password)
		request.Header.Set("Content-Type", contentType)
		response := testkit.Value(client.Do(request))(t)
		defer func() { _ = response.Body.Close() }()
		text, _ := io.ReadAll(response.Body)
		if response.StatusCode != want {
			t.Fatalf("%s %s: %d %s", method, address, response.StatusCode, text)
		}
		return response.Header
	}
	blob := func(content []byte) string {
		digest := DigestOf(content)
		at := send(http.MethodPost, s.URL+"/v2/"+repository+"/blobs/uploads/", nil, "", http.StatusAccepted).Get("Location")
		u := testkit.Value(url.Parse(at))(t)
		query := u.Query()
		query.Set("digest", digest)
		u.RawQuery = query.Encode()
		send(http.MethodPut, u.String(), content, "application/octet-stream", http.StatusCreated)
		return digest
	}
	config := blob([]byte("{}"))
	i := Image{Layer: string(layer), LayerDigest: blob(layer)}
	i.Manifest = ManifestOf(config, i.LayerDigest, len(layer))
	i.Digest = DigestOf([]byte(i.Manifest))
	send(http.MethodPut, s.URL+"/v2/"+repository+"/manifests/"+tag, []byte(i.Manifest), ManifestType, http.StatusCreated)
	s.Asked()
	return i
}

func ManifestOf(config, layer string, size int) string {
	return fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":%q,"size":2},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":%q,"size":%d}]}`, ManifestType, config, layer, size)
}
