package nodeconfig

import (
	"bytes"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/node/containerd"
	"github.com/pullpass/pullpass/internal/node/kubelet"
)

const (
	configFlagName = "--image-credential-provider-config"
	binDirFlagName = "--image-credential-provider-bin-dir"
)

// The kubelet's flags for the programs that pull images, and the same in its KubeletConfiguration.
var (
	endpointFlags    = []string{"--container-runtime-endpoint", "--image-service-endpoint"}
	endpointSettings = []string{"containerRuntimeEndpoint", "imageServiceEndpoint"}
)

// imageSettings are the settings of a kubelet for images that are already on the node, with their
// places. A drop-in replaces values of the files before it.
type imageSettings struct {
	kubelet.Images
	gate, policy, list place
	isFlag             bool   // the gate is of a flag, which counts more than files
	tokenGate          *place // of TokenGate, if it is off in the files
}

// flagValue is the last value of a flag in a file.
type flagValue struct {
	file  string
	line  int
	value string
}

func (f flagValue) at(flag string) place { return at(f.file, f.line, flag) }

// openingQuotes are those of a value, which does not end there.
var openingQuotes = strings.NewReplacer(`=\"`, "=", `="`, "=", `='`, "=")

// flags judges a text with the kubelet's command line: a unit of systemd, a file of variables, or a
// script.
func (l *linter) flags(name string, data []byte) {
	in := ""
	if variables := variablesOf(name); variables != nil {
		counting, err := effective(data, variables)
		if err == nil {
			data, in = counting, fmt.Sprintf(" in the last %s=, the only line that counts", variables[0])
		} else {
			l.remarks = append(l.remarks, fmt.Sprintf("not judged: which lines of %s count: %v", name, err))
		}
	}
	l.providerFlags(name, l.readFlags(name, data), in)
}

// rancher judges the arguments of the kubelet in a file of k3s or RKE2. It reports whether the file has the setting.
func (l *linter) rancher(name string, root *yaml.Node) (known bool) {
	var lines []string // the arguments as flags, in their lines
	for _, key := range []string{"kubelet-arg", "kubelet-arg+"} {
		n := strictyaml.Field(root, key)
		if n == nil {
			continue
		}
		known = true
		for _, argument := range append(slices.Clone(n.Content), n) {
			argument = strictyaml.Resolve(argument) // the list itself has no text
			lines = append(lines, make([]string, max(0, argument.Line-len(lines)))...)
			lines[argument.Line-1] += " --" + strings.TrimPrefix(argument.Value, "--")
		}
	}
	// k3s and RKE2 have several such files, and defaults of their own.
	if found := l.readFlags(name, []byte(strings.Join(lines, "\n"))); len(found) > 0 {
		l.judged["flags"] = true
		l.providerFlags(name, found, " in kubelet-arg")
	}
	return known
}

// readFlags returns the flags for plugins, and judges the others.
func (l *linter) readFlags(name string, data []byte) map[string]flagValue {
	found := map[string]flagValue{}
	for i, text := range strings.Split(string(data), "\n") {
		if strings.HasPrefix(strings.TrimSpace(text), "#") {
			continue
		}
		words := strings.FieldsFunc(openingQuotes.Replace(text), func(r rune) bool { return strings.ContainsRune(" \t\"'\\", r) })
		for j, word := range words {
			// A unit writes Environment="NAME=--flag".
			if at := strings.Index(word, "--"); at > 0 {
				word = word[at:]
			}
			flag, value, hasValue := strings.Cut(word, "=")
			if !hasValue && j+1 < len(words) {
				value, hasValue = words[j+1], true
			}
			if flag = strings.ReplaceAll(flag, "_", "-"); slices.Contains(endpointFlags, flag) { // as the kubelet reads it
				l.endpoint(at(name, i+1, flag), value)
			}
			switch flag {
			case configFlagName, binDirFlagName:
				if !hasValue {
					value = "$" // on the next line
				}
				found[flag] = flagValue{name, i + 1, value}
			case "--feature-gates":
				for gate := range strings.SplitSeq(value, ",") {
					if strings.EqualFold(gate, kubelet.TokenGate+"=false") {
						l.find(at(name, i+1, flag), "switches the tokens off (%s); remove it", gate)
					}
				}
				if on := kubelet.GateOf(value, kubelet.VerifyGate); on != nil {
					l.setGate(at(name, i+1, flag), *on, true)
				}
			}
		}
	}
	return found
}

func (l *linter) providerFlags(name string, found map[string]flagValue, in string) {
	for _, flag := range []string{configFlagName, binDirFlagName} {
		switch f, ok := found[flag]; {
		case !ok:
			l.find(at(name, 1, flag), "is missing%s, and the kubelet runs no plugin; add both flags (see kubelet-config --part flags)", in)
		case f.value == "":
			l.find(f.at(flag), "is empty, and the kubelet does not start, or runs no plugin; write a value for both flags (see kubelet-config --part flags)")
		case strings.Contains(f.value, "$"): // the variable of a unit or of a script
			l.remarks = append(l.remarks, fmt.Sprintf("not judged: %s of %s, whose value is not on its line", flag, name))
		case !path.IsAbs(f.value):
			l.find(f.at(flag), "is not an absolute path (%s), and the kubelet does not find it; write the whole path", term.QuoteValue(f.value))
		case flag == configFlagName:
			l.configFlags = append(l.configFlags, f)
		case l.target.PluginDir != "" && strings.TrimRight(f.value, "/") != strings.TrimRight(l.target.PluginDir, "/"):
			l.find(f.at(flag), "is another directory than --plugin-dir (%s); correct one of them", term.QuoteValue(f.value))
		}
	}
}

// variablesOf returns the variables with the kubelet's flags in an EnvironmentFile of systemd: those of
// kubeadm, AKS, GKE and EKS. It returns nil for other files.
func variablesOf(name string) []string {
	switch dir, base := filepath.Base(filepath.Dir(name)), filepath.Base(name); {
	case base == "kubelet" && (dir == "default" || dir == "sysconfig"):
		return []string{"KUBELET_EXTRA_ARGS", "KUBELET_FLAGS", "KUBELET_OPTS"}
	case base == "kubeadm-flags.env":
		return []string{"KUBELET_KUBEADM_ARGS"}
	case base == "environment" && dir == "kubelet":
		return []string{"NODEADM_KUBELET_ARGS"}
	}
	return nil
}

// effective blanks the lines of an EnvironmentFile other than the last assignments of the variables.
func effective(data []byte, variables []string) ([]byte, error) {
	lines := slices.Collect(bytes.Lines(data))
	counts := map[int]bool{} // by the position of the line
	for _, variable := range variables {
		a, found, err := kubelet.LastAssignment(data, variable)
		if err != nil {
			return nil, err
		}
		counts[a.Line] = counts[a.Line] || found
	}
	at := 0
	for i, line := range lines {
		if !counts[at] {
			lines[i] = []byte("\n")
		}
		at += len(line)
	}
	return bytes.Join(lines, nil), nil
}

// endpoint judges the program to which the kubelet gives credentials for images.
func (l *linter) endpoint(p place, value string) {
	isKnown := !strings.Contains(value, "$") // the variable of a unit or of a script
	if problem := containerd.EndpointProblem(value); problem != "" && isKnown && l.target.Gateway != "" && !l.target.CRIO {
		l.find(p, "%s", problem)
	}
}

func (l *linter) setGate(p place, on, isFlag bool) {
	if isFlag || !l.images.isFlag {
		l.images.Gate, l.images.gate, l.images.isFlag = &on, p, isFlag
	}
	if isFlag {
		l.judgeGate()
	}
}

func (l *linter) judgeGate() {
	if gate := l.images.Gate; gate != nil && !*gate {
		l.find(l.images.gate, "is false: any pod of the node may use an image that another's ServiceAccount pulled; remove it")
	}
}

// kubeletConfiguration reads the few settings that affect the plugin. Only flags name the plugin's
// files.
func (l *linter) kubeletConfiguration(d *document) {
	l.judged[kubeletPart] = true
	if filepath.Ext(d.file) != ".conf" { // no drop-in: the configuration of another kubelet, perhaps
		l.kubeletImages()
		before := l.images
		l.images = imageSettings{}
		if before.isFlag {
			l.images.Gate, l.images.gate, l.images.isFlag = before.Gate, before.gate, true
		}
	}
	if gates := strictyaml.Field(d.root, "featureGates"); gates != nil {
		const field = "featureGates."
		if n := strictyaml.Field(gates, kubelet.TokenGate); n != nil {
			l.images.tokenGate = nil
			if n.Value == "false" {
				p := d.at(field + kubelet.TokenGate)
				l.images.tokenGate = &p
			}
		}
		if n := strictyaml.Field(gates, kubelet.VerifyGate); n != nil {
			l.setGate(d.at(field+kubelet.VerifyGate), kubelet.IsOn(n.Value), false)
		}
	}
	for _, setting := range endpointSettings {
		if n := strictyaml.Field(d.root, setting); n != nil {
			l.endpoint(d.at(setting), n.Value)
		}
	}
	const policy = "imagePullCredentialsVerificationPolicy"
	if n := strictyaml.Field(d.root, policy); n != nil {
		l.images.Policy, l.images.policy = n.Value, d.at(policy)
	}
	const list = "preloadedImagesVerificationAllowlist"
	if n := strictyaml.Field(d.root, list); n != nil {
		l.images.Listed, l.images.list = nil, d.at(list)
		for _, pattern := range n.Content {
			l.images.Listed = append(l.images.Listed, pattern.Value)
		}
	}
}

// kubeletImages judges the settings of one kubelet.
func (l *linter) kubeletImages() {
	images := l.images
	if images.tokenGate != nil {
		l.find(*images.tokenGate, "is false: the kubelet refuses tokenAttributes; remove it")
	}
	if !images.isFlag {
		l.judgeGate()
	}
	if images.Policy == kubelet.NeverVerify {
		l.find(images.policy, "is NeverVerify: any pod of the node may use an image that another's ServiceAccount pulled; write AlwaysVerify")
	}
	for _, registry := range l.target.Registries {
		if pattern := images.List(registry); pattern != "" {
			l.find(images.list, "has %s: any pod of the node may use such an image of %s, also if another's ServiceAccount pulled it; list only images that no pod pulls with its token", term.QuoteValue(pattern), registry)
		}
	}
}

// sharedImages finds images that pods use without a request to the registry, if the kubelet's
// version determines this. It returns remarks about the rest.
func (l *linter) sharedImages() (remarks []string) {
	v, images := l.target.Kubelet, l.images
	if v == 0 {
		return []string{"not judged: whether pods can use images that others pulled; give --kubelet-version"}
	}
	isOff := images.Gate == nil && !v.Verifies() || images.Gate != nil && !*images.Gate
	if isOff && images.Policy != "" {
		l.find(images.policy, "is set, and without the feature gate %s, which is off, the kubelet does not start; write featureGates: {%s: true} as well", kubelet.VerifyGate, kubelet.VerifyGate)
	}
	switch shared := v.Shared(images.Images); {
	case shared == kubelet.PreloadedShared:
		remarks = append(remarks, "note: "+v.Consequence(shared))
	case shared == kubelet.AlwaysShared, shared == kubelet.AllShared && images.Gate == nil && images.Policy == "":
		// Explicit settings already have a finding.
		l.findings = append(l.findings, &finding{field: fmt.Sprintf("--kubelet-version %s", v), problem: v.Consequence(shared)})
	}
	return remarks
}
