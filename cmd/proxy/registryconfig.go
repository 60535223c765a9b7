package main

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"text/template"

	"github.com/spf13/cobra"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/config/setup"
	"github.com/pullpass/pullpass/internal/registryauth/signing"
)

// registrySettings are the settings of a registry that trusts Pullpass.
type registrySettings struct {
	Realm, Service, Issuer, TrustFile string
	JWKS                              bool // the registry trusts a key set, not a CA
}

// The settings in the registries' own form. Values are YAML or JSON strings,
// quoted as JSON, which is both.
var registryTemplates = map[string]string{
	"distribution": `# For config.yml of distribution (registry:2, registry:3). The registry reads it at start only.
auth:
  token:
    realm: {{.Realm | json}}
    service: {{.Service | json}}
    issuer: {{.Issuer | json}}
{{- if .JWKS}}
    jwks: {{.TrustFile | json}} # distribution 3.1 or later
{{- else}}
    rootcertbundle: {{.TrustFile | json}} # the CA alone: signing keys change without the registry
{{- end}}
`,
	// By default, zot links a layer of another repository into the requested one
	// (zot#511): a caller with pull on one repository gets any layer by its digest.
	"zot": `{
  "storage": {
    "dedupe": false
  },
  "http": {
    "auth": {
      "bearer": {
        "realm": {{.Realm | json}},
        "service": {{.Service | json}},
        "cert": {{.TrustFile | json}}
      }
    }
  }
}
`,
}

func registryConfigCommand() *cobra.Command {
	var file, service, kind, realm, trustFile string
	command := &cobra.Command{
		Use:   "registry-config",
		Short: "Print the settings for a registry's configuration",
		Long: `Print the settings with which a registry sends clients to Pullpass and trusts its
tokens. --trust-file also writes the file that the registry needs for that: the CA
(trust "certificate"), the key set ("jwks"), or, for zot, the public key. The file
contains no secrets. A running server publishes the CA and the key set at
/certificates.pem and /.well-known/jwks.json.

The settings for zot contain "dedupe": false. Images in Docker's format also need
"http": {"compat": ["docker2s2"]}.

Warning: with "dedupe", zot gives a layer of any repository to every caller that can
pull from one repository and knows the digest.`,
		Example: `  pullpass registry-config --config pullpass.yaml --service registry.example.com --trust-file pullpass-ca.pem
  pullpass registry-config --config pullpass.yaml --service registry.example.com --for zot --realm https://registry.example.com/token`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.LoadOnce(cmd.Context(), file)
			if err != nil {
				return err
			}
			registry, err := config.FindRegistry(cfg, service)
			if err != nil {
				return err
			}
			if cfg.IsGateway(registry.Service) {
				return fmt.Errorf("--service %s is the service of the gateway, which needs only gateway and upstreams in the configuration; for the nodes, use kubelet-config --mirror", registry.Service)
			}
			settings := registrySettings{
				Realm:     realm,
				Service:   registry.Service,
				Issuer:    registry.Issuer,
				TrustFile: trustFile,
				JWKS:      registry.Signing.Trust == signing.TrustJWKS,
			}
			if settings.Realm == "" {
				if settings.Realm, err = defaultRealm(cfg, registry.Service); err != nil {
					return err
				}
			}
			if kind == "zot" && !settings.JWKS {
				return fmt.Errorf(`zot trusts one key and verifies no certificate chain; set registries[].signing.trust of %s to "jwks"`, registry.Service)
			}
			if trustFile != "" {
				if settings.TrustFile, err = writeTrust(cmd.ErrOrStderr(), registry, trustFile, kind); err != nil {
					return err
				}
			} else if settings.TrustFile = "/etc/pullpass/trust.pem"; settings.JWKS && kind == "distribution" {
				settings.TrustFile = "/etc/pullpass/jwks.json"
			}
			return writeSettings(cmd.OutOrStdout(), kind, settings)
		},
	}
	configFlag(command, &file)
	command.Flags().StringVar(&service, "service", "", "service of the registry (may be left out when there is only one)")
	command.Flags().StringVar(&kind, "for", "distribution", "kind of registry: distribution or zot")
	command.Flags().StringVar(&realm, "realm", "", "public URL of the token endpoint (default, if the service is a host: https://SERVICE:PORT/token, with the port of server.address)")
	command.Flags().StringVar(&trustFile, "trust-file", "", "also write the CA or keys that the registry must trust to this file")
	return command
}

func writeSettings(w io.Writer, kind string, settings registrySettings) error {
	text, ok := registryTemplates[kind]
	if !ok {
		return fmt.Errorf("--for %q is not known: use distribution or zot", kind)
	}
	t, err := template.New(kind).Funcs(printsJSON).Parse(text)
	if err != nil {
		return err
	}
	return t.Execute(w, settings)
}

// printsJSON has values as JSON, which YAML is too.
var printsJSON = template.FuncMap{"json": func(v any) (string, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(v)
	return string(bytes.TrimSpace(b.Bytes())), err
}}

// writeTrust writes the CA or keys that the registry must trust. It returns the
// file's absolute path, because the registry runs elsewhere.
func writeTrust(log io.Writer, registry *config.Registry, name, kind string) (string, error) {
	keys, err := setup.NewSigningKeys(registry, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		return "", err
	}
	if _, err := keys.Signing(); err != nil {
		return "", fmt.Errorf("%s: %w; make a key: pullpass keys init", registry.Service, err)
	}
	var data []byte
	switch {
	case kind == "zot":
		// zot reads one PEM key at start. The newest key lasts longest.
		all := keys.Status().Keys
		key := all[len(all)-1]
		fmt.Fprintf(log, "zot trusts only the key %s: restart it when this key begins to sign (pullpass keys list). After each pullpass keys rotate, write this file again and restart zot\n", key.ID)
		trusted := keys.Trusted().JWKS
		data, err = publicKeyPEM(trusted.Key(key.ID)[0].Key)
	case registry.Signing.Trust == signing.TrustJWKS:
		data, err = signing.MarshalJWKS(keys)
	default:
		data = signing.MarshalCertificates(keys)
	}
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(name, data, 0o644); err != nil { //nolint:gosec // public, and the registry runs as another user
		return "", err
	}
	return filepath.Abs(name)
}

func publicKeyPEM(key crypto.PublicKey) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return nil, fmt.Errorf("public key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), nil
}

// defaultRealm uses the service as the host. It may not be one: distribution's
// documents have the service "Docker registry".
func defaultRealm(cfg *config.Config, service string) (string, error) {
	host := service
	if h, _, err := net.SplitHostPort(service); err == nil {
		host = h
	}
	if _, port, err := net.SplitHostPort(cfg.Server.Address); err == nil && port != "443" {
		host = net.JoinHostPort(host, port)
	}
	realm := "https://" + host + "/token"
	if parsed, err := url.Parse(realm); err != nil || parsed.Host != host {
		return "", fmt.Errorf("the service %q is not a host; write --realm, the public URL of the token endpoint", service)
	}
	return realm, nil
}
