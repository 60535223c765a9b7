package identity

import "testing"

func TestGoogle(t *testing.T) {
	t.Parallel()
	profileTest{
		claims: Claims{"sub": "1"}, project: "1",
		issuers: map[string]bool{
			"https://accounts.google.com": true,
		},
		repeats: map[string]bool{"sub": false},
	}.check(t, Google)
}
