package identity

import (
	"strings"
	"testing"
)

// Two forms of one id would be two workloads, and two workloads with one id are one
// too many: only what the standard of SPIFFE IDs allows is one.
func TestSPIFFEIDs(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]bool{
		"spiffe://octo.example/a":                     true,
		"spiffe://octo_1.example-2/ns/a.b/..c/A_b-9":  true,
		"spiffe://" + strings.Repeat("a", 255) + "/a": true,
		"spiffe://" + strings.Repeat("a", 256) + "/a": false,
		"spiffe:///a":                  false,
		"spiffe://octo.example":        false,
		"spiffe://octo.example/":       false,
		"spiffe://octo.example//a":     false,
		"spiffe://octo.example/a/":     false,
		"spiffe://octo.example/./a":    false,
		"spiffe://octo.example/a/..":   false,
		"spiffe://octo.example/a b":    false,
		"spiffe://octo.example/a%2Fb":  false,
		"spiffe://octo.example/ä":      false,
		"spiffe://octo.example/a?b":    false,
		"spiffe://octo.example/a#b":    false,
		"spiffe://Octo.example/a":      false,
		"spiffe://octo.example:1/a":    false,
		"spiffe://user@octo.example/a": false,
		"SPIFFE://octo.example/a":      false,
		"https://octo.example/a":       false,
		"spiffe:/octo.example/a":       false,
		" spiffe://octo.example/a":     false,
	} {
		if _, err := SPIFFE.External("spire", Claims{"sub": id}); (err == nil) != want {
			t.Errorf("%s: %v", id, err)
		}
	}
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
