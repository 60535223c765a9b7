package tokensecrets

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
)

// Only a token whose claims name the ServiceAccount, the Secret and the audience gets into a Secret.
func FuzzToken(f *testing.F) {
	const claims = `{"aud":["registry.example.com"],"iat":1,"exp":2,"kubernetes.io":{"namespace":"team-a","serviceaccount":{"name":"web","uid":"uid-1"},"secret":{"name":"NAME","uid":"uid-2"}}}`
	a := account{namespace: "team-a", name: "web", uid: "uid-1"}
	good := strings.Replace(claims, "NAME", a.secretName(), 1)
	for _, text := range []string{good, strings.Replace(good, "registry.example.com", "other", 1), strings.Replace(good, "team-a", "team-b", 1), strings.Replace(good, "uid-2", "uid-3", 1), `{"aud":"registry.example.com"}`, `null`} {
		f.Add([]byte(`{"kid":"k"}`), []byte(text))
	}
	f.Fuzz(func(t *testing.T, header, payload []byte) {
		raw := base64.RawURLEncoding.EncodeToString(header) + "." + base64.RawURLEncoding.EncodeToString(payload) + ".x"
		if _, err := readToken(raw, a, "uid-2", "registry.example.com"); err != nil {
			return
		}
		var got struct {
			Audience   []string `json:"aud"`
			Kubernetes struct {
				Namespace string
				Secret    struct{ UID string }
			} `json:"kubernetes.io"`
		}
		if err := json.Unmarshal(payload, &got); err != nil || len(got.Audience) != 1 || got.Audience[0] != "registry.example.com" || got.Kubernetes.Namespace != "team-a" || got.Kubernetes.Secret.UID != "uid-2" {
			t.Errorf("%q is accepted: %+v, %v", payload, got, err)
		}
	})
}
