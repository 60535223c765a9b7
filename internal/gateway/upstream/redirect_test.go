package upstream

import (
	"testing"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// A token endpoint gets the password. Its address may be private only if the upstream's is, or if
// the configuration names it.
func TestRealmsOfPublicUpstreams(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		url   string
		hosts []string
		realm string
		want  bool
	}{
		{"https://8.8.8.8", nil, "8.8.8.8", true}, // itself
		{"https://8.8.8.8", nil, "localhost", false},
		{"https://8.8.8.8", nil, "10.0.0.1", false},
		{"https://8.8.8.8", []string{"auth.corp.example"}, "auth.corp.example", true},
		{"https://8.8.8.8", []string{"auth.corp.example"}, "localhost", false},
		{"https://10.0.0.2", nil, "10.0.0.1", true},
		{"https://localhost", nil, "auth.corp.example", true},
	} {
		c, err := New(Config{Name: "a", URL: test.url, RedirectHosts: test.hosts})
		testkit.Must(t, err)
		if got := c.realmMayBePrivate(t.Context(), test.realm+":5001"); got != test.want {
			t.Errorf("%s with %q: realm %s: %t", test.url, test.hosts, test.realm, got)
		}
	}
}
