// Package google gets logins for Google Artifact Registry. It uses the service account of the
// gateway's own pod or machine (application default credentials), or workload identity federation
// with an assertion about the caller.
package google

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"cloud.google.com/go/auth"
	"cloud.google.com/go/auth/credentials"
	"cloud.google.com/go/auth/credentials/externalaccount"

	"github.com/pullpass/pullpass/internal/gateway/upstream"
	"github.com/pullpass/pullpass/internal/gateway/upstream/logins"
	"github.com/pullpass/pullpass/internal/registryauth"
)

const (
	// username is the user name for access tokens at the registry.
	username = "oauth2accesstoken"

	// scope does not grant permissions. IAM grants them.
	scope = "https://www.googleapis.com/auth/cloud-platform"

	tokenType = "urn:ietf:params:oauth:token-type:jwt" // of an assertion, for the exchange
)

// Config configures the logins of one registry.
type Config struct {
	Upstream string // its name, for messages
	// Audience is the full name of the workload identity pool's provider, without https:; empty:
	// the gateway's own identity requests all logins.
	Audience       string
	ServiceAccount string            // the service account that callers impersonate; empty: none
	Assertions     logins.Assertions // with Audience
	Now            func() time.Time  // nil: time.Now
	Logger         *slog.Logger      // nil: silent

	endpoint string // of the exchange and of the impersonation, in tests
}

type asker struct {
	cfg    Config
	client *http.Client
}

// New uses no network.
func New(cfg Config) (*logins.Remembered, error) {
	if cfg.Audience != "" && cfg.Assertions == nil {
		return nil, fmt.Errorf("upstream %s: an exchange takes assertions", cfg.Upstream)
	}
	a := &asker{cfg: cfg, client: logins.NewClient(nil)}
	return logins.New(logins.Config{Upstream: cfg.Upstream, Ask: a.ask, PerCaller: cfg.Audience != "", Now: cfg.Now, Logger: cfg.Logger}), nil
}

func (a *asker) ask(ctx context.Context, caller string) (upstream.Login, error) {
	var secrets []registryauth.Secret
	var credential *auth.Credentials
	var err error
	if a.cfg.Audience == "" {
		// Detect them anew each time: credentials cache a token until it expires, even if the
		// registry refused it.
		credential, err = credentials.DetectDefault(&credentials.DetectOptions{Scopes: []string{scope}, Client: a.client, Logger: silent})
	} else {
		var assertion registryauth.Secret
		if assertion, err = a.cfg.Assertions.Sign(caller, a.cfg.Audience); err != nil {
			return upstream.Login{}, err
		}
		secrets = append(secrets, assertion)
		credential, err = externalaccount.NewCredentials(a.exchange(assertion))
	}
	if err != nil {
		return upstream.Login{}, logins.Failure(err, secrets...)
	}
	token, err := credential.Token(ctx)
	if err != nil {
		return upstream.Login{}, logins.Failure(err, secrets...)
	}
	return upstream.Login{Username: username, Password: registryauth.NewSecret(token.Value), Expiry: token.Expiry}, nil
}

func (a *asker) exchange(assertion registryauth.Secret) *externalaccount.Options {
	options := &externalaccount.Options{
		Audience:             a.cfg.Audience,
		SubjectTokenType:     tokenType,
		SubjectTokenProvider: subject(assertion),
		Scopes:               []string{scope},
		Client:               a.client,
		Logger:               silent,
	}
	impersonation := "https://iamcredentials.googleapis.com"
	if a.cfg.endpoint != "" {
		options.TokenURL, impersonation = a.cfg.endpoint+"/v1/token", a.cfg.endpoint
	}
	if a.cfg.ServiceAccount != "" {
		options.ServiceAccountImpersonationURL = impersonation + "/v1/projects/-/serviceAccounts/" + url.PathEscape(a.cfg.ServiceAccount) + ":generateAccessToken"
	}
	return options
}

// silent prevents the SDK from logging tokens. An environment variable turns on its own logger.
var silent = slog.New(slog.DiscardHandler)

// subject provides an existing assertion to the SDK.
type subject registryauth.Secret

func (s subject) SubjectToken(context.Context, *externalaccount.RequestOptions) (string, error) {
	return registryauth.Secret(s).Reveal(), nil
}
