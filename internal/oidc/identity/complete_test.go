package identity

import "testing"

// The claims that are made for an example are those of a valid token, of every profile.
func TestComplete(t *testing.T) {
	t.Parallel()
	for _, p := range Generic.Values() {
		issuer := "https://login.microsoftonline.com/tenant/v2.0"
		claims := p.Complete(issuer, map[string][]string{"own": {"value", "other"}}, Claims{"iss": issuer, "ref": "main"})
		if _, err := p.External("x", claims); err != nil {
			t.Errorf("%s: %v", p, err)
		}
		if claims["own"] != "value" || claims["ref"] != "main" {
			t.Errorf("%s: %v", p, claims)
		}
	}
	if claims := GitLab.Complete("", nil, Claims{"project_id": "42"}); claims["job_project_id"] != "42" {
		t.Errorf("another project: %v", claims)
	}
}
