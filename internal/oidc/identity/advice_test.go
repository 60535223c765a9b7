package identity

import (
	"strings"
	"testing"
)

func TestWhatRepeats(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		profile Profile
		claim   string
		want    bool
	}{
		{GitHub, "repository_id", true}, {GitHub, "repository", true}, {GitHub, "sub", true}, {GitHub, "actor_id", true}, {GitHub, "ref", false}, {GitHub, "event_name", false},
		{GitLab, "project_id", true}, {GitLab, "namespace_path", true}, {GitLab, "user_id", true}, {GitLab, "ref_protected", false},
		{Generic, "sub", true}, {Generic, "ref", false},
		{Buildkite, "pipeline_id", false}, {Azure, "oid", false}, {SPIFFE, "sub", false}, {AWS, "sub", false}, {Google, "sub", false},
	} {
		if got := test.profile.Repeats(test.claim); got != test.want {
			t.Errorf("%s of %s: %t", test.claim, test.profile, got)
		}
	}
}

// A placeholder is a component of a pattern: a name with a slash would be two.
func TestPathsCanBeWritten(t *testing.T) {
	t.Parallel()
	for _, p := range Profile("").Values() {
		for _, claim := range p.Paths() {
			if strings.ContainsAny(claim, "/}") {
				t.Errorf("%s: no pattern can have {claims.%s}", p, claim)
			}
		}
	}
}
