package nodeinstall

// Talos 1.14 split machine.kubelet and machine.registries into documents (its
// KubeCredentialProviderConfig and RegistryMirrorConfig). It rejects the first beside
// machine.kubelet.
var talos = guide{
	name: "talos",
	// Its kubelet runs in a container without containerd's directory, and only Talos writes there.
	hidesHosts: true,
	text: `# Talos 1.14 or later. The root is read-only, so the plugin comes as a system extension that installs it as
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
}

var talos113 = guide{
	name:       "talos-1.13",
	hidesHosts: true,
	text: `# Talos up to 1.13, and later ones whose machine configuration still has machine.kubelet. The root is read-only, so the
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
}
