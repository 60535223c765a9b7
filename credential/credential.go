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
	ErrMissing = errors.New("no ServiceAccount token")
	// ErrMalformed: what is there cannot be a ServiceAccount token.
	ErrMalformed = errors.New("not a ServiceAccount token")
	// ErrAudience: the token is for another receiver, or for any. A registry must
	// not see it.
	ErrAudience = errors.New("ServiceAccount token for another audience")
	// ErrNotYetValid: the clock here is behind.
	ErrNotYetValid = errors.New("ServiceAccount token not valid yet")
	// ErrExpired: nobody replaced the token, or the clock here is ahead.
	ErrExpired = errors.New("ServiceAccount token expired")
)

var errNoAudience = errors.New("the audience is empty; pass the one that Pullpass expects of this cluster (clusters[].audiences)")

// Username is believed in nothing, but must not be empty: containerd drops a
// credential without a username. Nor may it be "<token>", which makes docker and
// others take the password for an identity token.
const Username = "serviceaccount"

// Credential is a password for registries, and goes with Username. Whoever holds
// it is the pod until Expiry. The zero Credential holds none.
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

// source is where a token comes from, and what to change there.
type source struct {
	name     string
	audience string // the setting that names the audience
	renewal  string // what brings a new token in time
}

// credential checks a token. It ends at end, if that is set and earlier than
// what the token says of itself.
func (s source) credential(token, audience string, end, now time.Time) (Credential, error) {
	expiry, err := inspect(token, audience, now)
	if !end.IsZero() && end.Before(expiry) {
		expiry = end.UTC()
	}
	switch {
	case errors.Is(err, ErrAudience):
		return Credential{}, fmt.Errorf("%s: %w; set %s to %q", s.name, err, s.audience, audience)
	case err != nil:
		return Credential{}, fmt.Errorf("%s: %w", s.name, err)
	case !now.Before(expiry):
		return Credential{}, fmt.Errorf("%s: %w at %s, and the clock here says %s; %s", s.name, ErrExpired, stamp(expiry), stamp(now), s.renewal)
	}
	return Credential{Expiry: expiry, password: func() string { return token }}, nil
}
