package pullsecrets

import (
	"bytes"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// Whatever a pull Secret holds, it counts only for registries that were asked for, and a file that
// cannot be read counts for none.
func FuzzCredentials(f *testing.F) {
	for _, file := range []string{
		`{"auths":{"ghcr.io":{"auth":"eDp5"},"https://index.docker.io/v1/":{"username":"x","password":"y"}}}`, `{"auths":{"*.io":{"password":"a.b.c"}}}`, `{"ghcr.io":{"auth":"x"}}`, `{"auths":{"ghcr.io":{"email":1}}}`, `{"auths":null}`, ``,
	} {
		f.Add([]byte(file), true)
		f.Add([]byte(file), false)
	}
	hosts := []string{"ghcr.io", "registry.example.com:5000"}
	f.Fuzz(func(t *testing.T, data []byte, isNew bool) {
		secret := &corev1.Secret{Type: corev1.SecretTypeDockercfg, Data: map[string][]byte{corev1.DockerConfigKey: data}}
		if isNew {
			secret = &corev1.Secret{Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: data}}
		}
		got := parseCredentials(secret, hosts)
		for _, host := range got.hosts {
			if !slices.Contains(hosts, host) {
				t.Errorf("%q is for %s", data, host)
			}
		}
		if got.broken && (len(got.hosts) > 0 || got.others || got.legacy || len(got.tokens) > 0) || got.legacy && len(got.hosts) == 0 {
			t.Errorf("%q: %+v", data, got)
		}
	})
}

// Each workload of manifests has an image of the registries that were asked for, and a ServiceAccount.
func FuzzManifests(f *testing.F) {
	for _, file := range []string{
		"kind: Pod\nspec: {containers: [{image: ghcr.io/a}]}\n---\nkind: List\nitems: [{kind: PodTemplate, template: {spec: {serviceAccount: x, containers: [{image: 'GHCR.io/a/b:v1@sha256:0'}]}}}]",
		`{"kind":"CronJob","spec":{"jobTemplate":{"spec":{"template":{"spec":{"volumes":[{"image":{"reference":"ghcr.io/a"}}]}}}}}}`, "spec: {template: x}", "a: &a [*a]", "",
	} {
		f.Add([]byte(file))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		all, err := ReadManifests(bytes.NewReader(data), []string{"ghcr.io"})
		if err != nil && all != nil {
			t.Errorf("%q: %v and %v", data, all, err)
		}
		for _, w := range all {
			if len(w.Images) == 0 || w.Account == "" || slices.ContainsFunc(w.Images, func(i Image) bool { return i.Registry != "ghcr.io" }) {
				t.Errorf("%q: %+v", data, w)
			}
		}
	})
}
