package subjects

import (
	"strings"

	"github.com/pullpass/pullpass/internal/base/names"
	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/oidc/identity"
)

type parser struct {
	identities map[string]identity.Profile // the configured ones
}

// Options describe the place of the subjects.
type Options struct {
	Denies bool // in a denial
	// OwnCluster is for an object of a cluster, which may select only ServiceAccounts of that
	// cluster. A field with a fault is then ignored. After a fault only denials are read further,
	// and an ignored field makes them match more.
	OwnCluster bool
	Identities map[string]identity.Profile // the configured ones
}

// Parse reads a list of subjects, and reports their faults at the node. It checks claims against
// the profiles of the known identities.
func Parse(n strictyaml.Node, o Options) []Match {
	p := parser{o.Identities}
	known := strictyaml.FieldNames[Subject]()
	if o.Denies {
		known = strictyaml.FieldNames[Denied]()
	}
	var matches []Match
	for _, entry := range n.List() {
		m := Match{Denies: o.Denies}
		fields := entry.Fields(known...)
		for _, name := range known {
			field, ok := fields[name]
			if !ok {
				continue
			}
			before, whole := field.Faults().Count(), m
			if o.OwnCluster && (name == "identities" || name == "claims") {
				field.Fault("an object speaks for the ServiceAccounts of its own cluster: write the rule in a policy file")
			}
			switch name {
			case "clusters":
				m.Clusters = parseGlobs(field, "._-", true)
			case "namespaces":
				m.Namespaces = parseGlobs(field, "-", false)
			case "namespaceSelector":
				m.NamespaceSelector = parseSelector(field)
			case "serviceAccounts":
				m.ServiceAccounts = parseGlobs(field, ".-", false)
			case "nodes":
				m.Nodes = parseGlobs(field, ".-", false)
			case "tokenIDs":
				m.TokenIDs = parseTokenIDs(field)
			case "identities":
				m.Identities = parseIdentities(field)
			case "claims":
				m.Claims = parseClaims(field)
			case "condition":
				m.Condition = parseCondition(field)
			}
			if o.OwnCluster && field.Faults().Count() != before {
				m = whole
			}
		}
		p.checkIdentities(entry, fields, &m)
		matches = append(matches, m)
	}
	return matches
}

// parseGlobs reads names in which * matches any run of characters. Letters and digits are always
// allowed, other characters and upper case only if stated. A name that cannot exist would silently
// make the rule match nothing.
func parseGlobs(n strictyaml.Node, others string, upper bool) []string {
	var globs []string
	for _, entry := range n.List() {
		glob, ok := entry.Text()
		if !ok {
			continue
		}
		if i := strings.IndexFunc(glob, func(r rune) bool {
			return r != '*' && (r < 'a' || 'z' < r) && (r < '0' || '9' < r) && (!upper || r < 'A' || 'Z' < r) && !strings.ContainsRune(others, r)
		}); i >= 0 {
			entry.Fault("%s cannot match: %s is in no such name; * stands for any characters, nothing else is special", term.QuoteName(glob), term.QuoteName(string([]rune(glob[i:])[:1])))
			continue
		}
		globs = append(globs, glob)
	}
	return globs
}

func parseTokenIDs(n strictyaml.Node) []string {
	var ids []string
	for _, entry := range n.List() {
		if id := ParseTokenID(entry); id != "" {
			ids = append(ids, id)
		}
	}
	return ids
}

// ParseTokenID reads one token id, exactly as it is in a token.
func ParseTokenID(n strictyaml.Node) string {
	id, _ := n.Text()
	switch {
	case strings.HasPrefix(id, "JTI="):
		n.Fault("%s is a credential id: write what follows JTI=", term.QuoteName(id))
	case !names.IsVisible(id) || strings.Contains(id, "*"):
		n.Fault("%s is not a token id: ids are compared exactly, without *", term.QuoteName(id))
	}
	return id
}
