package main

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
)

// parts is what docker-compose.yaml has volumes and a service for.
type parts struct {
	clusterDir string // the cluster's key, which no other part sees
	serversDir string // certificate and key of all servers, and their CA
	address    string // of the issuer
	issuer     string // iss of its tokens
}

// runPart runs one of the commands that docker-compose.yaml needs, or a user without a cluster, who gives
// a copy of examples/ as the directory.
func runPart(ctx context.Context, args []string, out io.Writer) error {
	p := parts{clusterDir: "/cluster", serversDir: "/servers", address: ":6443", issuer: "https://cluster:6443"}
	if len(args) > 2 && args[0] == "--dir" {
		p = parts{clusterDir: args[1], serversDir: args[1], address: "localhost:6443", issuer: "https://localhost:6443"}
		args = args[2:]
	}
	switch {
	case len(args) == 1 && args[0] == "init":
		return p.init()
	case len(args) == 1 && args[0] == "serve":
		return p.serve(ctx)
	case len(args) == 2 && args[0] == "token":
		return p.token(out, args[1])
	default:
		return errors.New("usage: demo [[--dir DIR] init | serve | token NAMESPACE/SERVICEACCOUNT]")
	}
}

func (p parts) keyFile() string { return filepath.Join(p.clusterDir, "sa.key") }

// init makes keys and certificates, once: containers that run have them.
func (p parts) init() error {
	if _, err := os.Stat(p.keyFile()); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, err := newPKI(p.serversDir); err != nil {
		return err
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	data := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	return os.WriteFile(p.keyFile(), data, 0o600)
}

// cluster has the key that init made.
func (p parts) cluster() (*cluster, error) {
	data, err := os.ReadFile(p.keyFile())
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("%s: no key", p.keyFile())
	}
	key, err := x509.ParsePKCS1PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.keyFile(), err)
	}
	return newCluster(p.issuer, key)
}

// serve is the issuer of the cluster, until ctx ends.
func (p parts) serve(ctx context.Context) error {
	c, err := p.cluster()
	if err != nil {
		return err
	}
	certificate, err := tls.LoadX509KeyPair(filepath.Join(p.serversDir, "tls.crt"), filepath.Join(p.serversDir, "tls.key"))
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", p.address)
	if err != nil {
		return err
	}
	server := newServer(certificate, c)
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.ServeTLS(listener, "", ""); ctx.Err() == nil {
		return err
	}
	return nil
}

// token prints what the kubelet would get for a pod of the ServiceAccount.
func (p parts) token(out io.Writer, serviceAccount string) error {
	for _, known := range []pod{web, ci} {
		if known.namespace+"/"+known.serviceAccount != serviceAccount {
			continue
		}
		c, err := p.cluster()
		if err != nil {
			return err
		}
		token, err := c.token(known, nil)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(out, token)
		return err
	}
	return fmt.Errorf("there is no ServiceAccount %s; those of the demo are team-a/web and team-a/ci", serviceAccount)
}
