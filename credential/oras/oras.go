// Package oras is a credential of oras-go: its users pull and push as their pod.
//
//	client := &auth.Client{Credential: oras.Credential(credential.Pod{Registries: []string{"registry.example.com"}})}
//
// It is a module of its own, so that programs with other clients do not get this one's dependencies.
package oras

import (
	"context"
	"time"

	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/pullpass/pullpass/credential"
)

// Credential reads the token's file for each use, so it finds renewed tokens. Other registries than
// those of the pod get auth.EmptyCredential.
func Credential(pod credential.Pod) auth.CredentialFunc {
	return func(_ context.Context, registry string) (auth.Credential, error) {
		c, isAllowed, err := pod.For(registry, time.Now())
		if err != nil || !isAllowed {
			return auth.EmptyCredential, err
		}
		return auth.Credential{Username: credential.Username, Password: c.Password()}, nil
	}
}
