package identity

import (
	"strings"
	"testing"
)

func TestSPIFFE(t *testing.T) {
	t.Parallel()
	profileTest{
		claims: Claims{"sub": "spiffe://a/b"}, project: "spiffe://a/b",
		repeats: map[string]bool{"sub": false},
	}.check(t, SPIFFE)
}

// Two forms of one id would be two workloads, and two workloads with one id are one
// too many: only what the standard of SPIFFE IDs allows is one.
func TestSPIFFEIDs(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]bool{
		"spiffe://octo.example/a":                     true,
		"spiffe://octo_1.example-2/ns/a.b/..c/A_b-9":  true,
		"spiffe://" + strings.Repeat("a", 255) + "/a": true,
		"spiffe://" + strings.Repeat("a", 256) + "/a": false,
		"spiffe://octo.example/azAZ09":                true,
		"octo.example/a":                              false,
		"spiffe:///a":                                 false,
		"spiffe://octo.example":                       false,
		"spiffe://octo.example/":                      false,
		"spiffe://octo.example//a":                    false,
		"spiffe://octo.example/a/":                    false,
		"spiffe://octo.example/./a":                   false,
		"spiffe://octo.example/a/..":                  false,
		"spiffe://octo.example/a b":                   false,
		"spiffe://octo.example/a%2Fb":                 false,
		"spiffe://octo.example/ä":                     false,
		"spiffe://octo.example/a?b":                   false,
		"spiffe://octo.example/a#b":                   false,
		"spiffe://Octo.example/a":                     false,
		"spiffe://octo.example:1/a":                   false,
		"spiffe://user@octo.example/a":                false,
		"SPIFFE://octo.example/a":                     false,
		"https://octo.example/a":                      false,
		"spiffe:/octo.example/a":                      false,
		" spiffe://octo.example/a":                    false,
	} {
		if _, err := SPIFFE.External("spire", Claims{"sub": id}); (err == nil) != want {
			t.Errorf("%s: %v", id, err)
		}
	}
}
