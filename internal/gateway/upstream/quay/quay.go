// Package quay gets logins of a robot account of Quay. The account's federation trusts assertions
// about the caller.
package quay

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/pullpass/pullpass/internal/gateway/upstream"
	"github.com/pullpass/pullpass/internal/gateway/upstream/logins"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// Config configures the logins of one registry.
type Config struct {
	Upstream   string            // its name, for messages
	URL        string            // of the registry, without path; also the audience of assertions
	Roots      *x509.CertPool    // CAs of its certificate; nil: the system's
	Robot      string            // ORGANIZATION+NAME
	Assertions logins.Assertions // required
	Now        func() time.Time  // nil: time.Now
	Logger     *slog.Logger      // nil: silent
}

type asker struct {
	cfg      Config
	client   *http.Client
	endpoint string
}

// New uses no network.
func New(cfg Config) (*logins.Remembered, error) {
	base, err := url.Parse(cfg.URL)
	if err != nil || base.Host == "" {
		return nil, fmt.Errorf("upstream %s: its URL cannot be read", cfg.Upstream)
	}
	if cfg.Assertions == nil {
		return nil, fmt.Errorf("upstream %s: a robot's federation takes assertions", cfg.Upstream)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	a := &asker{cfg: cfg, client: logins.NewClient(cfg.Roots), endpoint: base.JoinPath("/oauth2/federation/robot/token").String()}
	return logins.New(logins.Config{Upstream: cfg.Upstream, Ask: a.ask, PerCaller: true, Now: cfg.Now, Logger: cfg.Logger}), nil
}

func (a *asker) ask(ctx context.Context, caller string) (upstream.Login, error) {
	assertion, err := a.cfg.Assertions.Sign(caller, a.cfg.URL)
	if err != nil {
		return upstream.Login{}, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.endpoint, nil)
	if err != nil {
		return upstream.Login{}, logins.Failure(err)
	}
	request.SetBasicAuth(a.cfg.Robot, assertion.Reveal())
	var answer struct {
		Token string `json:"token"`
	}
	if err := logins.JSON(a.client, request, &answer, assertion); err != nil {
		return upstream.Login{}, err
	}
	return upstream.Login{Username: a.cfg.Robot, Password: registryauth.NewSecret(answer.Token), Expiry: logins.Expiry(a.cfg.Now(), 0, answer.Token)}, nil
}
