// Package artifactory gets logins for JFrog Artifactory. It exchanges assertions about the caller
// for access tokens. An OpenID Connect integration of the platform trusts the assertions.
package artifactory

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/pullpass/pullpass/internal/base/names"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/gateway/upstream"
	"github.com/pullpass/pullpass/internal/gateway/upstream/logins"
	"github.com/pullpass/pullpass/internal/registryauth"
)

const (
	grantType = "urn:ietf:params:oauth:grant-type:token-exchange"
	tokenType = "urn:ietf:params:oauth:token-type:id_token" // of an assertion

	maxAudienceBytes = 512
)

// Credential is for JFrog Artifactory: always the caller's.
type Credential struct {
	Provider string `json:"provider" schema:"required nonempty"` // name of the OpenID Connect integration
	Audience string `json:"audience"`                            // that it expects; empty: the upstream's url
	URL      string `json:"url" schema:"url"`                    // of the platform; empty: the upstream's url
}

func (*Credential) OfCaller() bool { return true }

func (c *Credential) Complete(url string) {
	c.URL = cmp.Or(strings.TrimSuffix(c.URL, "/"), url)
	c.Audience = cmp.Or(c.Audience, url)
}

func (c *Credential) Validate(v logins.Validator) {
	if !names.IsTitle(c.Provider) {
		v.Fault("provider", "is not a name (%s); write the provider name of the OpenID Connect integration", term.QuoteValue(c.Provider))
	}
	if len(c.Audience) > maxAudienceBytes || !names.IsVisible(c.Audience) {
		v.Fault("audience", "is not an audience (%s); use at most %d visible ASCII characters", term.QuoteValue(c.Audience), maxAudienceBytes)
	}
	if c.URL != "" {
		v.BaseURL("url", c.URL, "where the platform is, https://acme.jfrog.io")
	}
}

func (c *Credential) Open(s logins.Service) (upstream.Logins, error) {
	endpoint, err := s.Endpoint(c.URL, "/access/api/v1/oidc/token")
	if err != nil {
		return nil, err
	}
	client := logins.NewClient(s.Roots)
	return s.Remember(true, func(ctx context.Context, caller string) (upstream.Login, error) {
		assertion, err := s.Assertions.Sign(caller, c.Audience)
		if err != nil {
			return upstream.Login{}, err
		}
		body, err := json.Marshal(map[string]string{
			"grant_type":         grantType,
			"subject_token_type": tokenType,
			"subject_token":      assertion.Reveal(),
			"provider_name":      c.Provider,
		})
		if err != nil {
			return upstream.Login{}, logins.Failure(err, assertion)
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint.String(), bytes.NewReader(body))
		if err != nil {
			return upstream.Login{}, logins.Failure(err, assertion)
		}
		request.Header.Set("Content-Type", "application/json")
		var answer struct {
			AccessToken string `json:"access_token"`
			ExpiresIn   int64  `json:"expires_in"`
			Username    string `json:"username"`
		}
		if err := logins.JSON(client, request, &answer, assertion); err != nil {
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
			Expiry:   logins.Expiry(time.Now(), answer.ExpiresIn, answer.AccessToken),
		}, nil
	})
}
