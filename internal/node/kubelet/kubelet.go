// Package kubelet knows how versions of the kubelet handle credential providers, and images that
// are already on a node. It asks no kubelet and reads no file.
package kubelet

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/pullpass/pullpass/internal/base/term"
)

const (
	// TokenGate is on by default since 1.34 (KEP-4412).
	TokenGate = "KubeletServiceAccountTokenForCredentialProviders"
	// VerifyGate is off by default in 1.33 and 1.34, and on since 1.35 (KEP-2535).
	VerifyGate = "KubeletEnsureSecretPulledImages"

	// Values of the setting for a kubelet with VerifyGate.
	NeverVerify                  = "NeverVerify"
	NeverVerifyPreloadedImages   = "NeverVerifyPreloadedImages" // the default
	NeverVerifyAllowlistedImages = "NeverVerifyAllowlistedImages"
	AlwaysVerify                 = "AlwaysVerify"
)

// Version is the minor version of 1.x. 0 means unknown, and is treated as the newest.
type Version int

// ParseVersion reads a version as in the Node: v1.34.2+k3s1. It returns an error for kubelets that
// give tokens to no credential provider.
func ParseVersion(s string) (Version, error) {
	major, rest, _ := strings.Cut(strings.TrimPrefix(s, "v"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	n, err := strconv.Atoi(minor)
	switch {
	case err != nil || major != "1":
		return 0, fmt.Errorf("--kubelet-version %s is not one; write it as kubectl get nodes prints it: v1.34.2", term.QuoteValue(s))
	case n < 33:
		return 0, fmt.Errorf("--kubelet-version %s knows no tokenAttributes (KEP-4412); 1.34 has them, and 1.33 with the feature gate %s", term.Plain(s), TokenGate)
	}
	return Version(n), nil
}

func (v Version) String() string { return fmt.Sprintf("1.%d", int(v)) }

func (v Version) isBefore(minor Version) bool { return v != 0 && v < minor }

// TakesDirectory reports whether the provider configuration may be a directory
// (kubernetes/kubernetes#131658).
func (v Version) TakesDirectory() bool { return !v.isBefore(34) }

// HasCacheType reports whether tokenAttributes has the field. A kubelet without it exits if the
// field is set.
func (v Version) HasCacheType() bool { return !v.isBefore(34) }

// GivesTokens reports whether a provider gets tokens without TokenGate.
func (v Version) GivesTokens() bool { return !v.isBefore(34) }

// KnowsAccounts reports whether the kubelet can record the ServiceAccount for which an image was
// pulled. A kubelet 1.33 treats the credentials of a provider as the node's own
// (kubernetes/kubernetes#132771), whatever its configuration.
func (v Version) KnowsAccounts() bool { return !v.isBefore(34) }

// Verifies reports whether VerifyGate is on by default.
func (v Version) Verifies() bool { return v >= 35 }

// Images are the known settings of a kubelet that decide who may use an image on the node.
type Images struct {
	Gate   *bool  // VerifyGate; nil: the version's default
	Policy string // imagePullCredentialsVerificationPolicy; empty: not set
	// Listed is preloadedImagesVerificationAllowlist, for NeverVerifyAllowlistedImages: names of images,
	// or beginnings of names that end with /*.
	Listed []string
}

// List returns a pattern of Listed that has images of a registry; empty: none counts. Any pod may use
// such an image, also one that was pulled with the token of another's pod.
func (i Images) List(registry string) string {
	if i.Policy != NeverVerifyAllowlistedImages {
		return ""
	}
	for _, pattern := range i.Listed {
		host, _, found := strings.Cut(pattern, "/")
		if !found || !strings.ContainsAny(host, ".:") && host != "localhost" || host == "index.docker.io" {
			host = "docker.io"
		}
		if host == registry {
			return pattern
		}
	}
	return ""
}

// GateOf returns the setting of a feature gate in a value of --feature-gates; nil: it has none. The last
// one counts.
func GateOf(value, gate string) (on *bool) {
	for pair := range strings.SplitSeq(value, ",") {
		if key, text, _ := strings.Cut(pair, "="); strings.TrimSpace(key) == gate {
			is := IsOn(strings.TrimSpace(text))
			on = &is
		}
	}
	return on
}

// IsOn reads the value of a feature gate. The kubelet does not start with one that is not boolean.
func IsOn(text string) bool {
	on, err := strconv.ParseBool(text)
	return err == nil && on
}

// Sharing says which pods may use an image without a request to the registry.
type Sharing int

const (
	NotShared Sharing = iota
	// PreloadedShared: images without a record of the kubelet. They include the images that it
	// pulled while VerifyGate was off (kubernetes/kubernetes#137024).
	PreloadedShared
	// AllShared: all images of the node. A setting of the kubelet could restrict them.
	AllShared
	// AlwaysShared: all images of the node. No setting of the kubelet can restrict them.
	AlwaysShared
)

// Shared returns the images of the node that any of its pods may use.
func (v Version) Shared(i Images) Sharing {
	switch verifies := v.Verifies(); {
	case !v.KnowsAccounts():
		return AlwaysShared
	case i.Gate == nil && !verifies, i.Gate != nil && !*i.Gate, i.Policy == NeverVerify:
		return AllShared
	case i.Policy == "", i.Policy == NeverVerifyPreloadedImages:
		return PreloadedShared
	}
	return NotShared
}

// Consequence describes the effect of Shared, and the remedy.
func (v Version) Consequence(s Sharing) string {
	switch s {
	case AlwaysShared:
		return fmt.Sprintf("kubelets of %s let any pod of a node use an image that another pod's ServiceAccount pulled, whatever they are told: they count the credential of a plugin as the node's; use 1.34 or later, or the admission plugin AlwaysPullImages", v)
	case AllShared:
		return fmt.Sprintf("any pod of a node may use an image that another pod's ServiceAccount pulled, because the kubelet does not verify (KEP-2535; off by default before 1.35); write featureGates: {%s: true} and imagePullCredentialsVerificationPolicy: %s into the KubeletConfiguration, or use the admission plugin AlwaysPullImages",
			VerifyGate, AlwaysVerify)
	case PreloadedShared:
		return fmt.Sprintf("any pod of a node may use an image that was not pulled by the kubelet, or was while the feature gate %s was off; where tenants share nodes, write imagePullCredentialsVerificationPolicy: %s", VerifyGate, AlwaysVerify)
	case NotShared:
	}
	return ""
}
