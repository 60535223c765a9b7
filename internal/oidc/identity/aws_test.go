package identity

import "testing"

func TestAWS(t *testing.T) {
	t.Parallel()
	profileTest{
		claims: Claims{"sub": "arn:aws-cn:iam::123456789012:role/a"}, project: "arn:aws-cn:iam::123456789012:role/a",
		issuers: map[string]bool{
			"https://a.tokens.sts.global.api.aws": false,
		},
		repeats: map[string]bool{"sub": false},
	}.check(t, AWS)
}

func TestARNsOfRoles(t *testing.T) {
	t.Parallel()
	for arn, want := range map[string]bool{
		"arn:aws:iam::123456789012:role/builder":            true,
		"arn:aws-us-gov:iam::123456789012:role/a/b/builder": true,
		"urn:aws:iam::123456789012:role/builder":            false,
		"arn::iam::123456789012:role/builder":               false,
		"arn:aws:sts::123456789012:role/builder":            false,
		"arn:aws:iam:eu-west-1:123456789012:role/builder":   false,
		"arn:aws:iam::12345678901:role/builder":             false,
		"arn:aws:iam::12345678901x:role/builder":            false,
		"arn:aws:iam::123456789012:role/":                   false,
		"arn:aws:iam::123456789012:roles/builder":           false,
		"arn:aws:iam::123456789012:user/builder":            false,
		"arn:aws:iam::123456789012:role/a b":                false,
		"arn:aws:iam::123456789012":                         false,
	} {
		if _, err := AWS.External("aws", Claims{"sub": arn}); (err == nil) != want {
			t.Errorf("%s: %v", arn, err)
		}
	}
}
