// Package ggcr is a keychain of go-containerregistry: its users pull and push as their pod.
//
//	remote.Image(image, remote.WithAuthFromKeychain(ggcr.Keychain{Pod: credential.Pod{Registries: []string{"registry.example.com"}}}))
//
// It is a module of its own, so that programs with other clients do not get this one's dependencies.
package ggcr

import (
	"context"
	"slices"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"

	"github.com/pullpass/pullpass/credential"
)

// Keychain implements authn.ContextKeychain. Its authenticators read the token's file for each use, so
// they find renewed tokens. Other registries than those of Pod are for the next keychain of
// authn.NewMultiKeychain.
type Keychain struct{ Pod credential.Pod }

// Resolve implements authn.Keychain.
func (k Keychain) Resolve(target authn.Resource) (authn.Authenticator, error) {
	if !slices.Contains(k.Pod.Registries, target.RegistryStr()) {
		return authn.Anonymous, nil
	}
	return &authenticator{k.Pod, target.RegistryStr()}, nil
}

// ResolveContext implements authn.ContextKeychain.
func (k Keychain) ResolveContext(_ context.Context, target authn.Resource) (authn.Authenticator, error) {
	return k.Resolve(target)
}

// authenticator does not hold the token: a remote.Puller keeps its authenticators.
type authenticator struct {
	pod      credential.Pod
	registry string
}

func (a *authenticator) Authorization() (*authn.AuthConfig, error) {
	c, _, err := a.pod.For(a.registry, time.Now())
	if err != nil {
		return nil, err
	}
	return &authn.AuthConfig{Username: credential.Username, Password: c.Password()}, nil
}
