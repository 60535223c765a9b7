package config

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/pullpass/pullpass/internal/base/names"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// Gateway is the listener that passes requests on to registries whose token
// endpoint cannot be chosen: the upstreams.
type Gateway struct {
	Address string     `json:"address" schema:"nonempty"`          // host:port or :port
	TLS     GatewayTLS `json:"tls"`                                // empty: that of server
	URL     string     `json:"url" schema:"required url"`          // how clients reach it, without path: https://gateway.example.com
	Service string     `json:"service" schema:"required nonempty"` // one of registries[].service, whose keys no other registry has
}

// GatewayTLS are the files of the gateway's TLS, both PEM.
type GatewayTLS struct {
	CertFile string `json:"certFile"` // chain, leaf first; empty: server.tls.certFile
	KeyFile  string `json:"keyFile"`  // private key of certFile
}

// SetDefaults fills in the address.
func (g *Gateway) SetDefaults() { *g = Gateway{Address: ":8444"} }

// UpstreamAction is what clients may do at an upstream, if a rule allows it, too.
type UpstreamAction string

// The actions.
const (
	UpstreamPull   UpstreamAction = "pull"
	UpstreamPush   UpstreamAction = "push"
	UpstreamDelete UpstreamAction = "delete"
)

// Values returns all that there are.
func (UpstreamAction) Values() []UpstreamAction {
	return []UpstreamAction{UpstreamPull, UpstreamPush, UpstreamDelete}
}

// RedirectMode says who follows the redirects of an upstream.
type RedirectMode string

// The modes.
const (
	RedirectPass   RedirectMode = "pass"
	RedirectFollow RedirectMode = "follow"
)

// Values returns all that there are.
func (RedirectMode) Values() []RedirectMode { return []RedirectMode{RedirectPass, RedirectFollow} }

// Upstream is one registry behind the gateway.
type Upstream struct {
	Name    string           `json:"name" schema:"required nonempty"` // what image names begin with: ghcr.io
	URL     string           `json:"url" schema:"url"`                // empty: https:// and the name
	CAFile  string           `json:"caFile"`                          // CAs of its certificate; empty: those of the system
	Actions []UpstreamAction `json:"actions" schema:"nonempty"`       // what may be done there at all
	// Redirects: pass sends the client to where its blobs are stored; follow fetches
	// them for it.
	Redirects RedirectMode `json:"redirects"`
	// RedirectHosts are the hosts that a redirect may name, *.example.com for all below
	// one; empty: every public one. The upstream's own may always be named.
	RedirectHosts []string            `json:"redirectHosts"`
	Credential    *UpstreamCredential `json:"credential,omitempty" schema:"nonempty oneof"` // empty: the upstream is asked anonymously
}

// SetDefaults leaves the URL empty: its default depends on the name.
func (u *Upstream) SetDefaults() {
	*u = Upstream{Actions: []UpstreamAction{UpstreamPull}, Redirects: RedirectPass, RedirectHosts: []string{}}
}

// dockerHub is the upstream with its own rules for names.
const dockerHub = "docker.io"

// Upstream returns the upstream with a name, or nil.
func (c *Config) Upstream(name string) *Upstream {
	i := slices.IndexFunc(c.Upstreams, func(u Upstream) bool { return u.Name == name })
	if i < 0 {
		return nil
	}
	return &c.Upstreams[i]
}

// IsGateway reports whether a service is the gateway's.
func (c *Config) IsGateway(service string) bool {
	return c.Gateway != nil && c.Gateway.Service == service
}

// completeGateway sets the defaults that depend on other settings.
func (c *Config) completeGateway() {
	if g := c.Gateway; g != nil {
		g.URL = strings.TrimSuffix(g.URL, "/")
		if g.TLS == (GatewayTLS{}) {
			g.TLS = GatewayTLS{CertFile: c.Server.TLS.CertFile, KeyFile: c.Server.TLS.KeyFile}
		}
	}
	for i := range c.Upstreams {
		u := &c.Upstreams[i]
		switch {
		case u.URL != "":
			u.URL = strings.TrimSuffix(u.URL, "/")
		case u.Name == dockerHub:
			u.URL = "https://registry-1.docker.io"
		default:
			u.URL = "https://" + u.Name
		}
		u.Credential.complete(u.URL)
	}
}

func (v *validator) gateway(c *Config) {
	g := c.Gateway
	if g == nil {
		if len(c.Upstreams) > 0 {
			v.Fault("upstreams", "has no use without gateway; write gateway.url and gateway.service, or remove it")
		}
		return
	}
	v.address("gateway.address", g.Address)
	v.baseURL("gateway.url", g.URL, "how clients reach the gateway, https://gateway.example.com")
	if (g.TLS.CertFile == "") != (g.TLS.KeyFile == "") {
		v.Fault("gateway.tls", "has one of certFile and keyFile; name both, or none for those of server.tls")
	}
	v.gatewayService(c)
	if len(c.Upstreams) == 0 {
		v.Fault("upstreams", "is empty; name at least one registry that the gateway passes requests on to")
	}
	for i := range c.Upstreams {
		v.upstream(fmt.Sprintf("upstreams[%d]", i), &c.Upstreams[i])
	}
	v.Unique(len(c.Upstreams), "upstreams[%d].name", func(i int) string { return c.Upstreams[i].Name })
	if u, err := url.Parse(g.URL); err == nil {
		host := hostOf(u)
		for i := range c.Upstreams {
			to, err := url.Parse(c.Upstreams[i].URL)
			switch {
			case c.Upstreams[i].Name == host:
				v.Fault(fmt.Sprintf("upstreams[%d].name", i), "is the host of gateway.url (%s), at which names begin with an upstream's; give one of them another name", term.QuoteValue(u.Host))
			case err == nil && host != "" && hostOf(to) == host:
				v.Fault(fmt.Sprintf("upstreams[%d].url", i), "is that of gateway.url (%s): the gateway would send requests to itself; write where the registry is", term.QuoteValue(g.URL))
			}
		}
	}
}

// hostOf returns the host of an https URL, in one form for all that mean the same.
func hostOf(u *url.URL) string {
	return strings.ToLower(strings.TrimSuffix(strings.TrimSuffix(u.Host, ":443"), "."))
}

// gatewayService requires that the gateway has its own keys. A token for the gateway must not be
// valid elsewhere, nor other tokens at the gateway.
func (v *validator) gatewayService(c *Config) {
	own := c.Registry(c.Gateway.Service)
	if own == nil {
		v.Fault("gateway.service", "is not among registries[].service (%s); add a registry of this service, whose keys only the gateway has", term.QuoteValue(c.Gateway.Service))
		return
	}
	for i := range c.Registries {
		r := &c.Registries[i]
		if r != own && v.samePlace(r.Signing.KeyFile, own.Signing.KeyFile) {
			v.Fault(fmt.Sprintf("registries[%d].signing.keyFile", i), "is the gateway's as well (%s); give the gateway a key of its own", term.QuoteValue(r.Signing.KeyFile))
		}
	}
}

func (v *validator) upstream(path string, u *Upstream) {
	v.upstreamName(path+".name", u.Name)
	v.baseURL(path+".url", u.URL, "where the registry is, https://registry.example.com")
	if len(u.Actions) == 0 {
		v.Fault(path+".actions", "is empty; write [%s], or remove it", UpstreamPull)
	}
	v.Unique(len(u.Actions), path+".actions[%d]", func(i int) string { return string(u.Actions[i]) })
	for i, host := range u.RedirectHosts {
		if name := strings.TrimPrefix(host, "*."); !isHostName(name) {
			v.Fault(fmt.Sprintf("%s.redirectHosts[%d]", path, i), "is not a host (%s); write storage.example.com, or *.example.com for all below it, without port", term.QuoteValue(host))
		}
	}
	u.Credential.validate(v, path+".credential")
}

// upstreamName refuses names with which the name of a repository cannot begin.
func (v *validator) upstreamName(path, name string) {
	switch scope, err := registryauth.ParseScope("repository:" + name + "/a:pull"); {
	case name == "index.docker.io" || name == "registry-1.docker.io":
		v.Fault(path, "is another name of %s (%s); write %s", dockerHub, name, dockerHub)
	case strings.Contains(name, ":"):
		v.Fault(path, "has a port (%s), which cannot stand in a repository's name; give it a name without, and write the port into url", term.QuoteValue(name))
	case err != nil || strings.Contains(name, "/") || scope.Name != strings.ToLower(scope.Name):
		v.Fault(path, "is not a name (%s); write what the names of its images begin with, in lower case: ghcr.io", term.QuoteValue(name))
	}
}

// baseURL accepts http only for this machine: for a sidecar and for tests.
func (v *validator) baseURL(path, s, want string) {
	u, err := url.Parse(s)
	plain := err == nil && u.Scheme == "http" && isLoopbackHost(u.Hostname())
	if !plain {
		v.httpsURL(path, s, want)
	}
	if err == nil {
		if port, err := strconv.ParseUint(u.Port(), 10, 16); u.Port() != "" && (err != nil || port == 0) {
			v.Fault(path, "has a port out of range (%s); write one from 1 to 65535, or none", term.QuoteValue(u.Port()))
		}
		if host := u.Hostname(); strings.HasPrefix(host, ".") || strings.Contains(host, "..") {
			v.Fault(path, "is not the name of a host (%s): a part between its dots is empty; write %s", term.QuoteValue(host), want)
		}
	}
	if err == nil && (u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.ForceQuery) {
		v.Fault(path, "has a path or a query (%s); write %s", term.QuoteValue(s), want)
	}
}

// isHostName accepts names and addresses, without port.
func isHostName(s string) bool {
	if _, err := netip.ParseAddr(s); err == nil {
		return true
	}
	for label := range strings.SplitSeq(s, ".") {
		if !names.IsLabel(label) {
			return false
		}
	}
	return true
}
