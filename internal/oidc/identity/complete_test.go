package identity

import (
	"reflect"
	"testing"
)

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
	for _, test := range []struct {
		profile Profile
		issuer  string
		require map[string][]string
		given   Claims
		claim   string
		want    any
	}{
		{GitLab, "", nil, Claims{"project_id": "42"}, "job_project_id", "42"},
		{GitLab, "", nil, Claims{"job_project_id": "42"}, "project_id", "42"},
		{Google, "", nil, nil, "sub", "1"},
		{Azure, "https://sts.windows.net/tenant/", nil, nil, "tid", "tenant"},
		{Azure, "https://sts.windows.net", nil, nil, "tid", "1"},
		{Azure, "", map[string][]string{"groups": {"a", "b"}}, nil, "groups", []string{"a"}},
		{Azure, "", map[string][]string{"groups": {"a"}}, Claims{"groups": []string{"b"}}, "groups", []string{"b"}},
		{CircleCI, "", map[string][]string{"oidc.circleci.com/ssh-rerun": {"true"}}, nil, "oidc.circleci.com/ssh-rerun", true},
		{CircleCI, "", map[string][]string{"oidc.circleci.com/ssh-rerun": {"false"}}, nil, "oidc.circleci.com/ssh-rerun", false},
		{CircleCI, "", map[string][]string{"oidc.circleci.com/ssh-rerun": {"true"}}, Claims{"oidc.circleci.com/ssh-rerun": false}, "oidc.circleci.com/ssh-rerun", false},
		{Generic, "", map[string][]string{"own": {}}, nil, "own", nil},
	} {
		if claims := test.profile.Complete(test.issuer, test.require, test.given); !reflect.DeepEqual(claims[test.claim], test.want) {
			t.Errorf("%s: %v", test.profile, claims)
		}
	}
}
