// Package quay gets logins of a robot account of Quay. The account's federation trusts assertions
// about the caller.
package quay

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/pullpass/pullpass/internal/base/names"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/gateway/upstream"
	"github.com/pullpass/pullpass/internal/gateway/upstream/logins"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// Credential is for Quay: always the caller's.
type Credential struct {
	Robot string `json:"robot" schema:"required nonempty"` // ORGANIZATION+NAME, whose federation knows the callers
}

func (*Credential) OfCaller() bool { return true }

func (c *Credential) Validate(v logins.Validator) {
	if organization, name, _ := strings.Cut(c.Robot, "+"); organization == "" || name == "" || strings.Contains(c.Robot, ":") || !names.IsVisible(c.Robot) {
		v.Fault("robot", "is not a robot account (%s); write ORGANIZATION+NAME", term.QuoteValue(c.Robot))
	}
}

func (c *Credential) Open(s logins.Service) (upstream.Logins, error) {
	endpoint, err := s.Endpoint(s.URL, "/oauth2/federation/robot/token")
	if err != nil {
		return nil, err
	}
	client := logins.NewClient(s.Roots)
	return s.Remember(true, func(ctx context.Context, caller string) (upstream.Login, error) {
		assertion, err := s.Assertions.Sign(caller, s.URL)
		if err != nil {
			return upstream.Login{}, err
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, endpoint.String(), nil)
		if err != nil {
			return upstream.Login{}, logins.Failure(err)
		}
		request.SetBasicAuth(c.Robot, assertion.Reveal())
		var answer struct {
			Token string `json:"token"`
		}
		if err := logins.JSON(client, request, &answer, assertion); err != nil {
			return upstream.Login{}, err
		}
		return upstream.Login{Username: c.Robot, Password: registryauth.NewSecret(answer.Token), Expiry: logins.Expiry(time.Now(), 0, answer.Token)}, nil
	})
}
