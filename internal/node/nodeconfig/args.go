package nodeconfig

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/config"
)

// args judges the arguments of the plugin as the plugin reads them. It returns the hosts to which
// they restrict the plugin.
func (l *linter) args(p *provider) (hosts []string) {
	args := p.config.Args
	gateway, named := false, false
	dir := certsDir
	for i := 0; i < len(args); i++ {
		place := p.at(fmt.Sprintf("args[%d]", i))
		name, value, found := strings.Cut(args[i], "=")
		known := slices.Contains([]string{"--registry", "--gateway", "--certs-dir"}, name)
		if known && !found && i+1 < len(args) {
			i++
			value, found = args[i], true
		}
		switch {
		case args[i] == byName && !named:
			named = true
		case !known || !found:
			l.find(place, "is not known to the plugin, which refuses to work; write --registry=HOST or nothing")
		case name == "--registry":
			if !config.IsRegistryHost(value) {
				l.find(place, "is not a registry's host; write host or host:port as in the names of images")
			}
		case name == "--gateway":
			gateway = true
			l.gatewayArgument(place, value)
		case slices.Contains(args, byName):
			l.find(place, "is beside %s, and the plugin takes only one of them; remove it", byName)
		case !path.IsAbs(value):
			l.find(place, "is not the absolute path of a directory; write where containerd's config_path leads: --certs-dir=%s", certsDir)
			dir = ""
		default:
			dir = value
		}
		if name == "--registry" || !known && name != byName {
			hosts = append(hosts, value)
		}
	}
	for _, registry := range l.target.Registries {
		if len(hosts) > 0 && p.matches(registry) && !slices.Contains(hosts, registry) {
			l.find(p.at("args"), "do not hold %s, so the plugin refuses its images; add --registry=%s", registry, registry)
		}
	}
	if l.target.Gateway != "" && !gateway && p.matchesAny(l.target.Registries) {
		l.find(p.at("args"), "do not name the gateway: if another program removes or rewrites hosts.toml, as Spegel does, the plugin still gives the token, and %s; add --gateway=%s",
			leak(l.target.Registries[slices.IndexFunc(l.target.Registries, p.matches)]), l.target.Gateway)
	}
	if named != l.target.CRIO && gateway {
		remedy := "remove " + byName + ", or give --cri-o here"
		if l.target.CRIO {
			remedy = "add " + byName
		}
		l.find(p.at("args"), "are not for the runtime of the nodes, so the plugin compares the wrong thing and gives no token; %s", remedy)
	}
	if named {
		l.shortNames(p)
	}
	if gateway && !named && l.target.Gateway != "" {
		p.certsDir = dir
	}
	l.guarded = l.guarded || gateway
	return hosts
}

// shortNames finds docker.io in a provider for CRI-O. A wide pattern may match it beside registries
// that --registry names.
func (l *linter) shortNames(p *provider) {
	find := func(field string, i int) {
		l.find(p.at(fmt.Sprintf("%s[%d]", field, i)), "is for %s beside %s, and the plugin gives no token for its images: %s; remove it, and name images by the gateway's host: HOST/%s/library/nginx", dockerHub, byName, shortNames, dockerHub)
	}
	for i, pattern := range p.config.MatchImages {
		if parsed, _ := parseImagePattern(pattern); !parsed.wide() && registryDiffers(pattern, dockerHub) == "" {
			find("matchImages", i)
		}
	}
	for i, arg := range p.config.Args {
		if strings.TrimPrefix(arg, "--registry=") == dockerHub {
			find("args", i)
		}
	}
}

// gatewayArgument judges --gateway, which the plugin compares with each hosts.toml.
func (l *linter) gatewayArgument(place place, value string) {
	switch want := l.target.Gateway; {
	case want == "":
		l.find(place, "is for registries behind the gateway, and %s is asked itself; remove it, or give --mirror in place of --registry", l.target.Registries[0])
	case value != want:
		l.find(place, "is not gateway.url (%s), so the plugin gives no token; write --gateway=%s", term.QuoteValue(value), want)
	}
}

// refusedHosts finds files with which the plugin gives no token, although they have no other fault.
func (l *linter) refusedHosts() {
	if !l.guarded {
		return
	}
	for _, h := range l.hostsFiles {
		if h.refused != nil && !slices.ContainsFunc(l.findings, func(f *finding) bool { return f.file == h.name }) {
			l.find(at(h.name, 0, ""), "%v, so the plugin, which is told --gateway, gives no token for %s; write it as kubelet-config --part hosts prints it", h.refused, h.registry)
		}
	}
}
