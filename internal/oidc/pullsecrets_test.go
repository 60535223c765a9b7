package oidc

import (
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const pullAudience = "pullpass-pull-secrets"

// pullSecret is a token that an API server makes for a Secret, with edits.
func pullSecret(t *testing.T, edits ...string) string {
	t.Helper()
	return keys().rsa.sign(t, payload(t, "secret", append([]string{`["registry.example.com"]`, `["` + pullAudience + `"]`}, edits...)...))
}

func acceptingSecrets(namespaces ...string) func(*Config) {
	return func(c *Config) {
		c.Issuers[0].RequireNode = true
		c.Issuers[0].PullSecrets = PullSecrets{Audience: pullAudience, Namespaces: namespaces}
	}
}

func TestTokenInAPullSecret(t *testing.T) {
	t.Parallel()
	f := newFixture(t, acceptingSecrets("other", "team-*"))
	for range 2 { // the second is remembered
		id := accept(t, f.Verifier, pullSecret(t))
		if want := (ObjectRef{"puller-legacy", "351a8df2-b385-4264-951f-8aff06f18712"}); id.Kubernetes.Secret != want || !id.InSecret() {
			t.Errorf("the Secret is %+v, want %+v", id.Kubernetes.Secret, want)
		}
	}
	if id := accept(t, f.Verifier, keys().rsa.sign(t, payload(t, "kubelet"))); id.InSecret() {
		t.Errorf("the token of a pod has the Secret %+v", id.Kubernetes.Secret)
	}
	for exp, want := range map[string]refusal.Reason{`"exp":1795234611`: "", `"exp":1795234612`: refusal.TokenLifetime} { // 70 minutes, and a second more
		raw := pullSecret(t, `"exp":1795234011`, exp)
		if want == "" {
			accept(t, f.Verifier, raw)
		} else {
			refuse(t, f.Verifier, raw, want, "longer than the 1h10m0s that one in a Secret may have")
		}
	}
}

func TestTokensThatAreNoPullSecrets(t *testing.T) {
	t.Parallel()
	f := newFixture(t, acceptingSecrets("team-a"))
	secret := `"secret":{"name":"puller-legacy","uid":"351a8df2-b385-4264-951f-8aff06f18712"},`
	mine := []string{`["registry.example.com"]`, `["` + pullAudience + `"]`}
	for name, test := range map[string]struct {
		raw    string
		reason refusal.Reason
		text   string
	}{
		"bound to nothing": {pullSecret(t, secret, ""), refusal.TokenNotBound, "is not bound to a Secret alone"},
		"bound to a pod":   {keys().rsa.sign(t, payload(t, "kubelet", mine...)), refusal.TokenNotBound, "is not bound to a Secret alone"},
		"and to a pod":     {pullSecret(t, secret, secret+`"pod":{"name":"p","uid":"u"},`), refusal.TokenNotBound, "is not bound to a Secret alone"},
		"and to a node":    {pullSecret(t, secret, secret+`"node":{"name":"n","uid":"u"},`), refusal.TokenNotBound, "is not bound to a Secret alone"},
		"of both audiences, bound to a pod": {
			keys().rsa.sign(t, payload(t, "kubelet", mine[0], `["registry.example.com","`+pullAudience+`"]`)), refusal.TokenNotBound, "is not bound to a Secret alone",
		},
		"of another audience": {keys().rsa.sign(t, payload(t, "secret")), refusal.TokenNotBound, "the token is bound to a Secret"},
		"of another namespace": {
			pullSecret(t, `"namespace":"team-a"`, `"namespace":"team-ab"`, "serviceaccount:team-a:", "serviceaccount:team-ab:"),
			refusal.TokenPullSecret, `accepts no tokens of pull secrets from namespace "team-ab"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refuse(t, f.Verifier, test.raw, test.reason, test.text)
		})
	}
}

// Without the setting there is no way in, and a longer lifetime of other tokens is none.
func TestPullSecretsHaveTheirOwnSettings(t *testing.T) {
	t.Parallel()
	refuse(t, newFixture(t, nil).Verifier, pullSecret(t), refusal.TokenAudience, "is not accepted here")
	if (PullSecrets{}).isAudience("") {
		t.Error("without the setting, the empty audience is that of pull secrets")
	}
	short := newFixture(t, func(c *Config) {
		acceptingSecrets("*")(c)
		c.Issuers[0].MaxLifetime = time.Minute
	})
	refuse(t, short.Verifier, pullSecret(t), refusal.TokenLifetime, "maxTokenLifetime")

	// Tokens accepted under other settings are checked again.
	f := newFixture(t, acceptingSecrets("team-a"))
	accept(t, f.Verifier, pullSecret(t))
	config := Config{Issuers: []Issuer{validIssuer(f.file)}}
	acceptingSecrets("team-b")(&config)
	next := testkit.Value(f.WithIssuers(config.Issuers))(t)
	refuse(t, next, pullSecret(t), refusal.TokenPullSecret, "team-a")
}

func TestNamespacesOfPullSecrets(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		glob, namespace string
		want            bool
	}{
		{"team-a", "team-a", true}, {"team-a", "team-ab", false}, {"team-*", "team-a", true}, {"team-*", "team-", true},
		{"*", "anything", true}, {"*-a", "team-b", false}, {"t*-*a", "team-xa", true},
	} {
		if got := (PullSecrets{Namespaces: []string{"none", test.glob}}).Accept(test.namespace); got != test.want {
			t.Errorf("%q accepts %q: %t", test.glob, test.namespace, got)
		}
	}
}
