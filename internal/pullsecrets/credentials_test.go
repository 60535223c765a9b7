package pullsecrets

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

func jwt(payload string) string {
	return "e30." + base64.RawURLEncoding.EncodeToString([]byte(payload)) + ".c2ln"
}

// The contents of Secrets, and the result of the kubelet's parser for each.
func TestParseCredentials(t *testing.T) {
	t.Parallel()
	hosts := []string{"registry.example.com", "registry.example.com:5000"}
	legacy := jwt(`{"iss":"kubernetes/serviceaccount","kubernetes.io/serviceaccount/namespace":"ci","kubernetes.io/serviceaccount/secret.name":"robot"}`)
	basic := func(password string) string { return base64.StdEncoding.EncodeToString([]byte("user:" + password)) }
	one := func(key, entry string) string { return fmt.Sprintf(`{"auths":{%q:%s}}`, key, entry) }
	ours, both := hosts[:1], Key{"ci", "robot"}
	for name, test := range map[string]struct {
		data string
		want credentials
	}{
		"ours":                       {one("registry.example.com", `{"username":"u","password":"p"}`), credentials{hosts: ours}},
		"the other port":             {one("registry.example.com:5000", `{}`), credentials{hosts: hosts[1:]}},
		"as docker writes it":        {one("https://registry.example.com/v1/", `{"auth":"`+basic("p")+`"}`), credentials{hosts: ours}},
		"http":                       {one("http://registry.example.com", `{}`), credentials{hosts: ours}},
		"a path":                     {one("registry.example.com/team-a", `{}`), credentials{hosts: ours}},
		"a wildcard":                 {one("*.example.com", `{}`), credentials{hosts: ours}},
		"a part of a name":           {one("reg*.example.com:5000", `{}`), credentials{hosts: hosts[1:]}},
		"a wildcard for one part":    {one("*.com", `{}`), credentials{others: true}},
		"a wildcard ends at a colon": {one("registry.example.c*", `{}`), credentials{hosts: ours}},
		"a longer name":              {one("registry.example.com.evil.example", `{}`), credentials{others: true}},
		"credentials in the key":     {one("https://u:p@registry.example.com", `{}`), credentials{hosts: ours}},
		"another port":               {one("registry.example.com:443", `{}`), credentials{others: true}},
		"no host":                    {one("%zz", `{}`), credentials{others: true}},
		"several":                    {`{"auths":{"a.example.org":{},"registry.example.com:5000":{},"registry.example.com":{}}}`, credentials{hosts: hosts, others: true}},
		"none":                       {`{"auths":{}}`, credentials{}},
		"empty":                      {``, credentials{}},
		"a legacy token":             {one("registry.example.com", `{"password":"`+legacy+`"}`), credentials{hosts: ours, legacy: true, tokens: []Key{both}}},
		"a legacy token, encoded":    {one("registry.example.com", `{"auth":"`+basic(legacy)+`"}`), credentials{hosts: ours, legacy: true, tokens: []Key{both}}},
		"auth wins":                  {one("registry.example.com", `{"password":"`+legacy+`","auth":"`+basic("p")+`"}`), credentials{hosts: ours}},
		"a legacy token elsewhere":   {one("a.example.org", `{"password":"`+legacy+`"}`), credentials{others: true, tokens: []Key{both}}},
		"a bound token":              {one("registry.example.com", `{"password":"`+jwt(`{"iss":"https://issuer.example.com"}`)+`"}`), credentials{hosts: ours}},
		"a padded payload":           {one("registry.example.com", `{"password":"`+strings.Replace(legacy, ".c2ln", "=.c2ln", 1)+`"}`), credentials{hosts: ours}},
		"a namespace of no text":     {one("registry.example.com", `{"password":"`+jwt(`{"iss":"kubernetes/serviceaccount","kubernetes.io/serviceaccount/namespace":1}`)+`"}`), credentials{hosts: ours}},
		"two dots":                   {one("registry.example.com", `{"password":"a.b.c"}`), credentials{hosts: ours}},
		"no JSON":                    {`sekret`, credentials{broken: true}},
		"auth is not base64":         {one("a.example.org", `{"auth":"%%%"}`), credentials{broken: true}},
		"auth ends in the middle":    {one("a.example.org", `{"auth":"dXNlcjpw%"}`), credentials{broken: true}},
		"auth without padding":       {one("registry.example.com", `{"auth":"dXNlcjpwcA"}`), credentials{hosts: ours}},
		"auth has no colon":          {one("a.example.org", `{"auth":"dXNlcg=="}`), credentials{broken: true}},
		"auth is a number":           {one("a.example.org", `{"auth":1}`), credentials{broken: true}},
		"username is a list":         {one("a.example.org", `{"username":[]}`), credentials{broken: true}},
		"email is a number":          {one("a.example.org", `{"email":1}`), credentials{broken: true}},
		"as long as may be":          {strings.Repeat(" ", maxCredentialBytes-2) + `{}`, credentials{}},
		"too long":                   {one("registry.example.com", `{"password":"`+strings.Repeat("x", maxCredentialBytes)+`"}`), credentials{broken: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			secret := &corev1.Secret{Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(test.data)}}
			if got := parseCredentials(secret, hosts); !reflect.DeepEqual(got, test.want) {
				t.Errorf("%+v, want %+v", got, test.want)
			}
			var file struct{ Auths json.RawMessage }
			if json.Unmarshal([]byte(test.data), &file) != nil {
				return
			}
			secret = &corev1.Secret{Type: corev1.SecretTypeDockercfg, Data: map[string][]byte{corev1.DockerConfigKey: file.Auths}}
			if got := parseCredentials(secret, hosts); !reflect.DeepEqual(got, test.want) {
				t.Errorf("as dockercfg: %+v, want %+v", got, test.want)
			}
		})
	}
}

// One entry of a kind is enough, whatever the other entries are and in which order they are read.
func TestOneEntryOfManyCounts(t *testing.T) {
	t.Parallel()
	password := jwt(`{"iss":"kubernetes/serviceaccount"}`)
	for one, format := range map[string]string{"registry.example.com": "%d.example.org", "other.example.org": "registry.example.com/%d"} {
		auths := map[string]map[string]string{one: {"password": password}}
		for i := range 100 {
			auths[fmt.Sprintf(format, i)] = map[string]string{"password": password}
		}
		data := testkit.Value(json.Marshal(auths))(t)
		secret := &corev1.Secret{Type: corev1.SecretTypeDockercfg, Data: map[string][]byte{corev1.DockerConfigKey: data}}
		if got := parseCredentials(secret, []string{"registry.example.com"}); !got.legacy || !got.others || len(got.hosts) != 1 || len(got.tokens) != 101 {
			t.Errorf("one %s: legacy %t, others %t, hosts %v, %d tokens", one, got.legacy, got.others, got.hosts, len(got.tokens))
		}
	}
}

func TestWithoutTag(t *testing.T) {
	t.Parallel()
	for image, want := range map[string]string{
		"team-a/web": "team-a/web", "team-a/web:v1": "team-a/web", "web:v1@sha256:00": "web", "web@sha256:00": "web", "a:b/web": "a:b/web",
	} {
		if got := withoutTag(image); got != want {
			t.Errorf("%s: %s, want %s", image, got, want)
		}
	}
}
