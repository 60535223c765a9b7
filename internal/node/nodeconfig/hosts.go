package nodeconfig

import (
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/node/containerd"
	"github.com/pullpass/pullpass/internal/node/hoststoml"
)

const hostsName = "hosts.toml"

// hostsFile is a hosts.toml of containerd.
type hostsFile struct {
	name     string
	registry string       // the file applies to its images
	tables   []*tomlTable // the first is the top level of the file
	refused  error        // why the plugin gives no token with it, if the gateway has to be its server
}

func (h *hostsFile) at(line int, field string) place { return at(h.name, line, field) }

// endpoint is a host that containerd asks.
type endpoint struct {
	table    *tomlTable // with the endpoint's keys
	isServer bool
	field    string
	address  string // as written
	line     int
}

// containerd judges containerd's configuration: whether it reads any hosts.toml.
func (l *linter) containerd(name string, data []byte) {
	s, err := containerd.Parse(data)
	isKnown := func(dir string) bool { return path.IsAbs(dir) && !strings.Contains(dir, "$") }
	if err == nil && s.ConfigPath != "" && !slices.ContainsFunc(s.Dirs(), func(dir string) bool { return !isKnown(dir) }) {
		l.searched = append(l.searched, searched{name, s.ConfigPath, s.Dirs()})
	}
	switch {
	case err != nil:
		l.find(at(name, 0, ""), "%v", err)
	case s.ConfigPath == "":
		l.find(at(name, 0, "config_path"), "is missing in the section of its version, so containerd may read no hosts.toml; write config_path = %q below the registry of its images", certsDir)
	case s.IsUnread():
		l.find(at(name, 0, "config_path"), "%s", s.ListProblem())
	}
}

// hosts judges a hosts.toml as containerd reads it: each [host."URL"] is an endpoint, in the order
// of the file. The last one is server with the top-level keys.
func (l *linter) hosts(name string, data []byte) {
	h := &hostsFile{name: name, registry: l.target.Registries[0], tables: l.readTOML(name, data)}
	isMirror := l.target.Gateway != ""
	if isMirror {
		var known bool
		if h.registry, known = l.mirrorOf(name, h.tables[0]); !known {
			return
		}
	}
	l.judged[l.target.hostsOf(h.registry)] = true
	l.hostsFiles = append(l.hostsFiles, h)
	if isMirror {
		h.refused = hoststoml.VerifyContent(data, l.target.server(h.registry))
	}
	if !slices.ContainsFunc(h.tables, func(t *tomlTable) bool { return t.name == "host" || strings.HasPrefix(t.name, "host.") }) {
		// As seen with 1.6: it logs "invalid `host` tree", and reads the directory as if it
		// contained only certificates.
		consequence := ""
		if isMirror {
			consequence = ": " + leak(h.registry)
		}
		l.find(h.at(1, "host"), "is missing, and containerd 1 ignores a file without such a table%s; add [host] at the end", consequence)
	}
	endpoints := l.endpoints(h)
	server := endpoints[len(endpoints)-1]
	seen := false
	for _, e := range endpoints {
		isOurs := false
		if isMirror {
			isOurs = l.mirrorEndpoint(h, e, server)
		} else {
			isOurs = l.ownEndpoint(h, e)
		}
		if !isOurs {
			continue
		}
		if v, found := e.table.keys["skip_verify"]; found && v.text != "false" {
			l.find(h.at(v.line, "skip_verify"), "sends the pod's token to any server that answers (%s); remove it, and name the CA in ca", term.QuoteValue(v.text))
		}
		if l.target.Certificate && !seen && strings.Trim(e.table.keys["client"].text, "[] ") == "" {
			l.find(h.at(e.line, "client"), "is missing: node.proof of cluster %s is %s and asks for the kubelet's certificate; write client = %q", l.target.Cluster.Name, l.target.Cluster.Node.Proof.Mode, KubeletCertificate)
		}
		// The endpoints after the first one for the registry are its fallbacks.
		seen = true
	}
	if isMirror {
		l.mirrorForm(h)
	}
	for _, table := range h.tables {
		for key, value := range table.keys {
			if strings.EqualFold(key, "authorization") {
				l.find(h.at(value.line, "header"), "sends a credential of its own to Pullpass too, which refuses two in one request; remove Authorization")
			}
		}
	}
}

// endpoints returns the hosts of the file, with the server last.
func (l *linter) endpoints(h *hostsFile) (all []endpoint) {
	for _, table := range h.tables[1:] {
		address, isHost, known := hostOfTable(table.name)
		switch {
		case !known:
			l.find(h.at(table.line, ""), "is not read here; %s", l.target.hostRemedy())
		case isHost:
			all = append(all, endpoint{table: table, field: "host", address: address, line: table.line})
		case address != "" && !h.hasHost(address): // the table of a host's header makes that host, too
			all = append(all, endpoint{table: &tomlTable{line: table.line}, field: "host", address: address, line: table.line})
		}
	}
	top := h.tables[0]
	server, found := top.keys["server"]
	if !found {
		server.line = top.line
	}
	if server.text == "" && l.target.Gateway == "" {
		server.text = l.target.server(h.registry) // the default of containerd
	}
	return append(all, endpoint{table: top, isServer: true, field: "server", address: server.text, line: server.line})
}

// hasHost reports whether the file has a table host."URL".
func (h *hostsFile) hasHost(address string) bool {
	return slices.ContainsFunc(h.tables, func(t *tomlTable) bool {
		other, isHost, _ := hostOfTable(t.name)
		return isHost && other == address
	})
}

// ownEndpoint judges an endpoint of a registry that is asked directly, and reports whether it is
// that registry.
func (l *linter) ownEndpoint(h *hostsFile, e endpoint) bool {
	address := e.address
	if !strings.Contains(address, "://") {
		address = "https://" + address
	}
	// Do not show the URL as it is written: it may contain a password.
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		l.find(h.at(e.line, e.field), "is not a URL; write https://%s", h.registry)
		return false
	}
	if u.Scheme != "https" {
		l.find(h.at(e.line, e.field), "sends the pod's token in the clear (%s); write https", term.QuoteValue(u.Scheme))
	}
	if !sameHost(u.Host, h.registry) {
		l.find(h.at(e.line, e.field), "is another registry than %s (%s), and containerd offers the pod's token to it too; remove it, or name it in --registry", h.registry, term.QuoteValue(u.Host))
		return false
	}
	return true
}

// sameHost compares hosts of https, where the default port can be left out.
func sameHost(a, b string) bool {
	return strings.EqualFold(strings.TrimSuffix(a, ":443"), strings.TrimSuffix(b, ":443"))
}

// hostRemedy returns the text that replaces an unread table.
func (k Target) hostRemedy() string {
	if k.Gateway != "" {
		return "remove it: below [host], nothing is needed"
	}
	return `write [host."` + k.server(k.Registries[0]) + `"]`
}

// hostOfTable returns the URL of host."URL". Other known tables are only host, header and
// host."URL".header.
func hostOfTable(name string) (address string, isHost, known bool) {
	rest, found := strings.CutPrefix(name, "host.")
	if !found || !strings.HasPrefix(rest, `"`) && !strings.HasPrefix(rest, "'") {
		return "", false, name == "host" || name == "header"
	}
	address, below, closed := strings.Cut(rest[1:], rest[:1])
	return address, closed && below == "", closed && (below == "" || below == ".header")
}
