// Package google gets logins for Google Artifact Registry. It uses the service account of the
// gateway's own pod or machine (application default credentials), or workload identity federation
// with an assertion about the caller.
package google

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/auth"
	"cloud.google.com/go/auth/credentials"
	"cloud.google.com/go/auth/credentials/externalaccount"
	"cloud.google.com/go/compute/metadata"

	"github.com/pullpass/pullpass/internal/base/names"
	"github.com/pullpass/pullpass/internal/base/term"
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

// Credential is for Google Artifact Registry.
type Credential struct {
	Identity logins.Identity `json:"identity"` // who asks: the gateway's own service account, or the caller
	// Audience is the workload identity pool's provider, with identity caller:
	// //iam.googleapis.com/projects/NUMBER/locations/global/workloadIdentityPools/POOL/providers/PROVIDER
	Audience string `json:"audience"`
	// ServiceAccount is whom callers impersonate, with identity caller; empty: each is
	// a principal of its own.
	ServiceAccount string `json:"serviceAccount"`
}

func (c *Credential) SetDefaults() { *c = Credential{Identity: logins.Gateway} }

func (c *Credential) OfCaller() bool { return c.Identity == logins.Caller }

func (c *Credential) Validate(v logins.Validator) {
	const example = "//iam.googleapis.com/projects/NUMBER/locations/global/workloadIdentityPools/POOL/providers/PROVIDER"
	c.Identity.Requires(v, "audience", c.Audience, "write the provider's name: "+example)
	if c.Audience != "" && !isPoolProvider(c.Audience) {
		v.Fault("audience", "is not the provider of a workload identity pool (%s); write %s", term.QuoteValue(c.Audience), example)
	}
	if c.ServiceAccount == "" {
		return
	}
	c.Identity.Requires(v, "serviceAccount", c.ServiceAccount, "")
	if name, domain, _ := strings.Cut(c.ServiceAccount, "@"); !names.IsLabel(name) || !names.IsSubdomain(domain) {
		v.Fault("serviceAccount", "is not a service account's address (%s); write NAME@PROJECT.iam.gserviceaccount.com", term.QuoteValue(c.ServiceAccount))
	}
}

// isPoolProvider checks only the form.
func isPoolProvider(s string) bool {
	parts := strings.Split(s, "/")
	return len(parts) == 11 && strings.HasPrefix(s, "//iam.googleapis.com/projects/") && names.IsDecimal(parts[4]) &&
		parts[5] == "locations" && parts[7] == "workloadIdentityPools" && parts[9] == "providers" &&
		!slices.Contains(parts[3:], "") && names.IsVisible(s)
}

func (c *Credential) Open(s logins.Service) (upstream.Logins, error) { return c.open(s, "") }

// open uses another endpoint for the exchange and the impersonation, in tests.
func (c *Credential) open(s logins.Service, endpoint string) (upstream.Logins, error) {
	a := &asker{c, s, endpoint, logins.NewClient(nil)}
	return s.Remember(c.OfCaller(), a.ask)
}

type asker struct {
	*Credential
	logins.Service
	endpoint string
	client   *http.Client
}

func (a *asker) ask(ctx context.Context, caller string) (upstream.Login, error) {
	if !a.OfCaller() {
		return login(a.own(ctx))
	}
	assertion, err := a.Assertions.Sign(caller, a.Audience)
	if err != nil {
		return upstream.Login{}, err
	}
	credential, err := externalaccount.NewCredentials(a.exchange(assertion))
	if err != nil {
		return login(nil, err, assertion)
	}
	token, err := credential.Token(ctx)
	return login(token, err, assertion)
}

func login(token *auth.Token, err error, secrets ...registryauth.Secret) (upstream.Login, error) {
	if err != nil {
		return upstream.Login{}, logins.Failure(err, secrets...)
	}
	return upstream.Login{Username: username, Password: registryauth.NewSecret(token.Value), Expiry: token.Expiry}, nil
}

// own returns a token of the gateway's own service account.
func (a *asker) own(ctx context.Context) (*auth.Token, error) {
	// Detect them anew each time: credentials cache a token until it expires, even if the
	// registry refused it.
	credential, err := credentials.DetectDefault(&credentials.DetectOptions{Scopes: []string{scope}, Client: a.client, Logger: silent})
	if err == nil {
		return credential.Token(ctx)
	}
	// It looks for a metadata server only once in the life of a process, and that of a new node or
	// pod does not answer yet.
	server := metadata.NewClient(nil)
	if !strings.Contains(err.Error(), "could not find default credentials") || !server.OnGCEWithContext(ctx) {
		return nil, err
	}
	answer, err := server.GetWithContext(ctx, "instance/service-accounts/default/token?scopes="+url.QueryEscape(scope))
	if err != nil {
		return nil, err
	}
	var issued struct {
		Value     string `json:"access_token"`
		ExpiresIn int    `json:"expires_in"` // seconds
	}
	if json.Unmarshal([]byte(answer), &issued) != nil || issued.Value == "" || issued.ExpiresIn <= 0 {
		return nil, errors.New("the metadata server's answer has no token")
	}
	return &auth.Token{Value: issued.Value, Expiry: time.Now().Add(time.Duration(issued.ExpiresIn) * time.Second)}, nil
}

func (a *asker) exchange(assertion registryauth.Secret) *externalaccount.Options {
	options := &externalaccount.Options{
		Audience:             a.Audience,
		SubjectTokenType:     tokenType,
		SubjectTokenProvider: subject(assertion),
		Scopes:               []string{scope},
		Client:               a.client,
		Logger:               silent,
	}
	impersonation := "https://iamcredentials.googleapis.com"
	if a.endpoint != "" {
		options.TokenURL, impersonation = a.endpoint+"/v1/token", a.endpoint
	}
	if a.ServiceAccount != "" {
		options.ServiceAccountImpersonationURL = impersonation + "/v1/projects/-/serviceAccounts/" + url.PathEscape(a.ServiceAccount) + ":generateAccessToken"
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
