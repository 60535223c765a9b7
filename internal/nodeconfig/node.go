package nodeconfig

import (
	"net/url"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/strictyaml"
	"github.com/pullpass/pullpass/internal/term"
)

const (
	configFlagName = "--image-credential-provider-config"
	binDirFlagName = "--image-credential-provider-bin-dir"

	tokenGate  = "KubeletServiceAccountTokenForCredentialProviders"
	verifyGate = "KubeletEnsureSecretPulledImages"
)

// flags judges a text that holds the kubelet's command line: a unit of systemd,
// a file of variables, a script.
func (l *linter) flags(name string, data []byte) {
	found := map[string]string{}
	lines := map[string]int{}
	for i, text := range strings.Split(string(data), "\n") {
		if strings.HasPrefix(strings.TrimSpace(text), "#") {
			continue
		}
		words := strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" \t\"'\\", r) })
		for j, word := range words {
			// A unit writes Environment="NAME=--flag".
			if at := strings.Index(word, "--"); at > 0 {
				word = word[at:]
			}
			flag, value, hasValue := strings.Cut(word, "=")
			if !hasValue && j+1 < len(words) {
				value = words[j+1]
			}
			switch flag {
			case configFlagName, binDirFlagName:
				found[flag], lines[flag] = value, i+1
			case "--feature-gates":
				for gate := range strings.SplitSeq(value, ",") {
					if strings.EqualFold(gate, tokenGate+"=false") {
						l.find(at(name, i+1, flag), "switches the tokens off (%s); remove it", gate)
					}
				}
			}
		}
	}
	for _, flag := range []string{configFlagName, binDirFlagName} {
		if _, ok := found[flag]; !ok {
			l.find(at(name, 1, flag), "is missing, and the kubelet runs no plugin; add both flags (see kubelet-config --part flags)")
		}
	}
	if dir, ok := found[binDirFlagName]; ok && l.target.PluginDir != "" && strings.TrimRight(dir, "/") != strings.TrimRight(l.target.PluginDir, "/") {
		l.find(at(name, lines[binDirFlagName], binDirFlagName), "is another directory than --plugin-dir (%s); correct one of them", term.QuoteValue(dir))
	}
}

// kubeletConfiguration judges the few settings that concern the plugin: its
// files are named by flags alone.
func (l *linter) kubeletConfiguration(d *document) {
	if gates := strictyaml.Field(d.root, "featureGates"); gates != nil {
		for _, gate := range []struct{ name, consequence string }{
			{tokenGate, "the kubelet refuses tokenAttributes"},
			{verifyGate, "any pod of the node may use an image that another's ServiceAccount pulled"},
		} {
			if n := strictyaml.Field(gates, gate.name); n != nil && n.Value == "false" {
				l.find(d.at("featureGates."+gate.name), "is false: %s; remove it", gate.consequence)
			}
		}
	}
	const policy = "imagePullCredentialsVerificationPolicy"
	if n := strictyaml.Field(d.root, policy); n != nil && n.Value == "NeverVerify" {
		l.find(d.at(policy), "is NeverVerify: any pod of the node may use an image that another's ServiceAccount pulled; write NeverVerifyPreloadedImages or AlwaysVerify")
	}
}

// tomlTable is a table of a hosts.toml with the keys that are judged.
type tomlTable struct {
	name string // as written; empty: the top of the file
	line int
	keys map[string]tomlValue
}

type tomlValue struct {
	text string // without the quotes of a string
	line int
}

// hosts judges a hosts.toml of containerd by what containerd does with it: each
// [host."URL"] is an endpoint, in the order of the file, and the last is
// server with the keys at the top.
func (l *linter) hosts(name string, data []byte) {
	tables := l.readTOML(name, data)
	top := tables[0]
	if !slices.ContainsFunc(tables, func(t *tomlTable) bool { return t.name == "host" || strings.HasPrefix(t.name, "host.") }) {
		// Seen with 1.6: "invalid `host` tree" in its log, and the directory is read as if it held certificates alone.
		l.find(at(name, 1, "host"), "is missing, and containerd 1 ignores a file without such a table; add [host] at the end")
	}
	if _, found := top.keys["server"]; !found {
		top.keys["server"] = tomlValue{"https://" + l.target.Registry, 1}
	}
	server := top.keys["server"]
	top.line = server.line
	seen := false
	for i, table := range append(tables[1:], top) {
		address, field := server.text, "server"
		if i < len(tables)-1 {
			isHost, known := false, false
			if address, isHost, known = hostOfTable(table.name); !known {
				l.find(at(name, table.line, ""), `is not read here; write [host."https://%s"]`, l.target.Registry)
			}
			if !isHost {
				continue
			}
			field = "host"
		}
		if !strings.Contains(address, "://") {
			address = "https://" + address
		}
		// The URL is not shown as it is: it may hold a password.
		u, err := url.Parse(address)
		if err != nil || u.Host == "" {
			l.find(at(name, table.line, field), "is not a URL; write https://%s", l.target.Registry)
			continue
		}
		if u.Scheme != "https" {
			l.find(at(name, table.line, field), "sends the pod's token in the clear (%s); write https", term.QuoteValue(u.Scheme))
		}
		if strings.TrimSuffix(u.Host, ":443") != strings.TrimSuffix(l.target.Registry, ":443") {
			l.find(at(name, table.line, field), "is another registry than %s (%s), and containerd offers the pod's token to it too; remove it, or name it in --registry", l.target.Registry, term.QuoteValue(u.Host))
			continue
		}
		if v, found := table.keys["skip_verify"]; found && v.text != "false" {
			l.find(at(name, v.line, "skip_verify"), "hands the pod's token to whoever answers (%s); remove it, and name the CA in ca", term.QuoteValue(v.text))
		}
		client, found := table.keys["client"]
		if l.target.Certificate && !seen && (!found || strings.Trim(client.text, "[] ") == "") {
			l.find(at(name, table.line, "client"), "is missing: node.proof of cluster %s is %s and asks for the kubelet's certificate; write client = \"/var/lib/kubelet/pki/kubelet-client-current.pem\"", l.target.Cluster.Name, l.target.Cluster.Node.Proof.Mode)
		}
		// What comes after the first endpoint for the registry is its fallback.
		seen = true
	}
	for _, table := range tables {
		for key, value := range table.keys {
			if strings.EqualFold(key, "authorization") {
				l.find(at(name, value.line, "header"), "sends a credential of its own to Pullpass too, which refuses two in one request; remove Authorization")
			}
		}
	}
}

// hostOfTable returns the URL of host."URL". Of other tables only host, header
// and host."URL".header are known.
func hostOfTable(name string) (address string, isHost, known bool) {
	rest, found := strings.CutPrefix(name, "host.")
	if !found || !strings.HasPrefix(rest, `"`) && !strings.HasPrefix(rest, "'") {
		return "", false, name == "host" || name == "header"
	}
	address, below, closed := strings.Cut(rest[1:], rest[:1])
	return address, closed && below == "", closed && (below == "" || below == ".header")
}

// readTOML reads as much of TOML as a hosts.toml has: tables and keys with
// strings, lists and words. What else there is becomes a finding, because what
// cannot be read cannot be judged. It keeps the lines, which a parser does not.
func (l *linter) readTOML(name string, data []byte) []*tomlTable {
	tables := []*tomlTable{{line: 1, keys: map[string]tomlValue{}}}
	open, list := 0, ""
	for i, text := range strings.Split(string(data), "\n") {
		code, depth, closed := tomlCode(text)
		table := tables[len(tables)-1]
		key, value, isKey := strings.Cut(code, "=")
		key = strings.Trim(key, " \t\"'")
		switch {
		case !closed:
			l.find(at(name, i+1, ""), "has a string that does not end on its line; write it on one line")
		case open > 0:
			v := table.keys[list]
			table.keys[list] = tomlValue{v.text + code, v.line}
			open += depth
		case code == "":
		case strings.HasPrefix(code, "[") && strings.HasSuffix(code, "]") && !strings.HasPrefix(code, "[["):
			tables = append(tables, &tomlTable{strings.TrimSpace(code[1 : len(code)-1]), i + 1, map[string]tomlValue{}})
		case isKey && !strings.ContainsAny(key, `."' `) && !strings.HasPrefix(strings.TrimSpace(value), "{"):
			value = strings.TrimSpace(value)
			if len(value) > 1 && (value[0] == '"' || value[0] == '\'') {
				value = value[1 : len(value)-1]
			}
			if _, twice := table.keys[key]; twice {
				l.find(at(name, i+1, key), "is there twice; keep one")
			}
			table.keys[key] = tomlValue{value, i + 1}
			open, list = depth, key
		default:
			l.find(at(name, i+1, ""), `is not read here; write each setting as KEY = VALUE on a line of its own, below [host."URL"]`)
		}
	}
	return tables
}

// tomlCode returns a line without its comment, how many brackets it opens more
// than it closes, and whether every string on it ends.
func tomlCode(line string) (code string, depth int, closed bool) {
	quote := byte(0)
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case quote != 0:
			if c == '\\' && quote == '"' {
				i++
			} else if c == quote {
				quote = 0
			}
		case c == '"' || c == '\'':
			quote = c
		case c == '#':
			return strings.TrimSpace(line[:i]), depth, true
		case c == '[':
			depth++
		case c == ']':
			depth--
		}
	}
	return strings.TrimSpace(line), depth, quote == 0
}
