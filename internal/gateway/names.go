package gateway

import (
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// dockerHub is the upstream whose repositories without a slash are in library/.
const dockerHub = "docker.io"

// Names are the names of the upstreams. A repository's name begins with that of its upstream: all
// of them are reserved at the gateway.
type Names []string

// split cuts the name of a repository into the name of its upstream and the upstream's own name for
// it. Errors are *rejection.
func (n Names) split(name string) (upstream, repository string, err error) {
	if !isName(name) {
		return "", "", refuse(refusal.PathInvalid, "NAME_INVALID", "the name is none that a repository can have; write UPSTREAM/NAME, in lower case, of at most 255 bytes")
	}
	upstream, repository, _ = strings.Cut(name, "/")
	if upstream == "index.docker.io" || upstream == "registry-1.docker.io" {
		upstream = dockerHub
	}
	if !slices.Contains(n, upstream) {
		return "", "", refuse(refusal.UpstreamUnknown, "NAME_UNKNOWN", "the gateway has no upstream of this name; names begin with one of upstreams[].name")
	}
	if repository == "" {
		return "", "", refuse(refusal.PathInvalid, "NAME_INVALID", "the name is that of an upstream alone; write UPSTREAM/NAME")
	}
	return upstream, official(upstream, repository), nil
}

// official returns Docker Hub's name for a repository: nginx is library/nginx there.
func official(upstream, repository string) string {
	if upstream == dockerHub && !strings.Contains(repository, "/") {
		return "library/" + repository
	}
	return repository
}

// Scopes returns the scopes to judge for the scopes that a client requests at the gateway, each
// with the gateway's name. If hosts.toml names the gateway in place of a registry, containerd
// requests two scopes: that of the image's name, acme/app, and that of the challenge,
// ghcr.io/acme/app. The first one has no meaning here. It is silently left out, because otherwise
// the events of each pull would contain a refusal.
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

// isBare reports whether a scope has an image's name without its registry, and requested also has
// the scope with the registry.
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
		upstream, repository, _ := n.split(other.Name) // with an error, neither
		return repository == official(upstream, scope.Name)
	})
}
