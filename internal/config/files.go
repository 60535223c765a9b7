package config

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/pullpass/pullpass/internal/base/file"
	"github.com/pullpass/pullpass/internal/base/names"
	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/exchange"
)

// fileKind says what has to lie under a name.
type fileKind int

const (
	readableFile fileKind = iota
	tlsFile               // read by newServerTLS, and only when TLS is served
	writtenFile           // made when it is not there
	keyDirectory          // made when it is not there
)

// fileField is a field of the configuration that names a file.
type fileField struct {
	path string
	name *string
	kind fileKind
}

// files returns all fields of the configuration that name files, set or not.
func (c *Config) files() []fileField {
	files := []fileField{
		{"server.tls.certFile", &c.Server.TLS.CertFile, tlsFile},
		{"server.tls.keyFile", &c.Server.TLS.KeyFile, tlsFile},
		{"server.tls.clientCAFile", &c.Server.TLS.ClientCAFile, tlsFile},
	}
	for i := range c.Clusters {
		path := fmt.Sprintf("clusters[%d].", i)
		files = append(files, discoveryFiles(path, &c.Clusters[i].Discovery)...)
		files = append(files,
			fileField{path + "node.proof.clientCAFile", &c.Clusters[i].Node.Proof.ClientCAFile, tlsFile},
			fileField{path + "kubernetes.kubeconfigFile", &c.Clusters[i].Kubernetes.KubeconfigFile, readableFile},
		)
		files = append(files, listedFiles(path+"kubernetes.manifestFiles", c.Clusters[i].Kubernetes.ManifestFiles)...)
	}
	for i := range c.Identities {
		files = append(files, discoveryFiles(fmt.Sprintf("identities[%d].", i), &c.Identities[i].Discovery)...)
	}
	for i := range c.Registries {
		signing := &c.Registries[i].Signing
		path := fmt.Sprintf("registries[%d].signing.", i)
		files = append(files,
			fileField{path + "certFile", &signing.CertFile, readableFile},
			fileField{path + "keyFile", &signing.KeyFile, readableFile},
			fileField{path + "caFile", &signing.CAFile, readableFile},
			fileField{path + "managedDir", &signing.ManagedDir, keyDirectory},
		)
	}
	if c.Gateway != nil {
		files = append(files, fileField{"gateway.tls.certFile", &c.Gateway.TLS.CertFile, tlsFile}, fileField{"gateway.tls.keyFile", &c.Gateway.TLS.KeyFile, tlsFile})
	}
	for i := range c.Upstreams {
		u := &c.Upstreams[i]
		path := fmt.Sprintf("upstreams[%d].", i)
		files = append(files, fileField{path + "caFile", &u.CAFile, readableFile})
		if u.Credential != nil && u.Credential.Basic != nil {
			files = append(files, fileField{path + "credential.basic.passwordFile", &u.Credential.Basic.PasswordFile, readableFile})
		}
	}
	if c.Assertions != nil {
		files = append(files, fileField{"assertions.keyFile", &c.Assertions.KeyFile, readableFile}, fileField{"assertions.managedDir", &c.Assertions.ManagedDir, keyDirectory})
	}
	files = append(files,
		fileField{"state.redis.passwordFile", &c.State.Redis.PasswordFile, readableFile},
		fileField{"state.redis.tls.caFile", &c.State.Redis.TLS.CAFile, readableFile},
	)
	files = append(files, listedFiles("policyFiles", c.PolicyFiles)...)
	files = append(files, listedFiles("policyTrial.files", c.PolicyTrial.Files)...)
	return append(files, fileField{"audit.file", &c.Audit.File, writtenFile})
}

func discoveryFiles(path string, d *Discovery) []fileField {
	return []fileField{
		{path + "discovery.jwksFile", &d.JWKSFile, readableFile},
		{path + "discovery.caFile", &d.CAFile, readableFile},
		{path + "discovery.tokenFile", &d.TokenFile, readableFile},
	}
}

func listedFiles(path string, names []string) []fileField {
	files := make([]fileField, len(names))
	for i := range names {
		files[i] = fileField{fmt.Sprintf("%s[%d]", path, i), &names[i], readableFile}
	}
	return files
}

// CheckFiles reports files that are missing or cannot be read. It does not check their contents:
// their readers do. It also leaves out the TLS files, which plain HTTP does not need. The error
// joins a *strictyaml.Fault for each.
func (c *Config) CheckFiles() error {
	var faults []error
	for _, field := range c.files() {
		if *field.name == "" {
			continue
		}
		var err error
		switch field.kind {
		case readableFile:
			err = CheckReadable(*field.name)
		case writtenFile:
			err = checkWritable(*field.name)
		case keyDirectory:
			err = checkDirectory(*field.name)
		case tlsFile:
		}
		if err != nil {
			faults = append(faults, c.Fault(field.path, err))
		}
	}
	return errors.Join(faults...)
}

func (c *Config) Fault(path string, err error) error {
	return &strictyaml.Fault{File: c.File, Path: path, Problem: err.Error(), Err: err}
}

func CheckReadable(name string) error {
	if _, err := os.Stat(name); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w; put the file there or correct its name, which is relative to the configuration file", err)
	}
	f, err := file.Open(name)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w; let this user read it", err)
	case err != nil:
		return err
	}
	return f.Close()
}

func checkWritable(name string) error {
	info, err := os.Stat(name)
	switch {
	case err == nil && info.IsDir():
		return fmt.Errorf("%s is a directory; name a file in it", name)
	case err == nil:
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	dir, err := os.Stat(filepath.Dir(name))
	if err != nil {
		return fmt.Errorf("%w; make the directory", err)
	}
	if !dir.IsDir() {
		return fmt.Errorf("%s is not a directory; name a file in one", filepath.Dir(name))
	}
	return nil
}

// checkDirectory accepts any directory, and a missing one below a directory in which this user can make it.
func checkDirectory(name string) error {
	at := name
	info, err := os.Stat(at)
	for above := filepath.Dir(at); above != at && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)); above = filepath.Dir(at) {
		at = above
		info, err = os.Stat(at)
	}
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is not a directory; name one for the signing keys", at)
	}
	if at == name {
		return nil
	}
	if err := checkWritableDirectory(at); err != nil {
		return fmt.Errorf("%s cannot be made: %w; let this user write there, or name a directory elsewhere", name, err)
	}
	return nil
}

// CheckListeners checks the public listener. TLS needs its files, and plain HTTP must not be
// reachable from other machines. The error joins a *strictyaml.Fault for each.
func (c *Config) CheckListeners(insecureHTTP bool) error {
	var faults []error
	note := func(path, format string, args ...any) {
		faults = append(faults, c.Fault(path, fmt.Errorf(format, args...)))
	}
	tls := c.Server.TLS
	if insecureHTTP {
		if !isLoopback(c.Server.Address) {
			note("server.address", "is not a loopback address (%s); --insecure-http sends tokens in the clear, so write 127.0.0.1:PORT", term.QuoteValue(c.Server.Address))
		}
		if g := c.Gateway; g != nil && !isLoopback(g.Address) {
			note("gateway.address", "is not a loopback address (%s); --insecure-http sends tokens in the clear, so write 127.0.0.1:PORT", term.QuoteValue(g.Address))
		}
		for _, ca := range c.ClientCAs {
			note(ca.Field, "asks for client certificates (%s), which plain HTTP has not; remove it or do without --insecure-http", term.QuoteValue(ca.Name))
		}
		return errors.Join(faults...)
	}
	if tls.CertFile == "" {
		note("server.tls.certFile", "is missing; name the certificate for the name that clients use, or serve a loopback address with --insecure-http")
	}
	if tls.KeyFile == "" {
		note("server.tls.keyFile", "is missing; name the private key of certFile, or serve a loopback address with --insecure-http")
	}
	if g := c.Gateway; g != nil && strings.HasPrefix(g.URL, "http://") {
		note("gateway.url", "is not https (%s), and the gateway is served with TLS; write https://", term.QuoteValue(g.URL))
	}
	return errors.Join(faults...)
}

// kubeletTokenLifetime is the default of a TokenRequest, which kubelets make for credential providers (KEP 4412).
const kubeletTokenLifetime = time.Hour

func (c *Config) warnings() []string {
	var warnings []string
	warn := func(path, text string) {
		warnings = append(warnings, (&strictyaml.Fault{File: c.File, Path: path, Problem: text}).Error())
	}
	if !isLoopback(c.Admin.Address) {
		open := "health and metrics"
		if c.Admin.PProf {
			open = "health, metrics and profiles"
		}
		warn("admin.address", fmt.Sprintf("is not a loopback address (%s); %s need no credential, so allow only clients to reach it that may read them", term.QuoteValue(c.Admin.Address), open))
	}
	if len(c.Admin.ConsoleHosts) > 0 && !isLoopback(c.Admin.Address) {
		warn("admin.consoleHosts", "exposes the console to anyone who can reach the admin listener and sends such a name; put an authenticating proxy in front of it")
	}
	if c.Server.TLS.HTTP2 {
		warn("server.tls.http2", "has no effect, because only HTTP/1.1 is spoken; remove it")
	}
	for i := range c.Clusters {
		if longest := c.Clusters[i].MaxTokenLifetime; longest.Duration() < kubeletTokenLifetime {
			warn(fmt.Sprintf("clusters[%d].maxTokenLifetime", i), fmt.Sprintf("refuses the tokens that kubelets request (%s), which live for an hour; write at least 1h", longest))
		}
	}
	c.proofWarnings(warn)
	c.providerWarnings(warn)
	c.pullSecretWarnings(warn)
	for i := range c.Upstreams {
		if name := c.Upstreams[i].Name; names.IsLabel(name) {
			warn(fmt.Sprintf("upstreams[%d].name", i), fmt.Sprintf("could be the name of a namespace (%s): a rule for {namespace}/** would give that namespace all of the upstream; let such rules name their services, or give the upstream a name with a dot", name))
		}
	}
	if c.State.Replay != exchange.ReplayOff && len(c.State.Redis.Addresses) == 0 {
		warn("state.replay", "is "+string(c.State.Replay)+" without Redis: a replica does not know the tokens that other replicas received; set state.redis.addresses, or run one replica")
	}
	return warnings
}

// isLoopback reports whether only this machine can reach address. The only name that it resolves is
// localhost.
func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && isLoopbackHost(host)
}

func isLoopbackHost(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}
