package credential

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// maxTokenSize is in bytes and equals the limit of the token endpoint.
	maxTokenSize = 16 << 10

	// legacyIssuer is the iss of every token that Kubernetes keeps in a Secret.
	// Such a token has no audience and never expires (KEP-2799).
	legacyIssuer = "kubernetes/serviceaccount"

	// clockSkew is how far the clock of the API server may be ahead of ours. It
	// is what Pullpass allows.
	clockSkew = time.Minute

	// maxUnixTime is the last second of the year 9999.
	maxUnixTime = 253402300799
)

// inspect looks at a token without verifying it and returns when it ends. The
// first fault is named that no waiting would cure.
func inspect(token, audience string, now time.Time) (time.Time, error) {
	c, err := parse(token)
	if err != nil {
		return time.Time{}, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	begin, end := time.Unix(c.notBefore, 0).UTC(), time.Unix(c.expiry, 0).UTC()
	switch {
	case c.issuer == legacyIssuer:
		return time.Time{}, fmt.Errorf("%w: it is the token of a Secret, which has no audience and never ends (KEP-2799)", ErrAudience)
	case c.isForIssuer():
		return time.Time{}, fmt.Errorf("%w: it is for its issuer, such as the API server (%s), where a registry could act as its owner with it", ErrAudience, c.audience)
	case !slices.Contains(c.audience, audience):
		return time.Time{}, fmt.Errorf("%w: it is for %s", ErrAudience, c.audience)
	case now.Add(clockSkew).Before(begin):
		return time.Time{}, fmt.Errorf("%w: it begins at %s, and the clock here says %s", ErrNotYetValid, stamp(begin), stamp(now))
	}
	return end, nil
}

// claims are those that are looked at.
type claims struct {
	issuer            string
	audience          audience
	expiry, notBefore int64 // seconds since 1970
	kubernetes        struct {
		WarnAfter int64 `json:"warnafter"`
	}
}

// isForIssuer goes by the audience that an API server has by default, its
// issuer's URL. Where it has another, warnafter gives the tokens away that every
// pod has: API servers write it when they extend a token for themselves to a
// year, and into no other.
func (c claims) isForIssuer() bool {
	return slices.Contains(c.audience, c.issuer) || c.kubernetes.WarnAfter != 0
}

func parse(token string) (claims, error) {
	var c claims
	payload, err := payload(token)
	if err != nil {
		return c, err
	}
	err = decode(payload, field{"iss", &c.issuer}, field{"aud", &c.audience}, field{"exp", &c.expiry},
		field{"nbf", &c.notBefore}, field{"kubernetes.io", &c.kubernetes})
	switch {
	case err != nil:
		return c, fmt.Errorf("payload: %w", err)
	case c.issuer == legacyIssuer:
		return c, nil // it has none of the others
	case c.issuer == "":
		return c, errors.New(`payload: "iss" is missing`)
	case len(c.audience) == 0:
		return c, errors.New(`payload: "aud" is missing`)
	case !isTime(c.expiry):
		return c, errors.New(`payload: "exp" is not a time between 1970 and 9999`)
	case c.notBefore != 0 && !isTime(c.notBefore):
		return c, errors.New(`payload: "nbf" is not a time between 1970 and 9999`)
	}
	return c, nil
}

// payload returns the middle of a JWS in compact form (RFC 7515, section 7.1).
// All three parts must be base64url, so that nothing else gets into a password.
func payload(token string) ([]byte, error) {
	if token == "" {
		return nil, errors.New("empty")
	}
	if len(token) > maxTokenSize {
		return nil, fmt.Errorf("longer than %d KiB", maxTokenSize>>10)
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return nil, errors.New("not a JWT of three parts")
	}
	var payload []byte
	for i, part := range parts {
		decoded, err := base64.RawURLEncoding.DecodeString(part)
		// The decoder passes over line ends.
		if err != nil || len(decoded) == 0 || strings.ContainsAny(part, "\r\n") {
			return nil, errors.New("not a JWT of three base64url parts")
		}
		if i == 1 {
			payload = decoded
		}
	}
	return payload, nil
}

func isTime(seconds int64) bool { return 0 < seconds && seconds <= maxUnixTime }

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// audience is one string or a list of them (RFC 7519, section 4.1.3).
type audience []string

// UnmarshalJSON is called with one valid JSON value.
func (a *audience) UnmarshalJSON(data []byte) error {
	if data[0] == '"' {
		*a = make(audience, 1)
		return json.Unmarshal(data, &(*a)[0])
	}
	return json.Unmarshal(data, (*[]string)(a))
}

// String bounds what it shows.
func (a audience) String() string { return fmt.Sprintf("%.100q", []string(a[:min(len(a), 4)])) }
