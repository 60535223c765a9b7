package nodeconfig

import (
	"bytes"
	"slices"
)

// ProviderFile returns the CredentialProviderConfig, without the words on where
// to save it.
func (k Target) ProviderFile() ([]byte, error) { return k.file("provider", k.Registries[0]) }

// HostsFiles returns the hosts.toml of each registry that the nodes cannot do
// without: that of one behind the gateway, with a client certificate, or with a CA,
// which is then ca.crt beside it.
func (k Target) HostsFiles(withCA bool) (map[string][]byte, error) {
	files := map[string][]byte{}
	if k.Gateway == "" && !k.Certificate && !withCA {
		return files, nil
	}
	for _, registry := range k.Registries {
		content, err := k.file(hostsPart, registry)
		if err != nil {
			return nil, err
		}
		if withCA {
			// containerd takes it for a file in the directory of hosts.toml, wherever that is.
			before, rest, _ := bytes.Cut(content, []byte("# ca = "))
			_, after, _ := bytes.Cut(rest, []byte("\n"))
			content = slices.Concat(before, []byte("ca = \"ca.crt\"\n"), after)
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

// KubeletCertificate is where kubelets keep it that renew it themselves. A hosts.toml
// names it if node.proof of the cluster asks for it.
const KubeletCertificate = "/var/lib/kubelet/pki/kubelet-client-current.pem"
