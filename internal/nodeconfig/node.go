package nodeconfig

import (
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
