package gateway

import (
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/registryauth"
)

// dockerHub is the upstream whose repositories without a slash are in library/.
const dockerHub = "docker.io"

// Names are the names of the upstreams. What a repository's name begins with says
// which one is meant: all of them are reserved at the gateway.
type Names []string

// split cuts the name of a repository into that of its upstream and what the upstream
// calls it. Errors are *refusal.
func (n Names) split(name string) (upstream, repository string, err error) {
	if !isName(name) {
		return "", "", refuse(classInvalid, "NAME_INVALID", reasonPath, "the name is none that a repository can have; write UPSTREAM/NAME, in lower case, of at most 255 bytes")
	}
	upstream, repository, _ = strings.Cut(name, "/")
	if upstream == "index.docker.io" || upstream == "registry-1.docker.io" {
		upstream = dockerHub
	}
	if !slices.Contains(n, upstream) {
		return "", "", refuse(classNotFound, "NAME_UNKNOWN", reasonUpstream, "the gateway has no upstream of this name; names begin with one of upstreams[].name")
	}
	if repository == "" {
		return "", "", refuse(classInvalid, "NAME_INVALID", reasonPath, "the name is that of an upstream alone; write UPSTREAM/NAME")
	}
	return upstream, official(upstream, repository), nil
}

// official returns what Docker Hub calls a repository: nginx is library/nginx there.
func official(upstream, repository string) string {
	if upstream == dockerHub && !strings.Contains(repository, "/") {
		return "library/" + repository
	}
	return repository
}

// Scopes returns what is judged of the scopes that a client asks for at the gateway:
// each as the gateway names it. containerd, whose hosts.toml names the gateway in the
// place of a registry, asks for two: that of the image's name, acme/app, and that of
// the challenge, ghcr.io/acme/app. The first one means nothing here and is left out,
// with nothing said about it: it would be a refusal in the events of each pull.
func (n Names) Scopes(requested []registryauth.Scope) []registryauth.Scope {
	var judged []registryauth.Scope
	for i, scope := range requested {
		named := n.named(scope)
		if n.isBare(scope, requested) {
			if judged == nil {
				judged = slices.Clone(requested[:i])
			}
			continue
		}
		if judged == nil && named.Name != scope.Name {
			judged = slices.Clone(requested[:i])
		}
		if judged != nil {
			judged = append(judged, named)
		}
	}
	if judged == nil {
		return requested
	}
	return judged
}

func (n Names) named(scope registryauth.Scope) registryauth.Scope {
	if scope.Type == "repository" {
		if upstream, repository, err := n.split(scope.Name); err == nil {
			scope.Name = upstream + "/" + repository
		}
	}
	return scope
}

// isBare reports whether a scope is that of an image's name without its registry,
// beside the one with it.
func (n Names) isBare(scope registryauth.Scope, requested []registryauth.Scope) bool {
	if scope.Type != "repository" {
		return false
	}
	if _, _, err := n.split(scope.Name); err == nil {
		return false
	}
	return slices.ContainsFunc(requested, func(other registryauth.Scope) bool {
		if other.Type != scope.Type {
			return false
		}
		upstream, repository, err := n.split(other.Name)
		return err == nil && repository == official(upstream, scope.Name)
	})
}
