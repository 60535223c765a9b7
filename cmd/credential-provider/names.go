package main

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"
	"strings"
)

const (
	hostsFile    = "/etc/hosts"
	maxHostsSize = 1 << 20 // in bytes
)

// nameError is the error of a registry that CRI-O would ask itself.
func nameError(reason string) error {
	return errors.New(reason + ", so CRI-O would send the pod's token to another host than the gateway; " +
		"no token is given until it is as pullpass kubelet-config --cri-o prints it (see --gateway and --by-name of this provider in the kubelet's CredentialProviderConfig)")
}

// verifyNames returns an error unless /etc/hosts gives a registry's host addresses of the gateway
// alone, and no proxy is asked instead, which has names of its own. Resolvers read /etc/hosts before
// they ask the DNS, as hosts in nsswitch.conf says by default.
func verifyNames(hosts string, getenv func(string) string, registry, gateway string) error {
	if registry == defaultHost {
		registry = "registry-1.docker.io" // which all clients ask
	}
	if strings.Contains(registry, ":") {
		return nameError("the image's registry has a port, and the gateway has the names of registries at port 443")
	}
	gateway, _, _ = strings.Cut(gateway, ":") // without its port
	own, want := addresses(hosts, registry), addresses(hosts, gateway)
	if len(own) == 0 {
		return nameError("/etc/hosts: has no address of the image's registry")
	}
	for _, address := range own {
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

// addresses returns those of a name; the zero address stands for a text that is none. A text that
// resolvers may read in two ways names nothing: white space is a blank or a tab (hosts(5)).
func addresses(hosts, name string) (all []netip.Addr) {
	for line := range strings.Lines(hosts) {
		line, _, _ = strings.Cut(line, "#")
		words := strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(" \t\r\n", r) })
		if len(words) > 1 && slices.ContainsFunc(words[1:], func(word string) bool { return strings.EqualFold(strings.TrimSuffix(word, "."), name) }) {
			address, _ := netip.ParseAddr(words[0])
			all = append(all, address.Unmap())
		}
	}
	return all
}

// isProxied reports whether CRI-O would send requests for a host to a proxy, if its environment is
// that of the kubelet. It reads NO_PROXY as Go programs do.
func isProxied(getenv func(string) string, host string) bool {
	if cmp.Or(getenv("HTTPS_PROXY"), getenv("https_proxy")) == "" {
		return false
	}
	for entry := range strings.SplitSeq(cmp.Or(getenv("NO_PROXY"), getenv("no_proxy")), ",") {
		entry = strings.TrimSuffix(strings.ToLower(strings.TrimSpace(entry)), ":443")
		domain := "." + strings.TrimPrefix(strings.TrimPrefix(entry, "*"), ".")
		if entry == "*" || entry == host || domain != "." && strings.HasSuffix(host, domain) {
			return false
		}
	}
	return true
}
