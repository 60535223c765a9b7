// Package azure gets logins for Azure Container Registry. It uses the identity of the gateway's own
// pod or machine (workload identity, managed identity). Alternatively, it uses an identity that
// trusts assertions about the caller (federated credentials).
//
// Entra's token is exchanged at the registry for a refresh token. The refresh token is the password of
// a user name that all identities share. The registry identifies the caller by the token.
package azure

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"

	"github.com/pullpass/pullpass/internal/base/term"
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

// Credential is for Azure Container Registry.
type Credential struct {
	Identity logins.Identity `json:"identity"` // who asks: the gateway's own identity, or the caller
	TenantID string          `json:"tenantID"` // identity caller: the tenant of clientID
	ClientID string          `json:"clientID"` // of the identity that trusts the callers; with identity gateway, of one of several that the machine has
}

func (c *Credential) SetDefaults() { *c = Credential{Identity: logins.Gateway} }

func (c *Credential) OfCaller() bool { return c.Identity == logins.Caller }

func (c *Credential) Validate(v logins.Validator) {
	const example = "as Entra shows it, 00000000-0000-0000-0000-000000000000"
	c.Identity.Requires(v, "tenantID", c.TenantID, "write the tenant of the identity, "+example)
	if c.Identity == logins.Caller && c.ClientID == "" {
		v.Fault("clientID", "is missing; write the client ID of the identity that trusts the callers, %s", example)
	}
	for _, id := range []struct{ name, value string }{{"tenantID", c.TenantID}, {"clientID", c.ClientID}} {
		if id.value != "" && !isGUID(id.value) {
			v.Fault(id.name, "is not an ID (%s); write it %s", term.QuoteValue(id.value), example)
		}
	}
}

func isGUID(s string) bool {
	parts := strings.Split(s, "-")
	if len(parts) != 5 {
		return false
	}
	for i, length := range []int{8, 4, 4, 4, 12} {
		if len(parts[i]) != length || strings.Trim(parts[i], "0123456789abcdefABCDEF") != "" {
			return false
		}
	}
	return true
}

// Open finds the gateway's own identity if it is needed.
func (c *Credential) Open(s logins.Service) (upstream.Logins, error) { return c.open(s, nil) }

// open uses other options for Entra, in tests.
func (c *Credential) open(s logins.Service, entra *azcore.ClientOptions) (upstream.Logins, error) {
	endpoint, err := s.Endpoint(s.URL, "/oauth2/exchange")
	if err != nil {
		return nil, err
	}
	a := &asker{Credential: c, Service: s, endpoint: endpoint, client: logins.NewClient(s.Roots), isTest: entra != nil}
	a.entra = azcore.ClientOptions{Transport: logins.NewClient(nil), Retry: policy.RetryOptions{MaxRetries: retries}}
	if entra != nil {
		a.entra = *entra
	}
	if !c.OfCaller() {
		if err := a.findOwn(); err != nil {
			return nil, fmt.Errorf("upstream %s: %w", s.Upstream, logins.Failure(err))
		}
	}
	return s.Remember(c.OfCaller(), a.ask)
}

type asker struct {
	*Credential
	logins.Service
	endpoint *url.URL               // of the registry
	client   *http.Client           // for the registry
	entra    azcore.ClientOptions   // for Entra
	isTest   bool                   // Entra is a stand-in
	own      azcore.TokenCredential // of the gateway; nil if callers are trusted
	notOwn   error                  // the reason why own is not a workload identity
}

// findOwn returns the workload identity if the environment configures one, or else the managed
// identity. The default chain of the SDK would continue with developer tools.
func (a *asker) findOwn() error {
	workload, err := azidentity.NewWorkloadIdentityCredential(&azidentity.WorkloadIdentityCredentialOptions{
		ClientOptions: a.entra, ClientID: a.ClientID, DisableInstanceDiscovery: a.isTest,
	})
	if err == nil {
		a.own = workload
		return nil
	}
	a.notOwn = err
	options := azidentity.ManagedIdentityCredentialOptions{ClientOptions: a.entra}
	if a.ClientID != "" {
		options.ID = azidentity.ClientID(a.ClientID)
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
	if a.OfCaller() {
		assertion, err := a.Assertions.Sign(caller, Audience)
		if err != nil {
			return registryauth.Secret{}, err
		}
		secrets = append(secrets, assertion)
		// Create one for each request: credentials cache tokens, and callers must not share them.
		credential, err = azidentity.NewClientAssertionCredential(a.TenantID, a.ClientID,
			func(context.Context) (string, error) { return assertion.Reveal(), nil },
			&azidentity.ClientAssertionCredentialOptions{ClientOptions: a.entra, DisableInstanceDiscovery: a.isTest})
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
	form := url.Values{"grant_type": {"access_token"}, "service": {a.endpoint.Host}, "access_token": {token.Reveal()}}
	if a.OfCaller() {
		form.Set("tenant", a.TenantID)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, a.endpoint.String(), strings.NewReader(form.Encode()))
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
		Expiry:   logins.Expiry(time.Now(), 0, answer.RefreshToken),
	}, nil
}
