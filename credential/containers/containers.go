// Package containers is a credential of the library of skopeo, podman and buildah: its users pull and
// push as their pod.
//
//	auth, err := containers.AuthConfig(pod, reference.Domain(image.DockerReference()))
//	// …
//	err = image.NewImage(ctx, &types.SystemContext{DockerAuthConfig: auth})
//
// It is a module of its own, so that programs with other clients do not get this one's dependencies.
package containers

import (
	"time"

	"go.podman.io/image/v5/types"

	"github.com/pullpass/pullpass/credential"
)

// AuthConfig reads the token's file, so call it for each operation. It returns nil for other
// registries than those of the pod: then the library looks for a login in its files. It sends the
// token to the registry of the image alone, and not to mirrors of registries.conf.
func AuthConfig(pod credential.Pod, registry string) (*types.DockerAuthConfig, error) {
	c, isAllowed, err := pod.For(registry, time.Now())
	if err != nil || !isAllowed {
		return nil, err
	}
	return &types.DockerAuthConfig{Username: credential.Username, Password: c.Password()}, nil
}
