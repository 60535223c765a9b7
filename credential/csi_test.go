package credential

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// entry is a token with an end that is later than the token's own.
func entry(token string) map[string]any {
	return map[string]any{"token": token, "expirationTimestamp": now.Add(24 * time.Hour).Format(time.RFC3339)}
}

func csiValues(t *testing.T, entries map[string]any) map[string]string {
	t.Helper()
	encoded := testkit.Value(json.Marshal(entries))(t)
	return map[string]string{"csi.storage.k8s.io/pod.name": "app-1", "csi.storage.k8s.io/serviceAccount.tokens": string(encoded)}
}

// The kubelet encodes a map of these (pkg/volume/csi/csi_mounter.go).
func TestFromCSIReadsWhatTheKubeletEncodes(t *testing.T) {
	t.Parallel()
	token := sign(t, kubeletClaims(nil))
	encoded := testkit.Value(json.Marshal(map[string]authenticationv1.TokenRequestStatus{
		"":              {Token: sign(t, kubeletClaims(map[string]any{"aud": "https://127.0.0.1:6443"})), ExpirationTimestamp: metav1.NewTime(now.Add(time.Hour))},
		audienceInTests: {Token: token, ExpirationTimestamp: metav1.NewTime(now.Add(time.Hour))},
		"vault":         {Token: sign(t, kubeletClaims(map[string]any{"aud": "vault"})), ExpirationTimestamp: metav1.NewTime(now.Add(time.Hour))},
	}))(t)
	c := testkit.Value(FromCSI(map[string]string{"csi.storage.k8s.io/serviceAccount.tokens": string(encoded)}, audienceInTests, now))(t)
	if c.Password() != token {
		t.Error("the password is not the token for the audience")
	}
	if want := now.Add(time.Hour); !c.Expiry.Equal(want) {
		t.Errorf("expiry %s, want %s", c.Expiry, want)
	}
}

func TestEarliestEndCounts(t *testing.T) {
	t.Parallel()
	token := sign(t, kubeletClaims(nil)) // for an hour
	in := func(minutes int) string { return now.Add(time.Duration(minutes) * time.Minute).Format(time.RFC3339) }
	for _, test := range []struct {
		name    string
		entry   map[string]any
		minutes int // of life; 0: expired
	}{
		{"the token's", map[string]any{"token": token, "expirationTimestamp": in(90)}, 60},
		{"the kubelet's", map[string]any{"token": token, "expirationTimestamp": in(30)}, 30},
		{"as KEP-1855 calls it", map[string]any{"token": token, "expiry": in(30)}, 30},
		{"of two: the first", map[string]any{"token": token, "expirationTimestamp": in(20), "expiry": in(30)}, 20},
		{"of two: the second", map[string]any{"token": token, "expirationTimestamp": in(30), "expiry": in(20)}, 20},
		{"over by the kubelet's", map[string]any{"token": token, "expirationTimestamp": in(0)}, 0},
		{"over by the KEP's", map[string]any{"token": token, "expirationTimestamp": in(30), "expiry": in(0)}, 0},
		{"of another zone", map[string]any{"token": token, "expirationTimestamp": now.Add(time.Minute).In(time.FixedZone("", 7200)).Format(time.RFC3339)}, 1},
		{"and fields of a newer kubelet", map[string]any{"token": token, "expirationTimestamp": in(30), "new": 1}, 30},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c, err := FromCSI(csiValues(t, map[string]any{audienceInTests: test.entry}), audienceInTests, now)
			if test.minutes == 0 {
				if !errors.Is(err, ErrExpired) {
					t.Errorf("error %v, want %v", err, ErrExpired)
				}
				return
			}
			testkit.Must(t, err)
			if want := now.Add(time.Duration(test.minutes) * time.Minute); c.Expiry != want {
				t.Errorf("expiry %s, want %s", c.Expiry, want)
			}
		})
	}
}

// A CSI driver checks tokens as it does a file's.
func TestCSIRefusesTokens(t *testing.T) {
	t.Parallel()
	for _, r := range refusals(t) {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			c, err := FromCSI(csiValues(t, map[string]any{audienceInTests: entry(r.token)}), audienceInTests, r.now)
			checkRefusal(t, r, tokensKey+": ", c, err)
		})
	}
}

func TestCSIRemedies(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		claims map[string]any
		now    time.Time
		want   string
	}{
		{map[string]any{"aud": "vault"}, now, `; set spec.tokenRequests[].audience of the CSIDriver object to "registry.example.com"`},
		{nil, now.Add(time.Hour), "; with spec.requiresRepublish of the CSIDriver object the kubelet brings new ones"},
	} {
		token := sign(t, kubeletClaims(test.claims))
		_, err := FromCSI(csiValues(t, map[string]any{audienceInTests: entry(token)}), audienceInTests, test.now)
		if err == nil || !strings.HasSuffix(err.Error(), test.want) {
			t.Errorf("error %v, want it to end with %q", err, test.want)
		}
	}
}

func TestCSIRefusesValues(t *testing.T) {
	t.Parallel()
	token := sign(t, kubeletClaims(nil))
	end := `"expirationTimestamp":"` + now.Add(time.Hour).Format(time.RFC3339) + `"`
	valid := `{"` + audienceInTests + `":{"token":"` + token + `",` + end + `}}`
	entryIs := func(entry string) string { return `{"` + audienceInTests + `":` + entry + `}` }
	const (
		inEntry  = `entry for audience "registry.example.com": not an OpenID token: `
		noObject = "not an OpenID token: not one JSON object"
	)
	for _, test := range []struct {
		name   string
		tokens string
		kind   error
		want   string
	}{
		{"empty", "", ErrMalformed, noObject},
		{"a token", token, ErrMalformed, noObject},
		{"cut off", valid[:len(valid)-1], ErrMalformed, noObject},
		{"cut off inside the token", valid[:len(valid)/2], ErrMalformed, noObject},
		{"array", "[" + valid + "]", ErrMalformed, noObject},
		{"null", "null", ErrMalformed, noObject},
		{"two objects", valid + valid, ErrMalformed, noObject},
		{"something after the object", valid + token, ErrMalformed, noObject},
		{"comma at the end", valid[:len(valid)-1] + ",}", ErrMalformed, noObject},
		{"no colon", `{"a"}`, ErrMalformed, noObject},
		{"name is a number", `{1:{}}`, ErrMalformed, noObject},
		{"audience twice", `{"a":{},"a":{}}`, ErrMalformed, "a name is there twice in the JSON"},
		{"audience twice, once with an escape", `{"a":{},"\u0061":{}}`, ErrMalformed, "a name is there twice in the JSON"},
		{"too large", valid + strings.Repeat(" ", maxTokensSize-len(valid)+1), ErrMalformed, "longer than 256 KiB"},
		{"no entries", "{}", ErrMissing, `for audience "registry.example.com"; add it to spec.tokenRequests of the CSIDriver object`},
		{"entry for another audience", `{"vault":{"token":"` + token + `",` + end + `}}`, ErrMissing, `for audience "registry.example.com"`},
		{"entry for an audience in another case", strings.Replace(valid, "registry", "Registry", 1), ErrMissing, `for audience "registry.example.com"`},
		{"entry is a token", entryIs(`"` + token + `"`), ErrMalformed, inEntry + "not one JSON object"},
		{"entry is null", entryIs("null"), ErrMalformed, inEntry + "not one JSON object"},
		{"token twice", entryIs(`{"token":"` + token + `","token":"` + token + `",` + end + "}"), ErrMalformed, inEntry + "a name is there twice in the JSON"},
		{"token is an object", entryIs(`{"token":{"` + token + `":1},` + end + "}"), ErrMalformed, inEntry + `"token" has the wrong type`},
		{"token missing", entryIs(`{` + end + "}"), ErrMalformed, "not an OpenID token: empty"},
		{"token in another case", entryIs(`{"TOKEN":"` + token + `",` + end + "}"), ErrMalformed, "not an OpenID token: empty"},
		{"end missing", entryIs(`{"token":"` + token + `"}`), ErrMalformed, inEntry + `"expirationTimestamp" is missing`},
		{"end is null", entryIs(`{"token":"` + token + `","expirationTimestamp":null}`), ErrMalformed, inEntry + `"expirationTimestamp" is missing`},
		{"end is a number", entryIs(`{"token":"` + token + `","expirationTimestamp":1795234011}`), ErrMalformed, inEntry + `"expirationTimestamp" has the wrong type`},
		{"end is not a time", entryIs(`{"token":"` + token + `","expirationTimestamp":"` + token + `"}`), ErrMalformed, inEntry + `"expirationTimestamp" has the wrong type`},
		{"KEP's end is not a time", entryIs(`{"token":"` + token + `",` + end + `,"expiry":""}`), ErrMalformed, inEntry + `"expiry" has the wrong type`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c, err := FromCSI(map[string]string{tokensKey: test.tokens}, audienceInTests, now)
			checkRefusal(t, refusal{token: token, kind: test.kind, want: test.want}, tokensKey+": ", c, err)
		})
	}

	t.Run("no tokens", func(t *testing.T) {
		t.Parallel()
		c, err := FromCSI(map[string]string{"csi.storage.k8s.io/pod.name": "app-1"}, audienceInTests, now)
		checkRefusal(t, refusal{kind: ErrMissing, want: `; add audience "registry.example.com" to spec.tokenRequests of the CSIDriver object, ` +
			"and read the secrets instead of the volume context if and only if it has serviceAccountTokenInSecrets"}, tokensKey+": ", c, err)
	})
}

func TestLargestCSIValuePasses(t *testing.T) {
	t.Parallel()
	values := csiValues(t, map[string]any{audienceInTests: entry(sign(t, kubeletClaims(nil)))})
	values[tokensKey] += strings.Repeat(" ", maxTokensSize-len(values[tokensKey]))
	if _, err := FromCSI(values, audienceInTests, now); err != nil {
		t.Error(err)
	}
}
