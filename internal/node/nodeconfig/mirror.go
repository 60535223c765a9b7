package nodeconfig

import (
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/config"
)

// mirrored returns the upstreams that the gateway can replace on nodes.
func mirrored(cfg *config.Config, mirrors []string) (registries []string, err error) {
	if cfg.Gateway == nil {
		return nil, fmt.Errorf("--mirror %s needs gateway, which is not configured; write gateway: {url: https://gateway.example.com, service: gateway.example.com} and upstreams: [{name: ghcr.io}]", term.QuoteValue(mirrors[0]))
	}
	for _, name := range mirrors {
		switch {
		case cfg.Upstream(name) == nil:
			return nil, fmt.Errorf("--mirror %s is not configured; upstreams[].name are: %q", term.QuoteValue(name), upstreamNames(cfg))
		case !config.IsRegistryHost(name):
			return nil, fmt.Errorf("--mirror %s is not a registry's host, and nodes take it for a repository of docker.io; write %s/%s/ at the beginning of images' names, and here --registry %s",
				term.QuoteValue(name), gatewayHost(cfg), name, gatewayHost(cfg))
		case !slices.Contains(registries, name):
			registries = append(registries, name)
		}
	}
	return registries, nil
}

func upstreamNames(cfg *config.Config) (names []string) {
	for i := range cfg.Upstreams {
		names = append(names, cfg.Upstreams[i].Name)
	}
	return names
}

func gatewayHost(cfg *config.Config) string {
	_, host, _ := strings.Cut(cfg.Gateway.URL, "://")
	return host
}

// isAddress reports whether a URL has an IP address in place of a name.
func isAddress(address string) bool {
	u, err := url.Parse(address)
	if err != nil {
		return false // the configuration was already judged
	}
	_, err = netip.ParseAddr(u.Hostname())
	return err == nil
}

// original is the host that runtimes ask by default for the images of a registry.
func original(registry string) string {
	if registry == dockerHub {
		return "registry-1.docker.io"
	}
	return registry
}

// leak describes the effect of a hosts.toml that containerd cannot decode. Versions 1.6, 1.7 and
// 2.4 continued as if there were no file. The registry can then name any token endpoint.
func leak(registry string) string {
	return fmt.Sprintf("the pod's token then goes to %s as a password", original(registry))
}

// mirrorOf returns the registry of a hosts.toml. containerd determines it by the directory. A copy
// elsewhere is recognized by its server.
func (l *linter) mirrorOf(name string, top *tomlTable) (registry string, known bool) {
	mirrors := l.target.Registries
	directory := filepath.Base(filepath.Dir(name))
	i := slices.Index(mirrors, directory)
	if i < 0 {
		i = slices.IndexFunc(mirrors, func(mirror string) bool {
			return strings.HasSuffix(strings.TrimSuffix(top.keys["server"].text, "/"), "/v2/"+mirror)
		})
	}
	if len(mirrors) == 1 {
		i = 0
	}
	if i < 0 {
		l.find(at(name, 0, ""), "is for none of %q, by its directory and its server; save it as %s/NAME/hosts.toml", mirrors, certsDir)
		return "", false
	}
	if inCertsDir := filepath.Base(filepath.Dir(filepath.Dir(name))) == filepath.Base(certsDir); inCertsDir && directory != mirrors[i] {
		problem := "is in the directory of other images (%s): " + leak(mirrors[i])
		if directory == "_default" {
			problem = "is for every registry without a directory of its own (%s), and their images are asked for as those of " + mirrors[i]
		}
		l.find(at(name, 0, ""), problem+"; save it as %s/%s/hosts.toml", term.QuoteValue(directory), certsDir, mirrors[i])
	}
	return mirrors[i], true
}

// mirrorForm finds faults that make containerd read the file differently than intended. Only this
// file keeps the pod's token from the registry.
func (l *linter) mirrorForm(h *hostsFile) {
	top := h.tables[0]
	for key, remedy := range map[string]string{"override_path": "write true", "skip_verify": "remove it"} {
		if v, found := top.keys[key]; found && !v.isBool() {
			l.find(h.at(v.line, key), "must be true or false, in lower case and without quotes (%s), or containerd cannot read the file: %s; %s", term.QuoteValue(v.text), leak(h.registry), remedy)
		}
	}
	switch v, found := top.keys["override_path"]; {
	case !found:
		l.find(h.at(top.line, "override_path"), "is missing, and containerd would ask %s/v2, where nothing is; write override_path = true above [host]", l.target.server(h.registry))
	case v.text == "false" && v.isBool():
		l.find(h.at(v.line, "override_path"), "is false, and containerd would ask %s/v2, where nothing is; write true", l.target.server(h.registry))
	}
	if v, found := top.keys["capabilities"]; found && !capable(v.text) {
		l.find(h.at(v.line, "capabilities"), "are not pull and resolve (%s): without them containerd pulls nothing, and with a word that it does not know it cannot read the file: %s; remove it, which means all",
			term.QuoteValue(v.text), leak(h.registry))
	}
	for _, table := range h.tables[1:] {
		if table.name != "host" {
			continue
		}
		for _, key := range slices.Sorted(maps.Keys(table.keys)) {
			l.find(h.at(table.keys[key].line, key), "is below [host], where containerd expects a mirror, and cannot read the file: %s; move it above [host]", leak(h.registry))
		}
	}
}

// capable accepts the capabilities that containerd knows since 1.6; referrers came with 2.2.
func capable(list string) bool {
	words := strings.FieldsFunc(strings.ToLower(list), func(r rune) bool { return strings.ContainsRune("[]\"', \t", r) })
	isKnown := func(word string) bool { return word == "pull" || word == "resolve" || word == "push" }
	return strings.HasPrefix(list, "[") && !slices.ContainsFunc(words, func(word string) bool { return !isKnown(word) }) &&
		slices.Contains(words, "pull") && slices.Contains(words, "resolve")
}

// mirrorEndpoint judges an endpoint of a registry behind the gateway. It reports whether the
// endpoint is the gateway, in the form of the server. After any error of a mirror, containerd
// continues with the next endpoint and the same credential.
func (l *linter) mirrorEndpoint(h *hostsFile, e, server endpoint) bool {
	want := l.target.server(h.registry)
	gateway, err := url.Parse(want)
	if err != nil {
		return false // the configuration was already judged
	}
	place := h.at(e.line, e.field)
	u, isURL := containerdURL(e.address)
	switch isGateway := isURL && sameHost(u.Host, gateway.Host); {
	case e.isServer && e.address == "":
		l.find(place, "is missing: %s; write server = %q", leak(h.registry), want)
		return false
	case !isURL:
		remedy := "remove it"
		if e.isServer {
			remedy = "write " + want
		}
		l.find(place, "is not a URL, and containerd cannot read the file: %s; %s", leak(h.registry), remedy)
		return false
	case e.isServer && !isGateway:
		l.find(place, "is not the gateway (%s), and its token endpoint is sent the pod's token as a password; write %s", term.QuoteValue(u.Host), want)
		return false
	case !isGateway:
		l.find(place, "is not the gateway (%s), and containerd offers the pod's token to it too; remove it", term.QuoteValue(u.Host))
		return false
	}
	if u.Scheme == "http" && gateway.Scheme == "https" {
		l.find(place, "sends the pod's token in the clear (%s); write https", term.QuoteValue(u.Scheme))
	} else if u.Scheme != gateway.Scheme {
		l.find(place, "is not the scheme of gateway.url (%s); write %s", term.QuoteValue(u.Scheme), want)
	}
	if !e.isServer {
		l.listed(place, h.registry, server, gateway.Host)
		return false
	}
	if path.Clean(u.Path) != gateway.Path {
		l.find(place, "is another path of the gateway than that of %s (%s); write %s", h.registry, term.QuoteValue(u.Path), want)
	}
	return true
}

// listed describes the effect of the gateway as a mirror, which depends on the next endpoint.
func (l *linter) listed(place place, registry string, server endpoint, gateway string) {
	next := original(registry)
	if u, isURL := containerdURL(server.address); isURL {
		next = u.Host
	}
	if sameHost(next, gateway) {
		l.find(place, "lists the gateway, which is the server already: whatever fails is asked twice; remove it, and leave [host] empty")
		return
	}
	l.find(place, "lists the gateway as a mirror: after any error of it containerd asks %s, whose token endpoint is sent the pod's token as a password; make the gateway the server: server = %q, override_path = true, and [host] without mirrors",
		term.CutValue(next), l.target.server(registry))
}

// containerdURL parses the address of an endpoint as containerd does.
func containerdURL(address string) (*url.URL, bool) {
	if !strings.HasPrefix(address, "http") {
		address = "https://" + address
	}
	u, err := url.Parse(address)
	return u, err == nil && u.Host != ""
}
