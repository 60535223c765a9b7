package nodeinstall

import (
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/base/term"
)

// Guidance has the values for a platform's own configuration. It is for nodes that only the
// platform creates and changes.
type Guidance struct {
	Provider string            // a CredentialProviderConfig
	Plugin   string            // name of the program
	Hosts    map[string]string // hosts.toml by registry
	Client   string            // the certificate that they name as the kubelet's; empty: none
	Gateway  string            // URL that replaces these registries; empty: containerd asks them directly

	OnlyCertificate bool // Pullpass refuses kubelets without their certificate
}

// Endpoint returns the URL that containerd must ask for the images of a registry.
func (g Guidance) Endpoint(registry string) string {
	if g.Gateway != "" {
		return g.Gateway + "/v2/" + registry
	}
	return "https://" + registry
}

// GuidedPlatforms returns the names of the platforms for which Guidance has a text.
func GuidedPlatforms() (names []string) {
	for _, g := range guides() {
		names = append(names, g.name)
	}
	return names
}

// Write prints the text for a platform.
func (g Guidance) Write(w io.Writer, platform string) error {
	i := slices.IndexFunc(guides(), func(guide guide) bool { return guide.name == platform })
	if i < 0 {
		problem := "is not known"
		if slices.Contains(Profiles(), platform) {
			problem = "is changed by pullpass node-install apply"
		}
		return fmt.Errorf("--profile %s %s; print knows %s", term.QuoteValue(platform), problem, strictyaml.List(GuidedPlatforms()))
	}
	guide := guides()[i]
	if guide.withoutClient != "" && g.Client != "" && strings.Contains(strings.Join(slices.Collect(maps.Values(g.Hosts)), "\n"), strconv.Quote(g.Client)) {
		return fmt.Errorf("%w: node.proof of the cluster is by certificate, and kubelets of %s have none; write methods: [address] (docs/how-to/node-proof.md)", ErrProfile, guide.withoutClient)
	}
	if guide.hidesHosts && g.OnlyCertificate {
		return fmt.Errorf("%w: node.proof of the cluster is by certificate, and the containerd of %s cannot present the kubelet's; add address to methods (docs/how-to/node-proof.md)", ErrProfile, platform)
	}
	if guide.hidesHosts {
		provider, err := withoutGateway([]byte(g.Provider))
		if err != nil {
			return err
		}
		g.Provider = string(provider)
	}
	t := template.Must(template.New(platform).Funcs(template.FuncMap{
		"indent": indent, "base64": func(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) },
		"config": func() string { return ownConfigDir }, "plugins": func() string { return ownPluginDir },
	}).Parse(guide.text))
	return t.Execute(w, g)
}

// indent indents a text below a line that ends with |, or in a list.
func indent(n int, text string) string {
	var b strings.Builder
	for line := range strings.Lines(strings.TrimRight(text, "\n")) {
		b.WriteString(strings.Repeat(" ", n) + line)
	}
	return b.String()
}

// guide is the text for a platform. docs/how-to/nodes.md has the source of each path.
type guide struct {
	name, text string
	// hidesHosts: only the platform writes the hosts.toml of containerd. The kubelet cannot read it, and it
	// cannot name the kubelet's certificate.
	hidesHosts bool
	// withoutClient names the kubelets of the platform if they have no certificate.
	withoutClient string
}

// guides has a line for each platform that has a guide and no profile, by name.
func guides() []guide {
	return []guide{
		bottlerocket,
		clusterAPI,
		karpenter,
		openShift,
		talos,
		talos113,
	}
}
