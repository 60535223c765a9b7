package nodeconfig

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/base/term"
)

const (
	providerConfigVersion = "kubelet.config.k8s.io/v1"
	providerVersion       = "credentialprovider.kubelet.k8s.io/v1"
)

// credentialProviderConfig mirrors k8s.io/kubelet/config/v1. The kubelet decodes it as strictly as
// strictyaml.Decoder.
type credentialProviderConfig struct {
	APIVersion string               `json:"apiVersion"`
	Kind       string               `json:"kind"`
	Providers  []credentialProvider `json:"providers"`
}

type credentialProvider struct {
	Name                 string          `json:"name"`
	MatchImages          []string        `json:"matchImages"`
	DefaultCacheDuration string          `json:"defaultCacheDuration"`
	APIVersion           string          `json:"apiVersion"`
	Args                 []string        `json:"args"`
	Env                  []execEnvVar    `json:"env"`
	TokenAttributes      tokenAttributes `json:"tokenAttributes"`
}

type execEnvVar struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type tokenAttributes struct {
	Audience              string   `json:"serviceAccountTokenAudience"`
	CacheType             string   `json:"cacheType"`
	RequireServiceAccount bool     `json:"requireServiceAccount"`
	RequiredAnnotations   []string `json:"requiredServiceAccountAnnotationKeys"`
	OptionalAnnotations   []string `json:"optionalServiceAccountAnnotationKeys"`
}

// provider is one element of providers in its document.
type provider struct {
	document *document
	path     string // providers[0]
	config   *credentialProvider
	set      map[string]bool // the fields that the document names
	certsDir string          // where the plugin looks for hosts.toml; empty: not known, or nowhere
}

// at and has expect the path of a field within the provider.
func (p *provider) at(field string) place { return p.document.at(p.path + "." + field) }

func (p *provider) has(field string) bool { return p.set[p.path+"."+field] }

// readProviders finds faults in providers of any kind with which the kubelet does not start, or
// that it cannot use. One wrong provider is sufficient.
func (l *linter) readProviders(d *document, isSecond bool) {
	if isSecond {
		l.find(d.at("kind"), "is the second document of the file (%s), and the kubelet reads the first only; give it a file of its own", term.QuoteValue(kindOf(d.root)))
	}
	var c credentialProviderConfig
	decoder := strictyaml.NewDecoder(d.file)
	decoder.Decode("", d.root, &c)
	for _, fault := range decoder.List {
		l.find(d.at(fault.Path), "%s", decodingProblem(fault))
	}
	d.found += decoder.More
	if isSecond {
		d.settled = append(d.settled, "kind") // already reported
	}
	for _, fault := range decoder.List {
		d.settled = append(d.settled, fault.Path)
	}
	if c.APIVersion != providerConfigVersion {
		l.find(d.at("apiVersion"), "is not the one with tokenAttributes (%s); write %s", term.QuoteValue(c.APIVersion), providerConfigVersion)
	}
	if c.Kind != "CredentialProviderConfig" {
		l.find(d.at("kind"), "is unknown to the kubelet (%s); write CredentialProviderConfig", term.QuoteValue(c.Kind))
	}
	if len(c.Providers) == 0 {
		l.find(d.at("providers"), "is empty, and the kubelet does not start; name a provider (see kubelet-config --part provider)")
	}
	for i := range c.Providers {
		p := &provider{document: d, path: fmt.Sprintf("providers[%d]", i), config: &c.Providers[i], set: decoder.Set}
		l.form(p)
		l.providers = append(l.providers, p)
	}
}

// decodingProblem describes the fault. About args and env it only gives the required type: their
// values may be secrets of a plugin.
func decodingProblem(fault *strictyaml.Fault) string {
	_, field, _ := strings.Cut(fault.Path, ".")
	switch name, _, _ := strings.Cut(strings.ReplaceAll(field, ".", "["), "["); name {
	case "args":
		return "must be a list of texts; write [\"--NAME=VALUE\"]"
	case "env":
		return "must be a list of variables; write [{name: NAME, value: \"TEXT\"}]"
	}
	return fault.Problem
}

// form judges a provider as the kubelet does at its start.
func (l *linter) form(p *provider) {
	c := p.config
	switch {
	case c.Name == "":
		l.find(p.at("name"), "is missing; write the name of the plugin's binary, %s", pluginName)
	case strings.ContainsAny(c.Name, "/ ") || c.Name == "." || c.Name == "..":
		l.find(p.at("name"), "is not the name of a binary (%s); write it without directory and spaces, which stands in --image-credential-provider-bin-dir", term.QuoteValue(c.Name))
	}
	switch {
	case c.APIVersion == "":
		l.find(p.at("apiVersion"), "is missing; write %s", providerVersion)
	case c.APIVersion != providerVersion && p.has("tokenAttributes"):
		l.find(p.at("apiVersion"), "has no tokenAttributes (%s); write %s", term.QuoteValue(c.APIVersion), providerVersion)
	default:
		l.oneOf(p.at("apiVersion"), c.APIVersion, providerVersion, providerVersion+"beta1", providerVersion+"alpha1")
	}
	if len(c.MatchImages) == 0 {
		l.find(p.at("matchImages"), "is empty; name the registry's host[:port]")
	}
	for i, pattern := range c.MatchImages {
		if _, err := parseImagePattern(pattern); err != nil {
			l.find(p.at(fmt.Sprintf("matchImages[%d]", i)), "is not host[:port][/path] (%s); the kubelet does not start with it, so correct it", term.QuoteValue(pattern))
		}
	}
	switch duration, err := time.ParseDuration(c.DefaultCacheDuration); {
	case !p.has("defaultCacheDuration"):
		l.find(p.at("defaultCacheDuration"), `is missing, and the kubelet does not start; write "0s"`)
	case err != nil:
		l.find(p.at("defaultCacheDuration"), `is not a time span (%s); write it with its unit: "0s", "10m"`, term.QuoteValue(c.DefaultCacheDuration))
	case duration < 0:
		l.find(p.at("defaultCacheDuration"), `must not be negative (%s); write "0s"`, term.QuoteValue(c.DefaultCacheDuration))
	}
	for i, variable := range c.Env {
		if variable.Name == "" || strings.Contains(variable.Name, "=") {
			l.find(p.at(fmt.Sprintf("env[%d].name", i)), "is not the name of a variable (%s); write name and value as two fields", term.QuoteValue(variable.Name))
		}
	}
	if p.has("tokenAttributes") {
		l.tokenAttributes(p)
	}
}

func (l *linter) tokenAttributes(p *provider) {
	t := &p.config.TokenAttributes
	if t.Audience == "" {
		l.find(p.at("tokenAttributes.serviceAccountTokenAudience"), "is missing; write one of Pullpass's clusters[].audiences")
	}
	if !p.has("tokenAttributes.cacheType") {
		l.find(p.at("tokenAttributes.cacheType"), "is missing; write Token")
	} else {
		l.oneOf(p.at("tokenAttributes.cacheType"), t.CacheType, "Token", "ServiceAccount")
	}
	if !p.has("tokenAttributes.requireServiceAccount") {
		l.find(p.at("tokenAttributes.requireServiceAccount"), "is missing; write true")
	} else if !t.RequireServiceAccount && len(t.RequiredAnnotations) > 0 {
		l.find(p.at("tokenAttributes.requireServiceAccount"), "must be true (false), because requiredServiceAccountAnnotationKeys is set; write true")
	}
	for _, keys := range []struct {
		name string
		keys []string
	}{{"requiredServiceAccountAnnotationKeys", t.RequiredAnnotations}, {"optionalServiceAccountAnnotationKeys", t.OptionalAnnotations}} {
		path := "tokenAttributes." + keys.name + "[%d]"
		first := map[string]int{}
		for i, key := range keys.keys {
			if earlier, twice := first[key]; !twice {
				first[key] = i
			} else if key != "" {
				l.find(p.at(fmt.Sprintf(path, i)), "is the same as %s (%s); each must differ", p.at(fmt.Sprintf(path, earlier)).field, term.QuoteValue(key))
			}
		}
		for i, key := range keys.keys {
			if len(validation.IsQualifiedName(strings.ToLower(key))) > 0 {
				l.find(p.at(fmt.Sprintf(path, i)), "is not the key of an annotation (%s); write it as kubectl annotate takes it", term.QuoteValue(key))
			}
		}
	}
	for i, key := range t.OptionalAnnotations {
		if slices.Contains(t.RequiredAnnotations, key) {
			l.find(p.at(fmt.Sprintf("tokenAttributes.optionalServiceAccountAnnotationKeys[%d]", i)), "is required as well (%s); keep it in one of the two lists", term.QuoteValue(key))
		}
	}
}

// providerNames finds duplicate names. The kubelet reads all files of a directory as one.
func (l *linter) providerNames() {
	first := map[string]string{}
	for _, p := range l.providers {
		name := p.config.Name
		if place, twice := first[name]; twice && name != "" {
			l.find(p.at("name"), "is the same as in %s (%s); each must differ, so link the binary under a second name", place, term.QuoteValue(name))
		} else {
			first[name] = fmt.Sprintf("%s of %s", p.path, p.document.file)
		}
	}
}

// ours returns the providers that have the name of Pullpass's binary or of a link to it. If there
// are none, it returns those for the registry, whose names may be mistyped.
func (l *linter) ours() []*provider {
	named := slices.DeleteFunc(slices.Clone(l.providers), func(p *provider) bool { return !strings.HasPrefix(p.config.Name, pluginName) })
	if len(named) > 0 {
		return named
	}
	return slices.DeleteFunc(slices.Clone(l.providers), func(p *provider) bool { return !p.matchesAny(l.target.Registries) })
}

func (p *provider) matchesAny(registries []string) bool {
	return slices.ContainsFunc(registries, p.matches)
}

func (p *provider) matches(registry string) bool {
	return slices.ContainsFunc(p.config.MatchImages, func(pattern string) bool {
		return registryDiffers(pattern, registry) == ""
	})
}

// registryDiffers returns why a pattern matches no image of the registry, or an empty string. It
// accepts any path: a path excludes images, which may be intended.
func registryDiffers(pattern, registry string) string {
	p, err := parseImagePattern(pattern)
	if err != nil {
		return err.Error()
	}
	image, err := parseImagePattern(registry)
	if err != nil {
		return err.Error()
	}
	image.path = p.path
	return p.differs(image)
}

// matched finds registries for which the kubelet would never call the plugin.
func (l *linter) matched(ours []*provider) {
	registries := l.target.Registries
	if len(ours) == 0 {
		l.find(l.providerDocument.at("providers"), "none is named %s or matches %s, so the kubelet pulls anonymously; add one (see kubelet-config --part provider)", pluginName, strictyaml.List(registries))
		return
	}
	other := slices.IndexFunc(ours, func(p *provider) bool { return p.matchesAny(registries) })
	for _, registry := range registries {
		if slices.ContainsFunc(ours, func(p *provider) bool { return p.matches(registry) }) {
			continue
		}
		if other >= 0 {
			l.find(ours[other].at("matchImages"), "do not hold %s, so the kubelet pulls its images anonymously; add it", registry)
			continue
		}
		for _, p := range ours {
			for i, pattern := range p.config.MatchImages {
				_, err := parseImagePattern(pattern)
				if problem, _ := patternFault(pattern); err == nil && problem == "" {
					l.find(p.at(fmt.Sprintf("matchImages[%d]", i)), "does not match %s (%s): %s; write %s",
						registry, term.QuoteValue(pattern), registryDiffers(pattern, registry), registry)
				}
			}
		}
	}
}

// usable finds settings that the kubelet accepts and Pullpass cannot use.
func (l *linter) usable(p *provider) {
	c, target := p.config, l.target
	hosts := l.args(p)
	for i, pattern := range c.MatchImages {
		field := fmt.Sprintf("matchImages[%d]", i)
		parsed, err := parseImagePattern(pattern)
		if err != nil {
			continue // already reported
		}
		if problem, remedy := patternFault(pattern); problem != "" {
			l.find(p.at(field), "%s (%s); %s", problem, term.QuoteValue(pattern), remedy)
		} else if parsed.wide() && len(hosts) == 0 {
			l.find(p.at(field), "may match a registry that is not yours (%s), which would be handed the pod's token; name hosts, or add args: %s", term.QuoteValue(pattern), quotedList(target.args()))
		}
	}
	for i, variable := range c.Env {
		l.find(p.at(fmt.Sprintf("env[%d]", i)), "has no use (%s): the plugin reads no variables; remove it", term.QuoteValue(variable.Name))
	}
	if !p.has("tokenAttributes") {
		l.find(p.at("tokenAttributes"), "is missing, and the plugin gets no token; write it (see kubelet-config --part provider)")
		return
	}
	t := &c.TokenAttributes
	if t.Audience != "" && !slices.Contains(target.Cluster.Audiences, t.Audience) {
		l.find(p.at("tokenAttributes.serviceAccountTokenAudience"), "is not accepted (%s); write one of clusters[].audiences of cluster %s: %q", term.QuoteValue(t.Audience), target.Cluster.Name, target.Cluster.Audiences)
	}
	if t.CacheType == "ServiceAccount" {
		l.find(p.at("tokenAttributes.cacheType"), "must be Token (ServiceAccount): with any other value the kubelet discards the response with the token; write Token")
	}
	if p.has("tokenAttributes.requireServiceAccount") && !t.RequireServiceAccount && len(t.RequiredAnnotations) == 0 {
		l.find(p.at("tokenAttributes.requireServiceAccount"), "must be true (false): without a ServiceAccount there is no token, and the plugin fails; write true")
	}
}

// binary judges the program of a provider.
func (l *linter) binary(p *provider, dir string) {
	name := p.config.Name
	if name == "" || strings.Contains(name, "/") {
		return // already reported
	}
	file := filepath.Join(dir, name)
	info, err := os.Stat(file)
	switch {
	case err != nil:
		l.find(p.at("name"), "is not the name of a binary (%v), and the kubelet does not start; install the plugin there, or link it under this name", err)
		return
	case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
		l.find(p.at("name"), "is not the name of a program (%s); make the file executable", file)
		return
	}
	if who, remedy := changers(file, info, os.Geteuid()); who != "" {
		l.find(p.at("name"), "is a program that %s (%s), who could then read every token; %s", who, file, remedy)
	}
}

// pluginDir judges the directory of the programs, which may be on a different machine.
func (l *linter) pluginDir(dir string) {
	info, err := os.Stat(dir)
	if err != nil {
		return // if there are providers, each has a finding
	}
	if who, remedy := changers(dir, info, os.Geteuid()); who != "" {
		l.find(at("", 0, "--plugin-dir"), "is a directory that %s (%s), who could then read every token; %s", who, term.QuoteValue(dir), remedy)
	}
}

// changers returns who can change a file or directory besides root, and the remedy. A copy belongs to the user self,
// who lints it, or has a relative path.
func changers(name string, info fs.FileInfo, self int) (who, remedy string) {
	switch uid := ownerOf(info); {
	case info.Mode()&0o022 != 0:
		return "not only its owner can change", "chmod go-w"
	case uid != 0 && uid != self && filepath.IsAbs(name):
		return fmt.Sprintf("user %d can change", uid), "chown root"
	}
	return "", ""
}
