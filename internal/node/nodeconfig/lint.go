package nodeconfig

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/pullpass/pullpass/internal/base/file"
	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/config"
)

// maxFindings limits the findings of one document.
const maxFindings = 100

// dropInKind tells a file of the kubelet's --config-dir, also one that is not valid, from a drop-in of
// systemd: both end with .conf.
var dropInKind = regexp.MustCompile(`\bkind["']?\s*:\s*["']?KubeletConfiguration\b`)

// finding is one fault in a file of a node.
type finding struct {
	file    string
	line    int // 0: the whole file
	field   string
	problem string // the fault; its remedy. It shows no value of args and env
}

func (f *finding) Error() string {
	place := f.file
	if f.line > 0 {
		place = fmt.Sprintf("%s:%d", f.file, f.line)
	}
	return strings.Join(config.NonEmpty(place, f.field, f.problem), ": ")
}

// linter judges the files of a node together: a role in one file grants the right that a different
// file needs.
type linter struct {
	target           Target
	files            []string
	documents        []*document
	providers        []*provider
	providerDocument *document // the first document with providers, if any
	roles            []rbacObject
	bindings         []rbacObject
	judged           map[string]bool // parts that the files contain
	hostsFiles       []*hostsFile
	searched         []searched // for hosts files
	configFlags      []flagValue
	guarded          bool // the plugin has --gateway
	images           imageSettings
	findings         []*finding
	remarks          []string // about parts of files that were not judged
}

// document is one document of a YAML or JSON file.
type document struct {
	file    string
	root    *yaml.Node
	settled []string // no more findings about these fields and the fields in them
	found   int      // number of its findings
}

// place is the subject of a finding.
type place struct {
	file     string
	line     int // only without a document; otherwise the field determines it
	field    string
	document *document // nil: not YAML
}

// at returns a place in a file that is not YAML, or a whole file.
func at(file string, line int, field string) place { return place{file, line, field, nil} }

// at returns the place of a field, which may be missing.
func (d *document) at(field string) place {
	return place{file: d.file, field: field, document: d}
}

func (d *document) isSettled(field string) bool {
	return slices.ContainsFunc(d.settled, func(settled string) bool {
		rest, below := strings.CutPrefix(field, settled)
		return below && settled != "" && (rest == "" || rest[0] == '.' || rest[0] == '[')
	})
}

// Lint judges files. Its remarks name the parts that were not judged, and doubtful settings.
func (k Target) Lint(ctx context.Context, files []string) (findings []error, remarks []string) {
	l := &linter{target: k, files: files, judged: map[string]bool{}}
	for _, name := range files {
		l.file(ctx, name)
	}
	l.together()
	for _, part := range k.judgedParts() {
		if !l.judged[part] {
			remarks = append(remarks, fmt.Sprintf("not judged: %s, which is not among the files", part))
		}
	}
	remarks = append(remarks, l.remarks...)
	remarks = append(remarks, l.sharedImages()...)
	return l.result(), remarks
}

// LintHosts judges one hosts.toml that containerd reads for the registry.
func (k Target) LintHosts(name string, content []byte) []error {
	l := &linter{target: k, files: []string{name}, judged: map[string]bool{}}
	l.hosts(name, content)
	return l.result()
}

func (l *linter) find(p place, format string, args ...any) {
	if d := p.document; d != nil {
		if d.isSettled(p.field) {
			return
		}
		if d.found++; d.found > maxFindings {
			return
		}
		p.line = strictyaml.LineOf(d.root, p.field)
	}
	l.findings = append(l.findings, &finding{p.file, p.line, term.Plain(p.field), fmt.Sprintf(format, args...)})
}

func (l *linter) oneOf(p place, value string, allowed ...string) {
	if !slices.Contains(allowed, value) {
		l.find(p, "is unknown (%s); use %s", term.QuoteValue(value), strictyaml.List(allowed))
	}
}

func (l *linter) file(ctx context.Context, name string) {
	data, err := file.ReadArgument(ctx, name, config.MaxBytes)
	if err != nil {
		l.findings = append(l.findings, &finding{problem: err.Error()}) // the error names the file
		return
	}
	if filepath.Base(name) == "config.toml" {
		l.containerd(name, data)
		return
	}
	switch ext := filepath.Ext(name); {
	case slices.Contains([]string{".yaml", ".yml", ".json"}, ext), ext == ".conf" && dropInKind.Match(data):
		l.yaml(name, data)
	case ext == ".toml":
		l.hosts(name, data)
	default:
		l.judged["flags"] = true
		l.flags(name, data)
	}
}

func (l *linter) yaml(name string, data []byte) {
	documents, err := strictyaml.ParseAll(data, config.MaxBytes)
	known := false
	for i, root := range documents {
		if root.ShortTag() == "!!null" {
			continue
		}
		root = strictyaml.Resolve(root)
		if root.Kind != yaml.MappingNode {
			l.find(at(name, root.Line, ""), "must be a mapping (is %s); give a Kubernetes object", strictyaml.Show(root))
			return
		}
		known = l.document(name, i, root) || known
	}
	if err != nil {
		l.find(at(name, 0, ""), "cannot be read (%v); correct the YAML", err)
		return
	}
	if !known {
		l.find(at(name, 0, ""), "holds nothing that is judged; give a CredentialProviderConfig, a KubeletConfiguration, roles and bindings, or kubelet-arg of k3s and RKE2")
	}
}

// document recognizes documents by their kind. It also recognizes a CredentialProviderConfig with a
// wrong kind by its fields.
func (l *linter) document(name string, i int, root *yaml.Node) (known bool) {
	d := &document{file: name, root: root}
	kind := kindOf(root)
	known = true
	switch {
	case kind == "KubeletConfiguration":
		l.kubeletConfiguration(d)
	case kind == "CredentialProviderConfig" || strictyaml.Field(root, "providers") != nil:
		l.judged["provider"] = true
		l.readProviders(d, i > 0)
		if l.providerDocument == nil {
			l.providerDocument = d
		}
	case kind == "List":
		known = false
		if items := strictyaml.Field(root, "items"); items != nil && items.Kind == yaml.SequenceNode {
			for i, item := range items.Content {
				known = l.rbacObject(d, fmt.Sprintf("items[%d]", i), strictyaml.Resolve(item)) || known
			}
		}
	default:
		known = l.rbacObject(d, "", root) || l.rancher(name, root)
	}
	l.documents = append(l.documents, d)
	return known
}

// kindOf returns the kind of an object, or an empty string.
func kindOf(n *yaml.Node) string {
	if n.Kind == yaml.MappingNode {
		if kind := strictyaml.Field(n, "kind"); kind != nil {
			return kind.Value
		}
	}
	return ""
}

// together runs the checks that need all files.
func (l *linter) together() {
	l.providerNames()
	if l.target.PluginDir != "" {
		l.pluginDir(l.target.PluginDir)
		for _, p := range l.providers {
			l.binary(p, l.target.PluginDir)
		}
	}
	ours := l.ours()
	audiences := map[string]place{}
	for _, p := range ours {
		l.usable(p)
		if audience := p.config.TokenAttributes.Audience; slices.Contains(l.target.Cluster.Audiences, audience) {
			audiences[audience] = p.at("tokenAttributes.serviceAccountTokenAudience")
		}
	}
	if l.judged["provider"] {
		l.matched(ours)
	}
	if l.judged["rbac"] {
		l.rights(audiences)
	}
	l.kubeletImages()
	l.refusedHosts()
	l.directories()
	l.configFiles(ours)
}

// result returns all findings, sorted by file in the given order, and by line.
func (l *linter) result() []error {
	for _, d := range l.documents {
		if more := d.found - maxFindings; more > 0 {
			l.find(at(d.file, 0, ""), "has %d more findings in a document; correct those that are named", more)
		}
	}
	slices.SortStableFunc(l.findings, func(a, b *finding) int {
		return cmp.Or(cmp.Compare(slices.Index(l.files, a.file), slices.Index(l.files, b.file)), cmp.Compare(a.line, b.line))
	})
	all := make([]error, len(l.findings))
	for i, f := range l.findings {
		all[i] = f
	}
	return all
}
