package identity

import "testing"

func TestGeneric(t *testing.T) {
	t.Parallel()
	profileTest{
		claims: Claims{"sub": "a b"}, project: "a b",
		audiences: []audienceTest{
			{"https://ci.example.com", "sts.amazonaws.com", true},
			{"https://ci.example.com", "api://AzureADTokenExchange", true},
			{"https://ci.example.com", "//iam.googleapis.com/projects/1", true},
			{"https://ci.example.com", "https://iam.googleapis.com/projects/1", true},
			{"https://ci.example.com", "https://ci.example.com", true},
		},
		repeats: map[string]bool{"sub": true, "ref": false},
	}.check(t, Generic)
}
