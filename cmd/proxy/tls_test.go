package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// authority signs the certificates of a test.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t testing.TB, name string) authority {
	t.Helper()
	a := authority{key: newECKey(t)}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.cert = sign(t, template, template, &a.key.PublicKey, a.key)
	return a
}

func (a authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

func (a authority) pem() string { return pemBlock("CERTIFICATE", a.cert.Raw) }

// leaf returns a certificate and key as PEM, good from notBefore to notAfter
// (relative to now).
func (a authority) leaf(t testing.TB, name string, notBefore, notAfter time.Duration) (cert, key string) {
	t.Helper()
	private := newECKey(t)
	c := sign(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(notBefore), NotAfter: time.Now().Add(notAfter),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.cert, &private.PublicKey, a.key)
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pemBlock("CERTIFICATE", c.Raw), pemBlock("PRIVATE KEY", der)
}

func (a authority) client(t testing.TB, name string) *tls.Certificate {
	t.Helper()
	cert, key := a.leaf(t, name, -time.Minute, time.Hour)
	pair, err := tls.X509KeyPair([]byte(cert), []byte(key))
	if err != nil {
		t.Fatal(err)
	}
	return &pair
}

func newECKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func sign(t testing.TB, template, parent *x509.Certificate, pub *ecdsa.PublicKey, key *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, pub, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func pemBlock(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

// tlsRig is a server with the TLS that serve uses, and its files.
type tlsRig struct {
	dir     string
	ca      authority
	tls     *serverTLS
	address string
}

func newTLSRig(t *testing.T, clientCA string) *tlsRig {
	t.Helper()
	rig := &tlsRig{dir: t.TempDir(), ca: newAuthority(t, "serving CA")}
	rig.install(t, "first", -time.Minute, time.Hour)
	files := TLSFiles{CertFile: filepath.Join(rig.dir, "tls.crt"), KeyFile: filepath.Join(rig.dir, "tls.key")}
	if clientCA != "" {
		files.ClientCAFile = filepath.Join(rig.dir, "ca.crt")
		put(t, files.ClientCAFile, clientCA)
	}
	var err error
	if rig.tls, err = newServerTLS(files); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	rig.address = "localhost" + listener.Addr().String()[strings.LastIndex(listener.Addr().String(), ":"):]
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := "nobody"
		if len(r.TLS.VerifiedChains) > 0 {
			name = r.TLS.VerifiedChains[0][0].Subject.CommonName
		}
		_, _ = io.WriteString(w, r.Proto+" "+name)
	})
	server := newServer(handler, rig.tls.config(), slog.New(slog.DiscardHandler))
	go func() { _ = server.ServeTLS(listener, "", "") }()
	t.Cleanup(func() { _ = server.Close() })
	return rig
}

// install puts a new certificate and key in place.
func (rig *tlsRig) install(t *testing.T, name string, notBefore, notAfter time.Duration) {
	t.Helper()
	cert, key := rig.ca.leaf(t, name, notBefore, notAfter)
	put(t, filepath.Join(rig.dir, "tls.crt"), cert)
	put(t, filepath.Join(rig.dir, "tls.key"), key)
}

// get makes a new connection. It returns the name in the server's certificate,
// and what the server saw.
func (rig *tlsRig) get(t *testing.T, config *tls.Config) (server, seen string, err error) {
	t.Helper()
	config = config.Clone()
	config.RootCAs = rig.ca.pool()
	transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+rig.address+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := (&http.Client{Transport: transport, Timeout: time.Minute}).Do(request)
	if err != nil {
		return "", "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	seen = string(body)
	if response.TLS.DidResume {
		seen += " resumed"
	}
	return response.TLS.PeerCertificates[0].Subject.CommonName, seen, err
}

func (rig *tlsRig) expect(t *testing.T, config *tls.Config, server, seen string) {
	t.Helper()
	gotServer, gotSeen, err := rig.get(t, config)
	if err != nil {
		t.Fatal(err)
	}
	if gotServer != server || gotSeen != seen {
		t.Errorf("certificate %q, request %q; want %q, %q", gotServer, gotSeen, server, seen)
	}
}

func with(certificate *tls.Certificate) *tls.Config {
	return &tls.Config{GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return certificate, nil }}
}

func TestTLSCertificateIsReplacedWithoutARestart(t *testing.T) {
	t.Parallel()
	rig := newTLSRig(t, "")
	rig.expect(t, &tls.Config{}, "first", "HTTP/2.0 nobody")
	rig.install(t, "second", -time.Minute, time.Hour)
	rig.expect(t, &tls.Config{}, "first", "HTTP/2.0 nobody")
	if err := rig.tls.Reload(); err != nil {
		t.Fatal(err)
	}
	rig.expect(t, &tls.Config{}, "second", "HTTP/2.0 nobody")
}

// A broken, half-written or expired certificate must not take down a server
// that has a good one.
func TestTLSKeepsTheLastGoodCertificate(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		spoil func(*testing.T, *tlsRig)
		want  string
	}{
		{"another key", func(t *testing.T, rig *tlsRig) {
			_, key := rig.ca.leaf(t, "other", -time.Minute, time.Hour)
			put(t, filepath.Join(rig.dir, "tls.key"), key)
		}, "server.tls: certificate DIR/tls.crt and key DIR/tls.key: tls: private key does not match public key; put both halves of one pair there"},
		{"expired", func(t *testing.T, rig *tlsRig) { rig.install(t, "old", -2*time.Hour, -time.Hour) },
			"server.tls.certFile: DIR/tls.crt ended at "},
		{"not yet valid", func(t *testing.T, rig *tlsRig) { rig.install(t, "new", time.Hour, 2*time.Hour) },
			"server.tls.certFile: DIR/tls.crt begins only at "},
		{"empty", func(t *testing.T, rig *tlsRig) { put(t, filepath.Join(rig.dir, "tls.crt"), "") },
			"server.tls: certificate DIR/tls.crt and key DIR/tls.key: tls: failed to find any PEM data in certificate input; put both halves of one pair there"},
		{"missing", func(t *testing.T, rig *tlsRig) {
			remove(t, filepath.Join(rig.dir, "tls.crt"))
			remove(t, filepath.Join(rig.dir, "tls.key"))
		}, "server.tls.certFile: open DIR/tls.crt: no such file or directory\nserver.tls.keyFile: open DIR/tls.key: no such file or directory"},
		{"huge", func(t *testing.T, rig *tlsRig) {
			put(t, filepath.Join(rig.dir, "tls.crt"), strings.Repeat("x", maxTLSFileBytes+1))
		}, "server.tls.certFile: DIR/tls.crt has more than 1048576 bytes; no more are read"},
		{"no client CA", func(t *testing.T, rig *tlsRig) { put(t, filepath.Join(rig.dir, "ca.crt"), "") },
			"server.tls.clientCAFile: DIR/ca.crt holds no certificate; put the CAs of the nodes' client certificates there, as PEM"},
		// x509.CertPool would skip it, and lock its nodes out.
		{"one bad client CA of two", func(t *testing.T, rig *tlsRig) {
			put(t, filepath.Join(rig.dir, "ca.crt"), rig.ca.pem()+pemBlock("CERTIFICATE", []byte("x")))
		}, "server.tls.clientCAFile: DIR/ca.crt holds a certificate that cannot be read: "},
		{"a key among the client CAs", func(t *testing.T, rig *tlsRig) {
			_, key := rig.ca.leaf(t, "other", -time.Minute, time.Hour)
			put(t, filepath.Join(rig.dir, "ca.crt"), rig.ca.pem()+key)
		}, `server.tls.clientCAFile: DIR/ca.crt holds a block of another type than CERTIFICATE ("PRIVATE KEY")`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			nodes := newAuthority(t, "node CA")
			rig := newTLSRig(t, nodes.pem())
			test.spoil(t, rig)
			err := rig.tls.Reload()
			if err == nil {
				t.Fatal("no error")
			}
			if got := strings.ReplaceAll(err.Error(), rig.dir, "DIR"); !strings.HasPrefix(got, test.want) {
				t.Errorf("error\n%s\nwant\n%s", got, test.want)
			}
			rig.expect(t, with(nodes.client(t, "system:node:a")), "first", "HTTP/2.0 system:node:a")
			rig.install(t, "mended", -time.Minute, time.Hour)
			put(t, filepath.Join(rig.dir, "ca.crt"), nodes.pem())
			if err := rig.tls.Reload(); err != nil {
				t.Fatal(err)
			}
			rig.expect(t, &tls.Config{}, "mended", "HTTP/2.0 nobody")
		})
	}
}

func TestTLSRefusesToBeginWithoutAGoodCertificate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, err := newServerTLS(TLSFiles{CertFile: filepath.Join(dir, "tls.crt"), KeyFile: filepath.Join(dir, "tls.key")})
	if err == nil || !strings.Contains(err.Error(), "server.tls.certFile: open "+dir) {
		t.Errorf("error %v, want one that names the field and the file", err)
	}
}

func TestTLSClientCertificates(t *testing.T) {
	t.Parallel()
	nodes, others := newAuthority(t, "node CA"), newAuthority(t, "other CA")
	rig := newTLSRig(t, nodes.pem())
	rig.expect(t, &tls.Config{}, "first", "HTTP/2.0 nobody")
	rig.expect(t, with(nodes.client(t, "system:node:a")), "first", "HTTP/2.0 system:node:a")
	if _, seen, err := rig.get(t, with(others.client(t, "system:node:a"))); err == nil {
		t.Errorf("a certificate of another CA was accepted as %q", seen)
	}

	put(t, filepath.Join(rig.dir, "ca.crt"), others.pem())
	if err := rig.tls.Reload(); err != nil {
		t.Fatal(err)
	}
	rig.expect(t, with(others.client(t, "system:node:b")), "first", "HTTP/2.0 system:node:b")
	if _, seen, err := rig.get(t, with(nodes.client(t, "system:node:a"))); err == nil {
		t.Errorf("a certificate of a removed CA was accepted as %q", seen)
	}
}

// A resumed session must not outlive the CA that its client certificate was
// judged by (CVE-2025-68121 was of this kind).
func TestTLSResumedSessionIsJudgedByTheCAsOfNow(t *testing.T) {
	t.Parallel()
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		nodes, others := newAuthority(t, "node CA"), newAuthority(t, "other CA")
		rig := newTLSRig(t, nodes.pem())
		config := with(nodes.client(t, "system:node:a"))
		config.MaxVersion = version
		config.ClientSessionCache = tls.NewLRUClientSessionCache(1)
		rig.expect(t, config, "first", "HTTP/2.0 system:node:a")
		rig.expect(t, config, "first", "HTTP/2.0 system:node:a resumed")
		put(t, filepath.Join(rig.dir, "ca.crt"), others.pem())
		if err := rig.tls.Reload(); err != nil {
			t.Fatal(err)
		}
		if _, seen, err := rig.get(t, config); err == nil {
			t.Errorf("%s: a session of a removed CA was resumed as %q", tls.VersionName(version), seen)
		}
	}
}

func TestTLSRefusesOldVersions(t *testing.T) {
	t.Parallel()
	rig := newTLSRig(t, "")
	_, _, err := rig.get(t, &tls.Config{MinVersion: tls.VersionTLS11, MaxVersion: tls.VersionTLS11})
	if err == nil || !strings.Contains(err.Error(), "protocol version") {
		t.Errorf("TLS 1.1: %v, want a refusal of the version", err)
	}
}
