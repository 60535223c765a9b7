package explain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/config/setup"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// fromClaims reads the claims of a token instead of the token. They are checked like those of a
// token. Whether they are valid is part of the result.
func (e *explainer) fromClaims(ctx context.Context, r Request, stdin io.Reader) error {
	e.source = sourceIdentity
	if r.Identity == "" {
		return errors.New("--identity is empty; write which of identities[].name has such tokens")
	}
	if _, err := config.FindIdentity(e.cfg, "--identity", r.Identity); err != nil {
		return err
	}
	e.issuer = setup.IdentityIssuers(e.cfg)[r.Identity]
	text, err := readSmall(ctx, stdin, r.ClaimsFile)
	switch {
	case err != nil:
		return fmt.Errorf("--claims: %w", err)
	case strings.HasPrefix(text, "eyJ"): // {" in base64url
		return errors.New("--claims: that looks like a token, and not like its claims: write --token-file, which judges its signature, too")
	case !strings.HasPrefix(text, "{") || !json.Valid([]byte(text)):
		return fmt.Errorf("--claims %s: it is not a JSON object; write claims and their values, in at most %d bytes", term.QuoteValue(r.ClaimsFile), registryauth.MaxTokenBytes)
	}
	e.claims = []byte(text)
	return e.request(r)
}

// verifyClaims checks claims without their token.
func (e *explainer) verifyClaims() (oidc.Identity, error) {
	id, err := e.issuer.IdentifyClaims(e.claims)
	if err != nil {
		return oidc.Identity{}, err
	}
	missing := "signature and times"
	if _, ok := id.External.Claims["aud"]; !ok {
		missing = "signature, audience and times"
	}
	e.tokenWords = fmt.Sprintf("there is no token: its %s are not verified, its claims are; the rest assumes a valid token", missing)
	return id, nil
}

// identityThen returns the identity that the token of an event proved, with the claims in the line.
// It checks them with the present configuration.
func (e *explainer) identityThen() (oidc.Identity, error) {
	then := e.then.Identity
	issuer := setup.IdentityIssuers(e.cfg)[then.Name]
	if issuer == nil {
		return oidc.Identity{}, &oidc.Error{Reason: refusal.TokenUnknownIssuer, Message: fmt.Sprintf("identity %s is not in identities[] any more", term.QuoteName(then.Name))}
	}
	profile := issuer.Provider.Profile
	claims := profile.Typed(then.Claims)
	_, claims["sub"], _ = strings.Cut(then.Subject, "/")
	jti := strings.TrimPrefix(e.then.CredentialID, "JTI=")
	if !strings.HasPrefix(jti, "sha256:") { // made for a token without one
		claims["jti"] = jti
	}
	isKnown := func(claim string) bool {
		c, named := profile.Claim(claim)
		return named && c.Type != "list"
	}
	// Claims that the line cannot contain are not required of the token.
	provider := *issuer.Provider
	provider.Require = maps.Clone(provider.Require)
	maps.DeleteFunc(provider.Require, func(claim string, _ []string) bool { return !isKnown(claim) })
	judged := oidc.Issuer{Provider: &provider, URL: issuer.URL, Audiences: issuer.Audiences}
	payload, err := json.Marshal(claims)
	if err != nil {
		return oidc.Identity{}, err
	}
	id, err := judged.IdentifyClaims(payload)
	if err != nil {
		return oidc.Identity{}, err
	}
	id.TokenID = jti
	also := ""
	if unknown := slices.DeleteFunc(slices.Sorted(maps.Keys(issuer.Provider.Require)), isKnown); len(unknown) > 0 {
		also += "; not judged is what identities[].require says of claims that the line cannot have: " + term.Words(unknown...)
	}
	if unknown := slices.DeleteFunc(e.policy.Compared(then.Name), isKnown); len(unknown) > 0 {
		also += "; rules and denials are judged as if the token had none of the claims that the line cannot have: " + term.Words(unknown...)
	}
	came := "it was good"
	if push := e.pushPresented(); push != "" {
		came = "it was in push credential " + term.Words(push) + ", which was good"
		also += ", in a push credential for the same as that one, as far as the line says what it is for"
	}
	e.tokenWords = fmt.Sprintf("%s at %s, and %s; the rest assumes a valid token with the same claims%s", came, e.then.Time.UTC().Format(time.RFC3339), tokenIsGone, also)
	return id, nil
}

// notPods are the messages for checks that apply only to pods.
var notPods = map[exchange.StepName]string{
	exchange.StepObjects: "it is not a pod, and no API server knows it",
	exchange.StepNode:    "it is not a pod, and on no node",
	exchange.StepCaller:  "it is not a pod, and has no node to prove",
}
