// Package ggcr is a keychain of go-containerregistry: its users pull and push as their pod.
//
//	remote.Image(image, remote.WithAuthFromKeychain(ggcr.Keychain{Pod: credential.Pod{Registries: []string{"registry.example.com"}}}))
//
// It is a module of its own, so that programs with other clients do not get this one's dependencies.
package ggcr

import (
	"context"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"

	"github.com/pullpass/pullpass/credential"
)

// Keychain implements authn.ContextKeychain. It reads the token's file for each use, so it finds
// renewed tokens. Other registries than those of Pod are for the next keychain of
// authn.NewMultiKeychain.
type Keychain struct{ Pod credential.Pod }

// Resolve implements authn.Keychain.
func (k Keychain) Resolve(target authn.Resource) (authn.Authenticator, error) {
	c, isAllowed, err := k.Pod.For(target.RegistryStr(), time.Now())
	if err != nil {
		return nil, err
	}
	if !isAllowed {
		return authn.Anonymous, nil
	}
	return &authenticator{c}, nil
}

// ResolveContext implements authn.ContextKeychain.
func (k Keychain) ResolveContext(_ context.Context, target authn.Resource) (authn.Authenticator, error) {
	return k.Resolve(target)
}

// authenticator does not show the token when it is printed.
type authenticator struct{ credential credential.Credential }

func (a *authenticator) Authorization() (*authn.AuthConfig, error) {
	return &authn.AuthConfig{Username: credential.Username, Password: a.credential.Password()}, nil
}
