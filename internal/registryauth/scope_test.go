package registryauth

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/distribution/reference"
)

func TestParseScope(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", maxPathBytes)
	for in, want := range map[string]Scope{
		"repository:app:pull":                        {Type: "repository", Name: "app", Actions: []string{"pull"}},
		"repository:team/app:push,pull":              {Type: "repository", Name: "team/app", Actions: []string{"pull", "push"}},
		"repository:team/app:pull,pull":              {Type: "repository", Name: "team/app", Actions: []string{"pull"}},
		"repository:team/app:*":                      {Type: "repository", Name: "team/app", Actions: []string{"*"}},
		"repository:team/app:pull,*":                 {Type: "repository", Name: "team/app", Actions: []string{"*", "pull"}},
		"repository(plugin):team/app:pull":           {Type: "repository", Class: "plugin", Name: "team/app", Actions: []string{"pull"}},
		"registry:catalog:*":                         {Type: "registry", Name: "catalog", Actions: []string{"*"}},
		"repository:host:5000/x:pull":                {Type: "repository", Name: "host:5000/x", Actions: []string{"pull"}},
		"repository:Registry.Example.COM/x:pull":     {Type: "repository", Name: "Registry.Example.COM/x", Actions: []string{"pull"}},
		"repository:Host:5000/x/y:pull":              {Type: "repository", Name: "Host:5000/x/y", Actions: []string{"pull"}},
		"repository:10.0.0.1:5000/x:pull":            {Type: "repository", Name: "10.0.0.1:5000/x", Actions: []string{"pull"}},
		"repository:my_team.x/app:pull":              {Type: "repository", Name: "my_team.x/app", Actions: []string{"pull"}},
		"repository:a.b/c_d/e__f/g-h/i---j/0:pull":   {Type: "repository", Name: "a.b/c_d/e__f/g-h/i---j/0", Actions: []string{"pull"}},
		"repository:" + long + ":pull":               {Type: "repository", Name: long, Actions: []string{"pull"}},
		"repository:example.com/" + long + ":pull":   {Type: "repository", Name: "example.com/" + long, Actions: []string{"pull"}},
		"repository:localhost/" + long + ":pull":     {Type: "repository", Name: "localhost/" + long, Actions: []string{"pull"}},
		"artifact2:x:" + strings.Repeat("z", 32):     {Type: "artifact2", Name: "x", Actions: []string{strings.Repeat("z", 32)}},
		"repository:x:a,b,c,d,e,f,g,h,i,j,k,l,m,n":   {Type: "repository", Name: "x", Actions: strings.Split("abcdefghijklmn", "")},
		strings.Repeat("t", maxTypeBytes) + ":x:get": {Type: strings.Repeat("t", maxTypeBytes), Name: "x", Actions: []string{"get"}},
	} {
		got, err := ParseScope(in)
		if err != nil {
			t.Errorf("ParseScope(%q): %v", in, err)
			continue
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("ParseScope(%q) = %+v, want %+v", in, got, want)
		}
		again, err := ParseScope(got.String())
		if err != nil || !reflect.DeepEqual(again, got) {
			t.Errorf("ParseScope(%q) = %+v, %v, want what it was printed from", got.String(), again, err)
		}
	}
}

// Names that a policy or a registry could read differently. The mistakes are path traversal, upper
// case, look-alike letters, patterns, and unbounded lengths.
func TestParseScopeRefuses(t *testing.T) {
	t.Parallel()
	const (
		form      = "want type:name:action,action"
		class     = "want the class as type(class)"
		typ       = "the type must be"
		slash     = "empty or has a leading, trailing or double slash"
		part      = "each part of the name"
		upper     = "lower case"
		colon     = "may hold a ':' only in host:port/"
		tooLong   = "longer than 255 bytes"
		action    = "an action must be"
		manyError = "more than 16 actions"
	)
	for in, want := range map[string]string{
		"":                  form,
		"repository":        form,
		"repository:app":    form,
		"repository::pull":  slash,
		":app:pull":         typ,
		"Repository:x:pull": typ,
		"repo-sitory:x:get": typ,
		"repo\x00:x:pull":   typ,
		strings.Repeat("t", maxTypeBytes+1) + ":x:pull":                          typ,
		"repository():x:pull":                                                    class,
		"repository(plugin:x:pull":                                               class,
		"repository(plugin)x:x:pull":                                             class,
		"repository(Plugin):x:pull":                                              class,
		"repository(a)(b):x:pull":                                                class,
		"repository(" + strings.Repeat("c", maxTypeBytes+1) + "):x:pull":         class,
		"(plugin):x:pull":                                                        typ,
		"repository:/app:pull":                                                   slash,
		"repository:team/:pull":                                                  slash,
		"repository:team//app:pull":                                              slash,
		"repository:/:pull":                                                      slash,
		"repository:example.com/:pull":                                           slash,
		"repository:example.com//app:pull":                                       slash,
		"repository:..:pull":                                                     part,
		"repository:../app:pull":                                                 part,
		"repository:team/../other/app:pull":                                      part,
		"repository:team/./app:pull":                                             part,
		"repository:team/a..b:pull":                                              part,
		"repository:team/.app:pull":                                              part,
		"repository:team/app.:pull":                                              part,
		"repository:team/app_:pull":                                              part,
		"repository:team/a___b:pull":                                             part,
		"repository:team/a._b:pull":                                              part,
		"repository:-team/app:pull":                                              part,
		"repository:team/app-:pull":                                              part,
		"repository:team/*:pull":                                                 part,
		"repository:**:pull":                                                     part,
		"repository:{namespace}/app:pull":                                        part,
		"repository:team/app@sha256:pull":                                        part,
		"repository:team/app%2f..:pull":                                          part,
		"repository:team\\app:pull":                                              part,
		"repository:team/app pp:pull":                                            part,
		"repository:team/app\t:pull":                                             part,
		"repository:team/app\n:pull":                                             part,
		"repository:team/app\x00:pull":                                           part,
		"repository:team/\u0430pp:pull":                                          part, // a Cyrillic a
		"repository:team/app\xff:pull":                                           part,
		"repository:[::1]:5000/app:pull":                                         colon, // not in the scope grammar
		"repository:Team/app:pull":                                               upper,
		"repository:team/App:pull":                                               upper,
		"repository:example.com/App:pull":                                        upper,
		"repository:LOCALHOST/app:pull":                                          upper,
		"repository:Registry.Example.Com:pull":                                   upper, // a host alone is not a name
		"repository:localhost:5000:pull":                                         colon,
		"repository:team/app:v1:pull":                                            colon, // a tag
		"repository:host:/app:pull":                                              colon,
		"repository:host:50a/app:pull":                                           colon,
		"repository:ho_st:5000/app:pull":                                         colon,
		"repository:a:1:2/app:pull":                                              colon,
		"repository:-a.example:5000/app:pull":                                    colon,
		"repository:a-.example:5000/app:pull":                                    colon,
		"repository:a..example:5000/app:pull":                                    colon,
		"repository::5000/app:pull":                                              colon,
		"repository:" + strings.Repeat("a", 256) + ":pull":                       tooLong,
		"repository:team/" + strings.Repeat("a", 251) + ":pull":                  tooLong,
		"repository:example.com/" + strings.Repeat("a", 256) + ":pull":           tooLong,
		"repository:" + strings.Repeat("a", 254) + ".b/x:pull":                   tooLong,
		"repository:app:":                                                        action,
		"repository:app:pull,":                                                   action,
		"repository:app:,pull":                                                   action,
		"repository:app:pull,,push":                                              action,
		"repository:app:Pull":                                                    action,
		"repository:app:pull push":                                               action,
		"repository:app:pu*":                                                     action,
		"repository:app:**":                                                      action,
		"repository:app:pull2":                                                   action,
		"repository:app:" + strings.Repeat("a", maxActionBytes+1):                action,
		"repository:app:" + strings.TrimSuffix(strings.Repeat("pull,", 17), ","): manyError,
		"repository:app:" + strings.TrimSuffix(strings.Repeat("pull,", 10000), ","): manyError,
	} {
		got, err := ParseScope(in)
		scopeRefused(t, in, err, want)
		if !reflect.DeepEqual(got, Scope{}) {
			t.Errorf("ParseScope(%q) returned %+v with an error", in, got)
		}
	}
}

// A message goes to logs and terminals, and a scope can be as long as a body.
func TestScopeErrorQuotesSafely(t *testing.T) {
	t.Parallel()
	_, err := ParseScope("repository:é\x1b[31m\u202e\n" + strings.Repeat("y", 10000) + ":pull")
	scopeRefused(t, "hostile", err, `"repository:\u00e9\x1b[31m\u202e\n`)
	if len(err.Error()) > 400 {
		t.Errorf("the message has %d bytes", len(err.Error()))
	}
	for _, r := range err.Error() {
		if r < ' ' || r > '~' {
			t.Errorf("the message holds %q", r)
		}
	}
}

// A registry routes by distribution/reference. Every accepted name must be valid there. The only
// valid names that ParseScope refuses have upper case without looking like a host, IPv6 hosts, or
// longer hosts.
func TestScopeNamesAgainstReference(t *testing.T) {
	t.Parallel()
	alphabet := []string{"a", "0", ".", "_", "-", "/", ":", "A"}
	var name func(prefix string, n int)
	name = func(prefix string, n int) {
		_, err := ParseScope("repository:" + prefix + ":pull")
		_, refErr := reference.WithName(prefix)
		if err == nil && refErr != nil {
			t.Errorf("%q is accepted here, but reference says %v", prefix, refErr)
		}
		first, _, _ := strings.Cut(prefix, "/")
		if err != nil && refErr == nil && (first == strings.ToLower(first) || strings.ContainsAny(first, ".:")) {
			t.Errorf("%q is a name for reference, but here %v", prefix, err)
		}
		if n == 0 {
			return
		}
		for _, c := range alphabet {
			name(prefix+c, n-1)
		}
	}
	name("", 5)
}

func FuzzScope(f *testing.F) {
	for _, s := range []string{"repository:team/app:pull,push", "repository(plugin):host:5000/x:pull", "registry:catalog:*", "repository:..:pull", "a:b:c:d", "Ab.c/d:e"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		scope, err := ParseScope(s)
		if err != nil {
			if e, ok := errors.AsType[*RequestError](err); !ok || e.Code != "invalid_scope" || !reflect.DeepEqual(scope, Scope{}) {
				t.Fatalf("ParseScope(%q) = %+v, %#v", s, scope, err)
			}
			return
		}
		if len(scope.Actions) == 0 {
			t.Fatalf("ParseScope(%q) has no actions", s)
		}
		if _, err := reference.WithName(scope.Name); err != nil {
			t.Fatalf("ParseScope(%q): the name %q: %v", s, scope.Name, err)
		}
		again, err := ParseScope(scope.String())
		if err != nil || !reflect.DeepEqual(again, scope) {
			t.Fatalf("%q → %+v → %q → %+v, %v", s, scope, scope.String(), again, err)
		}
	})
}

func scopeRefused(t *testing.T, what string, err error, want string) {
	t.Helper()
	e, ok := errors.AsType[*RequestError](err)
	if !ok {
		t.Errorf("%q: got error %v, want a *RequestError with %q", what, err, want)
		return
	}
	if e.Code != "invalid_scope" || e.Field != "scope" || !strings.Contains(e.Message, want) {
		t.Errorf("%q: got %q, %q, %q, want invalid_scope, scope, …%s…", what, e.Code, e.Field, e.Message, want)
	}
}
