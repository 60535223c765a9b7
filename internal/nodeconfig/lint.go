package nodeconfig

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/file"
	"github.com/pullpass/pullpass/internal/strictyaml"
	"github.com/pullpass/pullpass/internal/term"
)

// finding is one mistake in a file of a node.
type finding struct {
	file    string
	line    int // 0: the file as a whole
	field   string
	problem string // what is wrong; remedy
}

func (f *finding) Error() string {
	place := f.file
	if f.line > 0 {
		place = fmt.Sprintf("%s:%d", f.file, f.line)
	}
	return strings.Join(config.NonEmpty(place, f.field, f.problem), ": ")
}

// linter judges the files of a node together: a role in one file is the
// right to what another file asks for.
type linter struct {
	target    Target
	files     []string
	documents []*lintedDocument
	providers []*providerDocument
	roles     []rbacObject
	bindings  []rbacObject
	judged    map[string]bool // parts that were among the files
	findings  []*finding
}

// lintedDocument is one document of a YAML or JSON file. Its faults have the
// paths of fields, from which the lines are found.
type lintedDocument struct {
	*strictyaml.Validator
	root *yaml.Node
}

// Lint judges files, and names the parts that are in none of them.
func (k Target) Lint(ctx context.Context, files []string) (findings []error, notJudged []string) {
	l := &linter{target: k, files: files, judged: map[string]bool{}}
	for _, name := range files {
		l.file(ctx, name)
	}
	l.together()
	for _, part := range Parts() {
		if !l.judged[part] {
			notJudged = append(notJudged, part)
		}
	}
	return l.result(), notJudged
}

func (l *linter) find(file string, line int, field, format string, args ...any) {
	l.findings = append(l.findings, &finding{file, line, field, fmt.Sprintf(format, args...)})
}

func (l *linter) file(ctx context.Context, name string) {
	data, err := file.ReadArgument(ctx, name, config.MaxBytes)
	if err != nil {
		l.findings = append(l.findings, &finding{problem: err.Error()}) // the error names the file
		return
	}
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
		l.yaml(name, data)
	case ".toml":
		l.judged["hosts"] = true
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
			l.find(name, root.Line, "", "must be a mapping (is %s); give a Kubernetes object", strictyaml.Show(root))
			return
		}
		known = l.document(name, i, root) || known
	}
	if err != nil {
		l.find(name, 0, "", "cannot be read (%v); correct the YAML", err)
		return
	}
	if !known {
		l.find(name, 0, "", "holds nothing that is judged; give a CredentialProviderConfig, a KubeletConfiguration, or roles and bindings")
	}
}

// document takes what it knows by its kind, and by what makes a
// CredentialProviderConfig whose kind is wrong.
func (l *linter) document(name string, i int, root *yaml.Node) (known bool) {
	d := &lintedDocument{strictyaml.NewValidator(strictyaml.NewDecoder(name)), root}
	kind := kindOf(root)
	known = true
	switch {
	case kind == "KubeletConfiguration":
		d.kubeletConfiguration()
	case kind == "CredentialProviderConfig" || strictyaml.Field(root, "providers") != nil:
		l.judged["provider"] = true
		if i > 0 {
			d.Fault("kind", "is the second document of the file (%s), and the kubelet reads the first only; give it a file of its own", term.QuoteValue(kind))
		}
		l.providers = append(l.providers, readProviders(d))
	case kind == "List":
		known = false
		if items := strictyaml.Field(root, "items"); items != nil && items.Kind == yaml.SequenceNode {
			for i, item := range items.Content {
				known = l.rbacObject(d, fmt.Sprintf("items[%d]", i), strictyaml.Resolve(item)) || known
			}
		}
	default:
		known = l.rbacObject(d, "", root)
	}
	if known {
		l.documents = append(l.documents, d)
	}
	return known
}

// kindOf returns the kind of an object, or nothing.
func kindOf(n *yaml.Node) string {
	if n.Kind == yaml.MappingNode {
		if kind := strictyaml.Field(n, "kind"); kind != nil {
			return kind.Value
		}
	}
	return ""
}

// together judges what needs all files.
func (l *linter) together() {
	l.providerNames()
	if l.target.PluginDir != "" {
		for _, p := range l.all() {
			p.binary(l.target.PluginDir)
		}
	}
	ours := l.ours()
	audiences := map[string]rbacPlace{}
	for _, p := range ours {
		p.judge(l.target)
		if audience := p.provider().TokenAttributes.Audience; slices.Contains(l.target.Cluster.Audiences, audience) {
			audiences[audience] = rbacPlace{p.lintedDocument, p.path() + ".tokenAttributes.serviceAccountTokenAudience"}
		}
	}
	if l.judged["provider"] {
		l.matched(ours)
	}
	if l.judged["rbac"] {
		l.rights(audiences)
	}
}

// result returns all findings by file, as they were given, and line.
func (l *linter) result() []error {
	for _, d := range l.documents {
		for _, fault := range d.Faults {
			l.findings = append(l.findings, &finding{d.File, strictyaml.LineOf(d.root, fault.Path), fault.Path, fault.Problem})
		}
		if d.More > 0 {
			l.find(d.File, 0, "", "has %d more findings in a document; correct those that are named", d.More)
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
