package nodeconfig

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/strictyaml"
	"github.com/pullpass/pullpass/internal/term"
)

const (
	providerConfigVersion = "kubelet.config.k8s.io/v1"
	providerVersion       = "credentialprovider.kubelet.k8s.io/v1"
)

// credentialProviderConfig mirrors k8s.io/kubelet/config/v1, which the kubelet
// decodes as strictly as strictyaml.Decoder does.
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

type providerDocument struct {
	*lintedDocument
	config credentialProviderConfig
}

// lintedProvider is one provider in its document.
type lintedProvider struct {
	*providerDocument
	index int
}

func (p lintedProvider) provider() *credentialProvider { return &p.config.Providers[p.index] }

func (p lintedProvider) path() string { return fmt.Sprintf("providers[%d]", p.index) }

// fault and has take the path of a field within the provider.
func (p lintedProvider) fault(field, format string, args ...any) {
	p.providerDocument.Fault(p.path()+"."+field, format, args...)
}

func (p lintedProvider) has(field string) bool { return p.Set[p.path()+"."+field] }

// readProviders finds what the kubelet refuses to start with, or cannot use, in
// providers of any kind: one that is wrong is enough.
func readProviders(d *lintedDocument) *providerDocument {
	document := &providerDocument{lintedDocument: d}
	c := &document.config
	d.Decode("", d.root, c)
	for _, fault := range d.Faults {
		// The general messages show values, and these may be a plugin's secrets.
		_, field, _ := strings.Cut(fault.Path, ".")
		switch name, _, _ := strings.Cut(strings.ReplaceAll(field, ".", "["), "["); name {
		case "args":
			fault.Problem = "must be a list of texts; write [\"--NAME=VALUE\"]"
		case "env":
			fault.Problem = "must be a list of variables; write [{name: NAME, value: \"TEXT\"}]"
		}
	}
	d.Validator = strictyaml.NewValidator(d.Decoder)
	if c.APIVersion != providerConfigVersion {
		document.Fault("apiVersion", "is not the one with tokenAttributes (%s); write %s", term.QuoteValue(c.APIVersion), providerConfigVersion)
	}
	if c.Kind != "CredentialProviderConfig" {
		document.Fault("kind", "is unknown to the kubelet (%s); write CredentialProviderConfig", term.QuoteValue(c.Kind))
	}
	if len(c.Providers) == 0 {
		document.Fault("providers", "is empty, and the kubelet does not start; name a provider (see kubelet-config --part provider)")
	}
	for i := range c.Providers {
		lintedProvider{document, i}.form()
	}
	return document
}

func (p lintedProvider) form() {
	c := p.provider()
	switch {
	case c.Name == "":
		p.fault("name", "is missing; write the name of the plugin's binary, %s", pluginName)
	case strings.ContainsAny(c.Name, "/ ") || c.Name == "." || c.Name == "..":
		p.fault("name", "is not the name of a binary (%s); write it without directory and spaces, which stands in --image-credential-provider-bin-dir", term.QuoteValue(c.Name))
	}
	switch {
	case c.APIVersion == "":
		p.fault("apiVersion", "is missing; write %s", providerVersion)
	case c.APIVersion != providerVersion && p.has("tokenAttributes"):
		p.fault("apiVersion", "has no tokenAttributes (%s); write %s", term.QuoteValue(c.APIVersion), providerVersion)
	case c.APIVersion != providerVersion:
		p.OneOf(p.path()+".apiVersion", c.APIVersion, providerVersion, providerVersion+"beta1", providerVersion+"alpha1")
	}
	if len(c.MatchImages) == 0 {
		p.fault("matchImages", "is empty; name the registry's host[:port]")
	}
	for i, pattern := range c.MatchImages {
		if _, err := parseImagePattern(pattern); err != nil {
			p.fault(fmt.Sprintf("matchImages[%d]", i), "is not host[:port][/path] (%s); the kubelet does not start with it, so correct it", term.QuoteValue(pattern))
		}
	}
	switch duration, err := time.ParseDuration(c.DefaultCacheDuration); {
	case !p.has("defaultCacheDuration"):
		p.fault("defaultCacheDuration", `is missing, and the kubelet does not start; write "0s"`)
	case err != nil:
		p.fault("defaultCacheDuration", `is not a time span (%s); write it with its unit: "0s", "10m"`, term.QuoteValue(c.DefaultCacheDuration))
	case duration < 0:
		p.fault("defaultCacheDuration", `must not be negative (%s); write "0s"`, term.QuoteValue(c.DefaultCacheDuration))
	}
	for i, variable := range c.Env {
		if variable.Name == "" || strings.Contains(variable.Name, "=") {
			p.fault(fmt.Sprintf("env[%d].name", i), "is not the name of a variable (%s); write name and value as two fields", term.QuoteValue(variable.Name))
		}
	}
	if p.has("tokenAttributes") {
		p.tokenAttributes(&c.TokenAttributes)
	}
}

func (p lintedProvider) tokenAttributes(t *tokenAttributes) {
	if t.Audience == "" {
		p.fault("tokenAttributes.serviceAccountTokenAudience", "is missing; write one of Pullpass's clusters[].audiences")
	}
	if !p.has("tokenAttributes.cacheType") {
		p.fault("tokenAttributes.cacheType", "is missing; write Token")
	} else {
		p.OneOf(p.path()+".tokenAttributes.cacheType", t.CacheType, "Token", "ServiceAccount")
	}
	if !p.has("tokenAttributes.requireServiceAccount") {
		p.fault("tokenAttributes.requireServiceAccount", "is missing; write true")
	} else if !t.RequireServiceAccount && len(t.RequiredAnnotations) > 0 {
		p.fault("tokenAttributes.requireServiceAccount", "must be true (false), because requiredServiceAccountAnnotationKeys is set; write true")
	}
	for _, keys := range []struct {
		name string
		keys []string
	}{{"requiredServiceAccountAnnotationKeys", t.RequiredAnnotations}, {"optionalServiceAccountAnnotationKeys", t.OptionalAnnotations}} {
		path := "tokenAttributes." + keys.name + "[%d]"
		p.Unique(len(keys.keys), p.path()+"."+path, func(i int) string { return keys.keys[i] })
		for i, key := range keys.keys {
			if len(validation.IsQualifiedName(strings.ToLower(key))) > 0 {
				p.fault(fmt.Sprintf(path, i), "is not the key of an annotation (%s); write it as kubectl annotate takes it", term.QuoteValue(key))
			}
		}
	}
	for i, key := range t.OptionalAnnotations {
		if slices.Contains(t.RequiredAnnotations, key) {
			p.fault(fmt.Sprintf("tokenAttributes.optionalServiceAccountAnnotationKeys[%d]", i), "is required as well (%s); keep it in one of the two lists", term.QuoteValue(key))
		}
	}
}

// providerNames finds names that are there twice: the kubelet takes all files
// of a directory as one.
func (l *linter) providerNames() {
	first := map[string]string{}
	for _, p := range l.all() {
		name := p.provider().Name
		if place, twice := first[name]; twice && name != "" {
			p.fault("name", "is the same as in %s (%s); each must differ, so link the binary under a second name", place, term.QuoteValue(name))
		} else {
			first[name] = fmt.Sprintf("%s of %s", p.path(), p.File)
		}
	}
}

func (l *linter) all() (all []lintedProvider) {
	for _, document := range l.providers {
		for i := range document.config.Providers {
			all = append(all, lintedProvider{document, i})
		}
	}
	return all
}

// ours returns the providers that are Pullpass's by their name, of the binary
// or of a link to it; without any, those for the registry, whose names may be
// mistyped.
func (l *linter) ours() []lintedProvider {
	all := l.all()
	named := slices.DeleteFunc(slices.Clone(all), func(p lintedProvider) bool { return !strings.HasPrefix(p.provider().Name, pluginName) })
	if len(named) > 0 {
		return named
	}
	return slices.DeleteFunc(all, func(p lintedProvider) bool { return !p.matches(l.target.Registry) })
}

func (p lintedProvider) matches(registry string) bool {
	return slices.ContainsFunc(p.provider().MatchImages, func(pattern string) bool {
		return registryDiffers(pattern, registry) == ""
	})
}

// registryDiffers says why a pattern matches no image of the registry, or
// nothing. Any path will do: it leaves out images, which may be meant.
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

// matched finds that the kubelet would never ask for the registry.
func (l *linter) matched(ours []lintedProvider) {
	if slices.ContainsFunc(ours, func(p lintedProvider) bool { return p.matches(l.target.Registry) }) {
		return
	}
	if len(ours) == 0 {
		l.providers[0].Fault("providers", "none is named %s or matches %s, so the kubelet pulls anonymously; add one (see kubelet-config --part provider)", pluginName, l.target.Registry)
		return
	}
	for _, p := range ours {
		for i, pattern := range p.provider().MatchImages {
			_, err := parseImagePattern(pattern)
			if problem, _ := patternFault(pattern); err == nil && problem == "" {
				p.fault(fmt.Sprintf("matchImages[%d]", i), "does not match %s (%s): %s; write %s",
					l.target.Registry, term.QuoteValue(pattern), registryDiffers(pattern, l.target.Registry), l.target.Registry)
			}
		}
	}
}

// judge finds what the kubelet accepts and Pullpass cannot work with.
func (p lintedProvider) judge(target Target) {
	c := p.provider()
	hosts := p.args(target)
	for i, pattern := range c.MatchImages {
		field := fmt.Sprintf("matchImages[%d]", i)
		parsed, err := parseImagePattern(pattern)
		if err != nil {
			continue // said already
		}
		if problem, remedy := patternFault(pattern); problem != "" {
			p.fault(field, "%s (%s); %s", problem, term.QuoteValue(pattern), remedy)
		} else if parsed.wide() && len(hosts) == 0 {
			p.fault(field, "may match a stranger's registry (%s), which would be handed the pod's token; name hosts, or add args: [\"--registry=%s\"]", term.QuoteValue(pattern), target.Registry)
		}
	}
	for i, variable := range c.Env {
		p.fault(fmt.Sprintf("env[%d]", i), "has no use (%s): the plugin reads no variables; remove it", term.QuoteValue(variable.Name))
	}
	if !p.has("tokenAttributes") {
		p.fault("tokenAttributes", "is missing, and the plugin gets no token; write it (see kubelet-config --part provider)")
		return
	}
	t := &c.TokenAttributes
	if t.Audience != "" && !slices.Contains(target.Cluster.Audiences, t.Audience) {
		p.fault("tokenAttributes.serviceAccountTokenAudience", "is not accepted (%s); write one of clusters[].audiences of cluster %s: %q", term.QuoteValue(t.Audience), target.Cluster.Name, target.Cluster.Audiences)
	}
	if t.CacheType == "ServiceAccount" {
		p.fault("tokenAttributes.cacheType", "must be Token (ServiceAccount): with another one the kubelet throws away the answer that holds the token; write Token")
	}
	if p.has("tokenAttributes.requireServiceAccount") && !t.RequireServiceAccount && len(t.RequiredAnnotations) == 0 {
		p.fault("tokenAttributes.requireServiceAccount", "must be true (false): without a ServiceAccount there is no token, and the plugin fails; write true")
	}
}

// args returns the hosts that the plugin is held to.
func (p lintedProvider) args(target Target) (hosts []string) {
	args := p.provider().Args
	for i := 0; i < len(args); i++ {
		field := fmt.Sprintf("args[%d]", i)
		host, found := strings.CutPrefix(args[i], "--registry=")
		if !found && args[i] == "--registry" && i+1 < len(args) {
			i++
			host, found = args[i], true
		}
		switch {
		case !found:
			p.fault(field, "is not known to the plugin, which refuses to work; write --registry=HOST or nothing")
		case !config.IsRegistryHost(host):
			p.fault(field, "is not a registry's host; write host or host:port as in the names of images")
		}
		hosts = append(hosts, host)
	}
	if len(hosts) > 0 && p.matches(target.Registry) && !slices.Contains(hosts, target.Registry) {
		p.fault("args", "do not hold %s, so the plugin refuses its images; add --registry=%s", target.Registry, target.Registry)
	}
	return hosts
}

func (p lintedProvider) binary(dir string) {
	name := p.provider().Name
	if name == "" || strings.Contains(name, "/") {
		return // said already
	}
	switch info, err := os.Stat(filepath.Join(dir, name)); {
	case err != nil:
		p.fault("name", "is not the name of a binary (%v), and the kubelet does not start; install the plugin there, or link it under this name", err)
	case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
		p.fault("name", "is not the name of a program (%s); make the file executable", filepath.Join(dir, name))
	case info.Mode()&0o022 != 0:
		p.fault("name", "is a program that not only its owner can change (%s), who could then read every token; chmod go-w", filepath.Join(dir, name))
	}
}
