package nodeconfig

import (
	"bytes"
	"slices"
)

// ProviderFile returns the CredentialProviderConfig without the comment about its path.
func (k Target) ProviderFile() ([]byte, error) { return k.file("provider", k.Registries[0]) }

// HostsFiles returns the hosts.toml of each registry for which the nodes need one. These are
// registries behind the gateway, with a client certificate, or with a CA. The CA is then in ca.crt
// in the same directory. For CRI-O, the content is what to do instead, as comments.
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
			// containerd resolves the name in the directory of hosts.toml.
			before, rest, _ := bytes.Cut(content, []byte("# ca = "))
			_, after, _ := bytes.Cut(rest, []byte("\n"))
			content = slices.Concat(before, []byte("ca = \"ca.crt\"\n"), after)
		}
		files[registry] = content
	}
	return files, nil
}

// file returns a part without its leading comments.
func (k Target) file(name, registry string) ([]byte, error) {
	parts := allParts()
	var b bytes.Buffer
	if err := k.write(&b, parts[slices.IndexFunc(parts, func(p part) bool { return p.name == name })], registry); err != nil {
		return nil, err
	}
	content := b.Bytes()
	if k.CRIO && name == hostsPart {
		return content, nil
	}
	for bytes.HasPrefix(content, []byte("#")) {
		_, content, _ = bytes.Cut(content, []byte("\n"))
	}
	return content, nil
}

// PluginName is the name of the plugin's program, and of the provider.
const PluginName = pluginName

// KubeletCertificate is the path of the certificate that kubelets renew themselves. A hosts.toml
// names it if node.proof of the cluster requires it.
const KubeletCertificate = "/var/lib/kubelet/pki/kubelet-client-current.pem"
