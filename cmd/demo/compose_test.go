package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// A second init leaves the keys as they are: containers run with them.
func TestInitOnce(t *testing.T) {
	t.Parallel()
	p := parts{clusterDir: t.TempDir(), serversDir: t.TempDir(), issuer: "https://cluster:6443"}
	read := func() string {
		var all []string
		for _, file := range []string{p.keyFile(), filepath.Join(p.serversDir, "ca.crt"), filepath.Join(p.serversDir, "tls.crt"), filepath.Join(p.serversDir, "tls.key")} {
			info, err := os.Stat(file)
			if err != nil {
				t.Fatal(err)
			}
			if info.Mode().Perm() != 0o600 {
				t.Errorf("%s has mode %o", file, info.Mode().Perm())
			}
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, string(content))
		}
		return strings.Join(all, "")
	}
	if err := p.init(); err != nil {
		t.Fatal(err)
	}
	before := read()
	if err := p.init(); err != nil {
		t.Fatal(err)
	}
	if read() != before {
		t.Error("the second init made other keys")
	}
}

func TestToken(t *testing.T) {
	t.Parallel()
	p := parts{clusterDir: t.TempDir(), serversDir: t.TempDir(), issuer: "https://cluster:6443"}
	if err := p.init(); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := p.token(&out, "team-a/web"); err != nil {
		t.Fatal(err)
	}
	token, err := jwt.ParseSigned(strings.TrimSpace(out.String()), []jose.SignatureAlgorithm{jose.RS256})
	if err != nil {
		t.Fatal(err)
	}
	c, err := p.cluster()
	if err != nil {
		t.Fatal(err)
	}
	var claims jwt.Claims
	if err := token.Claims(c.key.Public(), &claims); err != nil {
		t.Fatal(err)
	}
	if err := claims.Validate(jwt.Expected{Issuer: "https://cluster:6443", Subject: "system:serviceaccount:team-a:web", Time: time.Now()}); err != nil {
		t.Error(err)
	}
}

func TestPartsRefuse(t *testing.T) {
	t.Parallel()
	p := parts{clusterDir: t.TempDir(), serversDir: t.TempDir()}
	var out bytes.Buffer
	if err := p.token(&out, "team-b/web"); err == nil || !strings.Contains(err.Error(), "team-a/web and team-a/ci") {
		t.Errorf("an unknown ServiceAccount: %v", err)
	}
	if err := p.token(&out, "team-a/web"); err == nil || !strings.Contains(err.Error(), "sa.key") {
		t.Errorf("before init: %v", err)
	}
	if err := os.WriteFile(p.keyFile(), []byte("no key"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.token(&out, "team-a/web"); err == nil || !strings.Contains(err.Error(), "no key") {
		t.Errorf("a file that holds no key: %v", err)
	}
	for _, args := range [][]string{{"token"}, {"init", "here"}, {"serv"}} {
		if err := run(context.Background(), args, &out); err == nil || !strings.Contains(err.Error(), "usage") {
			t.Errorf("demo %v: %v", args, err)
		}
	}
	if out.Len() > 0 {
		t.Errorf("printed %q", out.String())
	}
}

// A user without a cluster gives a copy of examples/, whose configuration has these files and this issuer.
func TestPartsOfADirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var out bytes.Buffer
	for _, args := range [][]string{{"--dir", dir, "init"}, {"--dir", dir, "token", "team-a/web"}} {
		if err := run(context.Background(), args, &out); err != nil {
			t.Fatalf("demo %v: %v", args, err)
		}
	}
	for _, name := range []string{"ca.crt", "tls.crt", "tls.key"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	token, err := jwt.ParseSigned(strings.TrimSpace(out.String()), []jose.SignatureAlgorithm{jose.RS256})
	if err != nil {
		t.Fatal(err)
	}
	var claims jwt.Claims
	if err := token.UnsafeClaimsWithoutVerification(&claims); err != nil || claims.Issuer != "https://localhost:6443" {
		t.Errorf("issuer %q, %v", claims.Issuer, err)
	}
	if err := run(context.Background(), []string{"--dir", dir}, &out); err == nil || !strings.Contains(err.Error(), "usage") {
		t.Errorf("a directory alone: %v", err)
	}
}
