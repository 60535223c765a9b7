package identity

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	t.Parallel()
	claims, err := Parse([]byte(` {"text":"é\u0000","yes":true,"int":-9007199254740991,"exp":1.5e2,"half":0.5,"list":["a","b"],"none":[],` +
		`"mixed":["a",1,true,["b"],{"c":null,"d":[]}],"object":{"list":["a"],"n":1},"null":null} `))
	want := Claims{
		"text": "é\x00", "yes": true, "int": int64(-9007199254740991), "exp": int64(150), "half": 0.5, "list": []string{"a", "b"}, "none": []string{},
		"mixed": []any{"a", int64(1), true, []string{"b"}, map[string]any{"d": []string{}}}, "object": map[string]any{"list": []string{"a"}, "n": int64(1)},
	}
	if err != nil || !reflect.DeepEqual(claims, want) {
		t.Errorf("%#v, %v", claims, err)
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	many := func(n int, format string) string {
		parts := make([]string, n)
		for i := range parts {
			parts[i] = strings.ReplaceAll(format, "#", fmt.Sprint(i))
		}
		return strings.Join(parts, ",")
	}
	for name, test := range map[string]struct{ text, want string }{
		"empty":              {"", "is not a JSON object"},
		"null":               {"null", "is not one JSON object"},
		"list":               {`["a"]`, "is not a JSON object"},
		"string":             {`"a"`, "is not a JSON object"},
		"two":                {`{}{}`, "is not one JSON object"},
		"two and a comma":    {`{},{}`, "is not one JSON object"},
		"more":               {`{} x`, "is not one JSON object"},
		"a bracket more":     {`{}]`, "is not one JSON object"},
		"unfinished":         {`{"a":1`, "is not a JSON object"},
		"twice":              {`{"a":1,"a":1}`, "distinct members"},
		"twice, escaped":     {`{"a":1,"\u0061":1}`, "distinct members"},
		"twice within":       {`{"a":[{"b":1,"b":1}]}`, "distinct members"},
		"deep":               {`{"a":[[[[]]]]}`, "nested more than 4 deep"},
		"very deep":          {`{"a":` + strings.Repeat("[", 1<<20), "nested more than 4 deep"},
		"many claims":        {`{` + many(101, `"a#":1`) + `}`, "more than 100 claims"},
		"many values":        {`{"a":[` + many(1000, `1`) + `]}`, "one value too many; a token has at most 1000"},
		"many values within": {`{"a":{` + many(1000, `"a#":1`) + `}}`, "one value too many"},
		"null in a list":     {`{"a":["b",null]}`, "is a list with null"},
		"large":              {`{"a":9007199254740992}`, "too large"},
		"very large":         {`{"a":99999999999999999999}`, "too large"},
		"large and negative": {`{"a":-9007199254740992}`, "too large"},
		"large in a list":    {`{"a":[1e300]}`, "too large"},
		"too large for any":  {`{"a":1e999}`, "is not a JSON object"},
		"Kubernetes":         {`{"kubernetes.io":{}}`, "claims of a ServiceAccount"},
		"Kubernetes, null":   {`{"kubernetes.io":null}`, "claims of a ServiceAccount"},
		"Kubernetes, older":  {`{"kubernetes.io/serviceaccount/namespace":"a"}`, "claims of a ServiceAccount"},
		"Kubernetes, spelt":  {`{"\u006bubernetes.io":{}}`, "claims of a ServiceAccount"},
		"long name":          {`{"` + strings.Repeat("a", 5000) + `":[null]}`, "aaa..."},
		"line break":         {"{\"a\\nb\":[null]}", `"a\nb"`},
	} {
		claims, err := Parse([]byte(test.text))
		if err == nil || claims != nil || !strings.Contains(err.Error(), test.want) || len(err.Error()) > 300 {
			t.Errorf("%s: %v, %.400v", name, claims, err)
		}
	}
	if _, err := Parse([]byte(`{"a":[` + many(998, `1`) + `],"b":"[[[[\"[[[["}`)); err != nil {
		t.Errorf("as many values as there can be: %v", err)
	}
	if _, err := Parse([]byte(`{` + many(100, `"a#":1`) + `}`)); err != nil {
		t.Errorf("as many claims as there can be: %v", err)
	}
}

// FuzzParse: the parsed claims have the values of the payload and the types that Claims allows. No
// profile panics with them.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		`{"iss":"https://sts.windows.net/t/","tid":"t","oid":"o","sub":"spiffe://a/b","roles":["a"]}`,
		`{"sub":"repo:a@1/b@2:ref","repository_id":"2","repository_owner_id":"1"}`,
		`{"project_id":["a"],"job_project_id":["a"]}`, `{"oidc.circleci.com/project-id":"p","oidc.circleci.com/org-id":["o"]}`,
		`{"a":{"b":[1,2.5,null,{}]}}`, `{"a":"\"[{","b":[[[]]]}`, `{"a":1e308}`, `[]`, `{"sub":"arn:aws:iam::123456789012:role/a"}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		claims, err := Parse([]byte(text))
		if err != nil {
			return
		}
		var plain map[string]any
		if err := json.Unmarshal([]byte(text), &plain); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		for name, value := range claims {
			if !same(value, plain[name]) {
				t.Errorf("%s is %#v, want %#v", name, value, plain[name])
			}
			claims.Texts(name)
		}
		for name, value := range plain {
			if _, ok := claims[name]; !ok && value != nil {
				t.Errorf("%s is missing", name)
			}
		}
		for _, p := range Generic.Values() {
			e, err := p.External("ci", claims)
			if err == nil && (e.Project == "" || e.Bytes() <= len(e.Project)) {
				t.Errorf("%s: %+v of %d bytes", p, e, e.Bytes())
			}
		}
	})
}

func same(got, want any) bool {
	switch got := got.(type) {
	case int64:
		return want == float64(got)
	case []string:
		members := make([]any, len(got))
		for i := range got {
			members[i] = got[i]
		}
		return reflect.DeepEqual(members, want)
	case []any:
		all, ok := want.([]any)
		if !ok || len(all) != len(got) {
			return false
		}
		for i := range got {
			if !same(got[i], all[i]) {
				return false
			}
		}
		return true
	case map[string]any:
		members, ok := want.(map[string]any)
		for name, value := range members {
			if member, there := got[name]; there != (value != nil) || there && !same(member, value) {
				return false
			}
		}
		return ok
	}
	return reflect.DeepEqual(got, want)
}
