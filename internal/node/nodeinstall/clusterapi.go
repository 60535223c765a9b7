package nodeinstall

// The command reads the section that the version of containerd has. cloud-init continues after a failed
// command, but exit ends its script. Without the directory, the kubelet would not start either.
var clusterAPI = guide{
	name: "cluster-api",
	text: `# Cluster API: in the KubeadmConfigTemplate, and the same below kubeadmConfigSpec of the KubeadmControlPlane. Its first machine
# uses initConfiguration: there, write the nodeRegistration of joinConfiguration below initConfiguration, too.
# Put the plugin into the image of the machines, mode 0755: {{plugins}}/{{.Plugin}}
# Changed templates replace machines: nothing is restarted in place. Kubernetes 1.34 or later.
{{- if .Hosts}}
# Set containerd's config_path = "/etc/containerd/certs.d" in that image, too. image-builder sets none (its
# containerd_additional_settings can), and containerd then reads no hosts.toml{{if .Gateway}}: it sends pods' tokens to the registries{{end}}.
# The command below restarts containerd, and verifies it: else the machine does not join. Put commands that change the
# setting before it.
{{- end}}
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
{{- if .Hosts}}
      preKubeadmCommands:
      - |
        found=$(systemctl restart containerd && containerd config dump | sed -nE "/^ *\[plugins\.['\"]io\.containerd\.(grpc\.v1\.cri|cri\.v1\.images)['\"]\.registry\]/,/^ *\[/s,^ *config_path = ['\"](.*[^/])/?['\"],\1,p") || found="not known, because containerd does not restart"
        if [ "$found" != /etc/containerd/certs.d ]; then
          rm -rf {{config}}
          echo "pullpass: config_path of containerd is '$found', so it does not read /etc/containerd/certs.d. This machine does not join. Set config_path in its image." >&2
          exit 1
        fi
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
