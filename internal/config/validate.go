package config

import (
	"fmt"
	"math"
	"net"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pullpass/pullpass/internal/base/names"
	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/registryauth/signing"
)

const (
	maxShutdownDelay = 5 * time.Minute
	maxRate          = 1_000_000 // of limits, as internal/state has it; so is maxFillTime
	maxFillTime      = 24 * time.Hour
	maxNameBytes     = 255 // of services, issuers of registries, file names
	maxAudienceBytes = 512
	maxPathBytes     = 4095
)

// validator finds what is wrong with the values of a configuration.
type validator struct {
	*strictyaml.Validator
	dir string // that relative names are in
}

func (v *validator) config(c *Config) {
	v.Values("", reflect.ValueOf(c))
	v.address("server.address", c.Server.Address)
	for i, p := range c.Server.TrustedProxies {
		v.trustedProxy(fmt.Sprintf("server.trustedProxies[%d]", i), p)
	}
	if delay := c.Server.ShutdownDelay.Duration(); delay < 0 || delay > maxShutdownDelay {
		v.Fault("server.shutdownDelay", "is out of range (%s); use 0s to %s", c.Server.ShutdownDelay, Duration(maxShutdownDelay))
	}
	v.address("admin.address", c.Admin.Address)
	v.ownPort("admin.address", c.Admin.Address, "server.address", c.Server.Address)
	if c.Gateway != nil {
		v.ownPort("gateway.address", c.Gateway.Address, "server.address", c.Server.Address)
		v.ownPort("gateway.address", c.Gateway.Address, "admin.address", c.Admin.Address)
	}
	for i, host := range c.Admin.ConsoleHosts {
		if at := fmt.Sprintf("admin.consoleHosts[%d]", i); !names.IsSubdomain(host) {
			v.Fault(at, "is not the name of a host (%s); write it in lower case, without scheme and port", term.QuoteValue(host))
		} else if !c.Admin.Console {
			v.Fault(at, "names a host of a page that is off; set admin.console, or remove it")
		}
	}

	if len(c.Clusters) == 0 && len(c.Identities) == 0 {
		v.Fault("clusters", "is empty; name at least one cluster, or one of identities, whose tokens are accepted")
	}
	for i := range c.Clusters {
		v.cluster(fmt.Sprintf("clusters[%d]", i), c, &c.Clusters[i])
	}
	v.Unique(len(c.Clusters), "clusters[%d].name", func(i int) string { return c.Clusters[i].Name })
	v.Unique(len(c.Clusters), "clusters[%d].issuer", func(i int) string { return c.Clusters[i].Issuer })
	v.apart(c)
	v.identities(c)

	if len(c.Registries) == 0 {
		v.Fault("registries", "is empty; name at least one registry that tokens are issued for")
	}
	for i := range c.Registries {
		v.registry(fmt.Sprintf("registries[%d]", i), &c.Registries[i])
	}
	v.Unique(len(c.Registries), "registries[%d].service", func(i int) string { return c.Registries[i].Service })
	v.uniquePlaces(len(c.Registries), "registries[%d].signing.managedDir", func(i int) string { return c.Registries[i].Signing.ManagedDir })

	v.gateway(c)
	v.assertions(c)

	if len(c.PolicyFiles) == 0 {
		v.Fault("policyFiles", "is empty; without a policy nothing is granted, so name at least one file")
	}
	v.uniquePlaces(len(c.PolicyFiles), "policyFiles[%d]", func(i int) string { return c.PolicyFiles[i] })
	v.uniquePlaces(len(c.PolicyTrial.Files), "policyTrial.files[%d]", func(i int) string { return c.PolicyTrial.Files[i] })

	v.state(&c.State)
	v.limit("limits.perServiceAccount", c.Limits.PerServiceAccount)
	v.limit("limits.perAddress", c.Limits.PerAddress)
	for _, field := range c.files() {
		v.fileName(field.path, *field.name)
	}
}

func (v *validator) cluster(path string, config *Config, c *Cluster) {
	v.issuer(path, c.Name, c.Issuer, "the issuer as in the cluster's tokens (kubectl get --raw /.well-known/openid-configuration)", c.Audiences)
	v.discovery(path+".discovery", &c.Discovery)
	v.positive(path+".maxTokenLifetime", c.MaxTokenLifetime)
	v.node(path+".node", config, c)
	v.kubernetes(path+".kubernetes", &c.Kubernetes)
	v.pullSecrets(path, c)
}

// issuer makes the checks that clusters and identities share.
func (v *validator) issuer(path, name, issuer, want string, audiences []string) {
	if !names.IsLabel(name) {
		v.Fault(path+".name", "is not a DNS label (%s); use 1 to 63 of a-z, 0-9 and '-', with a letter or digit at both ends", term.QuoteValue(name))
	}
	v.httpsURL(path+".issuer", issuer, want)
	if u, err := url.Parse(issuer); err == nil && (u.RawQuery != "" || u.ForceQuery) {
		v.Fault(path+".issuer", "has a query (%s); write %s", term.QuoteValue(issuer), want)
	}
	if len(audiences) == 0 {
		v.Fault(path+".audiences", "is empty; an empty list would accept every audience, so name those that this proxy is meant by")
	}
	for i, audience := range audiences {
		v.audience(fmt.Sprintf("%s.audiences[%d]", path, i), audience)
	}
}

func (v *validator) audience(path, audience string) {
	if audience == "" || len(audience) > maxAudienceBytes || !names.IsVisible(audience) {
		v.Fault(path, "is not an audience (%s); use 1 to %d visible ASCII characters", term.QuoteValue(audience), maxAudienceBytes)
	}
	if audience == "*" { // RBAC lets kubelets request an audience by its name, and there it is every one
		v.Fault(path, "is *, a wildcard in the RBAC rule of the kubelets: it would let them request tokens for every audience; write the audience")
	}
}

func (v *validator) discovery(path string, d *Discovery) {
	var sources []string
	for _, s := range []struct{ name, value string }{{"url", d.URL}, {"jwksURL", d.JWKSURL}, {"jwksFile", d.JWKSFile}} {
		if s.value == "" {
			continue
		}
		sources = append(sources, s.name)
		if s.name != "jwksFile" {
			v.httpsURL(path+"."+s.name, s.value, "the whole https URL")
		}
	}
	if len(sources) > 1 {
		v.Fault(path, "has %s; keep one of them", strings.Join(sources, " and "))
	}
	if d.JWKSFile != "" {
		for _, s := range []struct{ name, value string }{{"caFile", d.CAFile}, {"tokenFile", d.TokenFile}} {
			if s.value != "" {
				v.Fault(path+"."+s.name, "has no use with jwksFile, which needs no network (%s); remove it", term.QuoteValue(s.value))
			}
		}
	}
	v.positive(path+".maxKeyAge", d.MaxKeyAge)
}

func (v *validator) registry(path string, r *Registry) {
	if !names.IsTitle(r.Service) {
		v.Fault(path+".service", "is not a service (%s); write the registry's auth.token.service: 1 to %d printable ASCII characters", term.QuoteValue(r.Service), maxNameBytes)
	}
	if !names.IsTitle(r.Issuer) {
		v.Fault(path+".issuer", "is not an issuer (%s); write the registry's auth.token.issuer: 1 to %d printable ASCII characters", term.QuoteValue(r.Issuer), maxNameBytes)
	}
	if lifetime := r.TokenLifetime.Duration(); lifetime < signing.MinLifetime || lifetime > signing.MaxLifetime {
		v.Fault(path+".tokenLifetime", "is out of range (%s); use %s to %s", r.TokenLifetime, Duration(signing.MinLifetime), Duration(signing.MaxLifetime))
	}
	v.signing(path+".signing", &r.Signing)
}

func (v *validator) signing(path string, s *Signing) {

	files := [...]struct{ name, value string }{{"keyFile", s.KeyFile}, {"certFile", s.CertFile}, {"caFile", s.CAFile}}
	if s.ManagedDir != "" {
		for _, f := range files {
			if f.value != "" {
				v.Fault(path+"."+f.name, "cannot be set together with managedDir (%s); remove one of them", term.QuoteValue(f.value))
			}
		}
		return
	}
	if s.KeyFile == "" {
		v.Fault(path+".keyFile", "is missing; name the private key's file, or remove certFile and caFile and let Pullpass manage its keys")
	}
	switch s.Trust {
	case signing.TrustCertificate:
		if s.CertFile == "" {
			v.Fault(path+".certFile", "is missing; trust %s needs the certificate of keyFile", s.Trust)
		}
	case signing.TrustJWKS:
		for _, f := range files[1:] {
			if f.value != "" {
				v.Fault(path+"."+f.name, "has no use with trust %s (%s); remove it", s.Trust, term.QuoteValue(f.value))
			}
		}
	}
}

func (v *validator) state(s *State) {
	v.redis("state.redis", &s.Redis)
}

func (v *validator) redis(path string, r *Redis) {
	for i, address := range r.Addresses {
		host, port, err := net.SplitHostPort(address)
		if number, numberErr := strconv.ParseUint(port, 10, 16); err != nil || numberErr != nil || host == "" || number == 0 {
			v.Fault(fmt.Sprintf("%s.addresses[%d]", path, i), "is not an address (%s); write host:port", term.QuoteValue(address))
		}
	}
	v.Unique(len(r.Addresses), path+".addresses[%d]", func(i int) string { return r.Addresses[i] })
	if len(r.Addresses) == 0 {
		for _, f := range []struct{ name, value string }{
			{"username", r.Username}, {"passwordFile", r.PasswordFile}, {"tls.caFile", r.TLS.CAFile}, {"masterName", r.MasterName},
		} {
			if f.value != "" {
				v.Fault(path+"."+f.name, "has no use without addresses (%s); name them, or remove it and run one replica", term.QuoteValue(f.value))
			}
		}
		if r.TLS.SystemCAs {
			v.Fault(path+".tls.systemCAs", "has no use without addresses (true); name them, or remove it and run one replica")
		}
	}
	if r.Username != "" && r.PasswordFile == "" {
		v.Fault(path+".passwordFile", "is missing; without a password, connections would be those of the default user and not of username (%s)", term.QuoteValue(r.Username))
	}
	if r.TLS.CAFile != "" && r.TLS.SystemCAs {
		v.Fault(path+".tls", "has caFile and systemCAs; keep one of them")
	}
}

func (v *validator) limit(path string, l Limit) {
	inRange := l.Rate > 0 && l.Rate <= maxRate
	if !inRange {
		v.Fault(path+".rate", "is out of range (%s); write requests per second, more than 0 and at most %d", strconv.FormatFloat(l.Rate, 'g', -1, 64), maxRate)
	}
	switch {
	case l.Burst < 1 || l.Burst > math.MaxInt32:
		v.Fault(path+".burst", "is out of range (%d); use 1 to %d", l.Burst, math.MaxInt32)
	case inRange && float64(l.Burst)/l.Rate > maxFillTime.Seconds():
		v.Fault(path+".burst", "takes longer than %s to come back at this rate (%d); make it smaller, or the rate greater", Duration(maxFillTime), l.Burst)
	}
}

func (v *validator) positive(path string, d Duration) {
	if d <= 0 {
		v.Fault(path, "must be positive (%s); write a time span such as 24h", d)
	}
}

// httpsURL omits the value from a message if it may contain a password.
func (v *validator) httpsURL(path, s, want string) {
	u, err := url.Parse(s)
	bad := err != nil || u.Scheme != "https" || u.Hostname() == "" || strings.Contains(s, "#") || !names.IsVisible(s)
	switch {
	case s == "":
		v.Fault(path, "is missing; write %s", want)
	case err == nil && u.User != nil, bad && strings.Contains(s, "@"):
		v.Fault(path, "holds a user name or password; write %s, without them", want)
	case bad:
		v.Fault(path, "is not an https URL without fragment and spaces (%s); write %s", term.QuoteValue(s), want)
	}
}

func (v *validator) address(path, s string) {
	_, port, err := net.SplitHostPort(s)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		v.Fault(path, "is not an address (%s); write host:port or :port", term.QuoteValue(s))
	}
}

// ownPort refuses two listeners of which the second could not be opened.
func (v *validator) ownPort(path, address, other, otherAddress string) {
	host, port, _ := net.SplitHostPort(address)
	otherHost, otherPort, _ := net.SplitHostPort(otherAddress)
	if port == otherPort && port != "" && port != "0" && (host == otherHost || host == "" || otherHost == "") {
		v.Fault(path, "has the port of %s (%s); give it one of its own", other, port)
	}
}

func (v *validator) trustedProxy(path string, p netip.Prefix) {
	switch {
	case !p.IsValid():
		return // its decoding failed
	case p.Bits() == 0:
		v.Fault(path, "is the whole Internet (%s): every caller could choose its own address; name your proxies' networks", p)
	case p.Addr().Is4In6():
		v.Fault(path, "is an IPv4 network in IPv6 form (%s), which no caller is compared with; write it as IPv4", p)
	case p != p.Masked():
		v.Fault(path, "is an address within a network (%s); write %s, or %s for the one address", p, p.Masked(), netip.PrefixFrom(p.Addr(), p.Addr().BitLen()))
	}
}

// fileName reports content in the place of a file name. It does not repeat it, because it may be a
// key or a token.
func (v *validator) fileName(path, s string) {
	if s == "" && strings.HasSuffix(path, "]") {
		v.Fault(path, "is empty; name a file or remove the element")
	}
	tooLong := len(s) > maxPathBytes || slices.ContainsFunc(strings.Split(s, "/"), func(part string) bool { return len(part) > maxNameBytes })
	if tooLong || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		v.Fault(path, "is not the name of a file: it is too long, or has control characters; put the file's name here, not its content")
	}
}
