package credential

import (
	"errors"
	"fmt"
	"time"
)

// The kinds of failure, for errors.Is. The error itself also says where the
// token came from and which setting to change. It never holds the token.
var (
	// ErrMissing: no token is there.
	ErrMissing = errors.New("no token")
	// ErrMalformed: what is there cannot be an OpenID token, as those of
	// ServiceAccounts and CI jobs are.
	ErrMalformed = errors.New("not an OpenID token")
	// ErrAudience: the token is for another receiver, or for any. A registry must
	// not see it.
	ErrAudience = errors.New("token for another audience")
	// ErrNotYetValid: the clock here is behind.
	ErrNotYetValid = errors.New("token not valid yet")
	// ErrExpired: the token was not replaced, or the clock here is ahead.
	ErrExpired = errors.New("token expired")
)

var errNoAudience = errors.New("the audience is empty; pass the one that Pullpass expects (clusters[].audiences, identities[].audiences)")

// Username is believed in nothing, but must not be empty: containerd drops a
// credential without a username. Nor may it be "<token>", which makes docker and
// others take the password for an identity token.
const Username = "serviceaccount"

// Credential is a password for registries, and goes with Username. Any holder of
// it acts as the pod or the job until Expiry. The zero Credential holds none.
type Credential struct {
	Expiry time.Time

	// password is a function, because whatever prints by reflection shows the
	// strings of a struct, and often what its pointers lead to.
	password func() string
}

// Password returns the token. Every call is a place to review.
func (c Credential) Password() string {
	if c.password == nil {
		return ""
	}
	return c.password()
}

// Source is where a token comes from and what to change there, in the words of
// errors.
type Source struct {
	Name     string // a file, a variable, a command
	Audience string // the setting that names the audience: "set … to AUDIENCE"
	Renewal  string // what brings a new token in time
}

// FromToken checks a token that the program has already, such as the OpenID
// token of a CI job. The audience must not be empty; it is the one that Pullpass
// expects of the token's issuer.
func FromToken(token string, from Source, audience string, now time.Time) (Credential, error) {
	if audience == "" {
		return Credential{}, errNoAudience
	}
	return from.credential(token, audience, time.Time{}, now)
}

// credential checks a token. It ends at end, if that is set and earlier than
// what the token says of itself.
func (s Source) credential(token, audience string, end, now time.Time) (Credential, error) {
	expiry, err := inspect(token, audience, now)
	if !end.IsZero() && end.Before(expiry) {
		expiry = end.UTC()
	}
	switch {
	case errors.Is(err, ErrAudience):
		return Credential{}, fmt.Errorf("%s: %w; set %s to %q", s.Name, err, s.Audience, audience)
	case err != nil:
		return Credential{}, fmt.Errorf("%s: %w", s.Name, err)
	case !now.Before(expiry):
		return Credential{}, fmt.Errorf("%s: %w at %s, and the clock here says %s; %s", s.Name, ErrExpired, stamp(expiry), stamp(now), s.Renewal)
	}
	return Credential{Expiry: expiry, password: func() string { return token }}, nil
}
