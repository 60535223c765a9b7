package identity

import (
	"fmt"
	"net/url"
	"strings"
)

// GitHub follows https://docs.github.com/actions/reference/security/oidc. Every custom claim is a
// string, also ids, numbers and ref_protected. A name of an owner or a repository that was given up
// can be taken by any user.
const GitHub Profile = "github" // also Enterprise Server and GHE.com

var github = profile{
	name: GitHub,
	claims: map[string]Claim{
		"repository_id":         pathID,
		"repository_owner_id":   pathID,
		"enterprise_id":         pathID,
		"repository":            pathInstead("repository_id"),
		"repository_owner":      pathInstead("repository_owner_id"),
		"enterprise":            instead("enterprise_id"),
		"repository_visibility": id,
		"actor":                 instead("actor_id"),
		"actor_id":              id,
		"ref":                   name,
		"ref_type":              id,
		"ref_protected":         id,
		"base_ref":              name,
		"head_ref":              name,
		"sha":                   id,
		"event_name":            id,
		"environment":           name,
		"environment_node_id":   id,
		"workflow":              name,
		"workflow_ref":          id, // like job_workflow_ref, it begins with the name of an owner: * could match any owner
		"workflow_sha":          id,
		"job_workflow_ref":      id,
		"job_workflow_sha":      id,
		"runner_environment":    id,
		"run_id":                id,
		"run_number":            id,
		"run_attempt":           id,
		"check_run_id":          id,
	},
	needs:   []string{"repository_id", "repository_owner_id"},
	remedy:  "GitHub sets it since 2022, and Enterprise Server since 3.7",
	project: "repository_id", run: "run_id", refs: []string{"ref"},
	check: func(c Claims) string {
		// sub is repo:OWNER@ID/REPO@ID:… for repositories that were created, renamed or moved since
		// July 2026. It is repo:OWNER/REPO:… for older ones, and owners can choose other forms. So
		// sub decides nothing. But ids in it must be those of the claims.
		sub, _ := c["sub"].(string)
		repository, ok := strings.CutPrefix(sub, "repo:")
		if !ok {
			return ""
		}
		repository, _, _ = strings.Cut(repository, ":")
		owner, repo, _ := strings.Cut(repository, "/")
		for _, part := range [...]struct{ text, claim string }{{owner, "repository_owner_id"}, {repo, "repository_id"}} {
			if _, id, ok := strings.Cut(part.text, "@"); ok && id != c[part.claim] {
				return fmt.Sprintf("claim %q has another id than %q", "sub", part.claim)
			}
		}
		return ""
	},
	issuer: func(host, path string) ([]string, bool) {
		if host == "token.actions.githubusercontent.com" && path == "" {
			return []string{"repository_owner_id", "repository_id", "enterprise_id"}, true
		}
		// With a path, it is that of one enterprise: its slug.
		return nil, host == "token.actions.githubusercontent.com" || strings.HasPrefix(host, "token.actions.") && strings.HasSuffix(host, ".ghe.com")
	},
	isDefault: isOwnerURL,
	repeats:   true,
	outsiders: func(claim, value string) string {
		if claim == "event_name" && (value == "pull_request_target" || value == "workflow_run") {
			return "anyone who opens a pull request can influence such a job"
		}
		return ""
	},
	advice: []Advice{
		{[]string{"repository_id", "sub"}, "", "any repository of the owner pushes", `repository_id: ["…"]`},
		{[]string{"repository_id", "repository_owner_id", "sub"}, "job_workflow_ref", "anybody who calls this workflow pushes", `repository_owner_id: ["…"]`},
		{[]string{"ref", "environment", "sub"}, "", "any branch pushes, also an unreviewed one", `ref: ["refs/heads/main"], or environment`},
		{[]string{"ref_protected", "environment"}, "ref", "anyone who may create the branch pushes", `ref_protected: ["true"]`},
		{[]string{"event_name"}, "", "any event pushes, also pull_request_target and workflow_run, which outsiders can influence", `event_name: ["push"]`},
	},
}

// isOwnerURL reports whether an audience is the URL of an owner of repositories:
// https://HOST/OWNER. HOST is github.com, SUB.ghe.com, or the host of an Enterprise Server, whose
// issuer is https://HOST/_services/token.
func isOwnerURL(issuer, audience string) bool {
	a, err := url.Parse(audience)
	if err != nil {
		return false
	}
	i, err := url.Parse(issuer)
	if err != nil {
		return false
	}
	host, issuingHost := strings.ToLower(a.Hostname()), strings.ToLower(i.Hostname())
	owner := strings.Trim(a.Path, "/")
	return owner != "" && !strings.Contains(owner, "/") &&
		(host == "github.com" || host == issuingHost || "token.actions."+host == issuingHost)
}
