package nodeconfig

import (
	"bytes"
	"slices"
)

// ProviderFile returns the CredentialProviderConfig, without the words on where
// to save it.
func (k Target) ProviderFile() ([]byte, error) { return k.file("provider", k.Registries[0]) }

// HostsFiles returns the hosts.toml of each registry that the nodes cannot do
// without: that of one behind the gateway, or with a client certificate.
func (k Target) HostsFiles() (map[string][]byte, error) {
	files := map[string][]byte{}
	if k.Gateway == "" && !k.Certificate {
		return files, nil
	}
	for _, registry := range k.Registries {
		content, err := k.file(hostsPart, registry)
		if err != nil {
			return nil, err
		}
		files[registry] = content
	}
	return files, nil
}

// file returns a part without the comments that it begins with.
func (k Target) file(name, registry string) ([]byte, error) {
	parts := allParts()
	var b bytes.Buffer
	if err := k.write(&b, parts[slices.IndexFunc(parts, func(p part) bool { return p.name == name })], registry); err != nil {
		return nil, err
	}
	content := b.Bytes()
	for bytes.HasPrefix(content, []byte("#")) {
		_, content, _ = bytes.Cut(content, []byte("\n"))
	}
	return content, nil
}

// PluginName is that of the plugin's program, and of the provider.
const PluginName = pluginName
