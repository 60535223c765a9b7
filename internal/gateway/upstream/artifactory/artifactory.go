// Package artifactory gets logins for JFrog Artifactory. It exchanges assertions about the caller
// for access tokens. An OpenID Connect integration of the platform trusts the assertions.
package artifactory

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/pullpass/pullpass/internal/gateway/upstream"
	"github.com/pullpass/pullpass/internal/gateway/upstream/logins"
	"github.com/pullpass/pullpass/internal/registryauth"
)

const (
	grantType = "urn:ietf:params:oauth:grant-type:token-exchange"
	tokenType = "urn:ietf:params:oauth:token-type:id_token" // of an assertion
)

// Config configures the logins of one registry.
type Config struct {
	Upstream   string            // its name, for messages
	URL        string            // of the platform, without path
	Roots      *x509.CertPool    // CAs of its certificate; nil: the system's
	Provider   string            // name of the integration
	Audience   string            // expected by the integration
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
		return nil, fmt.Errorf("upstream %s: its platform's URL cannot be read", cfg.Upstream)
	}
	if cfg.Assertions == nil {
		return nil, fmt.Errorf("upstream %s: an exchange takes assertions", cfg.Upstream)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	a := &asker{cfg: cfg, client: logins.NewClient(cfg.Roots), endpoint: base.JoinPath("/access/api/v1/oidc/token").String()}
	return logins.New(logins.Config{Upstream: cfg.Upstream, Ask: a.ask, PerCaller: true, Now: cfg.Now, Logger: cfg.Logger}), nil
}

func (a *asker) ask(ctx context.Context, caller string) (upstream.Login, error) {
	assertion, err := a.cfg.Assertions.Sign(caller, a.cfg.Audience)
	if err != nil {
		return upstream.Login{}, err
	}
	body, err := json.Marshal(map[string]string{
		"grant_type":         grantType,
		"subject_token_type": tokenType,
		"subject_token":      assertion.Reveal(),
		"provider_name":      a.cfg.Provider,
	})
	if err != nil {
		return upstream.Login{}, logins.Failure(err, assertion)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, a.endpoint, bytes.NewReader(body))
	if err != nil {
		return upstream.Login{}, logins.Failure(err, assertion)
	}
	request.Header.Set("Content-Type", "application/json")
	var answer struct {
		AccessToken string `json:"access_token"`
		ExpiresIn   int64  `json:"expires_in"`
		Username    string `json:"username"`
	}
	if err := logins.JSON(a.client, request, &answer, assertion); err != nil {
		return upstream.Login{}, err
	}
	if answer.Username == "" {
		// Older versions only have it in the token: SERVICE/users/NAME.
		_, answer.Username, _ = strings.Cut(logins.Subject(answer.AccessToken), "/users/")
	}
	if answer.AccessToken != "" && answer.Username == "" {
		return upstream.Login{}, errors.New("the answer has a token and not whose it is")
	}
	return upstream.Login{
		Username: answer.Username,
		Password: registryauth.NewSecret(answer.AccessToken),
		Expiry:   logins.Expiry(a.cfg.Now(), answer.ExpiresIn, answer.AccessToken),
	}, nil
}
