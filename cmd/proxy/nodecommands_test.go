package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/node/nodeconfig"
	"github.com/pullpass/pullpass/internal/test/pkitest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// The file is copied to nodes, where every user can read it, and containerd skips what it cannot read.
func TestFilesOfCAsForNodes(t *testing.T) {
	t.Parallel()
	ca := pkitest.NewAuthority(t, "registry CA")
	several := ca.Pem() + pkitest.NewAuthority(t, "new CA").Pem()
	server, key := ca.Leaf(t, "registry.example.com", -time.Minute, time.Hour)
	expired, _ := ca.Leaf(t, "registry.example.com", -time.Hour, -time.Minute)
	dir := t.TempDir()
	testkit.Write(t, dir, "pullpass.yaml", gatewayConfig)
	testkit.Write(t, dir, "plugin", "PLUGIN\n")
	o := nodeOptions{
		config: filepath.Join(dir, "pullpass.yaml"), plugin: filepath.Join(dir, "plugin"), ca: filepath.Join(dir, "ca.pem"),
		target: nodeconfig.Options{Mirrors: []string{"ghcr.io"}},
	}
	for name, test := range map[string]struct{ content, want string }{
		"a CA":                        {ca.Pem(), ""},
		"two CAs, with comments":      {"# registry\n" + strings.ReplaceAll(several, "-----END CERTIFICATE-----\n", "-----END CERTIFICATE-----\n\n# next\n"), ""},
		"lines of Windows":            {strings.ReplaceAll(several, "\n", "\r\n"), ""},
		"a server's own certificate":  {server, ""},
		"an expired one beside a CA":  {expired + ca.Pem(), ""},
		"a private key behind a CA":   {ca.Pem() + key, `holds a block of another type than CERTIFICATE ("PRIVATE KEY")`},
		"a private key before a CA":   {key + ca.Pem(), `holds a block of another type than CERTIFICATE ("PRIVATE KEY")`},
		"a certificate that is cut":   {ca.Pem() + ca.Pem()[:300], "holds a block that is damaged or cut off"},
		"a private key that is cut":   {ca.Pem() + key[:60], "holds a block that is damaged or cut off"},
		"a block that cannot be read": {ca.Pem() + string(pkitest.PEM("CERTIFICATE", ca.Raw[:100])), "holds a certificate that cannot be read: "},
		"no certificate":              {"CA\n", "holds no certificate"},
		"nothing":                     {"", "holds no certificate"},
	} {
		testkit.Write(t, dir, "ca.pem", test.content)
		d, err := o.desired(t.Context(), "v1.36.2")
		if test.want == "" {
			if err != nil || string(d.CA) != test.content {
				t.Errorf("%s: %v, %q", name, err, d.CA)
			}
			continue
		}
		if want := "--ca " + o.ca + " " + test.want; err == nil || !strings.HasPrefix(err.Error(), want) || !strings.HasSuffix(err.Error(), "; name a file with CA certificates in PEM and nothing else") {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
}
