package nodeinstall

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/base/term"
)

// ErrProvider means that a CredentialProviderConfig would prevent the kubelet from starting, or
// make it pull anonymously.
var ErrProvider = errors.New("not usable as the kubelet's provider configuration")

const providersVersion = "kubelet.config.k8s.io/v1"

// providerFile is a CredentialProviderConfig. Fields that Pullpass does not know stay unchanged.
type providerFile struct {
	root  *yaml.Node
	list  *yaml.Node // providers
	value map[string]any
	names []string
}

// parseProviders reads a file as strictly as the kubelet, whose decoder rejects repeated fields. It
// reads only the document that the kubelet would read.
func parseProviders(content []byte) (providerFile, error) {
	var f providerFile
	root, _, err := strictyaml.Parse(content, maxFileBytes)
	if err != nil {
		return f, fmt.Errorf("%w: %w; correct it", ErrProvider, err)
	}
	value, faults := strictyaml.Value(root)
	if len(faults) > 0 {
		return f, fmt.Errorf("%w: %s; correct it", ErrProvider, faults[0])
	}
	object, isObject := value.(map[string]any)
	if !isObject || object["kind"] != "CredentialProviderConfig" {
		return f, fmt.Errorf("%w: it is not a CredentialProviderConfig; name the right file", ErrProvider)
	}
	f = providerFile{root: root, list: strictyaml.Field(root, "providers"), value: object}
	list, isList := object["providers"].([]any)
	if !isList || f.list == nil {
		return f, fmt.Errorf("%w: providers is not a list; correct it", ErrProvider)
	}
	for i, element := range list {
		provider, _ := element.(map[string]any)
		name, _ := provider["name"].(string)
		switch {
		case name == "":
			return f, fmt.Errorf("%w: providers[%d] has no name; correct it", ErrProvider, i)
		case slices.Contains(f.names, name):
			return f, fmt.Errorf("%w: providers[%d] has the name of another provider (%s); each must differ", ErrProvider, i, term.QuoteValue(name))
		}
		f.names = append(f.names, name)
	}
	return f, nil
}

// beforeCacheType returns our providers for a kubelet 1.33. cacheType came with 1.34, and the
// kubelet exits at an unknown field. A kubelet 1.33 caches credentials for each ServiceAccount, but
// not those of our plugin, which returns a cacheDuration of zero.
func beforeCacheType(content []byte) ([]byte, error) {
	f, err := parseProviders(content)
	if err != nil {
		return nil, err
	}
	found := false
	for _, provider := range f.list.Content {
		attributes := strictyaml.Field(strictyaml.Resolve(provider), "tokenAttributes")
		if attributes == nil {
			continue
		}
		for i := 0; i+1 < len(attributes.Content); i += 2 {
			if attributes.Content[i].Value == "cacheType" {
				attributes.Content = slices.Delete(attributes.Content, i, i+2)
				found = true
			}
		}
	}
	if !found {
		return content, nil
	}
	return f.encode(content)
}

// addProviders adds our providers at the end. It replaces different providers with our names: the
// caller knows whether these are ours.
func (e edit) addProviders(content []byte) ([]byte, error) {
	current, err := parseProviders(content)
	if err != nil {
		return nil, err
	}
	if current.value["apiVersion"] != providersVersion {
		return nil, fmt.Errorf("%w: its apiVersion has no tokenAttributes (%s); write %s", ErrProvider, term.QuoteValue(fmt.Sprint(current.value["apiVersion"])), providersVersion)
	}
	ours, _ := strictyaml.Value(e.providers)
	there, _ := current.value["providers"].([]any)
	if n := len(there) - len(e.Ours); n >= 0 && reflect.DeepEqual(there[n:], ours) {
		return content, nil
	}
	if content, err = e.removeProviders(content); err != nil {
		return nil, err
	}
	base, err := parseProviders(content)
	if err != nil {
		return nil, err
	}
	base.list.Content = append(slices.Clone(base.list.Content), e.providers.Content...)
	next, err := base.encode(content)
	if err != nil {
		return nil, err
	}
	// Verify that the encoder has preserved everything of others.
	written, err := parseProviders(next)
	if err != nil {
		return nil, err
	}
	others, _ := base.value["providers"].([]any)
	list, _ := ours.([]any)
	base.value["providers"] = slices.Concat(others, list)
	if !reflect.DeepEqual(written.value, base.value) {
		return nil, fmt.Errorf("%w: it would not be the same with a provider more; write it without anchors", ErrProvider)
	}
	return next, nil
}

func (e edit) removeProviders(content []byte) ([]byte, error) {
	f, err := parseProviders(content)
	if err != nil {
		return nil, err
	}
	var kept []*yaml.Node
	for i, n := range f.list.Content {
		if !slices.Contains(e.Ours, f.names[i]) {
			kept = append(kept, n)
		}
	}
	if len(kept) == len(f.list.Content) {
		return content, nil
	}
	f.list.Content = kept
	return f.encode(content)
}

// encode writes JSON if the file was JSON, because others may read it as JSON.
func (f providerFile) encode(was []byte) ([]byte, error) {
	if bytes.HasPrefix(bytes.TrimLeft(was, " \t\r\n"), []byte("{")) {
		value, _ := strictyaml.Value(f.root)
		var b bytes.Buffer
		encoder := json.NewEncoder(&b)
		encoder.SetEscapeHTML(false)
		encoder.SetIndent("", "  ")
		err := encoder.Encode(value)
		return b.Bytes(), err
	}
	var b bytes.Buffer
	encoder := yaml.NewEncoder(&b)
	encoder.SetIndent(2)
	if err := encoder.Encode(f.root); err != nil {
		return nil, err
	}
	return b.Bytes(), encoder.Close()
}
