package nodeinstall

var karpenter = guide{
	name:          "karpenter",
	withoutClient: "eks",
	text: `# Karpenter: nodes come and go, so what they need is in the EC2NodeClass, and there before the kubelet starts. The flag comes
# after those of nodeadm, and wins. Kubernetes 1.34 or later: the directory has the file of ECR, too.
{{- if .Hosts}}
# nodeadm sets containerd's config_path. Do not change it in containerd.config of a NodeConfig: containerd would read no hosts.toml
{{- if .Gateway}},
# and send pods' tokens to the registries{{end}}.
{{- end}}
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
}
