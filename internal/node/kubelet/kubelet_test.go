package kubelet

import (
	"fmt"
	"strings"
	"testing"
)

func TestParseVersion(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Version{"v1.33.13": 33, "1.34.0": 34, "v1.34.2+k3s1": 34, "v1.36.0-rc.1": 36, "v1.35": 35, "v1.100.1": 100} {
		if got, err := ParseVersion(text); got != want || err != nil {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for text, want := range map[string]string{
		"": "is not one", "v2.1.0": "is not one", "v1": "is not one", "v1.x.0": "is not one", "v1.-34.0": "knows no tokenAttributes",
		"v1.32.9": "knows no tokenAttributes (KEP-4412); 1.34 has them, and 1.33 with the feature gate",
	} {
		if got, err := ParseVersion(text); got != 0 || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
}

// The table follows the sources of kubelet 1.33.13 and 1.36.3, and KEP-2535.
func TestShared(t *testing.T) {
	t.Parallel()
	on, off := true, false
	for _, test := range []struct {
		version Version
		gate    *bool
		policy  string
		want    Sharing
	}{
		{33, nil, "", AlwaysShared},
		{33, &on, AlwaysVerify, AlwaysShared},
		{34, nil, "", AllShared},
		{34, nil, AlwaysVerify, AllShared}, // the kubelet does not start
		{34, &off, "", AllShared},
		{34, &on, "", PreloadedShared},
		{34, &on, NeverVerifyPreloadedImages, PreloadedShared},
		{34, &on, NeverVerify, AllShared},
		{34, &on, AlwaysVerify, NotShared},
		{34, &on, NeverVerifyAllowlistedImages, NotShared},
		{35, nil, "", PreloadedShared},
		{35, nil, AlwaysVerify, NotShared},
		{35, &off, "", AllShared},
		{36, nil, NeverVerify, AllShared},
		{36, &on, NeverVerifyPreloadedImages, PreloadedShared},
		{0, nil, "", AllShared},
		{0, &on, "", PreloadedShared},
		{0, &on, AlwaysVerify, NotShared},
	} {
		got := test.version.Shared(Images{Gate: test.gate, Policy: test.policy})
		if got != test.want {
			t.Errorf("%v, %v, %q: %v, want %v", test.version, test.gate, test.policy, got, test.want)
		}
		said := test.version.Consequence(got)
		if got == NotShared != (said == "") || strings.Contains(said, AlwaysVerify) != (got == AllShared || got == PreloadedShared) {
			t.Errorf("%v: %q", got, said)
		}
	}
	for v, want := range map[Version]string{33: "1.33 false false false false false", 34: "1.34 true true true true false", 35: "1.35 true true true true true", 0: "1.0 true true true true false"} {
		if got := fmt.Sprint(v, v.TakesDirectory(), v.HasCacheType(), v.GivesTokens(), v.KnowsAccounts(), v.Verifies()); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// A list of preloaded images counts for images that pods pulled, too.
func TestListedImages(t *testing.T) {
	t.Parallel()
	i := Images{Policy: NeverVerifyAllowlistedImages, Listed: []string{"registry.k8s.io/*", "ghcr.io/acme/app", "localhost/x", "nginx", "registry.example.com:5000/*"}}
	for registry, want := range map[string]string{
		"registry.k8s.io": "registry.k8s.io/*", "ghcr.io": "ghcr.io/acme/app", "localhost": "localhost/x", "docker.io": "nginx", "registry.example.com:5000": "registry.example.com:5000/*",
		"quay.io": "", "registry.example.com": "", "": "",
	} {
		if got := i.List(registry); got != want {
			t.Errorf("%s: %q, want %q", registry, got, want)
		}
	}
	for _, policy := range []string{"", AlwaysVerify, NeverVerify} {
		i.Policy = policy
		if got := i.List("ghcr.io"); got != "" {
			t.Errorf("%s: %q", policy, got)
		}
	}
}
