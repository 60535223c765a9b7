// Package upstream runs registries that do not ask Pullpass for anything: one with a file of users, or with a token endpoint of its
// own. They record their requests.
package upstream

import (
	"path/filepath"
	"testing"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/registry"
	"github.com/pullpass/pullpass/e2e/relay"
	"github.com/pullpass/pullpass/e2e/secrets"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// The only user of each.
const (
	Username = "robot$acme"
	Password = "robots-password-nobody-else-may-see"
	Htpasswd = Username + ":$2a$04$Q2ZVRwkdqVLOaZwfizkFGOhBmESRzEshOmTqXVVLUE2wIfktaD3ay\n" // bcrypt
)

// Upstream is a running registry.
type Upstream struct {
	// Registry is what is behind the recorder.
	Registry *registry.Registry
	// Recorder is how it is reached.
	Recorder *relay.Recorder
	// Tokens is its token endpoint; nil: it has none.
	Tokens *Tokens

	ca           *certs.CA
	passwordFile string
}

// StartBasic runs a registry with a file of users.
func StartBasic(t testing.TB, ca *certs.CA, program string) *Upstream {
	t.Helper()
	return start(t, ca, nil, registry.Config{Program: program, Realm: "upstream", Htpasswd: []byte(Htpasswd)})
}

// StartRedirecting is StartBasic with a registry whose blobs are below a URL: clients are sent there.
func StartRedirecting(t testing.TB, ca *certs.CA, program, storage string) *Upstream {
	t.Helper()
	return start(t, ca, nil, registry.Config{Program: program, Realm: "upstream", Htpasswd: []byte(Htpasswd), RedirectURL: storage})
}

// StartToken runs a registry with a token endpoint.
func StartToken(t testing.TB, ca *certs.CA, program string) *Upstream {
	t.Helper()
	tokens := startTokens(t, ca)
	return start(t, ca, tokens, registry.Config{Program: program, Realm: tokens.URL, Service: tokenService, Issuer: tokenIssuer, JWKS: tokens.jwks(t)})
}

func start(t testing.TB, ca *certs.CA, tokens *Tokens, config registry.Config) *Upstream {
	t.Helper()
	u := &Upstream{Registry: registry.Start(t, ca, config), Tokens: tokens, ca: ca, passwordFile: filepath.Join(t.TempDir(), "password")}
	u.Recorder = relay.Record(t, ca, "https://"+u.Registry.Host)
	secrets.Note("password of an upstream", Password)
	testenv.WriteFile(t, u.passwordFile, Password+"\n")
	return u
}

// Setting is how a gateway is told of the registry.
func (u *Upstream) Setting(name string, actions ...string) pullpass.Upstream {
	return pullpass.Upstream{
		Name: name, URL: "https://" + u.Recorder.Host, CAFile: u.ca.File, Actions: actions,
		Credential: pullpass.Credential{Basic: pullpass.Basic{Username: Username, PasswordFile: u.passwordFile}},
	}
}
