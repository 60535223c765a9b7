package main

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// intermediate is a CA below a.
func (a authority) intermediate(t testing.TB, name string) authority {
	t.Helper()
	below := authority{key: newECKey(t)}
	below.cert = sign(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotBefore: a.cert.NotBefore, NotAfter: a.cert.NotAfter,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, a.cert, &below.key.PublicKey, a.key)
	return below
}

// TestKeysScripts changes keys as docs/keys.md says. The files of signing/ are
// those that cert-manager makes of a CA below a root; next/ holds those of
// another root.
func TestKeysScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{Dir: "testdata/keys", Setup: func(env *testscript.Env) error {
		var faults []error
		put := func(name, content string) {
			faults = append(faults, os.WriteFile(filepath.Join(env.WorkDir, name), []byte(content), 0o600))
		}
		for dir, name := range map[string]string{"signing": "root", "next": "next root"} {
			faults = append(faults, os.Mkdir(filepath.Join(env.WorkDir, dir), 0o700))
			root := newAuthority(t, name)
			below := root.intermediate(t, "below "+name)
			cert, key := below.leaf(t, "leaf", -time.Hour, time.Hour)
			put(dir+"/tls.crt", cert+below.pem())
			put(dir+"/tls.key", key)
			put(dir+"/roots.pem", root.pem())
		}
		return errors.Join(faults...)
	}})
}
