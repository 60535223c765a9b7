package credential

import (
	"cmp"
	"slices"
	"time"
)

// DefaultTokenFile is where the documents mount the token of a pod.
const DefaultTokenFile = "/var/run/secrets/pullpass/token"

// Pod is the credential of a pod, for keychains of registry clients.
type Pod struct {
	// Registries may get the token: host[:port], exactly as the client names them.
	Registries []string
	// TokenFile is the file of a projected volume; empty: DefaultTokenFile.
	TokenFile string
	// Audience is the one that Pullpass expects; empty: the name of the registry.
	Audience string
}

// For returns the credential for a registry, as FromFile does, and false for a registry that must not
// get the token.
func (p Pod) For(registry string, now time.Time) (c Credential, isAllowed bool, err error) {
	if !slices.Contains(p.Registries, registry) {
		return Credential{}, false, nil
	}
	c, err = FromFile(cmp.Or(p.TokenFile, DefaultTokenFile), cmp.Or(p.Audience, registry), now)
	return c, true, err
}
