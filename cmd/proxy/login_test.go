package main

import (
	"bytes"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/proxytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// TestLogin logs in to a served token endpoint, under a name that its certificate does not have.
func TestLogin(t *testing.T) {
	t.Parallel()
	p := proxytest.New(t, "  kubernetes: {manifestFiles: [serviceaccounts.yaml]}\n", nil)
	serveWith(t, p)
	testkit.Eventually(t, "it gets ready", func() bool { return p.Ready(t) })
	_, port, err := net.SplitHostPort(p.Address)
	testkit.Must(t, err)
	token := kubetest.Token(t, "https://issuer.example.com")
	testkit.Write(t, p.Dir, "token", token+"\n")
	testkit.Write(t, p.Dir, "bad", "bad")
	certificate, other := filepath.Join(p.Dir, "tls.crt"), t.TempDir()
	proxytest.WriteServingCertificate(t, other, 2)
	login := func(file, service string, more ...string) (int, string) {
		var stdout, stderr bytes.Buffer
		args := append([]string{"login", "--url", "https://localhost:" + port + "/token", "--service", service, "--token-file", filepath.Join(p.Dir, file)}, more...)
		code := run(t.Context(), args, nil, &stdout, &stderr)
		return code, stdout.String() + stderr.String()
	}
	for _, c := range []struct {
		name, file, service string
		more                []string
		code                int
		want                string
	}{
		{"a login", "token", "registry.example.com", []string{"--certificate", certificate}, 0, "/token: login accepted; the token for registry.example.com expires at 20"},
		{"a credential that is not valid", "bad", "registry.example.com", []string{"--certificate", certificate}, 1, "answers 401 Unauthorized: "},
		{"a service that is not there", "token", "other.example.com", []string{"--certificate", certificate}, 1, "answers 400 Bad Request: "},
		{"another certificate", "token", "registry.example.com", []string{"--certificate", filepath.Join(other, "tls.crt")}, 1, "x509: "},
		{"no certificate by a known CA", "token", "registry.example.com", nil, 1, "x509: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			if code, output := login(c.file, c.service, c.more...); code != c.code || !strings.Contains(output, c.want) || strings.Contains(output, token) {
				t.Errorf("exit code %d: %s", code, output)
			}
		})
	}
}
