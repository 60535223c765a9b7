package server

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/config/setup"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/test/pkitest"
	"github.com/pullpass/pullpass/internal/test/proxytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// tlsRig is a server with the TLS that serve uses, and its files. Callers of its
// one cluster are proven by certificate.
type tlsRig struct {
	dir     string
	ca      pkitest.Authority
	cfg     *config.Config
	tls     atomic.Pointer[serverTLS]
	address string
}

func newTLSRig(t *testing.T, clientCA string) *tlsRig {
	t.Helper()
	rig := &tlsRig{dir: t.TempDir(), ca: pkitest.NewAuthority(t, "serving CA")}
	rig.install(t, "first", -time.Minute, time.Hour)
	rig.cfg = &config.Config{
		Server:   config.Server{TLS: config.TLSFiles{CertFile: filepath.Join(rig.dir, "tls.crt"), KeyFile: filepath.Join(rig.dir, "tls.key")}},
		Clusters: []config.Cluster{{Name: "prod", Node: config.Node{Proof: config.Proof{Mode: nodeproof.Enforce, Methods: []nodeproof.Method{nodeproof.Certificate}}}}},
	}
	if clientCA != "" {
		rig.cfg.Server.TLS.ClientCAFile = filepath.Join(rig.dir, "ca.crt")
		testkit.Put(t, rig.cfg.Server.TLS.ClientCAFile, clientCA)
	}
	testkit.Must(t, rig.reload())
	listener := testkit.Value(net.Listen("tcp", "localhost:0"))(t)
	rig.address = "localhost" + listener.Addr().String()[strings.LastIndex(listener.Addr().String(), ":"):]
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen := "anonymous"
		if len(r.TLS.PeerCertificates) > 0 {
			leaf := r.TLS.PeerCertificates[0]
			seen = leaf.Subject.CommonName
			if !rig.knows("prod", leaf) {
				seen += " of another CA"
			}
		}
		_, _ = io.WriteString(w, r.Proto+" "+seen+strings.Repeat(" ", int(r.ContentLength)))
	})
	server := newHTTPServer(handler, listenerTLS(func() *tls.Config { return rig.tls.Load().config }), slog.New(slog.DiscardHandler))
	go func() { _ = server.ServeTLS(listener, "", "") }()
	t.Cleanup(func() { _ = server.Close() })
	return rig
}

// reload reads the files, as serve does.
func (rig *tlsRig) reload() error {
	rig.cfg.Resolve()
	next, err := openTLS(rig.cfg, time.Now())
	if err == nil {
		rig.tls.Store(next)
	}
	return err
}

// knows judges a certificate by the CAs that a cluster has now.
func (rig *tlsRig) knows(cluster string, leaf *x509.Certificate) bool {
	return rig.judge(cluster, leaf) == ""
}

// judge says why what is presented, leaf first, does not prove a node.
func (rig *tlsRig) judge(cluster string, presented ...*x509.Certificate) nodeproof.Reason {
	admission, err := exchange.NewAdmission(exchange.AdmissionConfig{Nodes: map[string]exchange.NodeChecks{cluster: {Proof: nodeproof.Config{
		Mode: nodeproof.Audit, Methods: []nodeproof.Method{nodeproof.Certificate},
		CAs: rig.tls.Load().nodes[cluster],
	}}}})
	if err != nil {
		return nodeproof.Reason(err.Error())
	}
	node := oidc.ObjectRef{Name: strings.TrimPrefix(presented[0].Subject.CommonName, "system:node:"), UID: "uid"}
	var event exchange.Event
	if _, err := admission.Admit(context.Background(), oidc.Identity{Cluster: cluster, Kubernetes: oidc.KubernetesIdentity{Node: node}}, nil, nodeproof.Caller{Certificates: presented}, &event, new(exchange.Steps)); err != nil {
		return nodeproof.Reason(err.Error())
	}
	return event.Proof.Reason
}

// install puts a new certificate and key in place.
func (rig *tlsRig) install(t *testing.T, name string, notBefore, notAfter time.Duration) {
	t.Helper()
	cert, key := rig.ca.Leaf(t, name, notBefore, notAfter)
	testkit.Put(t, filepath.Join(rig.dir, "tls.crt"), cert)
	testkit.Put(t, filepath.Join(rig.dir, "tls.key"), key)
}

// get makes a new connection. It returns the name in the server's certificate,
// and what the server saw.
func (rig *tlsRig) get(t *testing.T, config *tls.Config) (server, seen string, err error) {
	t.Helper()
	transport := rig.transport(config)
	defer transport.CloseIdleConnections()
	return rig.getOver(t, transport)
}

func (rig *tlsRig) transport(config *tls.Config) *http.Transport {
	config = config.Clone()
	config.RootCAs = rig.ca.Pool()
	return &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}
}

func (rig *tlsRig) getOver(t *testing.T, transport *http.Transport) (server, seen string, err error) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+rig.address+"/", nil)
	testkit.Must(t, err)
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
	testkit.Must(t, err)
	if gotServer != server || gotSeen != seen {
		t.Errorf("certificate %q, request %q; want %q, %q", gotServer, gotSeen, server, seen)
	}
}

func TestTLSCertificateIsReplacedWithoutARestart(t *testing.T) {
	t.Parallel()
	rig := newTLSRig(t, "")
	rig.expect(t, &tls.Config{}, "first", "HTTP/1.1 anonymous")
	rig.install(t, "second", -time.Minute, time.Hour)
	rig.expect(t, &tls.Config{}, "first", "HTTP/1.1 anonymous")
	testkit.Must(t, rig.reload())
	rig.expect(t, &tls.Config{}, "second", "HTTP/1.1 anonymous")
}

// The warning of an expiry comes in time, also for the CA that expires first among several in one
// file.
func TestTLSTellsWhenItEnds(t *testing.T) {
	t.Parallel()
	first := pkitest.NewAuthority(t, "first CA")
	second := pkitest.Authority{Cert: pkitest.NewCA(t, nil, pkitest.CaNamed("second CA"), func(c *x509.Certificate) { c.NotAfter = time.Now().Add(48 * time.Hour) })}
	for _, pems := range []string{first.Pem() + second.Pem(), second.Pem() + first.Pem()} {
		rig := newTLSRig(t, pems)
		ends := rig.tls.Load().ends
		if want := first.NotAfter; len(ends.ClientCAs) != 1 || !ends.ClientCAs["prod"].Equal(want) {
			t.Errorf("CAs end %v, want %s", ends.ClientCAs, want)
		}
		rig.install(t, "renewed", -time.Minute, 30*time.Minute)
		testkit.Must(t, rig.reload())
		if left := time.Until(rig.tls.Load().ends.Certificate); left < 29*time.Minute || left > 30*time.Minute {
			t.Errorf("the certificate that was renewed for 30 minutes ends in %s", left)
		}
	}
	if ends := newTLSRig(t, "").tls.Load().ends.ClientCAs; len(ends) != 0 {
		t.Errorf("without CAs, they end %v", ends)
	}
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
			_, key := rig.ca.Leaf(t, "other", -time.Minute, time.Hour)
			testkit.Put(t, filepath.Join(rig.dir, "tls.key"), key)
		}, "server.tls: certificate DIR/tls.crt and key DIR/tls.key: tls: private key does not match public key; put both halves of one pair there"},
		{"expired", func(t *testing.T, rig *tlsRig) { rig.install(t, "old", -2*time.Hour, -time.Hour) },
			"server.tls.certFile: DIR/tls.crt ended at "},
		{"not yet valid", func(t *testing.T, rig *tlsRig) { rig.install(t, "new", time.Hour, 2*time.Hour) },
			"server.tls.certFile: DIR/tls.crt begins only at "},
		{"empty", func(t *testing.T, rig *tlsRig) { testkit.Put(t, filepath.Join(rig.dir, "tls.crt"), "") },
			"server.tls: certificate DIR/tls.crt and key DIR/tls.key: tls: failed to find any PEM data in certificate input; put both halves of one pair there"},
		{"missing", func(t *testing.T, rig *tlsRig) {
			testkit.Remove(t, filepath.Join(rig.dir, "tls.crt"))
			testkit.Remove(t, filepath.Join(rig.dir, "tls.key"))
		}, "server.tls.certFile: open DIR/tls.crt: no such file or directory\nserver.tls.keyFile: open DIR/tls.key: no such file or directory"},
		{"huge", func(t *testing.T, rig *tlsRig) {
			testkit.Put(t, filepath.Join(rig.dir, "tls.crt"), strings.Repeat("x", maxTLSFileBytes+1))
		}, "server.tls.certFile: DIR/tls.crt has more than 1048576 bytes; no more are read"},
		{"no client CA", func(t *testing.T, rig *tlsRig) { testkit.Put(t, filepath.Join(rig.dir, "ca.crt"), "") },
			"server.tls.clientCAFile: DIR/ca.crt holds no certificate; put the CAs of the nodes' client certificates there, as PEM"},
		// x509.CertPool would skip it, and lock its nodes out.
		{"one bad client CA of two", func(t *testing.T, rig *tlsRig) {
			testkit.Put(t, filepath.Join(rig.dir, "ca.crt"), rig.ca.Pem()+string(pkitest.PEM("CERTIFICATE", []byte("x"))))
		}, "server.tls.clientCAFile: DIR/ca.crt holds a certificate that cannot be read: "},
		{"a client CA that is cut off", func(t *testing.T, rig *tlsRig) {
			testkit.Put(t, filepath.Join(rig.dir, "ca.crt"), rig.ca.Pem()+rig.ca.Pem()[:100])
		}, "server.tls.clientCAFile: DIR/ca.crt holds a block that is damaged or cut off; put the CAs of the nodes' client certificates there, as PEM"},
		{"a node's certificate for its CA's", func(t *testing.T, rig *tlsRig) {
			cert, _ := rig.ca.Leaf(t, "system:node:a", -time.Minute, time.Hour)
			testkit.Put(t, filepath.Join(rig.dir, "ca.crt"), cert)
		}, `server.tls.clientCAFile: DIR/ca.crt holds no CA's certificate, but that of "CN=system:node:a,O=system:nodes"; put the CAs of the nodes' client certificates there, as PEM`},
		{"a client CA that may not sign certificates", func(t *testing.T, rig *tlsRig) {
			other := pkitest.NewCA(t, nil, pkitest.CaNamed("other CA"), func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageCRLSign })
			testkit.Put(t, filepath.Join(rig.dir, "ca.crt"), string(pkitest.CertPEM(other)))
		}, `server.tls.clientCAFile: DIR/ca.crt holds no CA's certificate, but that of "CN=other CA"; put the CAs of the nodes' client certificates there, as PEM`},
		{"a key among the client CAs", func(t *testing.T, rig *tlsRig) {
			_, key := rig.ca.Leaf(t, "other", -time.Minute, time.Hour)
			testkit.Put(t, filepath.Join(rig.dir, "ca.crt"), rig.ca.Pem()+key)
		}, `server.tls.clientCAFile: DIR/ca.crt holds a block of another type than CERTIFICATE ("PRIVATE KEY")`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			nodes := pkitest.NewAuthority(t, "node CA")
			rig := newTLSRig(t, nodes.Pem())
			test.spoil(t, rig)
			err := rig.reload()
			if err == nil {
				t.Fatal("no error")
			}
			if got := strings.ReplaceAll(err.Error(), rig.dir, "DIR"); !strings.HasPrefix(got, test.want) {
				t.Errorf("error\n%s\nwant\n%s", got, test.want)
			}
			rig.expect(t, proxytest.With(nodes.Client(t, "system:node:a")), "first", "HTTP/1.1 system:node:a")
			rig.install(t, "mended", -time.Minute, time.Hour)
			testkit.Put(t, filepath.Join(rig.dir, "ca.crt"), nodes.Pem())
			testkit.Must(t, rig.reload())
			rig.expect(t, &tls.Config{}, "mended", "HTTP/1.1 anonymous")
		})
	}
}

func TestTLSRefusesToBeginWithoutAGoodCertificate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, err := openTLS(&config.Config{Server: config.Server{TLS: config.TLSFiles{CertFile: filepath.Join(dir, "tls.crt"), KeyFile: filepath.Join(dir, "tls.key")}}}, time.Now())
	if err == nil || !strings.Contains(err.Error(), "server.tls.certFile: open "+dir) {
		t.Errorf("error %v, want one that names the field and the file", err)
	}
}

// No certificate ends the handshake: whether it proves anything is said in an
// answer and an audit line.
func TestTLSClientCertificates(t *testing.T) {
	t.Parallel()
	nodes, others := pkitest.NewAuthority(t, "node CA"), pkitest.NewAuthority(t, "other CA")
	rig := newTLSRig(t, nodes.Pem())
	rig.expect(t, &tls.Config{}, "first", "HTTP/1.1 anonymous")
	rig.expect(t, proxytest.With(nodes.Client(t, "system:node:a")), "first", "HTTP/1.1 system:node:a")
	rig.expect(t, proxytest.With(others.Client(t, "system:node:a")), "first", "HTTP/1.1 system:node:a of another CA")
	rig.expect(t, proxytest.With(nodes.ClientUntil(t, "system:node:a", -time.Minute)), "first", "HTTP/1.1 system:node:a of another CA")

	testkit.Put(t, filepath.Join(rig.dir, "ca.crt"), others.Pem())
	testkit.Must(t, rig.reload())
	rig.expect(t, proxytest.With(others.Client(t, "system:node:b")), "first", "HTTP/1.1 system:node:b")
	rig.expect(t, proxytest.With(nodes.Client(t, "system:node:a")), "first", "HTTP/1.1 system:node:a of another CA")

	// A certificate without its key does end the handshake.
	stolen := others.Client(t, "system:node:b")
	stolen.PrivateKey = pkitest.ECKey(t)
	if _, seen, err := rig.get(t, proxytest.With(stolen)); err == nil {
		t.Errorf("a certificate was accepted from a client without its key: %q", seen)
	}
}

// Certificates that are more than a kubelet has do end the handshake: connections would keep them.
func TestTLSBoundsClientCertificates(t *testing.T) {
	t.Parallel()
	nodes := pkitest.NewAuthority(t, "node CA")
	rig := newTLSRig(t, nodes.Pem())
	presented := nodes.Client(t, "system:node:a")
	for len(presented.Certificate) < nodeproof.MaxPresented {
		presented.Certificate = append(presented.Certificate, nodes.Certificate.Raw)
	}
	rig.expect(t, proxytest.With(presented), "first", "HTTP/1.1 system:node:a")
	presented.Certificate = append(presented.Certificate, nodes.Certificate.Raw)
	named := pkitest.NewCert(t, pkitest.ECKey(t), nodes.Cert, func(c *x509.Certificate) { c.DNSNames = slices.Repeat([]string{"a"}, maxPresentedNames+1) }).TLS()
	used := pkitest.NewCert(t, pkitest.ECKey(t), nodes.Cert, func(c *x509.Certificate) {
		for i := range maxPresentedParts {
			c.UnknownExtKeyUsage = append(c.UnknownExtKeyUsage, asn1.ObjectIdentifier{1, 1, i})
		}
	}).TLS()
	for name, presented := range map[string]*tls.Certificate{
		"many": presented, "large": nodes.Client(t, strings.Repeat("a", maxPresentedBytes)), "named": &named, "used": &used,
	} {
		if _, seen, err := rig.get(t, proxytest.With(presented)); err == nil {
			t.Errorf("%s certificates were accepted: %.40q", name, seen)
		}
	}
}

// Package x509 allocates memory for each element of these lists.
func TestAllPartsOfCertificatesCount(t *testing.T) {
	t.Parallel()
	names := []string{"DNSNames", "EmailAddresses", "IPAddresses", "URIs"}
	notParsed := []string{"ExtraExtensions"}
	for field := range reflect.TypeFor[x509.Certificate]().Fields() {
		if field.Type.Kind() != reflect.Slice || field.Type.Elem().Kind() == reflect.Uint8 || slices.Contains(notParsed, field.Name) {
			continue
		}
		for _, n := range []int{0, 1} {
			limit := maxPresentedParts
			if slices.Contains(names, field.Name) {
				limit = maxPresentedNames
			}
			cert := &x509.Certificate{}
			reflect.ValueOf(cert).Elem().FieldByIndex(field.Index).Set(reflect.MakeSlice(field.Type, limit+n, limit+n))
			if err := checkPresented(tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}); (err != nil) != (n == 1) {
				t.Errorf("%d of %s: %v", limit+n, field.Name, err)
			}
		}
	}
	for _, name := range []func(*x509.Certificate) *pkix.Name{func(c *x509.Certificate) *pkix.Name { return &c.Subject }, func(c *x509.Certificate) *pkix.Name { return &c.Issuer }} {
		cert := &x509.Certificate{}
		name(cert).Names = make([]pkix.AttributeTypeAndValue, maxPresentedParts+1)
		if err := checkPresented(tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}); err == nil {
			t.Error("attributes of names do not count")
		}
	}
}

// Clients choose a certificate by the CAs that the server names, so the CAs of all clusters are
// named. Without any, no certificate is requested.
func TestTLSNamesTheClientCAs(t *testing.T) {
	t.Parallel()
	common, own := pkitest.NewAuthority(t, "common CA"), pkitest.NewAuthority(t, "CA of another cluster")
	asked := func(rig *tlsRig) (subjects []string, asked bool) {
		rig.expect(t, &tls.Config{GetClientCertificate: func(info *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			asked = true
			for _, raw := range info.AcceptableCAs {
				var name pkix.RDNSequence
				if _, err := asn1.Unmarshal(raw, &name); err != nil {
					return nil, err
				}
				subjects = append(subjects, name.String())
			}
			return &tls.Certificate{}, nil
		}}, "first", "HTTP/1.1 anonymous")
		return subjects, asked
	}
	if subjects, asked := asked(newTLSRig(t, "")); asked {
		t.Errorf("certificates of %q are requested, but no cluster needs them", subjects)
	}
	rig := newTLSRig(t, common.Pem())
	rig.cfg.Clusters = append(rig.cfg.Clusters, config.Cluster{Name: "other", Node: config.Node{Proof: config.Proof{
		Mode: nodeproof.Audit, Methods: []nodeproof.Method{nodeproof.Certificate}, ClientCAFile: filepath.Join(rig.dir, "own.crt"),
	}}})
	testkit.Put(t, filepath.Join(rig.dir, "own.crt"), own.Pem())
	testkit.Must(t, rig.reload())
	subjects, _ := asked(rig)
	slices.Sort(subjects)
	if want := []string{"CN=CA of another cluster", "CN=common CA"}; !slices.Equal(subjects, want) {
		t.Errorf("the server names %q, want %q", subjects, want)
	}
}

// The CA of one cluster says nothing about the nodes of another.
func TestTLSKeepsTheClustersCAsApart(t *testing.T) {
	t.Parallel()
	first, second := pkitest.NewAuthority(t, "first CA"), pkitest.NewAuthority(t, "second CA")
	rig := newTLSRig(t, first.Pem())
	proof := config.Proof{Mode: nodeproof.Audit, Methods: []nodeproof.Method{nodeproof.Certificate}, ClientCAFile: filepath.Join(rig.dir, "own.crt")}
	off := proof
	off.Mode = nodeproof.Off
	rig.cfg.Clusters = append(rig.cfg.Clusters, config.Cluster{Name: "second", Node: config.Node{Proof: proof}}, config.Cluster{Name: "off", Node: config.Node{Proof: off}})
	reload := func(cas string) error {
		testkit.Put(t, proof.ClientCAFile, cas)
		return rig.reload()
	}
	testkit.Must(t, reload(second.Pem()))
	a, b := first.Client(t, "system:node:a").Leaf, second.Client(t, "system:node:a").Leaf
	check := func() {
		t.Helper()
		for _, test := range []struct {
			cluster     string
			first, both bool
		}{{"prod", true, false}, {"second", false, true}, {"off", false, false}, {"unknown", false, false}} {
			if rig.knows(test.cluster, a) != test.first || rig.knows(test.cluster, b) != test.both {
				t.Errorf("cluster %s knows certificates of the first CA: %t, of the second: %t", test.cluster, rig.knows(test.cluster, a), rig.knows(test.cluster, b))
			}
		}
	}
	check()
	// Copies in two files are one CA, also when one was renewed with its key.
	renewed := pkitest.Authority{Cert: pkitest.NewCert(t, first.Key, first.Cert, pkitest.CaNamed("first CA, renewed"))}
	// A CA above another CA also vouches for the nodes of the lower CA.
	below := pkitest.Authority{Cert: pkitest.NewCert(t, second.Key, first.Cert, pkitest.CaNamed("below the first CA"))}
	for _, test := range []struct {
		first, second string
		fault         int
	}{
		{first.Pem(), first.Pem(), 0},
		{first.Pem(), second.Pem() + first.Pem(), 0},
		{first.Pem(), renewed.Pem(), 0},
		{first.Pem(), below.Pem(), 0},
		{below.Pem(), second.Pem() + first.Pem(), 0}, // the key of the second
		{below.Pem(), first.Pem(), 1},
	} {
		testkit.Put(t, rig.cfg.Server.TLS.ClientCAFile, test.first)
		err := reload(test.second)
		file := rig.cfg.Clusters[test.fault].Node.Proof.CAs
		want := fmt.Sprintf("clusters[%d].node.proof.clientCAFile: %s (%s) holds a CA that clusters[%d] has too, or that signed one of its; ", test.fault, file.Name, file.Field, 1-test.fault) + config.OwnCAs
		if err == nil || err.Error() != want {
			t.Errorf("error\n%v\nwant\n%s", err, want)
		}
		check()
	}
	testkit.Put(t, rig.cfg.Server.TLS.ClientCAFile, first.Pem())
	if err := reload(second.Pem() + second.Pem()); err != nil {
		t.Errorf("one file that names a CA twice: %v", err)
	}
	// The first is above the third by way of one that no file has: only who
	// presents that shows it.
	between := first.Intermediate(t, "between")
	third := between.Intermediate(t, "third CA")
	testkit.Must(t, reload(third.Pem()))
	node := third.Client(t, "system:node:a").Leaf
	if got := rig.judge("prod", node, third.Certificate, between.Certificate); got != nodeproof.CertificateOtherCluster {
		t.Errorf("a node of the second cluster is judged in the first: %q", got)
	}
	if got := rig.judge("second", node, third.Certificate, between.Certificate); got != "" {
		t.Errorf("and in its own: %q", got)
	}
}

// A resumed session and an open connection must not outlive the CA of their certificate
// (CVE-2025-68121 was of this kind). Sessions are not resumed. Each request is checked again, with
// the certificate that the first handshake proved.
func TestTLSOldConnectionsAreJudgedByTheCAsOfNow(t *testing.T) {
	t.Parallel()
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		nodes, others := pkitest.NewAuthority(t, "node CA"), pkitest.NewAuthority(t, "other CA")
		rig := newTLSRig(t, nodes.Pem())
		config := proxytest.With(nodes.Client(t, "system:node:a"))
		config.MaxVersion = version
		config.ClientSessionCache = tls.NewLRUClientSessionCache(1)
		open := rig.transport(config)
		defer open.CloseIdleConnections()
		over := func(want string) {
			t.Helper()
			if _, seen, err := rig.getOver(t, open); err != nil || seen != want {
				t.Errorf("%s: the open connection's request was seen as %q, %v; want %q", tls.VersionName(version), seen, err, want)
			}
		}
		over("HTTP/1.1 system:node:a")
		rig.expect(t, config, "first", "HTTP/1.1 system:node:a")
		testkit.Put(t, filepath.Join(rig.dir, "ca.crt"), others.Pem())
		testkit.Must(t, rig.reload())
		over("HTTP/1.1 system:node:a of another CA")
		rig.expect(t, config, "first", "HTTP/1.1 system:node:a of another CA")
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

// Where no CAs are kept, none is known: that refuses, and does not panic.
func TestNodeChecksWithoutCAs(t *testing.T) {
	t.Parallel()
	proof := config.Proof{Mode: nodeproof.Enforce, Methods: []nodeproof.Method{nodeproof.Certificate}, ClientCAFile: "nodes.crt"}
	cfg := &config.Config{Clusters: []config.Cluster{{Name: "prod", Node: config.Node{Proof: proof}}}}
	cfg.Resolve()
	checks, err := setup.NodeChecks(cfg, nil)
	if err != nil || checks["prod"].Proof.CAs != nil {
		t.Errorf("checks %+v, %v", checks, err)
	}
}

// Features that a token endpoint does not need cost time, and can be attacked.
func TestTLSSpeaksWhatATokenEndpointNeeds(t *testing.T) {
	t.Parallel()
	rig := newTLSRig(t, "")
	curve := func(client *tls.Config) tls.CurveID {
		t.Helper()
		client.RootCAs = rig.ca.Pool()
		conn := testkit.Value(tls.Dial("tcp", rig.address, client))(t)
		defer conn.Close()
		return conn.ConnectionState().CurveID
	}
	for _, test := range []struct {
		name               string
		postQuantum, http2 bool
		curve              tls.CurveID
	}{
		{"by default", false, false, tls.X25519},
		{"postQuantum", true, false, tls.X25519MLKEM768},
		{"http2", false, true, tls.X25519},
	} {
		rig.cfg.Server.TLS.PostQuantum, rig.cfg.Server.TLS.HTTP2 = test.postQuantum, test.http2
		testkit.Must(t, rig.reload())
		if got := curve(&tls.Config{}); got != test.curve {
			t.Errorf("%s: %s, want %s", test.name, got, test.curve)
		}
		// A client under FIPS 140 has no X25519.
		if got := curve(&tls.Config{CurvePreferences: []tls.CurveID{tls.CurveP384, tls.CurveP256}}); got != tls.CurveP256 {
			t.Errorf("%s: %s for a client that has P-256 and P-384", test.name, got)
		}
		rig.expect(t, &tls.Config{}, "first", "HTTP/1.1 anonymous")
	}
	rig.cfg.Gateway = &config.Gateway{TLS: config.GatewayTLS{CertFile: rig.cfg.Server.TLS.CertFile, KeyFile: rig.cfg.Server.TLS.KeyFile}}
	testkit.Must(t, rig.reload())
	gateway := rig.tls.Load().gateway
	if gateway.CurvePreferences != nil || !gateway.SessionTicketsDisabled || !slices.Equal(gateway.NextProtos, []string{"http/1.1"}) {
		t.Errorf("the gateway speaks %v, %v", gateway.CurvePreferences, gateway.NextProtos)
	}
}

// An answer with a token is longer than a packet. Each record costs a system call here, and
// wakes the client there.
func TestTLSAnswersInOneRecord(t *testing.T) {
	t.Parallel()
	rig := newTLSRig(t, "")
	conn, err := tls.Dial("tcp", rig.address, &tls.Config{RootCAs: rig.ca.Pool()})
	testkit.Must(t, err)
	defer conn.Close()
	padding := strings.Repeat(" ", 3000)
	_, err = fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n%s", rig.address, len(padding), padding)
	testkit.Must(t, err)
	answer := make([]byte, 16<<10)
	n, err := conn.Read(answer) // never more than a record
	testkit.Must(t, err)
	if n < len(padding) || !strings.HasSuffix(string(answer[:n]), "0\r\n\r\n") {
		t.Errorf("the first record has %d bytes, and not the end", n)
	}
}

// The holder of a leaf among the CAs proves nothing.
func TestLeavesAmongClientCAs(t *testing.T) {
	t.Parallel()
	ca := pkitest.NewAuthority(t, "own CA")
	leaf, _ := pkitest.NewAuthority(t, "other CA").Leaf(t, "system:node:a", -time.Minute, time.Hour)
	certs, err := parseClientCAs([]byte(leaf + ca.Pem()))
	if err != nil || len(certs) != 1 || !certs[0].IsCA {
		t.Errorf("%d certificates, %v", len(certs), err)
	}
}

// CAs older than basic constraints and usages of keys sign as well.
func TestClientCAsAreThoseThatSign(t *testing.T) {
	t.Parallel()
	for i, test := range []struct {
		cert x509.Certificate
		want bool
	}{
		{x509.Certificate{Version: 3, BasicConstraintsValid: true, IsCA: true}, true},
		{x509.Certificate{Version: 3, BasicConstraintsValid: true, IsCA: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign}, true},
		{x509.Certificate{Version: 1}, true},
		{x509.Certificate{Version: 1, KeyUsage: x509.KeyUsageDigitalSignature}, false},
		{x509.Certificate{Version: 3}, false},
		{x509.Certificate{Version: 3, BasicConstraintsValid: true}, false},
		{x509.Certificate{Version: 2, BasicConstraintsValid: true}, false},
	} {
		if got := maySign(&test.cert); got != test.want {
			t.Errorf("%d: %t, want %t", i, got, test.want)
		}
	}
}

func TestTLSWarnsOfSlowKeys(t *testing.T) {
	t.Parallel()
	rig := newTLSRig(t, "")
	if got := rig.tls.Load().warnings(rig.cfg); len(got) != 0 {
		t.Errorf("with an ECDSA key: %q", got)
	}
	slow := pkitest.NewCert(t, pkitest.RSAKey(t), rig.ca.Cert, func(*x509.Certificate) {})
	cert, key := filepath.Join(rig.dir, "rsa.crt"), filepath.Join(rig.dir, "rsa.key")
	testkit.Put(t, cert, string(pkitest.CertPEM(slow)))
	testkit.Put(t, key, string(pkitest.KeyPEM(t, slow.Key)))
	own := rig.cfg.Server.TLS
	rig.cfg.Gateway = &config.Gateway{TLS: config.GatewayTLS{CertFile: cert, KeyFile: key}}
	for _, test := range []struct {
		files config.TLSFiles
		want  []string
	}{
		{own, []string{"gateway.tls.certFile: " + cert + " has an RSA key of 2048 bits: signing with it costs 25 times as much"}},
		{config.TLSFiles{CertFile: cert, KeyFile: key}, []string{"server.tls.certFile: " + cert + " has an RSA key of 2048 bits"}}, // the gateway's is the same
	} {
		rig.cfg.Server.TLS = test.files
		testkit.Must(t, rig.reload())
		got := rig.tls.Load().warnings(rig.cfg)
		if !slices.EqualFunc(got, test.want, strings.HasPrefix) {
			t.Errorf("%q, want %q", got, test.want)
		}
	}
}

func TestSlowKeysAreToldByCheckAndServe(t *testing.T) {
	t.Parallel()
	p := startService(t, "")
	slow := pkitest.NewCert(t, pkitest.RSAKey(t), nil, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(30 * 24 * time.Hour) })
	p.Put(t, "tls.key", string(pkitest.KeyPEM(t, slow.Key)))
	p.Put(t, "tls.crt", string(pkitest.CertPEM(slow)))
	testkit.Must(t, p.service.reloadTLS())
	const told = "has an RSA key of 2048 bits"
	if !strings.Contains(p.Log.String(), told) {
		t.Error("serve says nothing")
	}
	faults, warnings := CheckFiles(p.service.current.Load().cfg, false)
	if len(faults) > 0 || !slices.ContainsFunc(warnings, func(w string) bool { return strings.Contains(w, told) }) {
		t.Errorf("check says %v, %q", faults, warnings)
	}
}

func BenchmarkServingKey(b *testing.B) {
	digest := make([]byte, crypto.SHA256.Size())
	sign := func(name string, key crypto.Signer, options crypto.SignerOpts) {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := key.Sign(rand.Reader, digest, options); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	sign("key=P-256", pkitest.ECKey(b), crypto.SHA256)
	for _, bits := range []int{2048, 3072, 4096} {
		key, err := rsa.GenerateKey(rand.Reader, bits)
		testkit.Must(b, err)
		sign(fmt.Sprintf("key=RSA-%d", bits), key, &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash, Hash: crypto.SHA256})
	}
}
