package main

import (
	"cmp"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/pullpass/pullpass/internal/base/file"
)

const (
	hostsFile    = "/etc/hosts"
	maxHostsSize = 1 << 20 // in bytes

	// maxHostsLine is in bytes. Go's resolver stops at a line that does not fit into its buffer
	// (open in net/parse.go); glibc reads on.
	maxHostsLine = 64 << 10

	// hostsAge is longer than the time for which CRI-O still has the file before: Go's resolver
	// looks at the file again after 5 seconds (cacheMaxAge in net/hosts.go).
	hostsAge = 6 * time.Second
)

// nameError is the error of a registry that CRI-O would ask itself.
func nameError(reason string) error {
	return errors.New(reason + ", so CRI-O would send the pod's token to another host than the gateway; " +
		"no token is given until it is as pullpass kubelet-config --cri-o prints it (see --gateway and --by-name of this provider in the kubelet's CredentialProviderConfig)")
}

var errFresh = errors.New("/etc/hosts: was changed less than 6 seconds ago, so CRI-O may still have the names from before, and would send the pod's token to another host than the gateway; " +
	"no token is given in these seconds, and the kubelet asks again (if this repeats, find the program that changes the file)")

// verifyHosts returns an error unless CRI-O finds the gateway under a registry's name, by the file
// called name.
func verifyHosts(name string, now time.Time, getenv func(string) string, registry, gateway string) error {
	hosts, err := file.Read(name, maxHostsSize)
	if err != nil {
		return err
	}
	if err := verifyNames(string(hosts), getenv, registry, gateway); err != nil {
		return err
	}
	// A link may lead to another file that is old. The times come after the content, so that a change in
	// between is seen.
	for _, stat := range []func(string) (os.FileInfo, error){os.Lstat, os.Stat} {
		info, err := stat(name)
		if err != nil {
			return err
		}
		// A time that lies further in the future says only that the clock was set back since.
		// Waiting for it could take years.
		if now.Sub(changed(info)).Abs() < hostsAge {
			return errFresh
		}
	}
	return nil
}

// verifyNames returns an error unless /etc/hosts gives a registry's host addresses of the gateway
// alone, and no proxy is asked instead, which has names of its own. Resolvers read /etc/hosts before
// they ask the DNS, as hosts in nsswitch.conf says by default.
func verifyNames(hosts string, getenv func(string) string, registry, gateway string) error {
	if strings.Contains(registry, ":") {
		return nameError("the image's registry has a port, and the gateway has the names of registries at port 443")
	}
	if !strings.Contains(registry, ".") {
		return nameError("the image's registry has no dot, and CRI-O takes such a name for a short one")
	}
	for line := range strings.Lines(hosts) {
		if len(line) >= maxHostsLine {
			return nameError("/etc/hosts: has a line of 64 KiB or more, after which CRI-O reads nothing")
		}
	}
	gateway, _, _ = strings.Cut(gateway, ":") // without its port
	own, want := addresses(hosts, registry, false), addresses(hosts, gateway, false)
	if len(own) == 0 {
		return nameError("/etc/hosts: has no address of the image's registry")
	}
	for _, address := range append(own, addresses(hosts, registry, true)...) {
		switch {
		case !address.IsValid(): // resolvers skip the line, and ask the DNS
			return nameError("/etc/hosts: a line with the image's registry does not begin with an IP address")
		case !slices.Contains(want, address):
			return nameError("/etc/hosts: gives the image's registry an address that it does not give the gateway")
		}
	}
	if isProxied(getenv, registry) {
		return nameError("HTTPS_PROXY is set, and NO_PROXY does not have the image's registry")
	}
	return nil
}

// addresses returns those of a name; the zero address stands for a text that some resolvers skip. They
// do not read all lines alike: with anyReading, a name counts if one of them may find it, and
// otherwise if all do. hosts(5) separates by blanks and tabs, and has no dot behind a name.
func addresses(hosts, name string, anyReading bool) (all []netip.Addr) {
	isSpace := func(r rune) bool { return strings.ContainsRune(" \t\r\n", r) || anyReading && unicode.IsSpace(r) }
	for line := range strings.Lines(hosts) {
		line, _, _ = strings.Cut(line, "#")
		words := strings.FieldsFunc(line, isSpace)
		if len(words) > 1 && slices.ContainsFunc(words[1:], func(word string) bool {
			return strings.EqualFold(word, name) || anyReading && strings.EqualFold(strings.TrimSuffix(word, "."), name)
		}) {
			address, _ := netip.ParseAddr(words[0])
			if address.Zone() != "" {
				address = netip.Addr{}
			}
			all = append(all, address.Unmap())
		}
	}
	return all
}

// isProxied reports whether CRI-O would send requests for a host to a proxy, if its environment is
// that of the kubelet. It reads NO_PROXY as Go programs do (golang.org/x/net/http/httpproxy).
func isProxied(getenv func(string) string, host string) bool {
	if cmp.Or(getenv("HTTPS_PROXY"), getenv("https_proxy")) == "" {
		return false
	}
	for entry := range strings.SplitSeq(cmp.Or(getenv("NO_PROXY"), getenv("no_proxy")), ",") {
		entry = strings.ToLower(strings.TrimSpace(entry))
		if entry == "*" {
			return false
		}
		entry = strings.TrimSuffix(entry, ":443")
		if strings.HasPrefix(entry, "*.") {
			entry = entry[1:]
		}
		isDomain := strings.HasPrefix(entry, ".")
		switch {
		case entry == "":
		case isDomain && strings.HasSuffix(host, entry), !isDomain && (host == entry || strings.HasSuffix(host, "."+entry)):
			return false
		}
	}
	return true
}
