package names

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
)

// odd are texts at the limits of valid names.
var odd = []string{
	"", "a", "7", "team-a", "a--b", "a.b", "a.b-c.7", ".", "a.", ".a", "a..b", "-a", "a-", "a.-b", "a-.b",
	"A", "a_b", "a/b", "a/b/c", "/a", "a/", "a b", "a:b", "é", "a\x00", "a\n", "*", "{namespace}", "Team_A",
	"pullpass.dev/repositories", "Pullpass.dev/a", "a..b/c", "a/-b", "a/B_c.d", "_a", "a_", "A.b-C_7",
	strings.Repeat("a", 63), strings.Repeat("a", 64), strings.Repeat("a", 64) + ".b",
	strings.Repeat("a", 253), strings.Repeat("a", 254), strings.Repeat("a.", 126) + "a", strings.Repeat("a.", 127) + "a",
	strings.Repeat("a", 253) + "/b", strings.Repeat("a", 254) + "/b", "a/" + strings.Repeat("b", 63), "a/" + strings.Repeat("b", 64),
}

func TestNamesAreThoseOfKubernetes(t *testing.T) {
	t.Parallel()
	for _, s := range odd {
		compare(t, s)
	}
}

func FuzzNames(f *testing.F) {
	for _, s := range odd {
		f.Add(s)
	}
	f.Fuzz(compare)
}

func compare(t *testing.T, s string) {
	for _, kind := range []struct {
		name   string
		ours   func(string) bool
		theirs func(string) []string
	}{
		{"label", IsLabel, validation.IsDNS1123Label},
		{"subdomain", IsSubdomain, validation.IsDNS1123Subdomain},
		{"key of an annotation", IsAnnotationKey, validation.IsQualifiedName},
	} {
		if got, problems := kind.ours(s), kind.theirs(s); got != (len(problems) == 0) {
			t.Errorf("%q is a %s: %t, but Kubernetes says %q", s, kind.name, got, problems)
		}
	}
}

func TestIDs(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]struct{ uid, tokenID bool }{
		"": {}, "x y": {}, "a\x7f": {}, "a\n": {}, "é": {},
		"da2e7a3c-63e8-4855-9874-2073194456f5": {true, true},
		"!~":                                   {true, true},
		strings.Repeat("a", MaxUIDBytes):       {true, true},
		strings.Repeat("a", MaxUIDBytes+1):     {false, true},
		strings.Repeat("a", MaxTokenIDBytes):   {false, true},
		strings.Repeat("a", MaxTokenIDBytes+1): {},
	} {
		if IsUID(s) != want.uid || IsTokenID(s) != want.tokenID {
			t.Errorf("%q: UID %t, token id %t, want %v", s, IsUID(s), IsTokenID(s), want)
		}
	}
}

func TestParseObject(t *testing.T) {
	t.Parallel()
	for s, fault := range map[string]string{
		"prod-eu/team-a/web":   "",
		"prod-eu/team-a/web.7": "",
		"":                     "not CLUSTER/NAMESPACE/NAME",
		"team-a/web":           "not CLUSTER/NAMESPACE/NAME",
		"a/b/c/d":              "not CLUSTER/NAMESPACE/NAME",
		"/b/c":                 "not CLUSTER/NAMESPACE/NAME",
		"a//c":                 "not CLUSTER/NAMESPACE/NAME",
		"a/b/":                 "not CLUSTER/NAMESPACE/NAME",
		"a.b/c/d":              `no cluster can have the name "a.b"`,
		"a/Team_A/web":         `no namespace can have the name "Team_A"`,
		"a/b.c/web":            `no namespace can have the name "b.c"`,
		"a/b/web..7":           `no object can have the name "web..7"`,
		"a/b/x\x1b[2J":         `no object can have the name "x\x1b[2J"`,
	} {
		o, err := ParseObject(s)
		if err == nil {
			if o.String() != s {
				t.Errorf("%q became %q", s, o)
			}
			err = o.Check()
		}
		if (err == nil) != (fault == "") || err != nil && !strings.Contains(err.Error(), fault) {
			t.Errorf("%q: %v, want %q", s, err, fault)
		}
	}
}

func TestDigests(t *testing.T) {
	t.Parallel()
	sha256, sha512 := "sha256:"+strings.Repeat("0f", 32), "sha512:"+strings.Repeat("0f", 64)
	for s, want := range map[string]bool{
		sha256: true, sha512: true, "": false, "sha256:": false, sha256[1:]: false, sha256[:len(sha256)-1]: false, sha256 + "0": false, "sha256:" + sha512: false,
		"sha256:" + sha256[7:70] + "F": false, "sha256:" + sha256[7:70] + "g": false, "sha512:" + sha256[7:]: false, "sha256:" + sha512[7:]: false, "md5:" + sha256[7:]: false,
	} {
		if got := IsDigest(s); got != want {
			t.Errorf("%q: %t", s, got)
		}
	}
}
