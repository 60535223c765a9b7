package credential

import (
	"errors"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

func TestPod(t *testing.T) {
	t.Parallel()
	token := sign(t, kubeletClaims(nil))
	file := testkit.TempFile(t, "token", token)
	for name, test := range map[string]struct {
		pod       Pod
		registry  string
		isAllowed bool
		err       error
	}{
		"its registry":                {Pod{Registries: []string{"a:5000", audienceInTests}, TokenFile: file}, audienceInTests, true, nil},
		"with an audience":            {Pod{Registries: []string{"a:5000"}, TokenFile: file, Audience: audienceInTests}, "a:5000", true, nil},
		"the audience of another":     {Pod{Registries: []string{"a:5000"}, TokenFile: file}, "a:5000", true, ErrAudience},
		"another registry":            {Pod{Registries: []string{audienceInTests}, TokenFile: file}, "a:5000", false, nil},
		"the same in upper case":      {Pod{Registries: []string{audienceInTests}, TokenFile: file}, strings.ToUpper(audienceInTests), false, nil},
		"no registry":                 {Pod{TokenFile: file}, audienceInTests, false, nil},
		"no file where it usually is": {Pod{Registries: []string{audienceInTests}}, audienceInTests, true, ErrMissing},
	} {
		c, isAllowed, err := test.pod.For(test.registry, now)
		if isAllowed != test.isAllowed || !errors.Is(err, test.err) || (c.Password() == token) != (isAllowed && err == nil) {
			t.Errorf("%s: %v, %v", name, isAllowed, err)
		}
	}
}
