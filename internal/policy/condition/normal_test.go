package condition

import (
	"testing"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

func TestNormal(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"kubernetes\n.labels[ 'team' ] == r'a\\b'":             `kubernetes.labels["team"] == "a\\b"`,
		`((kubernetes . namespace)) == "a"`:                    `kubernetes.namespace == "a"`,
		`claims.groups.exists(g, g == 'a') && has(claims.ref)`: `claims.groups.exists(g, g == "a") && has(claims.ref)`,
		`'push' in claims.roles`:                               `"push" in claims.roles`,
	} {
		normal := testkit.Value(Compile(text))(t).Normal()
		if normal != want {
			t.Errorf("%s: %s, want %s", text, normal, want)
		}
		if again := testkit.Value(Compile(normal))(t).Normal(); again != normal {
			t.Errorf("%s becomes %s", normal, again)
		}
	}
}
