package setup

import (
	"context"
	"log/slog"
	"net"
	"time"

	"github.com/pullpass/pullpass/internal/base/filewatch"
	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/gateway"
	"github.com/pullpass/pullpass/internal/gateway/upstream"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/registryauth/assertion"
)

// UpstreamNames returns the prefixes of the gateway's repositories.
func UpstreamNames(cfg *config.Config) gateway.Names {
	names := make(gateway.Names, len(cfg.Upstreams))
	for i := range cfg.Upstreams {
		names[i] = cfg.Upstreams[i].Name
	}
	return names
}

// Scopes returns, by service, the function that maps requested scopes to those that
// the policy checks.
func Scopes(cfg *config.Config) map[string]func(host string, requested []registryauth.Scope) []registryauth.Scope {
	if cfg.Gateway == nil {
		return nil
	}
	return map[string]func(string, []registryauth.Scope) []registryauth.Scope{cfg.Gateway.Service: UpstreamNames(cfg).Scopes}
}

// Upstream is an opened upstream of the gateway.
type Upstream struct {
	*upstream.Client
	Settings   config.Upstream
	Assertions *assertion.Issuer // those with which it was opened
	Content    [32]byte          // of its CA file
}

// UpstreamConfig configures OpenUpstream.
type UpstreamConfig struct {
	Settings   config.Upstream
	Version    string            // of the program
	Assertions *assertion.Issuer // nil: no credential uses the caller's identity
	Logger     *slog.Logger
	Dial       func(ctx context.Context, network, address string) (net.Conn, error) // nil: that of net.Dialer
	Now        func() time.Time                                                     // nil: time.Now
}

// OpenUpstream uses no network.
func OpenUpstream(c UpstreamConfig) (*Upstream, error) {
	u := c.Settings
	opened := &Upstream{Settings: u, Assertions: c.Assertions, Content: CAContent(&u)} // before it is read, so that a change during the reading is noticed
	logins, err := UpstreamLogins(&u, c.Assertions, c.Logger)
	if err != nil {
		return nil, err
	}
	opened.Client, err = upstream.New(upstream.Config{
		Name: u.Name, URL: u.URL, CAFile: u.CAFile, Logins: logins, RedirectHosts: u.RedirectHosts, UserAgent: "pullpass/" + c.Version, Dial: c.Dial, Now: c.Now,
	})
	if err != nil {
		return nil, err
	}
	return opened, nil
}

// CAContent returns a digest that changes with the CA file of an upstream.
func CAContent(u *config.Upstream) [32]byte { return filewatch.Digest(config.NonEmpty(u.CAFile)) }

// ForGateway returns the upstreams in the form that the gateway needs.
func ForGateway(upstreams map[string]*Upstream) map[string]gateway.Upstream {
	all := map[string]gateway.Upstream{}
	for name, u := range upstreams {
		g := gateway.Upstream{Client: u.Client, Follow: u.Settings.Redirects == config.RedirectFollow}
		for _, action := range u.Settings.Actions {
			g.Actions = append(g.Actions, string(action))
		}
		all[name] = g
	}
	return all
}
