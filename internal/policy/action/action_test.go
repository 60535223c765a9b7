package action

import (
	"slices"
	"strings"
	"testing"
)

// The result is the requested actions that are allowed, whatever * stands for.
func TestPick(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ may, asked, want, missing string }{
		{"pull", "pull", "pull", ""},
		{"pull", "push", "", "push"},
		{"pull,push", "push,pull", "pull,push", ""},
		{"pull,push", "push,pull,push", "pull,push", ""},
		{"pull", "pull,push", "pull", "push"},
		{"*", "push,pull,sign", "pull,push,sign", ""},
		{"*", "*", "*", ""},
		{"pull,push", "*", "pull,push", "delete"},
		{"pull,push,delete", "*", "delete,pull,push", ""},
		{"pull,push,delete", "*,sign", "delete,pull,push", "sign"},
		{"pull", "pull,sign", "pull", "sign"},
		{"", "pull,*", "", "delete,pull,push"},
		{"*", "", "", ""},
	} {
		may, asked := Of(split(test.may)), split(test.asked)
		before := slices.Clone(asked)
		if got := strings.Join(may.Pick(asked), ","); got != test.want {
			t.Errorf("of %q, who may %q gets %q, want %q", test.asked, test.may, got, test.want)
		}
		if !slices.Equal(asked, before) {
			t.Errorf("%q was changed to %q", before, asked)
		}
		if got, want := may.Missing(Of(asked)), Of(split(test.missing)); got != want {
			t.Errorf("of %q, who may %q misses %q, want %q", test.asked, test.may, got, want)
		}
	}
}

// Both have to allow an action. * allows everything that the other does, including actions without
// a name.
func TestIntersect(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ a, b, want string }{
		{"pull,push", "push,delete", "push"},
		{"pull", "push", ""},
		{"*", "push", "push"},
		{"*", "sign", "sign"},
		{"*", "*", "*"},
		{"*", "", ""},
	} {
		a, b, want := Of(split(test.a)), Of(split(test.b)), Of(split(test.want))
		if a.Intersect(b) != want || b.Intersect(a) != want {
			t.Errorf("%q and %q: %q, and %q the other way round", test.a, test.b, a.Intersect(b), b.Intersect(a))
		}
	}
}

// Names are the names that made the set, sorted. Only * can grant an action without a name.
func TestNames(t *testing.T) {
	t.Parallel()
	for asked, want := range map[string]string{
		"push,pull": "pull, push", "delete,*": "*, delete", "sign": "", "Pull": "", "": "",
	} {
		if got := Of(split(asked)).String(); got != want {
			t.Errorf("%q: %q, want %q", asked, got, want)
		}
	}
	for asked, want := range map[string]Set{"pull": Pull, "pull,sign": All, "*": All, "": 0} {
		if got := Of(split(asked)).Nameable(); got != want {
			t.Errorf("%q: a policy can name %q, want %q", asked, got, want)
		}
	}
}

func split(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' })
}
