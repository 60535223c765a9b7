package setup

import (
	"bytes"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/oidc/identity"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/policyobjects"
	"github.com/pullpass/pullpass/internal/policy/policytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// released reads a file of a release, and returns its value and its warnings about versions. The
// first word of its name is its kind.
func released(t *testing.T, name string, data []byte) (value any, deprecated []string) {
	t.Helper()
	identities := testkit.Value(config.Parse(releasedFile(t, name, "configuration-every-field.yaml"), "config", "/etc/pullpass"))(t)
	kind, _, _ := strings.Cut(strings.TrimSuffix(filepath.Base(name), ".yaml"), "-")
	switch {
	case kind == "configuration":
		c := testkit.Value(config.Parse(data, name, "/etc/pullpass"))(t)
		deprecated, c.Deprecated, c.APIVersion = c.Deprecated, nil, ""
		c.Warnings = slices.Concat(c.Warnings[len(deprecated):]) // nil if there are no others
		return c, deprecated
	case strings.HasPrefix(filepath.Base(name), "policy-tests"):
		suite := testkit.Value(policytest.Parse(IdentityIssuers(identities), policy.File{Name: name, Data: data}))(t)
		return suite.Cases, suite.Deprecated
	case kind == "policy":
		profiles := map[string]identity.Profile{}
		for _, i := range identities.Identities {
			profiles[i.Name] = i.Profile
		}
		p := testkit.Value(policy.ParseFor(profiles, policy.File{Name: name, Data: data}))(t)
		// As text, because compiled conditions cannot be compared.
		return fmt.Sprintf("%+v\n%+v", p.WrittenRules(), p.WrittenDenials()), p.Deprecated()
	case kind == "objects":
		var set policyobjects.Set
		testkit.Must(t, set.Add(name, data))
		return []any{set.Policies(), set.Requests()}, set.Deprecated()
	}
	t.Fatalf("%s: unknown kind", name)
	return nil, nil
}

func releasedFile(t *testing.T, beside, name string) []byte {
	t.Helper()
	return []byte(testkit.Read(t, filepath.Join(filepath.Dir(beside), name)))
}

// Every file of an earlier release that is still supported is read, and means the same after its
// conversion.
func TestFilesOfReleases(t *testing.T) {
	t.Parallel()
	names := testkit.Value(filepath.Glob("../testdata/releases/*/*.yaml"))(t)
	if len(names) < 9 {
		t.Errorf("only %d files", len(names))
	}
	for _, name := range names {
		data := []byte(testkit.Read(t, name))
		value, deprecated := released(t, name, data)
		if len(deprecated) != 1 || !strings.HasPrefix(deprecated[0], name+": apiVersion: ") {
			t.Errorf("%s: warnings %q", name, deprecated)
		}
		converted := testkit.Value(strictyaml.Convert(data, policyobjects.MaxBytes, config.Kind, policy.Kind, policy.KindRequest, policytest.Kind))(t)
		if bytes.Equal(converted, data) {
			t.Errorf("%s: is not converted", name)
		}
		after, deprecated := released(t, name, converted)
		if len(deprecated) != 0 || !reflect.DeepEqual(after, value) {
			t.Errorf("%s: after the conversion: warnings %q\ngot  %+v\nwant %+v", name, deprecated, after, value)
		}
	}
}
