package nodeinstall

var clusterAPI = guide{
	name: "cluster-api",
	text: `# Cluster API: in the KubeadmConfigTemplate, and the same below kubeadmConfigSpec of the KubeadmControlPlane.
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
