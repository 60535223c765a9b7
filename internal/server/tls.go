package server

import (
	"bytes"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pullpass/pullpass/internal/base/file"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
	"github.com/pullpass/pullpass/internal/registryauth/signing"
	"github.com/pullpass/pullpass/internal/server/metrics"
)

const maxTLSFileBytes = 1 << 20

// Bounds of the certificates that a client presents. Those of kubelets and their CAs have one to two
// KiB each, no alternative names, and ten to thirty other parts: attributes of names, extensions, usages.
const (
	maxPresentedBytes = 8 << 10
	maxPresentedNames = 16
	maxPresentedParts = 128
)

var errPresented = fmt.Errorf("more than %d client certificates, %d KiB of them, %d alternative names, or %d other parts", nodeproof.MaxPresented, maxPresentedBytes>>10, maxPresentedNames, maxPresentedParts)

// classicCurves are Go's own except X25519MLKEM768. Go prefers X25519 among the others, and clients
// under FIPS 140 use the NIST curves. Traffic of the token endpoint is worthless once its tokens
// have expired. So a recording, decrypted by a quantum computer in the future, gives no access.
// X25519MLKEM768 takes a quarter of the cost of a connection.
var classicCurves = []tls.CurveID{tls.X25519, tls.CurveP256, tls.CurveP384, tls.CurveP521}

// serverTLS holds the contents of the public listener's TLS files: its certificate, and the CAs by
// which callers prove that they are nodes. It never changes.
type serverTLS struct {
	config  *tls.Config
	gateway *tls.Config               // nil: no gateway
	nodes   map[string]*nodeproof.CAs // by cluster
	ends    metrics.TLSEnds
}

// check says whether the certificate is still valid. Without a valid one, clients cannot connect,
// so the proxy is not ready.
func (s *serverTLS) check(now time.Time) check {
	leaf := s.config.Certificates[0].Leaf
	c := check{Name: "server.tls.certFile", Healthy: true}
	if s.gateway != nil && s.gateway.Certificates[0].Leaf.NotAfter.Before(leaf.NotAfter) {
		leaf, c.Name = s.gateway.Certificates[0].Leaf, "gateway.tls.certFile"
	}
	if err := checkServerCertificate(leaf, now); err != nil {
		c.Healthy, c.Message = false, err.Error()
	} else if err := signing.EndsSoon([]*x509.Certificate{leaf}, now); err != nil {
		c.Message = err.Error()
	}
	return c
}

// warnings names settings that make each connection slow.
func (s *serverTLS) warnings(cfg *config.Config) []string {
	warnings := slowKey("server.tls.certFile", cfg.Server.TLS.CertFile, s.config)
	if g := cfg.Gateway; g != nil && g.TLS.CertFile != cfg.Server.TLS.CertFile {
		warnings = append(warnings, slowKey("gateway.tls.certFile", g.TLS.CertFile, s.gateway)...)
	}
	return warnings
}

// rsaCost is the cost of a signature with an RSA key of up to 2,048 bits, up to 3,072, and more.
// The unit is a signature with an ECDSA key on P-256 ("make bench", BenchmarkServingKey).
var rsaCost = [...]int{25, 75, 165}

func slowKey(field, file string, config *tls.Config) []string {
	key, ok := config.Certificates[0].Leaf.PublicKey.(*rsa.PublicKey)
	if !ok {
		return nil
	}
	bits := key.N.BitLen()
	cost := rsaCost[min(max(bits-1025, 0)/1024, len(rsaCost)-1)]
	return []string{fmt.Sprintf("%s: %s has an RSA key of %d bits: signing with it costs %d times as much as with an ECDSA key on P-256, "+
		"once for each connection, and nodes make one for each pull; renew it with such a key, and a replica answers more than twice as many", field, file, bits, cost)}
}

// tlsPaths returns the files.
func tlsPaths(cfg *config.Config) []string {
	paths := []string{cfg.Server.TLS.CertFile, cfg.Server.TLS.KeyFile}
	if g := cfg.Gateway; g != nil && g.TLS.CertFile != cfg.Server.TLS.CertFile {
		paths = append(paths, g.TLS.CertFile, g.TLS.KeyFile)
	}
	for _, cas := range cfg.ClientCAs {
		paths = append(paths, cas.Name)
	}
	return paths
}

// listenerTLS returns the TLS configuration of a server. It calls inUse for each handshake, and so
// follows all reloads.
func listenerTLS(inUse func() *tls.Config) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		// Not GetCertificate: the pool of client CAs has no hook of its own.
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return inUse(), nil },
	}
}

// tlsSettings holds all settings that a serverTLS depends on.
type tlsSettings struct {
	server   config.TLSFiles
	gateway  config.GatewayTLS
	files    []config.ClientCAs
	clusters []clusterCAs // clusters that prove callers by certificate
}

type clusterCAs struct {
	cluster string
	cas     config.ClientCAs
}

func tlsSettingsOf(cfg *config.Config) tlsSettings {
	settings := tlsSettings{server: cfg.Server.TLS, files: cfg.ClientCAs}
	if cfg.Gateway != nil {
		settings.gateway = cfg.Gateway.TLS
	}
	for i := range cfg.Clusters {
		if cas := cfg.Clusters[i].Node.Proof.CAs; cas.Name != "" {
			settings.clusters = append(settings.clusters, clusterCAs{cfg.Clusters[i].Name, cas})
		}
	}
	return settings
}

// firstEnd returns the earliest expiry of at least one certificate.
func firstEnd(certs []*x509.Certificate) time.Time {
	return slices.MinFunc(certs, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) }).NotAfter
}

// openTLS reads the files. An error names the field, the file and the remedy.
func openTLS(cfg *config.Config, now time.Time) (*serverTLS, error) {
	pair, pairErr := readPair("server.tls", cfg.Server.TLS.CertFile, cfg.Server.TLS.KeyFile, now)
	gatewayPair, gatewayErr := pair, error(nil)
	if g := cfg.Gateway; g != nil && g.TLS.CertFile != cfg.Server.TLS.CertFile {
		gatewayPair, gatewayErr = readPair("gateway.tls", g.TLS.CertFile, g.TLS.KeyFile, now)
	}
	cas, casErr := readClientCAs(cfg)
	if err := errors.Join(pairErr, gatewayErr, casErr); err != nil {
		return nil, err
	}
	nodes, err := allNodeCAs(cfg, cas)
	if err != nil {
		return nil, err
	}
	ends := metrics.TLSEnds{Certificate: pair.Leaf.NotAfter, ClientCAs: map[string]time.Time{}}
	for i := range cfg.Clusters {
		if file := cfg.Clusters[i].Node.Proof.CAs; file.Name != "" {
			ends.ClientCAs[cfg.Clusters[i].Name] = firstEnd(cas[file.Field])
		}
	}
	config := &tls.Config{
		MinVersion:       tls.VersionTLS12,
		NextProtos:       []string{"http/1.1"}, // this config replaces the one that net/http has prepared
		CurvePreferences: classicCurves,
		Certificates:     []tls.Certificate{pair},
		// Container runtimes do not resume sessions. Unused tickets would cost each connection
		// time, need keys to protect, and let certificates outlive their CA.
		SessionTicketsDisabled: true,
		// A response of two or three packets is sent as one record with one system call. Clients
		// need the whole response, so a smaller first record has no advantage.
		DynamicRecordSizingDisabled: true,
	}
	if cfg.Server.TLS.PostQuantum {
		config.CurvePreferences = nil // Go's own
	}
	if len(cas) > 0 {
		// A certificate is requested, but not verified here. A failed handshake would be a refusal
		// without an audit line, even in a cluster whose proof is in audit mode. A resumed session
		// would be checked with the CAs of its start. Instead, each request is checked with the CAs
		// of its token's cluster. The handshake still proves that the client has the key, and that it
		// presents no more than can lead to a CA.
		config.ClientAuth = tls.RequestClientCert
		config.VerifyConnection = checkPresented
		config.ClientCAs = x509.NewCertPool() // sent to clients, which choose their certificate by it
		for _, certs := range cas {
			for _, cert := range certs {
				config.ClientCAs.AddCert(cert)
			}
		}
	}
	result := &serverTLS{config: config, nodes: nodes, ends: ends}
	if cfg.Gateway != nil {
		if end := gatewayPair.Leaf.NotAfter; end.Before(result.ends.Certificate) {
			result.ends.Certificate = end // the certificate that expires first must be renewed first
		}
		result.gateway = config.Clone()
		result.gateway.Certificates = []tls.Certificate{gatewayPair}
		// Images may have to stay secret until quantum computers exist.
		result.gateway.CurvePreferences = nil
	}
	return result, nil
}

// checkPresented refuses clients whose certificates would fill the memory. A connection keeps them as
// long as it is open, parsed, when small parts take sixteen times as much, and URIs thirty times.
func checkPresented(connection tls.ConnectionState) error {
	size, names, parts := 0, 0, 0
	for _, cert := range connection.PeerCertificates {
		size += len(cert.Raw)
		names += len(cert.DNSNames) + len(cert.URIs) + len(cert.EmailAddresses) + len(cert.IPAddresses)
		parts += partsOf(cert)
	}
	if len(connection.PeerCertificates) > nodeproof.MaxPresented || size > maxPresentedBytes || names > maxPresentedNames || parts > maxPresentedParts {
		return errPresented
	}
	return nil
}

// partsOf counts what package x509 allocates memory for, but for alternative names.
func partsOf(c *x509.Certificate) int {
	return len(c.Subject.Names) + len(c.Issuer.Names) + len(c.Extensions) + len(c.UnhandledCriticalExtensions) +
		len(c.ExtKeyUsage) + len(c.UnknownExtKeyUsage) + len(c.PolicyIdentifiers) + len(c.Policies) + len(c.PolicyMappings) +
		len(c.OCSPServer) + len(c.IssuingCertificateURL) + len(c.CRLDistributionPoints) +
		len(c.PermittedDNSDomains) + len(c.ExcludedDNSDomains) + len(c.PermittedIPRanges) + len(c.ExcludedIPRanges) +
		len(c.PermittedEmailAddresses) + len(c.ExcludedEmailAddresses) + len(c.PermittedURIDomains) + len(c.ExcludedURIDomains)
}

// readPair reads a certificate and its key.
func readPair(field, certFile, keyFile string, now time.Time) (tls.Certificate, error) {
	cert, certErr := readTLSFile(field+".certFile", certFile)
	key, keyErr := readTLSFile(field+".keyFile", keyFile)
	if err := errors.Join(certErr, keyErr); err != nil {
		return tls.Certificate{}, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("%s: certificate %s and key %s: %w; put both halves of one pair there", field, certFile, keyFile, err)
	}
	if err := checkServerCertificate(pair.Leaf, now); err != nil {
		return tls.Certificate{}, fmt.Errorf("%s.certFile: %s %w", field, certFile, err)
	}
	return pair, nil
}

func readTLSFile(field, name string) ([]byte, error) {
	data, err := file.Read(name, maxTLSFileBytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	return data, nil
}

// readClientCAs returns the CAs by the field that names their file.
func readClientCAs(cfg *config.Config) (map[string][]*x509.Certificate, error) {
	all := map[string][]*x509.Certificate{}
	var faults []error
	for _, file := range cfg.ClientCAs {
		data, err := readTLSFile(file.Field, file.Name)
		if err == nil {
			if all[file.Field], err = parseClientCAs(data); err != nil {
				err = fmt.Errorf("%s: %s %w; put the CAs of the nodes' client certificates there, as PEM", file.Field, file.Name, err)
			}
		}
		if err != nil {
			faults = append(faults, err)
		}
	}
	return all, errors.Join(faults...)
}

// allNodeCAs returns the CAs of each cluster whose callers are proven by certificate. No two
// clusters may share a CA, not even as copies in two files: a CA is identified by its key, which
// verifies its certificates. Nor may one CA be above another cluster's, because certificates of the
// lower one also lead to the upper one. If the connecting certificates are in no file, the proof
// detects this.
func allNodeCAs(cfg *config.Config, cas map[string][]*x509.Certificate) (map[string]*nodeproof.CAs, error) {
	byCluster := map[string][]*x509.Certificate{}
	for i := range cfg.Clusters {
		file := cfg.Clusters[i].Node.Proof.CAs
		if file.Name == "" {
			continue
		}
		for other := range cfg.Clusters {
			otherFile := cfg.Clusters[other].Node.Proof.CAs
			if other == i || otherFile.Name == "" {
				continue
			}
			if haveCommonCA(cas[file.Field], cas[otherFile.Field]) {
				return nil, fmt.Errorf(config.ClusterCAField+": %s (%s) holds a CA that clusters[%d] has too, or that signed one of its; %s", i, file.Name, file.Field, other, config.OwnCAs)
			}
		}
		byCluster[cfg.Clusters[i].Name] = cas[file.Field]
	}
	all := map[string]*nodeproof.CAs{}
	for cluster := range byCluster {
		all[cluster] = nodeproof.NewCAs(cluster, byCluster)
	}
	return all, nil
}

// haveCommonCA reports whether a certificate of the others leads to one of the CAs.
func haveCommonCA(cas, others []*x509.Certificate) bool {
	return slices.ContainsFunc(cas, func(ca *x509.Certificate) bool {
		return slices.ContainsFunc(others, func(other *x509.Certificate) bool {
			return bytes.Equal(other.RawSubjectPublicKeyInfo, ca.RawSubjectPublicKeyInfo) ||
				bytes.Equal(other.RawIssuer, ca.RawSubject) && other.CheckSignatureFrom(ca) == nil
		})
	})
}

// ParseCertificates accepts a PEM file of certificates alone, and all of them or none. x509.CertPool
// skips those that it cannot parse, which would silently lock out clients. The error is the end of a
// sentence that begins with the name of the file.
func ParseCertificates(data []byte) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("holds a block of another type than CERTIFICATE (%s)", term.QuoteValue(block.Type))
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("holds a certificate that cannot be read: %w", err)
		}
		certs = append(certs, cert)
	}
	if bytes.Count(data, []byte("-----BEGIN ")) > len(certs) { // pem.Decode skips them
		return nil, errors.New("holds a block that is damaged or cut off")
	}
	if len(certs) == 0 {
		return nil, errors.New("holds no certificate")
	}
	return certs, nil
}

func parseClientCAs(data []byte) ([]*x509.Certificate, error) {
	certs, err := ParseCertificates(data)
	if err != nil {
		return nil, err
	}
	first := certs[0]
	// A pool would accept a leaf as the certificate of its holder, although none of the CAs signed it.
	if certs = slices.DeleteFunc(certs, func(c *x509.Certificate) bool { return !maySign(c) }); len(certs) == 0 {
		return nil, fmt.Errorf("holds no CA's certificate, but that of %s", term.QuoteValue(first.Subject.String()))
	}
	return certs, nil
}

// maySign reports whether other certificates can lead to a certificate, by the rules of
// x509.Certificate.CheckSignatureFrom. A pool accepts all.
func maySign(c *x509.Certificate) bool {
	isCA := c.IsCA || c.Version < 3 && !c.BasicConstraintsValid
	return isCA && (c.KeyUsage == 0 || c.KeyUsage&x509.KeyUsageCertSign != 0)
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
