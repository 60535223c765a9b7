package identity

import "testing"

func TestGitLab(t *testing.T) {
	t.Parallel()
	profileTest{
		claims: Claims{"project_id": "20", "job_project_id": "20", "pipeline_id": "574"}, project: "20", run: "574",
		issuers: map[string]bool{
			"https://gitlab.com":  true,
			"https://gitlab.com/": true,
		},
		audiences: []audienceTest{
			{"https://gitlab.example.com", "https://gitlab.example.com", true},
			{"https://gitlab.example.com", "https://registry.example.com", false},
			{"https://gitlab.com", "npm:packages.example.com", true},
		},
		repeats: map[string]bool{"project_id": true, "namespace_path": true, "user_id": true, "ref_protected": false},
	}.check(t, GitLab)
}
