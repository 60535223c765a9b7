package identity

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// The profile knows each claim that is compared or is an Instead. Required claims are ids, and ids
// do not allow patterns.
func TestProfilesKnowWhatTheySpeakOf(t *testing.T) {
	t.Parallel()
	for _, p := range Generic.Values() {
		if _, err := os.Stat(string(p) + "_test.go"); err != nil {
			t.Error(err)
		}
		known := p.known()
		if len(known.needs) == 0 || known.project == "" {
			t.Errorf("%s: needs %v, project %q", p, known.needs, known.project)
		}
		for _, name := range append([]string{known.project}, known.needs...) {
			if c, ok := p.Claim(name); !ok || c.Type != String || c.IsName || c.Instead != "" {
				t.Errorf("%s: %s is not an id: %+v", p, name, c)
			}
		}
		if !slices.Contains(known.needs, known.project) {
			t.Errorf("%s: the project %s can be missing", p, known.project)
		}
		if _, ok := p.Claim(known.run); !ok && known.run != "" {
			t.Errorf("%s does not know %s", p, known.run)
		}
		for name, c := range known.claims {
			if _, ok := registered[name]; ok || strings.HasPrefix(name, "kubernetes.io") {
				t.Errorf("%s: %s is every token's, or none's", p, name)
			}
			if !slices.Contains([]Type{String, Number, Boolean, List}, c.Type) || c.Type != String && (c.IsName || c.IsPath || c.Instead != "") {
				t.Errorf("%s: %s is %+v", p, name, c)
			}
			if c.IsName && (c.Instead != "" || strings.HasSuffix(name, "id")) {
				t.Errorf("%s: %s takes a pattern: %+v", p, name, c)
			}
			if c.Instead == "" {
				continue
			}
			if id, ok := p.Claim(c.Instead); !ok || id.Instead != "" || id.IsName || id.Type != String {
				t.Errorf("%s: %s is replaced by %s, which is not an id: %+v", p, name, c.Instead, id)
			}
		}
		for _, name := range []string{"iss", "sub", "jti"} {
			if c, ok := p.Claim(name); !ok || c != (Claim{Type: String}) {
				t.Errorf("%s: %s is %+v", p, name, c)
			}
		}
		if _, ok := p.Claim("what-nobody-knows"); ok {
			t.Errorf("%s knows every claim", p)
		}
		if p.RequiresIssuedAt() != (p != SPIFFE) {
			t.Errorf("%s: iat", p)
		}
	}
}

// Claims are compared as texts. A claim without texts equals nothing.
func TestTexts(t *testing.T) {
	t.Parallel()
	claims, err := Parse([]byte(`{"text":"a","empty":"","yes":true,"no":false,"n":17,"minus":-1,"half":0.5,"large":1e15,"list":["a","b"],"none":[],` +
		`"mixed":["a",1],"object":{"a":"b"},"null":null}`))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]string{
		"text": {"a"}, "empty": {""}, "yes": {"true"}, "no": {"false"}, "n": {"17"}, "minus": {"-1"}, "half": {"0.5"}, "large": {"1000000000000000"},
		"list": {"a", "b"}, "none": {}, "mixed": nil, "object": nil, "null": nil, "missing": nil,
	} {
		if got := claims.Texts(name); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// Mistake: what is missing passes, because it is not wrong.
func TestUnmet(t *testing.T) {
	t.Parallel()
	claims := Claims{"id": "42", "protected": "true", "rerun": false, "n": int64(7), "groups": []string{"a", "b"}, "empty": "", "object": map[string]any{"a": "b"}}
	for name, test := range map[string]struct {
		require map[string][]string
		unmet   string
	}{
		"nothing":       {nil, ""},
		"one of two":    {map[string][]string{"id": {"41", "42"}, "protected": {"true"}}, ""},
		"boolean":       {map[string][]string{"rerun": {"false"}}, ""},
		"number":        {map[string][]string{"n": {"7"}}, ""},
		"member":        {map[string][]string{"groups": {"b"}}, ""},
		"other":         {map[string][]string{"id": {"4"}}, "id"},
		"beginning":     {map[string][]string{"id": {"421", "4*"}}, "id"},
		"missing":       {map[string][]string{"missing": {"x"}}, "missing"},
		"missing empty": {map[string][]string{"missing": {""}}, "missing"},
		"no values":     {map[string][]string{"id": {}}, "id"},
		"no member":     {map[string][]string{"groups": {"c", "[a b]"}}, "groups"},
		"object":        {map[string][]string{"object": {"b"}}, "object"},
		"first by name": {map[string][]string{"z": nil, "id": {"42"}, "b": nil, "x": nil, "c": nil, "d": nil, "e": nil, "f": nil, "g": nil, "h": nil, "y": nil}, "b"},
	} {
		if got, unmet := claims.Unmet(test.require); got != test.unmet || unmet != (test.unmet != "") {
			t.Errorf("%s: %q, %v", name, got, unmet)
		}
	}
}

func TestProjectAndRun(t *testing.T) {
	t.Parallel()
	if _, err := Generic.External("ci", Claims{"sub": ""}); err == nil {
		t.Error("an empty sub was accepted as an identity")
	}
	if _, err := SPIFFE.External("ci", Claims{}); err == nil || err.Error() != `claim "sub" is missing` {
		t.Error(err)
	}
	if e, err := Generic.External("ci", Claims{"sub": "a", "": "x"}); err != nil || e.Run != "" {
		t.Errorf("a claim without a name: %+v, %v", e, err)
	}
	// It is revoked by its run, so a run that cannot be named is refused.
	for _, run := range []string{"", "1\n2", "\x1b[2J", strings.Repeat("1", 129)} {
		if e, err := GitHub.External("ci", Claims{"repository_id": "42", "repository_owner_id": "1", "run_id": run}); err == nil || !strings.Contains(err.Error(), `claim "run_id" is not an id`) {
			t.Errorf("run %q: %+v, %v", run, e, err)
		}
	}
}
