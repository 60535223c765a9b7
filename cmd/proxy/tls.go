package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

const maxTLSFileBytes = 1 << 20

// serverTLS is the TLS of the public listener. Its files are read again by
// Reload; handshakes that begin afterwards use them. It is safe for concurrent use.
type serverTLS struct {
	files   TLSFiles
	now     func() time.Time
	reload  sync.Mutex // one Reload at a time
	current atomic.Pointer[tls.Config]
}

// newServerTLS reads the files. An error names the field and the file.
func newServerTLS(files TLSFiles) (*serverTLS, error) {
	return newServerTLSAt(files, time.Now)
}

func newServerTLSAt(files TLSFiles, now func() time.Time) (*serverTLS, error) {
	s := &serverTLS{files: files, now: now}
	if err := s.Reload(); err != nil {
		return nil, err
	}
	return s, nil
}

// Reload reads the files again. What cannot be used never replaces what works:
// on an error, which names the field, the file and the remedy, all stays as it was. A certificate
// and key of which only one is new yet is such an error; the next Reload mends it.
func (s *serverTLS) Reload() error {
	s.reload.Lock()
	defer s.reload.Unlock()

	next, err := s.read()
	if err != nil {
		return err
	}
	s.current.Store(next)
	return nil
}

// config returns what a server needs; it follows all later reloads.
func (s *serverTLS) config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		// Not GetCertificate: the pool of client CAs has no hook of its own.
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.current.Load(), nil },
	}
}

func (s *serverTLS) read() (*tls.Config, error) {
	var contents [3][]byte
	var faults []error
	for i, f := range []struct{ field, name string }{
		{"certFile", s.files.CertFile}, {"keyFile", s.files.KeyFile}, {"clientCAFile", s.files.ClientCAFile},
	} {
		if f.name == "" && f.field == "clientCAFile" {
			continue
		}
		var err error
		if contents[i], err = readLimited(f.name, maxTLSFileBytes); err != nil {
			faults = append(faults, fmt.Errorf("server.tls.%s: %w", f.field, err))
		}
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	cert, err := tls.X509KeyPair(contents[0], contents[1])
	if err != nil {
		return nil, fmt.Errorf("server.tls: certificate %s and key %s: %w; put both halves of one pair there", s.files.CertFile, s.files.KeyFile, err)
	}
	if err := checkServerCertificate(cert.Leaf, s.now()); err != nil {
		return nil, fmt.Errorf("server.tls.certFile: %s %w", s.files.CertFile, err)
	}
	config := &tls.Config{
		MinVersion:   tls.VersionTLS12,
		NextProtos:   []string{"h2", "http/1.1"}, // this config replaces the one that net/http has prepared
		Certificates: []tls.Certificate{cert},
	}
	if s.files.ClientCAFile != "" {
		if config.ClientCAs, err = parseClientCAs(contents[2]); err != nil {
			return nil, fmt.Errorf("server.tls.clientCAFile: %s %w; put the CAs of the nodes' client certificates there, as PEM", s.files.ClientCAFile, err)
		}
		// Clients without a certificate go on; one that is presented and is not
		// of these CAs ends the handshake.
		config.ClientAuth = tls.VerifyClientCertIfGiven
	}
	return config, nil
}

// parseClientCAs takes all or nothing: x509.CertPool skips what it cannot
// parse, and the nodes of one cluster would be locked out without a word.
func parseClientCAs(data []byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	n := 0
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("holds a block of another type than CERTIFICATE (%s)", quoteValue(block.Type))
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("holds a certificate that cannot be read: %w", err)
		}
		pool.AddCert(cert)
		n++
	}
	if n == 0 {
		return nil, errors.New("holds no certificate")
	}
	return pool, nil
}

func checkServerCertificate(leaf *x509.Certificate, now time.Time) error {
	if now.After(leaf.NotAfter) {
		return fmt.Errorf("ended at %s; renew it", leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	if now.Before(leaf.NotBefore) {
		return fmt.Errorf("begins only at %s; look at this machine's clock", leaf.NotBefore.UTC().Format(time.RFC3339))
	}
	return nil
}
