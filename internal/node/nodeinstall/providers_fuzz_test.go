package nodeinstall

import (
	"errors"
	"slices"
	"testing"
)

// A file of providers is read as a list of different names, or refused.
func FuzzProviders(f *testing.F) {
	const head = "kind: CredentialProviderConfig\napiVersion: kubelet.config.k8s.io/v1\nproviders:\n"
	for _, content := range []string{
		head + "- {name: a, matchImages: [\"*.io\"], tokenAttributes: {cacheType: Token}}\n", head + "- {name: a}\n- {name: a}\n", head + "- x\n", head + "{}\n", "kind: x\n---\n" + head, head + "- &a {name: b}\n- *a\n",
	} {
		f.Add([]byte(content))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := parseProviders(data)
		if err != nil {
			if !errors.Is(err, ErrProvider) {
				t.Errorf("%q: %v", data, err)
			}
			return
		}
		names := slices.Clone(got.names)
		slices.Sort(names)
		if len(slices.Compact(names)) != len(got.names) || slices.Contains(names, "") {
			t.Errorf("%q: %q", data, got.names)
		}
		without, err := beforeCacheType(data)
		if err != nil {
			return
		}
		if again, err := parseProviders(without); err != nil || !slices.Equal(again.names, got.names) {
			t.Errorf("%q becomes %q: %q, %v", data, without, again.names, err)
		}
	})
}
