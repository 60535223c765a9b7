// Package azure gets logins for Azure Container Registry. It uses the identity of the gateway's own
// pod or machine (workload identity, managed identity). Alternatively, it uses an identity that
// trusts assertions about the caller (federated credentials).
//
// Entra's token is exchanged at the registry for a refresh token. The refresh token is the password of
// a user name that all identities share. The registry identifies the caller by the token.
package azure

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"

	"github.com/pullpass/pullpass/internal/gateway/upstream"
	"github.com/pullpass/pullpass/internal/gateway/upstream/logins"
	"github.com/pullpass/pullpass/internal/registryauth"
)

const (
	// Audience is the audience of assertions, as Entra proposes it for federated credentials.
	Audience = "api://AzureADTokenExchange"

	username = "00000000-0000-0000-0000-000000000000"
	scope    = "https://containerregistry.azure.net/.default" // of Entra's token
	retries  = 1
)

// Config configures the logins of one registry.
type Config struct {
	Upstream string         // its name, for messages
	URL      string         // of the registry, without path
	Roots    *x509.CertPool // CAs of its certificate; nil: the system's
	// TenantID and ClientID name the identity that trusts callers. Without a tenant, the gateway's
	// own identity requests all logins. ClientID then selects one of several.
	TenantID   string
	ClientID   string
	Assertions logins.Assertions // with TenantID
	Now        func() time.Time  // nil: time.Now
	Logger     *slog.Logger      // nil: silent

	entra *azcore.ClientOptions // in tests
}

type asker struct {
	cfg      Config
	registry *url.URL
	client   *http.Client           // for the registry
	entra    azcore.ClientOptions   // for Entra
	own      azcore.TokenCredential // of the gateway; nil with TenantID
	notOwn   error                  // the reason why own is not a workload identity
}

// New finds the gateway's own identity if it is needed. It uses no network.
func New(cfg Config) (*logins.Remembered, error) {
	registry, err := url.Parse(cfg.URL)
	if err != nil || registry.Host == "" {
		return nil, fmt.Errorf("upstream %s: its URL cannot be read", cfg.Upstream)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	a := &asker{cfg: cfg, registry: registry, client: logins.NewClient(cfg.Roots)}
	a.entra = azcore.ClientOptions{Transport: logins.NewClient(nil), Retry: policy.RetryOptions{MaxRetries: retries}}
	if cfg.entra != nil {
		a.entra = *cfg.entra
	}
	switch {
	case cfg.TenantID == "":
		if err := a.findOwn(); err != nil {
			return nil, fmt.Errorf("upstream %s: %w", cfg.Upstream, logins.Failure(err))
		}
	case cfg.Assertions == nil:
		return nil, fmt.Errorf("upstream %s: an exchange takes assertions", cfg.Upstream)
	}
	return logins.New(logins.Config{Upstream: cfg.Upstream, Ask: a.ask, PerCaller: cfg.TenantID != "", Now: cfg.Now, Logger: cfg.Logger}), nil
}

// findOwn returns the workload identity if the environment configures one, or else the managed
// identity. The default chain of the SDK would continue with developer tools.
func (a *asker) findOwn() error {
	workload, err := azidentity.NewWorkloadIdentityCredential(&azidentity.WorkloadIdentityCredentialOptions{
		ClientOptions: a.entra, ClientID: a.cfg.ClientID, DisableInstanceDiscovery: a.cfg.entra != nil,
	})
	if err == nil {
		a.own = workload
		return nil
	}
	a.notOwn = err
	options := azidentity.ManagedIdentityCredentialOptions{ClientOptions: a.entra}
	if a.cfg.ClientID != "" {
		options.ID = azidentity.ClientID(a.cfg.ClientID)
	}
	a.own, err = azidentity.NewManagedIdentityCredential(&options)
	return err
}

func (a *asker) ask(ctx context.Context, caller string) (upstream.Login, error) {
	token, err := a.token(ctx, caller)
	if err != nil {
		return upstream.Login{}, err
	}
	return a.exchange(ctx, token)
}

// token returns Entra's token for the registry.
func (a *asker) token(ctx context.Context, caller string) (registryauth.Secret, error) {
	credential := a.own
	var secrets []registryauth.Secret
	if a.cfg.TenantID != "" {
		assertion, err := a.cfg.Assertions.Sign(caller, Audience)
		if err != nil {
			return registryauth.Secret{}, err
		}
		secrets = append(secrets, assertion)
		// Create one for each request: credentials cache tokens, and callers must not share them.
		credential, err = azidentity.NewClientAssertionCredential(a.cfg.TenantID, a.cfg.ClientID,
			func(context.Context) (string, error) { return assertion.Reveal(), nil },
			&azidentity.ClientAssertionCredentialOptions{ClientOptions: a.entra, DisableInstanceDiscovery: a.cfg.entra != nil})
		if err != nil {
			return registryauth.Secret{}, logins.Failure(err, secrets...)
		}
	}
	token, err := credential.GetToken(ctx, policy.TokenRequestOptions{Scopes: []string{scope}})
	if err != nil {
		return registryauth.Secret{}, a.failure(err, secrets...)
	}
	return registryauth.NewSecret(token.Token), nil
}

// failure returns the error message of Entra. The SDK would return the whole response.
func (a *asker) failure(err error, secrets ...registryauth.Secret) error {
	if failed, ok := errors.AsType[*azidentity.AuthenticationFailedError](err); ok && failed.RawResponse != nil {
		body, _ := runtime.Payload(failed.RawResponse) // without a body, there is no message
		return logins.Refusal("Entra", failed.RawResponse.StatusCode, body, secrets...)
	}
	if a.notOwn != nil {
		err = fmt.Errorf("managed identity: %w (workload identity: %w)", err, a.notOwn)
	}
	told := logins.Failure(err, secrets...)
	if text, _, repeats := strings.Cut(told.Error(), "raw message was"); repeats {
		return errors.New(text) // the library's error quotes the whole response if it cannot parse it
	}
	return told
}

// exchange exchanges Entra's token for a refresh token of the registry.
func (a *asker) exchange(ctx context.Context, token registryauth.Secret) (upstream.Login, error) {
	form := url.Values{"grant_type": {"access_token"}, "service": {a.registry.Host}, "access_token": {token.Reveal()}}
	if a.cfg.TenantID != "" {
		form.Set("tenant", a.cfg.TenantID)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, a.registry.JoinPath("/oauth2/exchange").String(), strings.NewReader(form.Encode()))
	if err != nil {
		return upstream.Login{}, logins.Failure(err, token)
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	var answer struct {
		RefreshToken string `json:"refresh_token"`
	}
	if err := logins.JSON(a.client, request, &answer, token); err != nil {
		return upstream.Login{}, err
	}
	return upstream.Login{
		Username: username,
		Password: registryauth.NewSecret(answer.RefreshToken),
		Expiry:   logins.Expiry(a.cfg.Now(), 0, answer.RefreshToken),
	}, nil
}
