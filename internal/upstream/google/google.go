// Package google gets logins for Google Artifact Registry: by the service account of
// the gateway's own pod or machine (application default credentials), or by workload
// identity federation, with an assertion about the caller.
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

	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/upstream"
	"github.com/pullpass/pullpass/internal/upstream/logins"
)

const (
	// username is what belongs to an access token at the registry.
	username = "oauth2accesstoken"

	// scope is no right: those are granted by IAM.
	scope = "https://www.googleapis.com/auth/cloud-platform"

	tokenType = "urn:ietf:params:oauth:token-type:jwt" // of an assertion, for the exchange
)

// Config configures the logins of one registry.
type Config struct {
	Upstream string // its name, for messages
	// Audience is the full name of the workload identity pool's provider, without
	// https:; empty: the gateway's own identity asks for all.
	Audience       string
	ServiceAccount string            // whom callers impersonate; empty: nobody
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
		// Found anew each time: credentials keep a token until it ends, also one that
		// the registry refused.
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

// silent keeps the SDK from writing tokens down: it has a logger of its own, which an
// environment variable turns on.
var silent = slog.New(slog.DiscardHandler)

// subject gives the SDK an assertion that is there already.
type subject registryauth.Secret

func (s subject) SubjectToken(context.Context, *externalaccount.RequestOptions) (string, error) {
	return registryauth.Secret(s).Reveal(), nil
}
