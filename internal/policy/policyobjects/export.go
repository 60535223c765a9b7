package policyobjects

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"

	"github.com/pullpass/pullpass/internal/base/names"
	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/pattern"
)

// ToObject turns a policy file into an AccessPolicy of that name. A part that an object cannot
// express is an error, and has to stay in a file.
func ToObject(name string, file policy.File) ([]byte, error) {
	if !names.IsSubdomain(name) {
		return nil, fmt.Errorf("%s is not a name: write lower-case letters, digits, '-' and '.'", term.QuoteName(name))
	}
	var faults strictyaml.Faults
	document, ok := strictyaml.ParseDocument(file.Name, file.Data, policy.MaxBytes, &faults, "write rules")
	if !ok {
		return nil, faults.Err()
	}
	// The file may have denials alone, although no proxy accepts it as its only file.
	fields, _ := document.Value.(map[string]any)
	if !faults.AcceptVersion(file.Name, fields["apiVersion"]) || fields["kind"] != policy.Kind || fields["spec"] != nil {
		return nil, fmt.Errorf("%s: is not a policy file: a policy file begins with apiVersion %s and kind %s, and has rules or deny", file.Name, policy.APIVersion, policy.Kind)
	}
	value := map[string]any{}
	for key, field := range fields {
		if key != "apiVersion" && key != "kind" {
			value[key] = field
		}
	}
	object := policy.ParseObject(name, value)
	if err := object.Err(); err != nil {
		return nil, in(file.Name, err)
	}
	for _, d := range object.WrittenDenials() {
		for i := range d.Subjects {
			if d.Subjects[i].OnlyTokenIDs() {
				return nil, fmt.Errorf(`%s: %s.subjects[%d].tokenIDs: a policy file refuses tokens of identities as well, an object only those of its cluster; keep the denial in a file, or add namespaces: ["*"]`, file.Name, d.Origin, i)
			}
		}
	}
	root, _, err := strictyaml.Parse(file.Data, policy.MaxBytes)
	if err != nil {
		return nil, err
	}
	spec := &yaml.Node{Kind: yaml.MappingNode}
	for i := 0; i+1 < len(root.Content); i += 2 {
		if key := root.Content[i].Value; key != "apiVersion" && key != "kind" {
			spec.Content = append(spec.Content, root.Content[i], root.Content[i+1])
		}
	}
	return encode(header(&yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{
		text("metadata"), {Kind: yaml.MappingNode, Content: []*yaml.Node{text("name"), text(name)}}, text("spec"), spec,
	}}))
}

// ToFile turns the AccessPolicies of the set into an equivalent policy file for their cluster. The
// limit on objects does not apply to files. An object with spec.trial is an error.
func (s *Set) ToFile(cluster string) ([]byte, error) {
	if len(s.rules) == 0 || len(s.requests) > 0 {
		return nil, fmt.Errorf("only objects of kind %s become a policy file: leave out others", policy.Kind)
	}
	for _, object := range s.policies {
		if object.IsTrial() {
			return nil, fmt.Errorf("%s %s: spec.trial: it decides nothing, but a policy file would; leave it out, or remove spec.trial to export it for policyTrial", policy.Kind, object.Name())
		}
	}
	type field struct {
		name string
		list *yaml.Node
	}
	rules, deny, taken := &yaml.Node{Kind: yaml.SequenceNode}, &yaml.Node{Kind: yaml.SequenceNode}, map[string]bool{}
	fields := []field{{"rules", rules}, {"deny", deny}}
	for _, object := range s.rules {
		for _, f := range fields {
			entries := strictyaml.Field(object.spec, f.name)
			if entries == nil {
				continue
			}
			for _, entry := range strictyaml.Resolve(entries).Content {
				entry = withoutAliases(entry)
				if !ofCluster(strictyaml.Resolve(strictyaml.Field(entry, "subjects")), cluster) {
					continue // it is for other clusters
				}
				name := strictyaml.Resolve(strictyaml.Field(entry, "name"))
				own := name.Value
				if taken[own] {
					name.Value = term.Cut(object.name+"-"+own, maxNameBytes)
				}
				for n := 2; taken[name.Value]; n++ {
					name.Value = term.Cut(object.name+"-"+own, maxNameBytes-8) + "-" + strconv.Itoa(n)
				}
				taken[name.Value] = true
				f.list.Content = append(f.list.Content, entry)
			}
		}
	}
	root := &yaml.Node{Kind: yaml.MappingNode}
	for _, f := range fields {
		if len(f.list.Content) > 0 {
			root.Content = append(root.Content, text(f.name), f.list)
		}
	}
	data, err := encode(header(root))
	if err != nil {
		return nil, err
	}
	files := []policy.File{{Name: "the policy file", Data: data}}
	if len(rules.Content) == 0 { // a file of denials alone accompanies other files
		files = append(files, policy.File{Name: "another file", Data: []byte(otherFile)})
	}
	if _, err := policy.Parse(files...); err != nil {
		return nil, err
	}
	return data, nil
}

const (
	maxNameBytes = 63 // of a rule
	otherFile    = "apiVersion: " + policy.APIVersion + "\nkind: " + policy.Kind + `
rules: [{name: example, subjects: [{namespaces: [example]}], allow: [{repositories: [example], actions: [pull]}]}]
`
)

// withoutAliases returns a copy in which each alias is what it stands for: its anchor may be in an entry
// that is left out.
func withoutAliases(n *yaml.Node) *yaml.Node {
	one := *strictyaml.Resolve(n)
	one.Anchor = ""
	one.Content = slices.Clone(one.Content)
	for i, part := range one.Content {
		one.Content[i] = withoutAliases(part)
	}
	return &one
}

// ofCluster restricts subjects to the cluster, and reports whether any remain.
func ofCluster(subjects *yaml.Node, cluster string) bool {
	subjects.Content = slices.DeleteFunc(subjects.Content, func(n *yaml.Node) bool {
		subject := strictyaml.Resolve(n)
		own := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle, Content: []*yaml.Node{text(cluster)}}
		clusters := strictyaml.Field(subject, "clusters")
		if clusters == nil {
			subject.Content = append([]*yaml.Node{text("clusters"), own}, subject.Content...)
			return false
		}
		clusters = strictyaml.Resolve(clusters)
		if !slices.ContainsFunc(clusters.Content, func(glob *yaml.Node) bool { return pattern.MatchName(strictyaml.Resolve(glob).Value, cluster) }) {
			return true
		}
		*clusters = *own
		return false
	})
	return len(subjects.Content) > 0
}

func header(root *yaml.Node) *yaml.Node {
	root.Content = append([]*yaml.Node{text("apiVersion"), text(policy.APIVersion), text("kind"), text(policy.Kind)}, root.Content...)
	return root
}

func text(value string) *yaml.Node {
	var n yaml.Node
	n.SetString(value)
	return &n
}

func encode(root *yaml.Node) ([]byte, error) {
	var b bytes.Buffer
	encoder := yaml.NewEncoder(&b)
	encoder.SetIndent(2)
	err := errors.Join(encoder.Encode(root), encoder.Close())
	return b.Bytes(), err
}
