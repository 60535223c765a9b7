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
}

// Endpoint returns the URL that containerd must ask for the images of a registry.
func (g Guidance) Endpoint(registry string) string {
	if g.Gateway != "" {
		return g.Gateway + "/v2/" + registry
	}
	return "https://" + registry
}

// GuidedPlatforms returns the names of the platforms for which Guidance has a text.
func GuidedPlatforms() []string { return slices.Sorted(maps.Keys(guidance())) }

// Write prints the text for a platform.
func (g Guidance) Write(w io.Writer, platform string) error {
	text, known := guidance()[platform]
	if !known {
		problem := "is not known"
		if slices.Contains(Profiles(), platform) {
			problem = "is changed by pullpass node-install apply"
		}
		return fmt.Errorf("--profile %s %s; print knows %s", term.QuoteValue(platform), problem, strictyaml.List(GuidedPlatforms()))
	}
	if platform == "karpenter" && g.Client != "" && strings.Contains(strings.Join(slices.Collect(maps.Values(g.Hosts)), "\n"), strconv.Quote(g.Client)) {
		return fmt.Errorf("%w: node.proof of the cluster is by certificate, and kubelets of eks have none; write methods: [address] (docs/how-to/node-proof.md)", ErrProfile)
	}
	if strings.HasPrefix(platform, "talos") {
		// Its kubelet runs in a container without containerd's directory, and only Talos writes
		// there.
		provider, err := withoutGateway([]byte(g.Provider))
		if err != nil {
			return err
		}
		g.Provider = string(provider)
	}
	t, err := template.New(platform).Funcs(template.FuncMap{
		"indent": indent, "base64": func(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) },
		"config": func() string { return ownConfigDir }, "plugins": func() string { return ownPluginDir },
	}).Parse(text)
	if err != nil {
		return err
	}
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

// guidance returns the texts. docs/how-to/nodes.md has the source of each path.
func guidance() map[string]string {
	return map[string]string{
		// Talos 1.14 split machine.kubelet and machine.registries into documents (its
		// KubeCredentialProviderConfig and RegistryMirrorConfig). It rejects the first beside
		// machine.kubelet.
		"talos": `# Talos 1.14 or later. The root is read-only, so the plugin comes as a system extension that installs it as
# /usr/local/lib/kubelet/credentialproviders/{{.Plugin}}
# Then, for every machine (talosctl patch machineconfig --patch @FILE).
# A machine configuration that still has machine.kubelet cannot have the first document: print --profile talos-1.13 for it.
apiVersion: v1alpha1
kind: KubeCredentialProviderConfig
configuration:
{{indent 2 .Provider}}
{{- range $registry, $hosts := .Hosts}}
---
apiVersion: v1alpha1
kind: RegistryMirrorConfig
name: {{printf "%q" $registry}}
endpoints:
- url: {{printf "%q" ($.Endpoint $registry)}}
  overridePath: {{if $.Gateway}}true{{else}}false{{end}}
skipFallback: true # else containerd asks the registry itself after any error, and sends it the pod's token
{{- end}}
`,
		"talos-1.13": `# Talos up to 1.13, and later ones whose machine configuration still has machine.kubelet. The root is read-only, so the
# plugin comes as a system extension that installs it as
# /usr/local/lib/kubelet/credentialproviders/{{.Plugin}}
# Then, for every machine (talosctl patch machineconfig --patch @FILE):
machine:
  kubelet:
    credentialProviderConfig:
{{indent 6 .Provider}}
{{- if .Hosts}}
  registries:
    mirrors:
{{- range $registry, $hosts := .Hosts}}
      {{printf "%q" $registry}}:
        endpoints: [{{printf "%q" ($.Endpoint $registry)}}]
        overridePath: {{if $.Gateway}}true{{else}}false{{end}}
        skipFallback: true # else containerd asks the registry itself after any error, and sends it the pod's token
{{- end}}
{{- end}}
`,
		"openshift": `# OpenShift 4.21 or later: /usr is read-only and the Machine Config Operator owns /etc. A MachineConfig each for workers
# and control plane, with the plugin bind mounted as /usr/libexec/kubelet-image-credential-provider-plugins/{{.Plugin}}
# The nodes are restarted by the operator, as many at a time as maxUnavailable of their pool.
# CRI-O reads no hosts.toml: of registries behind the gateway, images have to name the gateway.
apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata:
  name: 99-worker-pullpass
  labels: {machineconfiguration.openshift.io/role: worker}
spec:
  config:
    ignition: {version: 3.4.0}
    storage:
      files:
      - path: /etc/kubernetes/credential-providers/pullpass.yaml
        mode: 0644
        contents:
          source: "data:text/plain;charset=utf-8;base64,{{base64 .Provider}}"
`,
		"bottlerocket": `# Bottlerocket: not possible. settings.kubernetes.credential-providers has no tokenAttributes, so the plugin
# would get no token, and plugins come with the image, which is read-only.
# Use images of AL2023 for nodes that pull through Pullpass, or imagePullSecrets.
`,
		"karpenter": `# Karpenter: nodes come and go, so what they need is in the EC2NodeClass, and there before the kubelet starts. The flag comes
# after those of nodeadm, and wins. Kubernetes 1.34 or later: the directory has the file of ECR, too.
apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
spec:
  userData: |
    MIME-Version: 1.0
    Content-Type: multipart/mixed; boundary="pullpass"

    --pullpass
    Content-Type: text/x-shellscript; charset="us-ascii"

    #!/bin/bash
    set -euo pipefail
    # Put the plugin there first, mode 0755: /etc/eks/image-credential-provider/{{.Plugin}}
    install -d {{config}}
    ln -sfn /etc/eks/image-credential-provider/config.json {{config}}/platform.json
    cat >{{config}}/pullpass.yaml <<'EOF'
{{indent 4 .Provider}}
    EOF
{{- range $registry, $hosts := .Hosts}}
    install -d /etc/containerd/certs.d/{{$registry}}
    cat >/etc/containerd/certs.d/{{$registry}}/hosts.toml <<'EOF'
{{indent 4 $hosts}}
    EOF
{{- end}}

    --pullpass
    Content-Type: application/node.eks.aws

    apiVersion: node.eks.aws/v1alpha1
    kind: NodeConfig
    spec:
      kubelet:
        flags:
        - --image-credential-provider-config={{config}}
    --pullpass--
`,
		"cluster-api": `# Cluster API: in the KubeadmConfigTemplate, and the same below kubeadmConfigSpec of the KubeadmControlPlane.
# Put the plugin into the image of the machines, mode 0755: {{plugins}}/{{.Plugin}}
# Changed templates replace machines: nothing is restarted in place. Kubernetes 1.34 or later.
apiVersion: bootstrap.cluster.x-k8s.io/v1beta2
kind: KubeadmConfigTemplate
spec:
  template:
    spec:
      files:
      - path: {{config}}/pullpass.yaml
        permissions: "0644"
        content: |
{{indent 10 .Provider}}
{{- range $registry, $hosts := .Hosts}}
      - path: /etc/containerd/certs.d/{{$registry}}/hosts.toml
        permissions: "0644"
        content: |
{{indent 10 $hosts}}
{{- end}}
      joinConfiguration:
        nodeRegistration:
          kubeletExtraArgs: # a list; in v1beta1 of this API, a mapping
          - name: image-credential-provider-config
            value: {{config}}
          - name: image-credential-provider-bin-dir
            value: {{plugins}}
`,
	}
}
