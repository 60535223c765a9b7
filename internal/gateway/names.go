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
	upstream = withoutAlias(upstream)
	if !slices.Contains(n, upstream) {
		return "", "", refuse(refusal.UpstreamUnknown, "NAME_UNKNOWN", "the gateway has no upstream of this name; names begin with one of upstreams[].name")
	}
	if repository == "" {
		return "", "", refuse(refusal.PathInvalid, "NAME_INVALID", "the name is that of an upstream alone; write UPSTREAM/NAME")
	}
	return upstream, official(upstream, repository), nil
}

// withoutAlias returns the name of an upstream that has several.
func withoutAlias(upstream string) string {
	if upstream == "index.docker.io" || upstream == "registry-1.docker.io" {
		return dockerHub
	}
	return upstream
}

// at returns the upstream under whose host name a client reached the gateway; empty: none. CRI-O
// and podman give a pod's credential to no other host than that of the image's name, and docker and
// BuildKit to no mirror, so nodes resolve that name to the gateway. The repositories there have the
// names that they have at the upstream.
func (n Names) at(host string) string {
	host = strings.ToLower(strings.TrimSuffix(strings.TrimSuffix(host, ":443"), ".")) // RFC 9110, section 4.2.3; RFC 3986, section 3.2.2
	if upstream := withoutAlias(host); slices.Contains(n, upstream) {
		return upstream
	}
	return ""
}

// official returns Docker Hub's name for a repository: nginx is library/nginx there.
func official(upstream, repository string) string {
	if upstream == dockerHub && !strings.Contains(repository, "/") {
		return "library/" + repository
	}
	return repository
}

// Scopes returns the scopes to judge for the scopes that a client requests at a host of the gateway,
// each with the gateway's name.
//
// At the host of an upstream, every name is one of that upstream.
//
// If hosts.toml names the gateway in place of a registry, containerd
// requests two scopes: that of the image's name, acme/app, and that of the challenge,
// ghcr.io/acme/app. The first one has no meaning here. It is silently left out, because otherwise
// the events of each pull would contain a refusal.
func (n Names) Scopes(host string, requested []registryauth.Scope) []registryauth.Scope {
	if upstream := n.at(host); upstream != "" {
		named := slices.Clone(requested)
		for i := range named {
			if named[i].Type == "repository" {
				named[i].Name = upstream + "/" + official(upstream, named[i].Name)
			}
		}
		return named
	}
	var few [4]place // enough for most requests, without an allocation
	places := few[:0]
	for _, scope := range requested { // once each: reading a name costs more than comparing it with others
		var p place
		if scope.Type == "repository" {
			p.upstream, p.repository, _ = n.split(scope.Name) // with an error, neither
		}
		places = append(places, p)
	}
	var judged []registryauth.Scope
	for i, scope := range requested {
		own := places[i]
		isBare := isBare(scope, own, places)
		named := scope
		if own.upstream != "" {
			named.Name = own.upstream + "/" + own.repository
		}
		if judged == nil && (isBare || named.Name != scope.Name) {
			judged = append(make([]registryauth.Scope, 0, len(requested)), requested[:i]...)
		}
		if judged != nil && !isBare {
			judged = append(judged, named)
		}
	}
	if judged == nil {
		return requested
	}
	return judged
}

// place is the place that the name of a requested repository has at the gateway; zero: none.
type place struct{ upstream, repository string }

// isBare reports whether a scope has an image's name without its registry, and places has the same
// image with it.
func isBare(scope registryauth.Scope, own place, places []place) bool {
	return scope.Type == "repository" && own == (place{}) && slices.ContainsFunc(places, func(other place) bool {
		return other.repository == official(other.upstream, scope.Name)
	})
}
