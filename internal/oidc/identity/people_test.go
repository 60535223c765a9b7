package identity

import (
	"maps"
	"strings"
	"testing"
)

// Typed restores the claims of an event, except lists and claims that are too long.
func TestTypedIsWhatWasNamed(t *testing.T) {
	t.Parallel()
	claims := Claims{
		"project_id": "1", "ref": "", "runner_id": int64(7), "user_login": strings.Repeat("a", maxNamedBytes+1),
		"project_path":  strings.Repeat("a", maxNamedBytes),
		"groups_direct": []string{"a"}, "more": "x",
	}
	named := (&External{Profile: GitLab, Claims: claims}).Named()
	if want := map[string]string{"project_id": "1", "ref": "", "runner_id": "7", "project_path": strings.Repeat("a", maxNamedBytes)}; !maps.Equal(named, want) {
		t.Errorf("named %v", named)
	}
	typed := GitLab.Typed(named)
	if len(typed) != 4 || typed["project_id"] != "1" || typed["ref"] != "" || typed["runner_id"] != float64(7) {
		t.Errorf("typed %v", typed)
	}
	if typed := GitLab.Typed(map[string]string{"runner_id": "seven"}); len(typed) != 0 {
		t.Errorf("a string in place of a number: %v", typed)
	}
	const rerun = "oidc.circleci.com/ssh-rerun"
	if typed := CircleCI.Typed(map[string]string{rerun: "false"}); typed[rerun] != false {
		t.Errorf("a boolean: %v", typed)
	}
	if typed := CircleCI.Typed(map[string]string{rerun: "no", "more": "x"}); len(typed) != 0 {
		t.Errorf("a string in place of a boolean, and an unknown claim: %v", typed)
	}
}
