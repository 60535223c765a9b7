package nodeconfig

import (
	"testing"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// The expected results are those of the kubelet: URLsMatchStr of k8s.io/kubernetes v1.36.3.
func TestImagePatternsMatchAsInTheKubelet(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		pattern, image string
		match          bool
	}{
		{"registry.example.com", "registry.example.com/team/app", true},
		{"registry.example.com", "registry.example.com", true},
		{"registry.example.com", "eu.registry.example.com/app", false},
		{"example.com", "registry.example.com/app", false},
		{"registry.example.com", "registry.example.org/app", false},
		{"Registry.example.com", "registry.example.com/app", false},
		// Each part between dots is a glob, and a * does not cross a dot.
		{"*.example.com", "registry.example.com/app", true},
		{"*.example.com", "eu.registry.example.com/app", false},
		{"*.*.example.com", "eu.registry.example.com/app", true},
		{"*", "localhost/app", true},
		{"*", "registry.example.com/app", false},
		{"registry.*", "registry.example/app", true},
		{"registry.*.com", "registry.example.com/app", true},
		{"reg*.example.com", "registry.example.com/app", true},
		{"*try.example.com", "registry.example.com/app", true},
		{"reg*x.example.com", "registry.example.com/app", false},
		// Ports are literal, and a missing port only matches a missing port.
		{"registry.example.com:5000", "registry.example.com:5000/app", true},
		{"*.example.com:5000", "registry.example.com:5000/app", true},
		{"registry.example.com", "registry.example.com:5000/app", false},
		{"registry.example.com:5000", "registry.example.com/app", false},
		{"registry.example.com:443", "registry.example.com/app", false},
		{"registry.example.com:50", "registry.example.com:5000/app", false},
		{"registry.example.com:*", "registry.example.com:5000/app", false},
		// A path is a prefix of the image's path, even within a component.
		{"registry.example.com/team", "registry.example.com/team/app", true},
		{"registry.example.com/team", "registry.example.com/team-b/app", true},
		{"registry.example.com/", "registry.example.com/app", true},
		{"registry.example.com/team/", "registry.example.com/team", false},
		{"registry.example.com/app", "registry.example.com/team/app", false},
		{"registry.example.com/*", "registry.example.com/app", false},
		{"registry.example.com/t?am", "registry.example.com/team", true},
		// The kubelet also matches nginx and index.docker.io/library/nginx by this name.
		{"docker.io", "docker.io/library/nginx", true},
		{"index.docker.io", "docker.io/library/nginx", false},
		{"registry-1.docker.io", "docker.io/library/nginx", false},
		// Mistakes in patterns.
		{"https://registry.example.com", "registry.example.com/app", false},
		{"registr?.example.com", "registry.example.com/app", false},
		{"user@registry.example.com", "registry.example.com/app", true},
		{"registry.example.com#x", "registry.example.com/app", true},
		{"", "registry.example.com/app", false},
		// IPv6 addresses lose their brackets only if there is a port.
		{"[::1]:5000", "[::1]:5000/app", true},
		{"[::1]", "[::1]/app", false},
		{"127.0.0.1:5000", "127.0.0.1:5000/app", true},
		{"127.0.0.*:5000", "127.0.0.1:5000/app", true},
	} {
		pattern, err := parseImagePattern(test.pattern)
		if err != nil {
			if test.match {
				t.Errorf("%s: %v", test.pattern, err)
			}
			continue
		}
		image, err := parseImagePattern(test.image)
		testkit.Must(t, err)
		if differs := pattern.differs(image); (differs == "") != test.match {
			t.Errorf("%s and %s: differ in %q, want match %v", test.pattern, test.image, differs, test.match)
		}
	}
}
