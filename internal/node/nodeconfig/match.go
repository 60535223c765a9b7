package nodeconfig

import (
	"fmt"
	"net"
	"net/url"
	"path"
	"strings"

	"github.com/pullpass/pullpass/internal/base/term"
)

// imagePattern is an element of matchImages, or an image, parsed as by the kubelet (URLsMatch of
// k8s.io/kubernetes/pkg/credentialprovider).
type imagePattern struct {
	domain []string // the parts between dots, each a separate glob
	port   string   // literal
	path   string   // literal; a prefix of the image's
}

// parseImagePattern fails for patterns with which the kubelet does not start.
func parseImagePattern(s string) (imagePattern, error) {
	u, err := url.Parse("https://" + s)
	if err != nil {
		return imagePattern{}, err
	}
	host, port, err := net.SplitHostPort(u.Host)
	if err != nil {
		host, port = u.Host, ""
	}
	return imagePattern{domain: strings.Split(host, "."), port: port, path: u.Path}, nil
}

// differs returns why the pattern does not match an image. It is empty if the pattern matches.
func (p imagePattern) differs(image imagePattern) string {
	if p.port != image.port {
		return fmt.Sprintf("the ports must be equal: it has %s, the registry %s", portName(p.port), portName(image.port))
	}
	if len(p.domain) != len(image.domain) {
		return fmt.Sprintf("the parts between dots must be as many, a * stands for one: it has %d, the registry %d", len(p.domain), len(image.domain))
	}
	for i, glob := range p.domain {
		if matched, _ := path.Match(glob, image.domain[i]); !matched { // a bad pattern does not match either
			return fmt.Sprintf("%s does not match %s", term.QuoteValue(glob), term.QuoteValue(image.domain[i]))
		}
	}
	if !strings.HasPrefix(image.path, p.path) {
		return "the path is not the beginning of the image's"
	}
	return ""
}

func portName(port string) string {
	if port == "" {
		return "none"
	}
	return term.QuoteValue(port)
}

// wide reports whether the pattern may match more than one registry.
func (p imagePattern) wide() bool { return strings.Contains(strings.Join(p.domain, ""), "*") }

// patternFault returns why an element of matchImages does not mean what its author probably
// intended, although the kubelet accepts it. It is empty if there is no fault.
func patternFault(s string) (problem, remedy string) {
	host, below, _ := strings.Cut(s, "/")
	switch {
	case strings.Contains(s, "://"):
		return "has a scheme, and so matches nothing", "write host[:port][/path]"
	case strings.ContainsAny(s, "@#?\\ \t"):
		return "has a character that has no place in it", "write host[:port][/path], without tag and digest, and * as the only wildcard"
	case strings.ContainsAny(below, "*["):
		return "has a wildcard in the path, where it is a plain character", "leave it out: a path matches by its beginning"
	case strings.Contains(below, ":"):
		return "has a tag, and the kubelet matches images without one", "leave it out"
	case strings.HasSuffix(host, "]"):
		// Without a port the brackets stay, and path.Match treats them as a class.
		return "is an IPv6 address without port, which the kubelet cannot match", "write [ADDRESS]:443, and so in the names of images"
	}
	return "", ""
}
